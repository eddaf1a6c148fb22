"""Training from start to end: make a run's folder, let the loop run, write its reports, and end well whatever happens."""

from __future__ import annotations

import dataclasses
import operator
import os
import shlex
import signal
from collections.abc import Iterator, Mapping
from contextlib import ExitStack, contextmanager, suppress
from pathlib import Path
from typing import Any

from fugu.algorithm.find import is_own
from fugu.config import fitting, fixed_paths, override, to_toml
from fugu.emulation.place import from_anywhere, title
from fugu.errors import ConfigError, FuguError, places, raised
from fugu.gpu import failure
from fugu.presets import preset
from fugu.run import store
from fugu.run.dashboard import Dashboard, Header
from fugu.run.run import Run
from fugu.run.sinks import Sinks, open_sinks
from fugu.run.system import System
from fugu.run.timer import Timer, shares
from fugu.trainer import checkpoint
from fugu.trainer.build import make_trainer
from fugu.trainer.config import TrainConfig, refuse_unread, with_algorithm
from fugu.trainer.diverged import Diverged
from fugu.trainer.interrupt import Interrupt
from fugu.trainer.loop import Trainer
from fugu.trainer.precision import would_gain
from fugu.vector.config import VectorConfig


class Interrupted(FuguError):
    """A signal ended the training; everything was saved."""

    def __init__(self, number: int, run: Run, steps: int) -> None:
        self.signal, self.run = number, run
        name = signal.Signals(number).name
        super().__init__(f"{name}: saved at step {steps:,}; go on with: fugu train --resume {shlex.quote(str(run.path))}")


def train(env: Any = "cartpole", *, config: TrainConfig | None = None, runs: str | Path = "runs", **settings: Any) -> Run:
    """Train a policy and return the run.

    ``env`` is anything ``fugu.vector.make`` takes by name. ``settings`` change fields of the environment's preset, by a name that
    is unique (``steps=100_000``, ``learning_rate=1e-3``), by section (``ppo={"gamma": 0.9}``) or by path; or give a whole
    ``config``.
    """
    if isinstance(settings.get("policy"), str):
        settings["policy.net"] = settings.pop("policy")
    if config is None:
        if not isinstance(env, str):
            raise ConfigError(f"train() takes an environment by name (Gymnasium id, file.py:Class, ...), got {env!r:.60}")
        algorithm = fitting("algorithm", settings.get("algorithm"), str | None)
        env_kwargs = fitting("env_kwargs", settings.get("env_kwargs", {}), Mapping[str, Any])
        config = preset(
            env,
            env_kwargs,
            str(settings.get("device", "cpu")),
            None if algorithm is None else from_anywhere(algorithm),
            start_timeout=fitting("vector.start_timeout", _start_timeout(settings), float),
        )
        settings["env_kwargs"] = {**config.env_kwargs, **env_kwargs}
    if "algorithm" in settings:
        config = with_algorithm(config, from_anywhere(fitting("algorithm", settings.pop("algorithm"), str)))
    refuse_unread(config, settings)
    config = override(config, settings)
    config = override(config, {"env": from_anywhere(config.env), "policy.net": from_anywhere(config.policy.net)})
    if config.policy.start is not None:
        config = override(config, {"policy.start": str(Path(config.policy.start).resolve())})
    text = to_toml(config)  # refuses what could not be read back
    with ExitStack() as stack:
        stack.enter_context(failure.explained())
        timer = Timer()
        trainer = make_trainer(config, clock=timer)
        stack.callback(trainer.close)
        folder = store.create(Path(runs), Path(title(config.env, config.env_kwargs)).name)
        _write(folder.config, text)
        stack.enter_context(folder.lock())
        trainer.folder = folder.checkpoints
        stack.callback(folder.discard_if_empty)
        trainer.start()
        return _run(Run(folder), trainer, timer)


def _start_timeout(settings: Mapping[str, Any]) -> float:
    """Return the start timeout in ``settings``, in any of their forms: a preset may have to build an environment before there is a
    config."""
    section = settings.get("vector", {})
    inner = section.get("start_timeout") if isinstance(section, Mapping) else getattr(section, "start_timeout", None)
    return settings.get("start_timeout") or settings.get("vector.start_timeout") or inner or VectorConfig.start_timeout


def resume(run: Run, changes: Mapping[str, Any] | None = None) -> Run:
    """Train on from the newest good checkpoint, exactly as the run would have gone on."""
    refuse_unread(run.config, changes or {})
    config = run.with_config(changes or {})
    _refuse_other_run(run.config, config)
    with ExitStack() as stack:
        stack.enter_context(failure.explained())
        stack.enter_context(run.folder.lock())
        path = checkpoint.find(run.folder.checkpoints, "latest")
        timer = Timer()
        trainer = make_trainer(config.from_checkpoint(), run.folder.checkpoints, timer)
        stack.callback(trainer.close)
        trainer.load(path)
        if trainer.finished:
            raise ConfigError(_done(run, trainer))
        if config != run.config:
            _write(run.folder.config, to_toml(config))
            run.config = config
        if run.folder.diverged.exists():
            run.folder.diverged.replace(run.folder.diverged.with_stem("diverged-earlier"))
        return _run(run, trainer, timer)


def _refuse_other_run(before: TrainConfig, after: TrainConfig) -> None:
    for path in fixed_paths(before):
        name = ".".join(path)
        get = operator.attrgetter(name)
        if get(before) != get(after):
            raise ConfigError(f"a run that goes on cannot change {name}; start a new one for that")


def _done(run: Run, trainer: Trainer) -> str:
    command = f"fugu train --resume {shlex.quote(str(run.path))}"
    steps, target = trainer.steps, trainer.config.target
    if steps >= trainer.config.steps:
        return f"this run has done its {steps:,} steps; give it more to do: {command} --steps {2 * steps}"
    return f"this run has reached its target of {target:g}; drop it: {command} --target None"


def _write(path: Path, text: str) -> None:
    """Write the file at once or not at all."""
    draft = path.with_suffix(".tmp")
    with draft.open("w", encoding="utf-8") as file:
        file.write(text)
        file.flush()
        os.fsync(file.fileno())
    draft.replace(path)


class Report:
    """Adds the machine's metrics to those of an update, and passes them on."""

    def __init__(self, run: Run, trainer: Trainer, timer: Timer, outputs: Sinks, board: Dashboard) -> None:
        self.trainer, self.timer, self.outputs, self.board = trainer, timer, outputs, board
        device = trainer.source.device
        self.system = System(device.index or 0 if device.type == "cuda" else None)
        earlier = run.folder.read_timing()
        self.wall = earlier[-1]["time/wall"] if earlier else 0.0
        self.steps = trainer.steps
        timer.take()

    def __call__(self, metrics: dict[str, float]) -> None:
        spent = self.timer.take()
        seconds = max(sum(spent.values()), 1e-9)
        self.wall += seconds
        metrics["time/wall"] = self.wall
        metrics["time/steps_per_second"] = (self.trainer.steps - self.steps) / seconds
        metrics.update(shares(spent))
        metrics.update(self.system.sample())
        self.steps = self.trainer.steps
        self.outputs.write(self.trainer.steps, metrics)
        self.board.update(metrics)


@contextmanager
def _noting_failure(run: Run) -> Iterator[None]:
    """Keep for ``fugu runs`` how the training ends: the error that ended it, or a marker that stays if the process is killed or
    left by ``os._exit``."""
    folder, owner = run.folder, os.getpid()
    folder.failed.unlink(missing_ok=True)
    with suppress(OSError):  # a disk that is full
        folder.running.write_text(f"{owner}\n")
    try:
        yield
    except Interrupted:
        raise
    except Exception as error:
        with suppress(OSError):  # the error itself is already reported
            folder.failed.write_text(f"{type(error).__name__}: {error}\n")
        raise
    finally:
        if os.getpid() == owner:  # and no fork of it
            with suppress(OSError):
                folder.running.unlink(missing_ok=True)


def _run(run: Run, trainer: Trainer, timer: Timer) -> Run:
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
        stack.enter_context(_noting_failure(run))
        board = stack.enter_context(Dashboard(header, run.config.log))
        report = Report(run, trainer, timer, outputs, board)
        interrupt = stack.enter_context(Interrupt())
        try:
            trainer.run(report, interrupt)
        except Diverged as error:
            error.save(run.folder.diverged)
            good = checkpoint.find(run.folder.checkpoints, "latest") if trainer.saved_step is not None else None
            raise FuguError(
                f"{error}\n  the minibatch is in {run.folder.diverged}"
                + (f"\n  the last good checkpoint is {good}" if good else "\n  there was no checkpoint yet")
            ) from error
        except Exception as error:  # a network of the user's own may raise anything
            own = [name for name in (run.config.algorithm, run.config.policy.net) if is_own(name)]
            ours = isinstance(error, FuguError) or not own or not places(error)
            if ours or run.config.device != "cpu":  # what a GPU has to say is explained elsewhere
                raise
            step, path = trainer.saved_step, shlex.quote(str(run.path))
            saved = f"\n  saved at step {step:,}; go on with: fugu train --resume {path}" if step else ""
            raise FuguError(f"{own[0]} raised {raised(error)}{saved}") from error
        if interrupt.asked:
            raise Interrupted(interrupt.asked, run, trainer.steps)
    return run
