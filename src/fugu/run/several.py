"""A training of several ranks: the first draws, writes and reports; all others do what it does and say nothing.

A process of torchrun has one rank, or, in ``exact`` mode, its share of a fixed number: each beyond its first is a thread.
"""

from __future__ import annotations

import dataclasses
import os
import shutil
import threading
from collections.abc import Iterator, Sequence
from contextlib import ExitStack, contextmanager, suppress
from pathlib import Path

from fugu import files
from fugu.config import override
from fugu.errors import ConfigError
from fugu.ranks import Ranks
from fugu.run import store
from fugu.run.store import RunFolder
from fugu.together import Together, first_says, job, join, launched
from fugu.trainer.build import make_trainer
from fugu.trainer.config import TrainConfig
from fugu.trainer.interrupt import Interrupt
from fugu.trainer.loop import Trainer

JOB = "job"
"""file in a run's folder with the name of what was launched to train it"""


def joined(config: TrainConfig) -> tuple[TrainConfig, list[Ranks]]:
    """Return the config with the number of processes that there are, and the ranks of this process."""
    count = launched()
    if count is None and config.ranks.processes > 1:
        n = config.ranks.processes
        raise ConfigError(
            f"ranks.processes={n}: a script is started {n} times by torchrun --nproc-per-node {n} SCRIPT.py; "
            f"fugu train --processes {n} starts them itself"
        )
    settings = config.ranks
    ranks = join(mode=settings.mode, shards=settings.shards, timeout=settings.timeout, cuda=config.device.startswith("cuda"))
    if count is not None and count != settings.processes:
        config = override(config, {"ranks.processes": count})
    return config, ranks


def here(config: TrainConfig) -> TrainConfig:
    """Return the config with the GPU of this process."""
    if config.device != "cuda" or (launched() or 1) == 1:
        return config
    return dataclasses.replace(config, device=f"cuda:{os.environ.get('LOCAL_RANK', '0')}")


def earlier(root: Path, first: bool) -> Path | None:
    """Return the run that was being trained when one of its processes ended; None if this is no restart."""
    name = job()
    if (launched() or 1) == 1 or name is None:
        return None
    return first_says(_named(root, name) if first else None)


def _named(root: Path, name: str) -> Path | None:
    for folder in store.runs(root):
        with suppress(OSError, ValueError):
            if (folder.at / JOB).read_text() != name:
                continue
            if any(folder.checkpoints.glob("step_*")):
                return folder.path
            shutil.rmtree(folder.at)  # it ended before there was anything to keep, and its name is wanted again
    return None


def note_job(folder: RunFolder) -> None:
    """Note in a new run's folder what was launched to train it."""
    name = os.environ.get("TORCHELASTIC_RUN_ID")
    if name and (launched() or 1) > 1:
        files.write(folder.at / JOB, name)


@contextmanager
def beside(config: TrainConfig, ranks: Sequence[Ranks], path: Path | None) -> Iterator[None]:
    """Let the other ranks of this process learn, each in a thread, while its first does inside. ``path``: the checkpoint to begin
    with."""
    errors: list[BaseException] = []
    with ExitStack() as stack:
        trainers = []
        for each in ranks[1:]:
            trainers.append(make_trainer(here(config), ranks=each))
            stack.callback(trainers[-1].close)

        def work(trainer: Trainer) -> None:
            try:
                learn(trainer, path)
            except BaseException as error:
                errors.append(error)
                _leave(trainer.ranks)

        threads = [threading.Thread(target=work, args=(each,), name="fugu-rank", daemon=True) for each in trainers]
        for thread in threads:
            thread.start()
        try:
            yield
        except BaseException:
            _leave(ranks[0])
            raise
        finally:
            for thread in threads:
                thread.join()


def learn(trainer: Trainer, path: Path | None) -> None:
    """Train a rank that is not the first."""
    if path is None:
        trainer.start()
    else:
        trainer.load(path)
        if trainer.finished:
            return
    with Interrupt() as interrupt:
        trainer.run(lambda metrics: None, interrupt)


def accompany(config: TrainConfig, ranks: Sequence[Ranks]) -> Path:
    """Train the ranks of a process that is not the first. Returns the path of the run, as the first process has it."""
    with ExitStack() as stack:
        trainer = make_trainer(here(config), ranks=ranks[0])
        stack.callback(trainer.close)
        run, checkpoint = first_says(None)
        stack.enter_context(beside(config, ranks, checkpoint))
        learn(trainer, checkpoint)
        return Path(run)


def _leave(ranks: Ranks) -> None:
    if isinstance(ranks, Together):
        ranks.leave()
