"""A rank of ``scale.py``: trains breakout with one thread and prints the steps per second of all ranks together."""

from __future__ import annotations

import sys
import time

from fugu.config import override
from fugu.presets import preset
from fugu.together import join
from fugu.trainer.build import make_trainer
from fugu.trainer.interrupt import Interrupt


def main(mode: str, warm_up: str, updates: str) -> None:
    (ranks,) = join(mode=mode, shards=None, timeout=300, cuda=False)
    config = override(preset("breakout"), {"threads": 1, "vector.num_workers": 1, "steps": 10**9})
    trainer = make_trainer(config, ranks=ranks)
    trainer.start()
    interrupt = Interrupt()
    for _ in range(int(warm_up)):
        trainer.update(interrupt)
    ranks.any(False)
    began, steps = time.perf_counter(), trainer.steps
    for _ in range(int(updates)):
        trainer.update(interrupt)
    ranks.any(False)
    print((trainer.steps - steps) / (time.perf_counter() - began))
    trainer.close()


if __name__ == "__main__":
    main(*sys.argv[1:])
