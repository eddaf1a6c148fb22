"""From a run and one of its checkpoints to the algorithm that acts, with or without environments.

The spaces come from the checkpoint, which carries them as JSON. Those of older runs do not: then the environment is built once, read
and closed.
"""

from __future__ import annotations

import dataclasses
import warnings
from pathlib import Path
from typing import Any

import torch

from fugu.algorithm.contract import Algorithm
from fugu.algorithm.setup import Agents
from fugu.emulation.env import EnvSpec
from fugu.emulation.spec_json import spec_from_json
from fugu.errors import ConfigError, SpaceError
from fugu.run.run import Run
from fugu.trainer import checkpoint
from fugu.trainer.build import make_algorithm, make_vec
from fugu.trainer.checkpoint import Checkpoint, CheckpointError
from fugu.trainer.checkpoint_format import MANIFEST
from fugu.trainer.config import TrainConfig
from fugu.trainer.state import load_for_playing


def find(text: str | Path, which: str | int, runs: str | Path, **code: Any) -> tuple[Run, Path]:
    """Return the run that ``text`` means and the checkpoint ``which`` of it; ``text`` may also be the folder of a checkpoint. ``code``
    goes to ``Run``."""
    path = Path(text)
    if not (path / MANIFEST).is_file():
        run = Run(text, runs, **code)
        return run, checkpoint.find(run.folder.checkpoints, which)
    if which != "latest":
        raise ConfigError(f"{path} is a checkpoint already; leave out which={which!r}, or give the folder of its run")
    above = next((folder for folder in path.absolute().parents[:3] if (folder / "config.toml").is_file()), None)
    if above is None:
        raise ConfigError(
            f"{path} is a checkpoint without its run: none of the folders above has a config.toml, which says what its network is; "
            "keep it in the run's folder checkpoints/"
        )
    return Run(above, runs, **code), path


def restored(config: TrainConfig, agents: Agents, device: torch.device, saved: Checkpoint) -> Algorithm:
    """Return the algorithm of a run with everything in ``saved`` that acting needs."""
    algorithm = make_algorithm(config.from_checkpoint(), agents, device)
    with checkpoint.fitting_into(saved.path):
        load_for_playing(algorithm, saved.tensors)
    return algorithm


def env_of(run: Run, saved: Checkpoint) -> EnvSpec:
    """Return what the policy in ``saved`` must know of its environments."""
    written: Any = saved.state.get("env")
    if written is not None:
        try:
            return spec_from_json(written)
        except SpaceError as error:
            raise CheckpointError(f"{saved.path}: what it says of its environments is no such thing: {error}") from None
    warnings.warn(
        f"{saved.path} does not say which spaces its policy has: {run.config.env} is built once to ask it",
        RuntimeWarning,
        stacklevel=4,
    )
    one = dataclasses.replace(
        run.config.vector, num_envs=1, batch_size=None, num_workers=None, compile=None, backend="auto", device=None
    )
    with make_vec(dataclasses.replace(run.config, vector=one, minibatch=None, device="cpu", precision="auto")) as vec:
        return vec.spec
