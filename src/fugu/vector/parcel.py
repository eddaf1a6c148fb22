"""What the parent and its workers send each other, as bytes. What a worker sends can be read without executing anything of an env's.

Infos and results are numbers, text, arrays and containers as a rule: plain data, read by an unpickler that can make nothing else.
Only where an environment sends objects are these pickled, each by itself, and each is read once in the worker that sends it: one
that cannot be read, or ends the process that reads it, does so there. What cannot be sent is named, or stands as text.
"""

from __future__ import annotations

import builtins
import collections
import contextlib
import io
import pickle
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from types import BuiltinFunctionType, FunctionType
from typing import Any

import cloudpickle
import gymnasium
import numpy as np

from fugu import errors
from fugu.emulation.env import Infos
from fugu.errors import ConfigError

UNPICKLABLE = "unpicklable"
"""key in an info: names of what could not be sent"""


@dataclass(frozen=True)
class Sealed:
    """An object, pickled."""

    content: bytes

    def open(self) -> Any:
        """Return the object. Raise whatever an environment's own code raises."""
        return pickle.loads(self.content)


_KINDS = (complex, range, slice, collections.OrderedDict, collections.deque, collections.defaultdict, collections.Counter)
_MADE_BY = (
    np.ndarray,
    np.dtype,
    np.ndarray.__reduce__(np.zeros(1))[0],
    np.zeros(1).__reduce_ex__(5)[0],
    np.float32(1).__reduce__()[0],
)
"""what numpy has its arrays, types and numbers made by when they are read"""
_FLAT = frozenset((bool, int, float, str, bytes, type(None), np.bool_, np.int32, np.int64, np.float32, np.float64))
_ERRORS = [kind for part in (builtins, errors) for kind in vars(part).values() if isinstance(kind, type)]
_PLAIN: list[Any] = [*_KINDS, *_MADE_BY, Sealed, *(kind for kind in _ERRORS if issubclass(kind, BaseException))]
_BY_NAME = {(thing.__module__, thing.__qualname__): thing for thing in _PLAIN}
_IDS = frozenset(map(id, _PLAIN))


class _NotPlain(Exception):
    pass


class _Writer(pickle.Pickler):
    def reducer_override(self, value: Any) -> Any:
        """Called for all but numbers, text and the usual containers."""
        kind = type(value)
        if isinstance(value, type | FunctionType | BuiltinFunctionType):
            known = id(value) in _IDS
        else:
            known = kind in _KINDS or kind is np.ndarray or kind is Sealed or isinstance(value, np.generic | np.dtype)
        if not known:
            raise _NotPlain
        return NotImplemented


class _Reader(pickle.Unpickler):
    def find_class(self, module: str, name: str) -> Any:
        found = _BY_NAME.get((module, name))
        if found is None:
            raise pickle.UnpicklingError(f"{module}.{name} is no plain data")
        return found


def pack(value: Any) -> bytes:
    """Return ``value`` as bytes; raise if it is not plain data."""
    out = io.BytesIO()
    _Writer(out, protocol=5).dump(value)
    return out.getvalue()


def unpack(content: bytes) -> Any:
    """Return what was packed, with objects in it still sealed."""
    return _Reader(io.BytesIO(content)).load()


# --- in a worker, where whatever is raised is an environment's doing ---


def pack_infos(infos: Infos) -> bytes:
    """Return infos as bytes; what cannot be sent is named."""
    try:
        return pickle.dumps(infos, 5) if all(map(_is_flat, infos.values())) else pack(infos)
    except BaseException:
        return pack({agent: _sendable(info) for agent, info in infos.items()})


def pack_results(results: Sequence[Any]) -> bytes:
    """Return results as bytes; what cannot be sent stands as text."""
    try:
        return pack(results)
    except BaseException:
        return pack([value if _is_plain(value) else seal(value) or _text(value) for value in results])


def seal(value: Any) -> Sealed | None:
    """Pickle an object: plainly, or with cloudpickle for what is defined in the user's script. None if it cannot be read again."""
    for dumps in (pickle.dumps, cloudpickle.dumps):
        try:
            sealed = Sealed(dumps(value))
            sealed.open()
        except BaseException:
            continue
        return sealed
    return None


def _is_flat(info: Mapping[Any, Any]) -> bool:
    """Return True if an info is seen at a glance to be plain data, as most are."""
    if type(info) is not dict:
        return False
    for key, value in info.items():
        kind = type(value)
        if type(key) is not str or not (kind in _FLAT or (kind is np.ndarray and not value.dtype.hasobject)):
            return False
    return True


def _sendable(info: Mapping[Any, Any]) -> dict[Any, Any]:
    kept: dict[Any, Any] = {}
    dropped = []
    for key, value in info.items():
        name = key if _is_plain(key) else _text(key)
        sent = value if _is_plain(value) else seal(value)
        if sent is None and value is not None:
            dropped.append(_text(key))
        else:
            kept[name] = sent
    return {**kept, UNPICKLABLE: dropped} if dropped else kept


def _is_plain(value: Any) -> bool:
    try:
        pack(value)
    except BaseException:
        return False
    return True


def _text(value: Any) -> str:
    try:
        return str(value) if isinstance(value, str) else repr(value)
    except BaseException:
        return f"(a {type(value).__name__} without readable text)"


# --- in the parent ---


def pickled(value: Any, what: str, fix: str = "") -> bytes:
    """Return something for a worker as bytes; ConfigError if ``what`` cannot be sent."""
    try:
        return cloudpickle.dumps(value)
    except Exception as error:
        raise ConfigError(f"{what} cannot be sent to a worker process: {type(error).__name__}: {error}", fix=fix) from error


def registered() -> bytes:
    """Return the ids registered beside Gymnasium's own, so that a factory in a worker can make them by name."""
    specs = [spec for spec in gymnasium.registry.values() if not str(spec.entry_point).startswith("gymnasium.")]
    with contextlib.suppress(Exception):  # one that cannot travel must not keep the others from it
        return cloudpickle.dumps(specs)
    return cloudpickle.dumps([spec for spec in specs if isinstance(spec.entry_point, str) and not spec.kwargs])


def open_infos(infos: Infos, agents: slice) -> Infos:
    """Open what is sealed in infos of ``agents``; what cannot be read here is named, like what could not be sent."""
    if not isinstance(infos, dict) or not {*infos} <= {*range(agents.start, agents.stop)}:
        raise ValueError("these are no infos")
    for info in infos.values():
        if not isinstance(info, dict):
            raise ValueError("these are no infos")
        for key in [key for key, value in info.items() if type(value) is Sealed]:
            try:
                info[key] = info[key].open()
            except KeyboardInterrupt:
                raise
            except BaseException:
                del info[key]
                named = info.get(UNPICKLABLE)
                info[UNPICKLABLE] = [*(named if isinstance(named, list) else ()), str(key)]
    return infos
