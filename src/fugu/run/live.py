"""A training run while it is live: the loop with its sinks, its board and its report on the machine."""

from __future__ import annotations

import dataclasses
from contextlib import ExitStack, closing, suppress

from fugu import files
from fugu.emulation.place import title
from fugu.run.dashboard import Dashboard, Header
from fugu.run.ending import explained, interrupted, noting_failure
from fugu.run.moved import Followed
from fugu.run.output import Output
from fugu.run.run import Run
from fugu.run.sinks import Sinks, open_sinks
from fugu.run.system import System
from fugu.run.timer import Timer, shares
from fugu.trainer.interrupt import Interrupt
from fugu.trainer.loop import Trainer
from fugu.trainer.precision import would_gain


def attend(run: Run, trainer: Trainer, timer: Timer, output: Output) -> Run:
    """Let ``trainer`` train, and report on it until it ends."""
    with ExitStack() as stack:
        outputs = open_sinks(run.folder, run.config.log, dataclasses.asdict(run.config), trainer.updates, trainer.steps)
        stack.callback(outputs.close)
        header = Header(
            run=str(run.path),
            env=title(run.config.env, run.config.env_kwargs),
            total_steps=run.config.steps,
            from_step=trainer.steps,
            device=str(trainer.source.device),
            native=trainer.source.can_snapshot,
            half=would_gain(run.config.precision, trainer.algorithm.policy),
        )
        stack.enter_context(noting_failure(run))
        output.keep(run.folder.output, run.path / run.folder.output.name)
        board = stack.enter_context(Dashboard(header, run.config.log, output.terminal))
        output.above = board.above
        followed = stack.enter_context(closing(Followed(run, trainer)))
        report = Report(run, trainer, timer, outputs, board, followed)
        interrupt = stack.enter_context(Interrupt())
        stack.enter_context(explained(run, trainer))
        stack.enter_context(output.telling())
        with trainer.callbacks.watching(run, trainer):
            trainer.run(report, interrupt)
            followed.look()
        if trainer.ended:
            with suppress(OSError):  # a disk that is full
                files.write(run.folder.ended, "")
        if interrupt.asked:
            raise interrupted(interrupt.asked, run, trainer.steps)
    return run


class Report:
    """Adds the machine's metrics to those of an update, and passes them on."""

    def __init__(self, run: Run, trainer: Trainer, timer: Timer, outputs: Sinks, board: Dashboard, followed: Followed) -> None:
        self.followed = followed
        self.trainer, self.timer, self.outputs, self.board = trainer, timer, outputs, board
        device = trainer.source.device
        self.system = System(device.index or 0 if device.type == "cuda" else None)
        earlier = run.folder.read_timing()
        self.wall = max(0.0, earlier[-1].get("time/wall", 0.0)) if earlier else 0.0  # never NaN, with 0.0 as the first
        self.steps = trainer.steps
        timer.take()

    def __call__(self, metrics: dict[str, float]) -> None:
        self.followed.look()
        spent = self.timer.take()
        seconds = max(sum(spent.values()), 1e-9)
        self.wall += seconds
        metrics["time/wall"] = self.wall
        metrics["time/steps_per_second"] = (self.trainer.steps - self.steps) / seconds
        metrics.update(shares(spent))
        metrics.update({f"time/{name}": waited / seconds for name, waited in self.trainer.source.waited().items()})
        metrics.update(self.system.sample())
        metrics.update(self.trainer.source.measured())
        self.steps = self.trainer.steps
        self.outputs.write(self.trainer.steps, metrics)
        self.board.update(metrics)
