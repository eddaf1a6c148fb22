"""What callbacks and infos cost a training on a CPU, used and unused, beside a version of fugu that has neither.

    python benchmarks/callbacks.py --before PYTHON --out benchmarks/results/callbacks.json    # about six minutes

``PYTHON`` belongs to an environment in which the earlier version is installed; without it only this version is measured. The figures
are seconds of CPU time of one training, imports and a first short training left out, in a process of its own with one thread.

``updates``   many small updates of the native cartpole: without callbacks, and with one that has every method and does nothing
``infos``     CartPole-v1 in this process, whose infos are empty, and a wrapper around it that says two numbers in every step
"""

from __future__ import annotations

import argparse
import json
import subprocess
import sys
import tempfile
import time
import warnings
from functools import partial
from typing import Any

import gymnasium

from harness import alternate, ratios, report, summaries

UPDATES: dict[str, Any] = {"steps": 600_000, "num_envs": 64, "horizon": 16, "minibatch": 1024, "epochs": 1}
"""586 updates of 1,024 rows"""
INFOS: dict[str, Any] = {"steps": 60_000, "num_envs": 16, "horizon": 64, "minibatch": 1024, "epochs": 1, "backend": "serial"}
CHECKOUT = "earlier"


class Saying(gymnasium.Wrapper):
    """CartPole that says two numbers in every step."""

    def __init__(self) -> None:
        super().__init__(gymnasium.make("CartPole-v1"))

    def step(self, action: Any) -> Any:
        obs, reward, terminated, truncated, _ = self.env.step(action)
        return obs, reward, terminated, truncated, {"is_success": truncated, "distance": abs(float(obs[0]))}


class Passive:
    """Has every method, and does nothing."""

    def on_start(self, run: Any) -> None: ...

    def on_update(self, run: Any, metrics: dict[str, float]) -> None: ...

    def on_checkpoint(self, run: Any, path: Any) -> None: ...

    def on_evaluation(self, run: Any, evaluation: Any) -> None: ...

    def on_end(self, run: Any) -> None: ...


TRAININGS: dict[str, tuple[str, dict[str, Any]]] = {
    "updates": ("cartpole", UPDATES),
    "updates, callback": ("cartpole", {**UPDATES, "callbacks": [Passive()]}),
    "infos, empty": ("CartPole-v1", INFOS),
    "infos, two said": (f"{__file__}:Saying", INFOS),
    "infos, two logged": (f"{__file__}:Saying", {**INFOS, "log.infos": ["distance"]}),
}
"""name -> environment and settings; an earlier version can do those without callbacks and ``log.infos``"""

EARLIER = ("updates", "infos, empty", "infos, two said")
PAIRS = [
    ("updates", f"{CHECKOUT}: updates"),
    ("updates, callback", "updates"),
    ("infos, empty", f"{CHECKOUT}: infos, empty"),
    ("infos, two said", f"{CHECKOUT}: infos, two said"),
    ("infos, two logged", "infos, two said"),
]


def train(name: str) -> None:
    """Do the training ``name`` and print the seconds of CPU time it took."""
    import fugu

    env, settings = TRAININGS[name]
    with tempfile.TemporaryDirectory() as runs, warnings.catch_warnings():
        warnings.simplefilter("ignore")
        fixed: dict[str, Any] = {"runs": runs, "threads": 1, "hidden": (64, 64), "log.board": "off"}
        fugu.train(env, **{**settings, "steps": 5_000}, **fixed)
        start = time.process_time()
        fugu.train(env, **settings, **fixed)
        print(json.dumps(time.process_time() - start))


def measured(python: str, name: str) -> float:
    done = subprocess.run([python, __file__, "--train", name], check=True, capture_output=True, text=True)
    return float(json.loads(done.stdout.splitlines()[-1]))


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--before", help="Python of an environment with an earlier version")
    parser.add_argument("--repeats", type=int, default=9)
    parser.add_argument("--out", help="also write the JSON here")
    parser.add_argument("--train", choices=TRAININGS, help=argparse.SUPPRESS)
    options = parser.parse_args()
    if options.train:
        train(options.train)
        return
    contestants = {name: partial(measured, sys.executable, name) for name in TRAININGS}
    if options.before:
        contestants |= {f"{CHECKOUT}: {name}": partial(measured, options.before, name) for name in EARLIER}
    found = alternate(contestants, options.repeats)
    pairs = [pair for pair in PAIRS if set(pair) <= set(contestants)]
    report("callbacks", {"cpu_seconds": summaries(found), "ratios": ratios(found, pairs)}, options.out)


if __name__ == "__main__":
    main()
