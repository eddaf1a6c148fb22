"""Space -> Layout: which leaves a space has, and at which byte of the row each one lies.

In: any Gymnasium space, nested at will. Out: a ``Layout`` whose row holds every leaf at an offset aligned to its own
item size, so that each leaf of a batch ``[rows, row]`` is a zero-copy view in numpy and in torch.

A row stores values as they are (a ``Discrete(3, start=5)`` stores 5, 6 or 7). How each space becomes leaves:

    Box, MultiDiscrete, MultiBinary    one leaf of the space's dtype and shape
    Discrete                           one scalar leaf of the space's dtype (int64 unless declared otherwise)
    Text                               max_length character codes: 0 is padding, k the k-th character of the sorted charset
    Dict, Tuple                        the leaves of their parts, in the space's own order
    OneOf                              ``choice`` and the leaves of every option; options not chosen are zero
    Sequence (with ``bound``)          ``length`` and the leaves of the part with a leading axis of the maximum; unused are zero
    MiniGrid's MissionSpace            as Text, with the characters and the longest of its missions

With one leaf the row has that leaf's dtype and shape; with several of one dtype it is a vector of it; otherwise bytes.
Everything is stored in the machine's own byte order, whatever order a space was declared with.
"""

from __future__ import annotations

import itertools
import math
import string
from collections.abc import Iterable, Sequence
from dataclasses import dataclass
from typing import Any, NamedTuple

import numpy as np
from gymnasium import spaces as gs

from fugu.errors import SpaceError

Path = tuple[Any, ...]
"""keys (of any type) and indices from the root"""

OPEN_TEXT_LENGTH = 512
"""characters kept of a mission that its space does not describe (BabyAI's longest has about 310)"""


@dataclass(frozen=True, slots=True)
class Leaf:
    """One array inside the row. ``shape`` includes the leading axes of the Sequences around it."""

    path: Path
    dtype: np.dtype
    shape: tuple[int, ...]
    offset: int
    """bytes from the start of the row"""
    space: gs.Space
    """the space the leaf stands for; of a ``choice`` or ``length`` leaf, a Discrete"""
    lead: int = 0
    """how many leading axes come from Sequences"""

    @property
    def name(self) -> str:
        return path_name(self.path)

    @property
    def nbytes(self) -> int:
        return self.dtype.itemsize * math.prod(self.shape)

    def choice_range(self) -> tuple[np.ndarray, np.ndarray] | None:
        """Return the lowest and highest value of each element, of the leaf's dtype, where values are choices; else None."""
        space = self.space
        if isinstance(space, gs.MultiBinary):
            return np.zeros(space.shape, self.dtype), np.ones(space.shape, self.dtype)
        if not isinstance(space, gs.Discrete | gs.MultiDiscrete):
            return None
        start = np.asarray(space.start)
        count = np.asarray(space.n if isinstance(space, gs.Discrete) else space.nvec)
        # in Python's whole numbers, because start + count may lie beyond the dtype; what does is no choice then
        most = int(np.iinfo(self.dtype).max)
        highest = [min(int(low) + int(n) - 1, most) for low, n in zip(start.flat, count.flat, strict=True)]
        return start.astype(self.dtype), np.array(highest, self.dtype).reshape(start.shape)


class Span(NamedTuple):
    """The items of a row that hold one leaf. Free of numpy so that ``torch.compile`` can see through it."""

    start: int
    length: int
    dtype: str
    shape: tuple[int, ...]


@dataclass(frozen=True, slots=True)
class Node:
    """A place in the tree: a leaf (``leaf`` is its index) or a composite with ``children``."""

    space: gs.Space
    path: Path
    leaf: int = -1
    """index of the leaf itself, or of the ``choice`` / ``length`` leaf of a OneOf / Sequence"""
    keys: tuple[Any, ...] = ()
    children: tuple[Node, ...] = ()
    maximum: int = 0
    """of a Sequence: the declared maximum length"""
    characters: tuple[str, ...] = ()
    """of a text: the k-th of them has code k, from 1"""
    codes: dict[str, int] | None = None
    """of a text: character -> code; None of everything else"""


class Layout:
    """The place of each leaf of ``space`` in a row.

    ``dtype`` and ``row_shape`` are those of one row; ``nbytes`` its size. A batch is an array ``[rows, *row_shape]``.
    """

    def __init__(self, space: gs.Space) -> None:
        self.space = convert(space)
        leaves: list[Leaf] = []
        self.root = _build(self.space, (), "space", leaves, lead=())
        offset = 0
        placed = []
        for leaf in leaves:
            offset = _align(offset, leaf.dtype.itemsize)
            placed.append(Leaf(leaf.path, leaf.dtype, leaf.shape, offset, leaf.space, leaf.lead))
            offset += leaf.nbytes
        self.leaves: tuple[Leaf, ...] = tuple(placed)
        widest = max((leaf.dtype.itemsize for leaf in placed), default=1)
        self.nbytes: int = _align(offset, widest)
        dtypes = {leaf.dtype for leaf in placed}
        self.single: bool = len(placed) == 1
        """the row is the one leaf, with its own shape"""
        self.plain: bool = self.single and self.root.leaf == 0 and not self.root.children
        """and the space is that leaf itself, in no Dict or Tuple: a value in the structure of the space is the array alone"""
        self.dtype: np.dtype = dtypes.pop() if len(dtypes) == 1 else np.dtype(np.uint8)
        self.row_shape: tuple[int, ...] = placed[0].shape if self.single else (self.nbytes // self.dtype.itemsize,)
        self.dtype_name: str = self.dtype.name
        item = self.dtype.itemsize
        self.alignment: int = widest // item
        """in items of the row: a row may start at any multiple of it"""
        self.spans: tuple[Span, ...] = tuple(
            Span(leaf.offset // item, leaf.nbytes // item, leaf.dtype.name, leaf.shape) for leaf in placed
        )
        """per leaf, where it lies in a row counted in items of the row; plain numbers and strings"""

    def zeros(self, *batch: int) -> np.ndarray:
        """Return a zeroed batch of rows, ``[*batch, *row_shape]``."""
        return np.zeros((*batch, *self.row_shape), self.dtype)

    def flat(self, rows: np.ndarray) -> np.ndarray:
        """Return rows as bytes, ``[*batch, nbytes]``; a view."""
        batch = rows.shape[: rows.ndim - len(self.row_shape)]
        if not rows.flags.c_contiguous:
            raise SpaceError(f"rows must be contiguous to be seen as bytes; got strides {rows.strides}")
        if self.nbytes == 0 or 0 in batch:
            return np.zeros((*batch, self.nbytes), np.uint8)
        return rows.reshape(-1).view(np.uint8).reshape(*batch, self.nbytes)

    def leaf_views(self, rows: np.ndarray) -> list[np.ndarray]:
        """Return one view ``[*batch, *leaf.shape]`` per leaf into rows ``[*batch, *row_shape]``."""
        batch = rows.shape[: rows.ndim - len(self.row_shape)]
        if rows.dtype != self.dtype or rows.shape != batch + self.row_shape:
            raise SpaceError(f"expected {self.describe_rows()}, got {rows.dtype}{list(rows.shape)}")
        if self.single:
            return [rows]
        if rows.size and rows.strides[-1] != rows.itemsize:
            raise SpaceError(
                f"each row must be contiguous, got strides {rows.strides} bytes", fix="copy them first: rows.copy()"
            )
        views = []
        for leaf, span in zip(self.leaves, self.spans, strict=True):
            part = rows[..., span.start : span.start + span.length]
            if leaf.dtype != rows.dtype:
                part = part.view(leaf.dtype)
            views.append(part.reshape(batch + leaf.shape))  # splits the last axis: never a copy
        return views

    def views(self, rows: np.ndarray) -> Any:
        """Return the batch in the space's own structure (dicts and tuples of arrays); every array is a view."""
        return self.assemble(self.leaf_views(rows))

    def assemble(self, leaves: Sequence[Any]) -> Any:
        """Put leaf values, given in order, into the space's structure. Works on arrays, tensors or anything else.

        A OneOf becomes ``{"choice": ..., "options": (...)}``, a Sequence ``{"length": ..., "items": ...}``.
        """
        return _assemble(self.root, leaves)

    def describe_rows(self) -> str:
        """Return ``rows uint8[..., 24]``, for messages."""
        return f"rows {self.dtype}[{', '.join(['...', *map(str, self.row_shape)])}]"

    def __eq__(self, other: object) -> bool:
        return isinstance(other, Layout) and self.space == other.space and self.leaves == other.leaves

    def __hash__(self) -> int:
        return hash(tuple((leaf.path, leaf.dtype, leaf.shape) for leaf in self.leaves))

    def __repr__(self) -> str:
        head = f"Layout({self.nbytes} bytes, row {self.dtype}{list(self.row_shape)})"
        rows = [f"  {leaf.offset:6d}  {leaf.name or '(whole)'}: {leaf.dtype}{list(leaf.shape)}" for leaf in self.leaves]
        return "\n".join([head, *rows])


def bound(space: gs.Sequence, max_length: int) -> gs.Sequence:
    """Declare the maximum length of a Sequence space, which Gymnasium leaves open. Returns the same space."""
    if not isinstance(space, gs.Sequence):
        raise SpaceError(f"bound() takes a Sequence space, got {type(space).__name__}")
    if not isinstance(max_length, int | np.integer) or max_length < 1:
        raise SpaceError(f"max_length={max_length!r} must be a whole number of at least 1")
    space.fugu_max_length = int(max_length)  # type: ignore[attr-defined]
    return space


def maxima(space: gs.Space) -> list[int | None]:
    """Return the declared maxima of all Sequences in ``space``, which Gymnasium's own comparison of spaces leaves out."""
    if isinstance(space, gs.Sequence):
        return [getattr(space, "fugu_max_length", None), *maxima(space.feature_space)]
    if isinstance(space, gs.Dict):
        return [m for part in space.spaces.values() for m in maxima(part)]
    if isinstance(space, gs.Tuple | gs.OneOf):
        return [m for part in space.spaces for m in maxima(part)]
    return []


def convert(space: Any) -> gs.Space:
    """Return a Gymnasium space, made from one of the old ``gym`` package (recognised by class name) if it is not one already."""
    if isinstance(space, gs.Space):
        return space
    name = type(space).__name__
    if name == "Box":
        return gs.Box(np.asarray(space.low), np.asarray(space.high), dtype=np.dtype(space.dtype).type)
    if name == "Discrete":
        return gs.Discrete(int(space.n), start=int(getattr(space, "start", 0)))
    if name == "MultiDiscrete":
        return gs.MultiDiscrete(np.asarray(space.nvec))
    if name == "MultiBinary":
        return gs.MultiBinary(space.n)
    if name == "Dict":
        return gs.Dict({key: convert(sub) for key, sub in space.spaces.items()})
    if name == "Tuple":
        return gs.Tuple([convert(sub) for sub in space.spaces])
    raise SpaceError(f"expected a Gymnasium space, got {type(space).__module__}.{name}: {space!r}")


def path_name(path: Path) -> str:
    """Write a path as a person would: ``("a", 0, "b")`` -> ``a/0/b``."""
    return "/".join(str(part) for part in path)


def _build(space: gs.Space, path: Path, code: str, leaves: list[Leaf], lead: tuple[int, ...]) -> Node:
    """Append the leaves of ``space`` in order and return its node.

    ``code`` is how a person reaches this space from the root (``space['a'][0]``), ``lead`` the maxima of enclosing Sequences.
    """

    def leaf(dtype: Any, shape: Sequence[int], at: Path, of: gs.Space) -> int:
        native = np.dtype(np.dtype(dtype).name)  # the machine's byte order, and one of several names for the same integer
        leaves.append(Leaf(at, native, (*lead, *map(int, shape)), 0, of, len(lead)))
        return len(leaves) - 1

    def parts(subspaces: Iterable[tuple[Any, gs.Space]]) -> tuple[Node, ...]:
        return tuple(_build(sub, (*path, key), f"{code}[{key!r}]", leaves, lead) for key, sub in subspaces)

    if isinstance(space, gs.Box | gs.MultiDiscrete | gs.MultiBinary | gs.Discrete):
        _check_dtype(space, path)
        return Node(space, path, leaf(space.dtype, space.shape or (), path, space))
    if isinstance(space, gs.Text):
        return _text(space, path, space.character_set, int(space.max_length), leaf)
    if isinstance(space, gs.Dict):
        return Node(space, path, keys=tuple(space.spaces), children=parts(space.spaces.items()))
    if isinstance(space, gs.Tuple):
        return Node(space, path, keys=tuple(range(len(space.spaces))), children=parts(enumerate(space.spaces)))
    if isinstance(space, gs.OneOf):
        choice = leaf(np.int64, (), (*path, "choice"), gs.Discrete(len(space.spaces)))
        return Node(space, path, choice, keys=tuple(range(len(space.spaces))), children=parts(enumerate(space.spaces)))
    if isinstance(space, gs.Sequence):
        maximum = getattr(space, "fugu_max_length", None)
        if maximum is None:
            raise SpaceError(
                "a Sequence has no maximum length, but a row has a fixed size",
                where=_at(path),
                fix=f"Declare one: fugu.spaces.bound({code}, max_length=32)",
            )
        length = leaf(np.int64, (), (*path, "length"), gs.Discrete(maximum + 1))
        part = _build(space.feature_space, (*path, "items"), f"{code}.feature_space", leaves, (*lead, maximum))
        return Node(space, path, length, children=(part,), maximum=maximum)
    if isinstance(space, gs.Graph):
        raise SpaceError(
            "Graph spaces have no fixed size and are not supported",
            where=_at(path),
            fix="Instead declare a Dict with padded arrays: "
            "Dict(nodes=Box(shape=(max_nodes, ...)), edges=Box(shape=(max_edges, ...)), edge_links=Box(shape=(max_edges, 2), "
            "dtype=np.int64), num_nodes=Discrete(max_nodes + 1), num_edges=Discrete(max_edges + 1))",
        )
    if hasattr(space, "mission_func") and hasattr(space, "ordered_placeholders"):
        return _text(space, path, *_missions(space), leaf)
    raise SpaceError(
        f"{type(space).__name__} is not a space fugu can lay out. Supported: Box, Discrete, MultiDiscrete, "
        "MultiBinary, Text, Tuple, Dict, OneOf, Sequence",
        where=_at(path),
        fix="Convert it with gymnasium.wrappers.TransformObservation",
    )


def _text(space: gs.Space, path: Path, charset: Iterable[str], maximum: int, leaf: Any) -> Node:
    characters = tuple(sorted(charset))
    dtype = np.uint8 if len(characters) < 2**8 else np.uint16 if len(characters) < 2**16 else np.uint32
    codes = {character: code for code, character in enumerate(characters, start=1)}
    return Node(space, path, leaf(dtype, (maximum,), path, space), characters=characters, codes=codes)


def _missions(space: Any) -> tuple[set[str], int]:
    """Return the characters and the greatest length of a MiniGrid MissionSpace's texts."""
    if _takes_any_text(space):
        return set(string.printable), OPEN_TEXT_LENGTH
    choices = space.ordered_placeholders or []
    if math.prod(len(options) for options in choices) <= 100_000:
        combinations: Iterable[Sequence[str]] = itertools.product(*choices)
        characters: set[str] = set()
    else:  # too many to write out: the longest of each placeholder make the longest text
        combinations = [[max(options, key=len) for options in choices]]
        characters = {character for options in choices for option in options for character in option}
    longest = 0
    for combination in combinations:
        text = space.mission_func(*combination)
        characters.update(text)
        longest = max(longest, len(text))
    return characters, longest


def _takes_any_text(space: Any) -> bool:
    """Return True for BabyAI's space, which declares one mission, allows many others and says that it contains everything."""
    return not space.ordered_placeholders and bool(space.contains("\0 not a mission"))


def _check_dtype(space: gs.Space, path: Path) -> None:
    if space.dtype is None or np.dtype(space.dtype).kind not in "biuf" or np.dtype(space.dtype).itemsize > 8:
        raise SpaceError(
            f"dtype {space.dtype} is not supported", where=_at(path), fix="use a bool, integer or float of at most 8 bytes"
        )


def _assemble(node: Node, leaves: Sequence[Any]) -> Any:
    space = node.space
    if isinstance(space, gs.Dict):
        return {key: _assemble(child, leaves) for key, child in zip(node.keys, node.children, strict=True)}
    if isinstance(space, gs.Tuple):
        return tuple(_assemble(child, leaves) for child in node.children)
    if isinstance(space, gs.OneOf):
        return {
            "choice": leaves[node.leaf],
            "options": tuple(_assemble(child, leaves) for child in node.children),
        }
    if isinstance(space, gs.Sequence):
        return {"length": leaves[node.leaf], "items": _assemble(node.children[0], leaves)}
    return leaves[node.leaf]


def _align(offset: int, to: int) -> int:
    return -(-offset // to) * to


def _at(path: Path) -> str:
    return f"space {path_name(path)!r}" if path else "the space"
