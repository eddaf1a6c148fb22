"""Callbacks: functions and objects of the user's own that watch a training, may log further metrics, and may end it.

A callback is a function ``f(run, metrics)``, which is called as ``on_update`` is, or an object with some of the methods in ``METHODS``.
``metrics`` are those of the update that was just done, as ``metrics.jsonl`` will have them; what a callback writes into them under a
name of its own (``user/...``) is logged as well. Errors of callbacks end the training, saved, as one ``CallbackError``.
"""

from __future__ import annotations

import contextlib
import inspect
import numbers
import warnings
from collections.abc import Callable, Iterator, Sequence
from contextlib import contextmanager
from pathlib import Path
from typing import Any

from fugu.errors import ConfigError, FuguError, did_you_mean, raised

METHODS: dict[str, tuple[str, ...]] = {
    "on_start": ("run",),
    "on_update": ("run", "metrics"),
    "on_checkpoint": ("run", "path"),
    "on_evaluation": ("run", "evaluation"),
    "on_end": ("run",),
}
"""method -> its arguments"""

OWN = ("user/", "time/user/", "env/", "loss/")
"""prefixes of the names under which a callback may log"""


class CallbackError(FuguError):
    """A callback raised, or returned what means nothing. The training ended and was saved."""


class _Failed(Exception):
    """What went wrong in a callback, before the training is saved."""


class Callbacks:
    """Checks callbacks, and calls those that have a method for what happens. False if there are none."""

    def __init__(self, callbacks: Sequence[Any] = ()) -> None:
        if not isinstance(callbacks, list | tuple):
            raise ConfigError(f"callbacks={callbacks!r:.60} must be a list", fix="write callbacks=[...]")
        self._calls: dict[str, list[tuple[str, Callable[..., Any]]]] = {method: [] for method in METHODS}
        """method -> name and function of each callback that has it, in the order they were given"""
        for number, callback in enumerate(callbacks):
            for method, function in _methods(callback, number).items():
                self._calls[method].append((_name(callback, method, plain=function is callback), function))
        self._run: Any = None

    def __bool__(self) -> bool:
        return any(self._calls.values())

    @contextmanager
    def watching(self, run: Any, trainer: Any) -> Iterator[None]:
        """Let the callbacks see ``run``, with ``trainer`` in it, from its start to its end."""
        self._run, run.trainer = run, trainer
        try:
            try:
                self._call("on_start")
                yield
            except BaseException:
                self._call("on_end", only_warn=True)
                raise
            self._call("on_end")
        except _Failed as failed:
            raise CallbackError(str(failed)) from failed.__cause__
        finally:
            self._run = run.trainer = None

    def updated(self, metrics: dict[str, float], evaluation: Any = None) -> bool:
        """Tell of an update, and of an ``evaluation`` after it; add to ``metrics`` what callbacks log. True: end the training."""
        ends = False
        if evaluation is not None:
            ends |= self._call("on_evaluation", evaluation)
        known = set(metrics)
        for name, function in self._calls["on_update"]:
            shown = dict(metrics)
            ends |= _verdict(name, self._guarded(name, function, shown))
            metrics.update(_added(name, metrics, shown, known))
        return ends

    def saved(self, path: Path, *, only_warn: bool = False) -> None:
        """Tell of the checkpoint ``path``. ``only_warn``: the training ends by another error, which matters more."""
        self._call("on_checkpoint", path, only_warn=only_warn)

    def _call(self, method: str, *arguments: Any, only_warn: bool = False) -> bool:
        ends = False
        for name, function in self._calls[method]:
            try:
                ends |= _verdict(name, self._guarded(name, function, *arguments))
            except _Failed as failed:
                if not only_warn:
                    raise
                warnings.warn(str(failed), RuntimeWarning, stacklevel=2)
        return ends

    def _guarded(self, name: str, function: Callable[..., Any], *arguments: Any) -> Any:
        try:
            return function(self._run, *arguments)
        except (Exception, SystemExit) as error:
            raise _Failed(f"the callback {name} raised {raised(error)}") from error


def _methods(callback: Any, number: int) -> dict[str, Callable[..., Any]]:
    """Return the methods of a callback by name; ConfigError if it cannot be one."""
    what = f"callbacks[{number}] ({_short(callback)})"
    if isinstance(callback, type):
        raise ConfigError(f"{what} is a class", fix=f"give an object of it: {callback.__name__}()")
    members = [name for name in dir(callback) if name.startswith("on_") and callable(getattr(callback, name, None))]
    for member in members:
        if member not in METHODS:
            raise ConfigError(
                f"{what} has {member}, which is never called.{did_you_mean(member, METHODS)} "
                "If it is meant for something else, begin its name with an underscore"
            )
    found = {name: getattr(callback, name) for name in members}
    if not found and callable(callback):
        found = {"on_update": callback}
    if not found:
        raise ConfigError(
            f"{what} is neither a function f(run, metrics) nor an object with any of the methods {', '.join(METHODS)}"
        )
    for method, function in found.items():
        _check_parameters(what, method, function, plain=function is callback)
    return found


def _check_parameters(what: str, method: str, function: Callable[..., Any], *, plain: bool) -> None:
    called = f"{'f' if plain else method}({', '.join(METHODS[method])})"
    if inspect.iscoroutinefunction(function):
        raise ConfigError(f"{what}: {called} is async, and nothing would await it", fix="write def instead of async def")
    try:
        signature = inspect.signature(function)
    except (TypeError, ValueError):  # of some built-in functions nothing is known
        return
    try:
        signature.bind(*METHODS[method])
    except TypeError:
        own = "" if plain else "self, "
        raise ConfigError(
            f"{what} is called as {called}, but takes {signature}",
            fix=f"write def {called.replace('(', f'({own}', 1)}",
        ) from None


def _verdict(name: str, said: Any) -> bool:
    """Return whether a callback ended the training."""
    if said is None:
        return False
    if isinstance(said, bool) or type(said).__name__ in ("bool", "bool_"):  # numpy's
        return bool(said)
    raise _Failed(f"the callback {name} returned {said!r:.60}; return True to end the training, False or None to go on")


def _added(name: str, before: dict[str, float], after: dict[str, float], known: set[str]) -> dict[str, float]:
    """Return what a callback wrote into the metrics, checked. ``known``: names that are not a callback's to write."""
    found = {}
    gone = known - after.keys()
    for metric, value in after.items():
        if metric in before and value is before[metric]:
            continue
        if metric in known:
            gone.add(metric)
        elif not isinstance(metric, str) or not metric.startswith(OWN) or metric in OWN:
            raise _Failed(f"the callback {name} logged {metric!r}; a name of its own begins with {', '.join(OWN)}")
        else:
            found[metric] = _number(name, metric, value)
    if gone:
        raise _Failed(
            f"the callback {name} changed {min(gone)!r}, which is the training's; log under a name of your own: user/..."
        )
    return found


def _number(name: str, metric: str, value: Any) -> float:
    with contextlib.suppress(Exception):
        value = value.item() if hasattr(value, "item") else value
    if not isinstance(value, numbers.Real):
        raise _Failed(f"the callback {name} logged {metric}={value!r:.60}; log a number")
    return float(value)


def _name(callback: Any, method: str, *, plain: bool) -> str:
    """Return how messages name a callback: its function's name, or ``Class.method``."""
    kind = type(callback).__qualname__
    return str(getattr(callback, "__qualname__", kind)) if plain else f"{kind}.{method}"


def _short(callback: Any) -> str:
    name = getattr(callback, "__name__", None)
    return str(name) if name else f"{callback!r:.60}"
