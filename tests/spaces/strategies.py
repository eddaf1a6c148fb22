"""Random spaces, values of them, and values that do not quite fit, for the property tests of ``fugu.spaces``.

Hypothesis draws the space and a seed; the values come from a numpy generator of that seed, extremes more often than not.
"""

from __future__ import annotations

import inspect
import warnings
from collections import OrderedDict, defaultdict, namedtuple
from fractions import Fraction
from types import MappingProxyType
from typing import Any

import numpy as np
from gymnasium import spaces as gs
from hypothesis import strategies as st

from fugu.spaces import bound

INTEGERS = ["int8", "int16", "int32", "int64", "uint8", "uint16", "uint32", "uint64"]
FLOATS = ["float16", "float32", "float64"]
DTYPES = ["bool", *INTEGERS, *FLOATS]
SHAPES = [(), (1,), (3,), (5,), (2, 3), (3, 1, 2), (2, 1, 2, 2), (0,), (2, 0), (0, 3)]
CHARSETS = ["a", "ab ", "0123456789abcdef", "äßλ中", "x😀\x00\ud800", "".join(map(chr, range(0x4E00, 0x4E00 + 300)))]
KEYS: list[Any] = ["a", "b", "", "a/b", "items", "length", "choice", "ключ", "with space", 0, 1, -7, (1, "x"), None, 2.5]
DISCRETE_TAKES_DTYPE = "dtype" in inspect.signature(gs.Discrete).parameters

generators = st.integers(0, 2**32 - 1).map(np.random.default_rng)


@st.composite
def boxes(draw: st.DrawFn) -> gs.Box:
    return gs.Box(0, 1, draw(st.sampled_from(SHAPES)), np.dtype(draw(st.sampled_from(DTYPES))).type)


@st.composite
def discretes(draw: st.DrawFn) -> gs.Discrete:
    if DISCRETE_TAKES_DTYPE and draw(st.booleans()):
        info = np.iinfo(draw(st.sampled_from(INTEGERS)))
        start = draw(st.sampled_from([0, info.min, info.max - 3]))
        return gs.Discrete(draw(st.integers(1, 3)), start=start, dtype=info.dtype.type)
    start = draw(st.sampled_from([0, 0, 5, -3, 2**31, 2**40, -(2**63), 2**63 - 4]))
    return gs.Discrete(draw(st.sampled_from([1, 2, 3, 4])), start=start)


@st.composite
def multi_discretes(draw: st.DrawFn) -> gs.MultiDiscrete:
    shape = draw(st.sampled_from([(), (1,), (3,), (2, 2), (0,)]))
    dtype = np.dtype(draw(st.sampled_from(INTEGERS)))
    rng = draw(generators)
    info = np.iinfo(dtype)
    start = rng.choice(np.array([0, info.min, info.max // 2, info.max - 5], dtype), shape)
    return gs.MultiDiscrete(np.asarray(rng.integers(1, 6, shape)), dtype.type, start=np.asarray(start, dtype))


multi_binaries = st.sampled_from([1, 4, (3,), (2, 3), (2, 1, 2)]).map(gs.MultiBinary)


@st.composite
def texts(draw: st.DrawFn) -> gs.Text:
    longest = draw(st.integers(0, 6))
    return gs.Text(longest, min_length=draw(st.integers(0, longest)), charset=draw(st.sampled_from(CHARSETS)))


plain_leaves = st.one_of(boxes(), discretes(), multi_discretes(), multi_binaries, texts())


@st.composite
def spaces(draw: st.DrawFn, depth: int = 3, plain: bool = False) -> gs.Space:
    """Any space nested to ``depth``; ``plain`` leaves out what only the reference packs (OneOf, Sequence)."""
    kinds = ["leaf", "dict", "tuple"] if plain else ["leaf", "dict", "tuple", "one of", "sequence"]
    kind = draw(st.sampled_from(kinds)) if depth else "leaf"
    inner = spaces(depth - 1, plain) if depth else st.nothing()
    if kind == "dict":
        keys = draw(st.lists(st.sampled_from(KEYS), max_size=4, unique_by=lambda key: (type(key), key)))
        return gs.Dict({key: draw(inner) for key in keys})
    if kind == "tuple":
        return gs.Tuple(draw(st.lists(inner, max_size=4)))
    if kind == "one of":
        return gs.OneOf(draw(st.lists(inner, min_size=1, max_size=3)))
    if kind == "sequence":
        return bound(gs.Sequence(draw(inner), stack=draw(st.booleans())), draw(st.integers(1, 3)))
    return draw(plain_leaves)


def value_of(space: gs.Space, rng: np.random.Generator, *, finite: bool = True) -> Any:
    """A value of ``space`` as Gymnasium would sample it, but with every bit pattern its dtype has."""
    if isinstance(space, gs.Box):
        return _numbers(space.dtype, space.shape, rng, finite)
    if isinstance(space, gs.Discrete):
        return space.dtype.type(int(space.start) + int(_choice(rng, int(space.n))))
    if isinstance(space, gs.MultiDiscrete):
        picks = [int(low) + _choice(rng, int(n)) for low, n in zip(space.start.flat, space.nvec.flat, strict=True)]
        return np.array(picks, space.dtype).reshape(space.shape)
    if isinstance(space, gs.MultiBinary):
        return rng.integers(0, 2, space.shape).astype(space.dtype)
    if isinstance(space, gs.Text):
        length = rng.integers(space.min_length, space.max_length + 1)
        return "".join(space.character_list[i] for i in rng.integers(0, len(space.character_list), length))
    if isinstance(space, gs.Dict):
        return {key: value_of(sub, rng, finite=finite) for key, sub in space.spaces.items()}
    if isinstance(space, gs.Tuple):
        return tuple(value_of(sub, rng, finite=finite) for sub in space.spaces)
    if isinstance(space, gs.OneOf):
        choice = int(rng.integers(len(space.spaces)))
        return (np.int64(choice), value_of(space.spaces[choice], rng, finite=finite))
    assert isinstance(space, gs.Sequence)
    length = int(rng.integers(0, space.fugu_max_length + 1))  # type: ignore[attr-defined]
    items = [value_of(space.feature_space, rng, finite=finite) for _ in range(length)]
    return stacked(space.feature_space, items) if space.stack else tuple(items)


def stacked(space: gs.Space, items: list[Any]) -> Any:
    """Items of ``space`` the way Gymnasium's ``concatenate`` stacks them, also when there are none."""
    if isinstance(space, gs.Dict):
        return {key: stacked(sub, [item[key] for item in items]) for key, sub in space.spaces.items()}
    if isinstance(space, gs.Tuple):
        return tuple(stacked(sub, [item[i] for item in items]) for i, sub in enumerate(space.spaces))
    if isinstance(space, gs.Box | gs.Discrete | gs.MultiDiscrete | gs.MultiBinary):
        return np.array(items, space.dtype).reshape(len(items), *space.shape)
    return tuple(items)


def spoiled(space: gs.Space, value: Any, rng: np.random.Generator) -> Any:
    """``value`` with one part of it replaced by something else, which may or may not fit ``space``."""
    if isinstance(space, gs.Dict) and space.spaces and rng.random() < 0.7:
        key = list(space.spaces)[rng.integers(len(space.spaces))]
        return {**value, key: spoiled(space.spaces[key], value[key], rng)}
    if isinstance(space, gs.Tuple) and space.spaces and rng.random() < 0.7:
        at = int(rng.integers(len(space.spaces)))
        return (*value[:at], spoiled(space.spaces[at], value[at], rng), *value[at + 1 :])
    if isinstance(space, gs.OneOf) and rng.random() < 0.7:
        return (value[0], spoiled(space.spaces[value[0]], value[1], rng))
    if isinstance(space, gs.Sequence) and not space.stack and value and rng.random() < 0.7:
        at = int(rng.integers(len(value)))
        return (*value[:at], spoiled(space.feature_space, value[at], rng), *value[at + 1 :])
    kin = _array_kin if isinstance(value, np.ndarray) else _scalar_kin if isinstance(value, np.generic) else _kin
    with warnings.catch_warnings(), np.errstate(all="ignore"):
        warnings.simplefilter("ignore")  # casts that overflow are the point here
        candidates = kin(value, rng) if rng.random() < 0.8 else STRANGERS
    return candidates[rng.integers(len(candidates))]


class ComputedDict(dict):  # type: ignore[type-arg]
    """Gives other items than it stores."""

    def __getitem__(self, key: Any) -> Any:
        return None


class Subclass(np.ndarray):
    """An array of another type."""


class RaisesOnAsking:
    def __array__(self, *args: Any, **kwargs: Any) -> np.ndarray:
        raise RuntimeError("no")

    def __repr__(self) -> str:
        return "RaisesOnAsking()"


Pair = namedtuple("Pair", "left right")

STRANGERS: list[Any] = [
    *(None, True, False, 0, 1, -1, 2, 255, 256, 2**31, 2**63 - 1, 2**63, 2**64, -(2**63), -(2**63) - 1, 10**400),
    *(0.0, 0.5, -1.5, 1e300, float("nan"), float("inf"), 1j, Fraction(1, 2), "", "a", "zzz", b"", b"a", bytearray(b"a")),
    *(
        [],
        (),
        {},
        set(),
        [None],
        [[]],
        [[1], [1, 2]],
        [2**63 + 1, 0],
        [2**64, 0],
        ["a"],
        {"a": 1},
        range(3),
        object(),
        len,
        int,
    ),
    *(
        np.datetime64("2020"),
        np.timedelta64(1, "s"),
        np.str_("a"),
        np.bytes_(b"a"),
        np.complex64(1),
        np.longdouble(1),
        np.bool_(True),
    ),
    *(np.array(None), np.array("a"), np.array([1, "a"], object), np.zeros(3, "M8[s]"), np.zeros(2, "i4,f4"), np.ma.masked),
    *(memoryview(b"abc"), slice(1), NotImplemented, Pair(1, 2), RaisesOnAsking(), np.random.default_rng(0), np.zeros((0, 0))),
]


def _array_kin(array: np.ndarray, rng: np.random.Generator) -> list[Any]:
    """Arrays and lists that mean the same, nearly the same, or something else in the same shape."""
    other = array.astype(rng.choice(DTYPES)) if np.isfinite(array).all() else array.astype(np.float64)
    padded = np.repeat(array[..., None], 2, axis=-1)
    unaligned = np.frombuffer(b"x" + array.tobytes(), array.dtype, offset=1, count=array.size).reshape(array.shape)
    readonly = array.copy()
    readonly.flags.writeable = False
    kin = [
        *(
            other,
            other.tolist(),
            array.tolist(),
            padded[..., 0],
            padded,
            array[None],
            array.ravel(),
            array.T,
            unaligned,
            readonly,
        ),
        *(np.asfortranarray(array), np.flip(np.flip(array).copy()), array.view(Subclass), np.ma.masked_array(array)),
        *(array.astype(array.dtype.newbyteorder("S")), array.astype(object), array.astype(np.complex128), array.astype(str)),
        *(
            array + array.dtype.type(1),
            array.astype(np.longlong),
            np.zeros_like(array),
            np.ones_like(array),
            array[:1] if array.ndim else array,
        ),
        *([array] if array.ndim == 0 else [list(array), tuple(array)]),
    ]
    if array.size:
        kin.append(array.flat[0])
        if array.dtype.kind == "f":
            for bad in (np.nan, np.inf, -np.inf):
                changed = array.copy()
                changed.flat[rng.integers(array.size)] = bad
                kin.append(changed)
        else:
            for bad in (np.iinfo(np.int8).max, 0, 1):
                changed = array.copy()
                changed.flat[rng.integers(array.size)] = bad
                kin.append(changed)
    return kin


def _scalar_kin(value: np.generic, rng: np.random.Generator) -> list[Any]:
    number = value.item()
    kin: list[Any] = [number, float(number), bool(number), np.asarray(value), np.asarray([value]), [value], str(value)]
    for near in (number, number - 1, number + 1, number + 5, -number):
        kin.append(near)
        for name in DTYPES:
            if name in FLOATS or name == "bool" or np.iinfo(name).min <= near <= np.iinfo(name).max:
                kin += [np.dtype(name).type(near), np.array(near, name)]
    return kin


def _kin(value: Any, rng: np.random.Generator) -> list[Any]:
    if isinstance(value, str):
        return [
            value + "a",
            value + "a" * 9,
            value[1:],
            value.upper(),
            np.str_(value),
            value.encode("utf-8", "replace"),
            [*value],
        ]
    if isinstance(value, dict):
        some = next(iter(value), "a")
        return [
            *(OrderedDict(value), defaultdict(list, value), ComputedDict(value), MappingProxyType(value), list(value.items())),
            *(
                {**value, "more": 1},
                {k: v for k, v in value.items() if k != some},
                {**value, some: None},
                dict(reversed(value.items())),
            ),
        ]
    return [list(value), value + (1,), value[1:], value[::-1], np.arange(len(value)), dict(enumerate(value)), (value,)]


def _numbers(dtype: np.dtype, shape: tuple[int, ...], rng: np.random.Generator, finite: bool) -> np.ndarray:
    size = int(np.prod(shape))
    if dtype.kind == "b":
        return rng.integers(0, 2, shape).astype(bool)
    out = np.frombuffer(rng.bytes(size * dtype.itemsize), dtype, size).copy()
    if dtype.kind == "f":
        special = np.array([0.0, -0.0, np.finfo(dtype).max, np.finfo(dtype).smallest_subnormal, np.nan, np.inf, -np.inf], dtype)
        out = np.where(rng.random(size) < 0.3, rng.choice(special, size), out)
        if finite:
            out[~np.isfinite(out)] = -1.5
    return out.reshape(shape)


def _choice(rng: np.random.Generator, n: int) -> int:
    return int(rng.choice([0, n - 1, rng.integers(n)]))


def same(left: Any, right: Any) -> bool:
    """Equal to the last bit, with the same structure, dtypes and shapes."""
    if isinstance(left, dict):
        return isinstance(right, dict) and list(left) == list(right) and all(same(left[k], right[k]) for k in left)
    if isinstance(left, tuple):
        return isinstance(right, tuple) and len(left) == len(right) and all(map(same, left, right))
    if isinstance(left, str):
        return isinstance(right, str) and left == right
    left, right = np.asarray(left), np.asarray(right)
    return left.dtype == right.dtype and left.shape == right.shape and left.tobytes() == right.tobytes()
