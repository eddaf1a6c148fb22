"""Trains on a rank. As a program: the process of one rank, which says what came of each algorithm, one line each.

``python -m tests.trainer.ranks_of_process MODE ALGORITHM...``; ``killed`` in the place of an algorithm ends rank 1 like ``kill -9``.
"""

from __future__ import annotations

import contextlib
import dataclasses
import hashlib
import json
import os
import signal
import sys
import threading
from pathlib import Path
from typing import Any

from fugu.ranks import Ranks
from fugu.together import LOST, RankLost, join
from fugu.trainer.build import make_trainer
from fugu.trainer.config import TrainConfig
from fugu.trainer.interrupt import Interrupt
from tests.algorithm.recorded import recording
from tests.contract.test_algorithms import BASE, CASES

ALL = tuple(name for name in CASES if name != "own")
ONE_AT_A_TIME = threading.Lock()


def config_of(case: str, **changes: Any) -> TrainConfig:
    """Return a short training, the same on every rank."""
    plain = TrainConfig(algorithm=case)
    settings = {**BASE, **CASES[case], **changes}
    if "data" in settings:
        settings["data"] = {**settings["data"], "path": recording(settings["env"])}
    for name, value in settings.items():
        if isinstance(value, dict) and name != "env_kwargs":
            settings[name] = dataclasses.replace(getattr(plain, name), **value)
    return TrainConfig(algorithm=case, **settings)


def train(
    config: TrainConfig, ranks: Ranks, folder: Path | None = None, resume: Path | None = None, updates: int = 10**9
) -> dict[str, Any]:
    """Train on a rank, the first of which saves. Returns the metrics of each update, and a hash of the weights."""
    with ONE_AT_A_TIME:  # weights are drawn from torch's own generator, which the threads of a process share
        trainer = make_trainer(config, folder if ranks.rank == 0 else None, ranks=ranks)
    try:
        trainer.load(resume) if resume else trainer.start()
        seen: list[dict[str, float]] = []

        def report(metrics: dict[str, float]) -> None:
            seen.append(metrics)
            if len(seen) == updates:
                raise KeyboardInterrupt

        with contextlib.suppress(KeyboardInterrupt):
            trainer.run(report, Interrupt())
        weights = hashlib.blake2b()
        for parameter in trainer.algorithm.parameters():
            weights.update(parameter.detach().numpy().tobytes())
        return {"metrics": seen, "weights": weights.hexdigest()}
    finally:
        trainer.close()


def main(mode: str, *cases: str) -> int:
    (ranks,) = join(mode=mode, shards=None, timeout=float(os.environ["TIMEOUT"]), cuda=False)
    for case in cases:
        if case == "killed":
            if ranks.rank == 1:
                os.kill(os.getpid(), signal.SIGKILL)
            try:
                while not ranks.any(False):
                    pass
            except RankLost as error:
                print(error, file=sys.stderr)
                return LOST
        print(json.dumps(train(config_of(case), ranks)), flush=True)
    return 0


if __name__ == "__main__":
    sys.exit(main(*sys.argv[1:]))
