"""An update of Dreamer beside one of r2dreamer (PyTorch) with the same sizes, in turns in one process: CPU milliseconds on one thread.

python benchmarks/dreamer_peer.py --peer FOLDER     # a checkout of NM512/r2dreamer; needs tensordict and omegaconf

Both learn from 16 segments of 32 rows of CartPole's shape with a decoder, and imagine 15 steps. r2dreamer imagines from every row; our
preset from 128 of them, so ours is measured in both ways. r2dreamer runs in float32 and without torch.compile, which is its faster way
on a CPU.
"""

from __future__ import annotations

import argparse
import contextlib
import importlib
import sys
from functools import partial
from pathlib import Path
from typing import Any
from unittest.mock import patch

import gymnasium
import numpy as np
import torch

sys.path.insert(0, str(Path(__file__).parent.parent))

from benchmarks import dreamer_speed, harness

import fugu.native
from fugu.policy.config_world import SIZES

ROWS, OBS, ACTIONS = 32, dreamer_speed.OBS, dreamer_speed.ACTIONS
ALL = dreamer_speed.SEGMENTS * ROWS


class Peer:
    """r2dreamer's learner, and a replay that gives it the same batch again and again."""

    def __init__(self, folder: Path) -> None:
        from omegaconf import OmegaConf
        from tensordict import TensorDict

        size, config = SIZES["small"], OmegaConf.load(folder / "configs/model/_base_.yaml")
        keys = {"mlp_keys": "state", "cnn_keys": "$^"}
        own = {"deter": size.deter, "hidden": size.hidden, "discrete": size.classes, "depth": size.depth, "units": size.units}
        own |= {"act": "SiLU", "norm": True, "compile": False, "rep_loss": "dreamer", "rssm": {"stoch": size.stoch}}
        whole = OmegaConf.create({"device": "cpu", "env": {"encoder": keys, "decoder": keys}})
        whole["model"] = OmegaConf.merge(config, own)
        OmegaConf.resolve(whole)
        obs = gymnasium.spaces.Dict({"state": gymnasium.spaces.Box(-1, 1, (OBS,), np.float32)})
        action = gymnasium.spaces.Box(0, 1, (ACTIONS,), np.float32)
        action.discrete, action.n = True, ACTIONS
        sys.path.insert(0, str(folder))
        self._module = importlib.import_module("dreamer")
        with contextlib.redirect_stdout(sys.stderr):
            self._learner = self._module.Dreamer(whole.model, obs, action)
        made = dreamer_speed.made_up(size, ROWS)
        flag = partial(torch.zeros, dreamer_speed.SEGMENTS, ROWS, 1, dtype=torch.bool)
        choice = torch.nn.functional.one_hot(made["action"].squeeze(-1), ACTIONS).float()
        columns = {"state": made["obs"], "reward": made["reward"][..., None], "action": choice}
        columns |= {"is_first": flag(), "is_last": flag(), "is_terminal": flag()}
        self._data = TensorDict(columns, batch_size=(dreamer_speed.SEGMENTS, ROWS))
        stoch = torch.zeros(dreamer_speed.SEGMENTS, size.stoch, size.classes)
        self._initial = stoch, torch.zeros(dreamer_speed.SEGMENTS, size.deter)

    def sample(self) -> Any:
        return self._data.clone(), None, self._initial

    def update(self, *_: Any) -> None:
        """Take back the states, which are learned from no more."""

    def learn(self) -> None:
        with patch.object(self._module, "autocast", lambda **_: contextlib.nullcontext()):
            self._learner.update(self)


def small(repeats: int, folder: Path) -> dict[str, Any]:
    with dreamer_speed.one_thread():
        fugu.native.keep_freed_memory()
        peer = Peer(folder)
        ours = dreamer_speed.Learner("small", native=True)
        with patch.dict(dreamer_speed.CASES, small=(ROWS, ALL)):
            everywhere = dreamer_speed.Learner("small", native=True)
        contestants = {"fugu, 128 starts": ours.update, f"fugu, {ALL} starts": everywhere.update, "r2dreamer": peer.learn}
        for call in [*contestants.values()] * 2:
            call()
        results = harness.alternate({name: partial(dreamer_speed.spent, call) for name, call in contestants.items()}, repeats)
        pairs = [("r2dreamer", name) for name in contestants if name != "r2dreamer"]
        return {"milliseconds": harness.summaries(results), "ratios": harness.ratios(results, pairs)}


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--peer", type=Path, required=True, help="folder of r2dreamer")
    parser.add_argument("--repeats", type=int, default=11)
    parser.add_argument("--out", help="also write the JSON here")
    options = parser.parse_args()
    harness.report("dreamer_peer", {"small": small(options.repeats, options.peer)}, options.out)


if __name__ == "__main__":
    main()
