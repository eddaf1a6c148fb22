"""Destinations of metrics: two JSONL files always; TensorBoard, Weights & Biases and a logger of the user's own if asked for.

``metrics.jsonl`` holds what the config and the seed decide, ``timing.jsonl`` the rest (see ``metrics.py``), one line per write,
each with ``updates`` and ``steps``. A run resumed from a checkpoint first removes the lines after it (``truncate``), so that its
file equals that of a run never interrupted. A sink that fails (disk full, service down) warns once; training goes on.
"""

from __future__ import annotations

import contextlib
import inspect
import json
import math
import os
import warnings
from collections.abc import Mapping, Sequence
from pathlib import Path
from typing import Any, Protocol

from fugu import files
from fugu.emulation.factory import load_named
from fugu.errors import ConfigError, FuguError, LoadError, MissingExtra, raised
from fugu.run.metrics import describe
from fugu.run.store import RunFolder, bad_line, parse_line
from fugu.trainer.config_parts import LogConfig


class Sink(Protocol):
    def write(self, step: int, metrics: Mapping[str, float]) -> None:
        """Write ``metrics`` (names of ``metrics.py``, ``updates`` among them) after ``step`` environment steps."""

    def close(self) -> None: ...


def open_sinks(folder: RunFolder, log: LogConfig, config: Mapping[str, Any], after_updates: int = 0, step: int = 0) -> Sinks:
    """Open everything ``log`` asks for, before work starts. ``after_updates`` and ``step``: where a resumed run goes on."""
    lines = JsonLines(folder)
    sinks: list[Sink] = [lines]
    try:
        if log.sink is not None:
            sinks.append(OwnSink(log.sink, folder, config))
        last = lines.truncate(after_updates)
        if log.tensorboard:
            sinks.append(TensorBoard(folder, step))
        if log.wandb != "off":
            sinks.append(WeightsAndBiases(folder, log, config, forgotten=max(0, last - step)))
    except BaseException:
        Sinks(sinks).close()
        raise
    return Sinks(sinks)


class Sinks:
    """Several sinks as one. One that raises is closed and left out from then on."""

    def __init__(self, sinks: Sequence[Sink]) -> None:
        self._sinks = list(sinks)

    def write(self, step: int, metrics: Mapping[str, float]) -> None:
        if "updates" not in metrics:
            raise FuguError(
                f"metrics to write must have updates, by which a resumed run finds its place; got {', '.join(metrics)}"
            )
        for name in metrics:
            describe(name)
        for sink in tuple(self._sinks):
            try:
                sink.write(step, metrics)
            except Exception as error:
                self._sinks.remove(sink)
                _warn(f"{_name(sink)} failed and is left out from here on: {_why(sink, error)}")
                _close(sink)

    def close(self) -> None:
        while self._sinks:
            _close(self._sinks.pop())


class JsonLines:
    def __init__(self, folder: RunFolder) -> None:
        self._files = {True: _File(folder.metrics), False: _File(folder.timing)}
        self._deterministic: dict[str, bool] = {}

    def write(self, step: int, metrics: Mapping[str, float]) -> None:
        place = {"updates": int(metrics["updates"]), "steps": int(step)}
        rows: dict[bool, dict[str, Any]] = {True: dict(place), False: dict(place)}
        for name, value in metrics.items():
            if name in place:
                continue
            deterministic = self._deterministic.get(name)
            if deterministic is None:
                deterministic = self._deterministic[name] = describe(name).deterministic
            rows[deterministic][name] = _number(value)
        for deterministic, row in rows.items():
            if len(row) > len(place) or deterministic:
                self._files[deterministic].append(row)

    def truncate(self, after_updates: int) -> int:
        """Remove the lines of later updates, and the remains of a kill at the end. A bad line before the end is a RunError, with
        both files as they were: what follows it is not ours to throw away. Returns the steps of the last line there was."""
        ends = [(file, *file.end(after_updates)) for file in self._files.values()]
        for file, end, _ in ends:
            file.truncate(end)
        return max(steps for *_, steps in ends)

    def close(self) -> None:
        for file in self._files.values():
            file.close()


class _File:
    """Appends whole lines: a line that could be written only in part is removed again."""

    def __init__(self, path: Path) -> None:
        self._path = path
        self._warned = False
        self._descriptor = -1
        try:
            self._descriptor = files.opened(path, os.O_RDWR | os.O_CREAT | os.O_APPEND)
        except OSError as error:
            raise ConfigError(f"metrics cannot be written to {path}: {error.strerror}") from None
        self._size = os.fstat(self._descriptor).st_size

    def append(self, row: Mapping[str, Any]) -> None:
        data = json.dumps(row, allow_nan=False, ensure_ascii=False).encode() + b"\n"
        try:
            written = os.write(self._descriptor, data)
            if written < len(data):
                written += os.write(self._descriptor, data[written:])  # says why
            self._size += written
        except OSError as error:
            os.ftruncate(self._descriptor, self._size)
            if not self._warned:
                _warn(f"{self._path} misses lines from here on: {error.strerror}")
                self._warned = True

    def end(self, after_updates: int) -> tuple[int, int]:
        """Return the end of the lines up to that update, in bytes, and the steps of the last line of all."""
        end = steps = 0
        later = False
        bad: FuguError | None = None
        for number, line in enumerate(files.lines(self._path), 1):
            if bad is not None:
                raise bad
            row = parse_line(line) if line.endswith(b"\n") else None
            if row is None and (not later or len(line) == files.LINE):
                bad = bad_line(self._path, number, line)  # unless it is the last
            later = later or row is None or row["updates"] > after_updates
            if not later:
                end += len(line)
            if row is not None:
                steps = int(row["steps"])
        return end, steps

    def truncate(self, end: int) -> None:
        os.ftruncate(self._descriptor, end)
        self._size = end

    def close(self) -> None:
        if self._descriptor >= 0:
            os.close(self._descriptor)
            self._descriptor = -1


class TensorBoard:
    """Events in ``events/`` of the run's folder, for ``tensorboard --logdir runs``."""

    def __init__(self, folder: RunFolder, step: int = 0) -> None:
        try:
            from torch.utils.tensorboard import SummaryWriter
        except ImportError:
            raise MissingExtra("--log.tensorboard", "tb") from None
        self._writer = SummaryWriter(str(folder.events), purge_step=step or None, flush_secs=10)

    def write(self, step: int, metrics: Mapping[str, float]) -> None:
        for name, value in metrics.items():
            number = _number(value)
            if number is not None and name != "steps":
                self._writer.add_scalar(name, number, step)

    def close(self) -> None:
        self._writer.close()


class WeightsAndBiases:
    """A run in ``wandb/`` of the run's folder, sent to the service only if ``online``; ``wandb sync`` sends it later.

    W&B's own step may only rise: it drops lines below the last one it saw. A run that was killed had logged beyond the checkpoint it
    goes on from, by ``forgotten`` steps. So W&B's step is ours plus all that was ever forgotten, and its charts are drawn over
    ``steps``, the metric; the forgotten lines stay there beside those that took their place.
    """

    def __init__(self, folder: RunFolder, log: LogConfig, config: Mapping[str, Any], forgotten: int = 0) -> None:
        try:
            import wandb
        except ImportError:
            raise MissingExtra("--log.wandb", "wandb") from None
        try:
            self._run = wandb.init(
                mode=log.wandb,
                project=log.wandb_project,
                name=folder.name,
                id=folder.name,
                resume="allow",
                dir=str(folder.path),
                config=dict(config),
                settings=wandb.Settings(silent=True, console="off"),
            )
        except Exception as error:
            raise ConfigError(f"Weights & Biases did not start: {error}. --log.wandb offline needs no account") from error

        self._run.define_metric("steps")
        self._run.define_metric("*", step_metric="steps")
        self._ahead = forgotten
        ahead = folder.path / "wandb" / "ahead"
        with contextlib.suppress(OSError, ValueError):
            self._ahead += int(files.read(ahead, 100))
        if self._ahead:
            with contextlib.suppress(OSError):  # a disk that is full
                ahead.parent.mkdir(exist_ok=True)
                files.write(ahead, f"{self._ahead}\n")

    def write(self, step: int, metrics: Mapping[str, float]) -> None:
        self._run.log({name: _number(value) for name, value in metrics.items()} | {"steps": step}, step=step + self._ahead)

    def close(self) -> None:
        self._run.finish()


class OwnSink:
    """A logger of the user's own: ``Class(folder, config)``, which are the run's path and its config as a dict."""

    def __init__(self, name: str, folder: RunFolder, config: Mapping[str, Any]) -> None:
        self.name = name
        kind = self._kind(name)
        try:
            self._inner = kind(folder.path, dict(config))
        except Exception as error:
            raise ConfigError(f"log.sink={name}: {kind.__name__}(folder, config) failed: {raised(error)}") from error

    @staticmethod
    def _kind(name: str) -> Any:
        """Return the class, found and checked."""
        try:
            kind = load_named(name)
        except LoadError:
            raise
        except ConfigError as error:
            raise ConfigError(f"log.sink: {error}") from None
        if not isinstance(kind, type):
            raise ConfigError(f"log.sink={name} must be a class, got {kind!r:.60}")
        calls = {"__init__": ("folder", "config"), "write": ("step", "metrics"), "close": ()}
        for method, arguments in calls.items():
            function = getattr(kind, method, None)
            wanted = f"def {method}({', '.join(('self', *arguments))})"
            if not callable(function):
                raise ConfigError(f"log.sink={name} has no {method}; a logger has {wanted}")
            try:
                inspect.signature(function).bind(None, *arguments)
            except TypeError:
                got = f"{method}{inspect.signature(function)}"
                raise ConfigError(f"log.sink={name} has {got}; it must take what {wanted} takes") from None
            except ValueError:  # of some built-in functions nothing is known
                pass
        return kind

    def write(self, step: int, metrics: Mapping[str, float]) -> None:
        self._inner.write(step, dict(metrics))

    def close(self) -> None:
        self._inner.close()


def _name(sink: Sink) -> str:
    return sink.name if isinstance(sink, OwnSink) else type(sink).__name__


def _why(sink: Sink, error: Exception) -> str:
    return raised(error) if isinstance(sink, OwnSink) else repr(error)


def _number(value: Any) -> float | int | None:
    """Return a plain number, or None if it is not finite, which JSON cannot express."""
    if hasattr(value, "item"):
        value = value.item()
    return value if math.isfinite(value) else None


def _close(sink: Sink) -> None:
    try:
        sink.close()
    except Exception as error:
        _warn(f"{_name(sink)} did not close: {_why(sink, error)}")


def _warn(message: str) -> None:
    warnings.warn(message, RuntimeWarning, stacklevel=3)
