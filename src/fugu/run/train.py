"""Train: make a run's folder, let the loop run, write down what it reports, and end well whatever happens."""

from __future__ import annotations

import signal
import time
from collections.abc import Mapping
from contextlib import ExitStack
from pathlib import Path
from typing import Any

from fugu.config import override, to_toml
from fugu.errors import ConfigError, FuguError
from fugu.presets import preset
from fugu.run import sinks, store
from fugu.run.dashboard import make_board
from fugu.run.run import Run
from fugu.run.system import Usage
from fugu.run.timer import Timer
from fugu.trainer import checkpoint
from fugu.trainer.build import make_trainer
from fugu.trainer.config import TrainConfig
from fugu.trainer.diverged import Diverged
from fugu.trainer.interrupt import Interrupt
from fugu.trainer.loop import Trainer


class Interrupted(FuguError):
    """A signal ended the training; everything was saved."""

    def __init__(self, number: int, run: Run, steps: int) -> None:
        self.signal, self.run = number, run
        name = signal.Signals(number).name
        super().__init__(f"{name}: saved at step {steps:,}; go on with: fugu train --resume {run.path}")


def train(env: Any = "cartpole", *, config: TrainConfig | None = None, runs: str | Path = "runs", **settings: Any) -> Run:
    """Train a policy and return the run.

    ``env`` is whatever ``fugu.vector.make`` takes by name. ``settings`` change fields of the environment's preset, by a name that is
    unique (``steps=100_000``, ``learning_rate=1e-3``), by section (``ppo={"gamma": 0.9}``) or by path; or give a whole ``config``.
    """
    if config is None:
        if not isinstance(env, str):
            raise ConfigError(f"train() takes an environment by name (Gymnasium id, file.py:Class, ...), got {env!r:.60}")
        config = preset(env, settings.get("env_kwargs"))
    config = override(config, settings)
    with ExitStack() as stack:
        timer = Timer()
        trainer = make_trainer(config, clock=timer)
        stack.callback(trainer.source.vec.close)
        folder = store.create(Path(runs), Path(config.env).name)
        folder.config.write_text(to_toml(config))
        trainer.folder = folder.checkpoints
        trainer.start()
        return _run(Run(folder), trainer, timer)


def resume(run: Run, changes: Mapping[str, Any] | None = None) -> Run:
    """Train on from the newest good checkpoint, exactly as the run would have gone on."""
    config = run.with_config(changes or {})
    path = checkpoint.find(run.folder.checkpoints, "latest")
    with ExitStack() as stack:
        timer = Timer()
        trainer = make_trainer(config, run.folder.checkpoints, timer)
        stack.callback(trainer.source.vec.close)
        trainer.load(path)
        if trainer.finished:
            raise ConfigError(
                f"this run has done its {config.steps:,} steps; give it more to do: "
                f"fugu train --resume {run.path} --steps {2 * config.steps}"
            )
        if config != run.config:
            run.folder.config.write_text(to_toml(config))
            run.config = config
        return _run(run, trainer, timer)


def _run(run: Run, trainer: Trainer, timer: Timer) -> Run:
    config = trainer.config
    with ExitStack() as stack:
        outputs = sinks.open_sinks(run.folder, config, after_updates=trainer.updates)
        stack.callback(lambda: [sink.close() for sink in outputs])
        board = stack.enter_context(make_board(run, trainer))
        usage = Usage(trainer.source.device)
        state = {"since": time.perf_counter(), "steps": trainer.steps, "updates": trainer.updates}
        began = time.perf_counter()
        timer.take()

        def report(metrics: dict[str, float]) -> None:
            if trainer.updates % config.log.every and not trainer.finished:
                return
            now = time.perf_counter()
            seconds = now - state["since"]
            metrics["time/wall"] = now - began
            metrics["time/steps_per_second"] = (trainer.steps - state["steps"]) / max(seconds, 1e-9)
            shares = {f"time/{phase}": spent / max(seconds, 1e-9) for phase, spent in timer.take().items()}
            metrics.update(shares)
            metrics["time/other"] = max(0.0, 1 - sum(shares.values()))
            metrics.update(usage.read())
            state.update(since=now, steps=trainer.steps, updates=trainer.updates)
            for sink in outputs:
                sink.write(trainer.steps, metrics)
            board.update(metrics)

        interrupt = stack.enter_context(Interrupt())
        try:
            trainer.run(report, interrupt)
        except Diverged as error:
            file = error.save(run.path)
            good = checkpoint.find(run.folder.checkpoints, "latest") if trainer.saved_step is not None else None
            raise FuguError(
                f"{error}\n  the minibatch is in {file}"
                + (f"\n  the last good checkpoint is {good}" if good else "\n  there was no checkpoint yet")
            ) from error
        if interrupt.asked:
            board.close()
            raise Interrupted(interrupt.asked, run, trainer.steps)
    return run
