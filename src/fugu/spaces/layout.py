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

With one leaf the row has that leaf's dtype and shape; with several of one dtype it is a vector of it; otherwise bytes.
"""

from __future__ import annotations

import itertools
import math
from collections.abc import Iterator, Sequence
from dataclasses import dataclass, field
from typing import Any

import numpy as np
from gymnasium import spaces as gs

from fugu.errors import SpaceError

Path = tuple[str | int, ...]


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
    codes: dict[str, int] = field(default_factory=dict)
    """of a text: character -> code, from 1"""


class Layout:
    """Where each leaf of ``space`` lies in a row.

    ``dtype`` and ``row_shape`` are those of one row; ``nbytes`` its size. A batch is an array ``[rows, *row_shape]``.
    """

    def __init__(self, space: gs.Space) -> None:
        self.space = convert(space)
        leaves: list[Leaf] = []
        self.root = _build(self.space, (), leaves, lead=())
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
        self.dtype: np.dtype = dtypes.pop() if len(dtypes) == 1 else np.dtype(np.uint8)
        self.row_shape: tuple[int, ...] = placed[0].shape if self.single else (self.nbytes // self.dtype.itemsize,)

    def zeros(self, *batch: int) -> np.ndarray:
        """A zeroed batch of rows, ``[*batch, *row_shape]``."""
        return np.zeros((*batch, *self.row_shape), self.dtype)

    def flat(self, rows: np.ndarray) -> np.ndarray:
        """Rows as bytes, ``[..., nbytes]``; a view."""
        batch = rows.shape[: rows.ndim - len(self.row_shape)]
        if not rows.flags.c_contiguous:
            raise SpaceError(f"rows must be contiguous to be seen as bytes; got strides {rows.strides}")
        if self.nbytes == 0 or 0 in batch:
            return np.zeros((*batch, self.nbytes), np.uint8)
        return rows.reshape(-1).view(np.uint8).reshape(*batch, self.nbytes)

    def leaf_views(self, rows: np.ndarray) -> list[np.ndarray]:
        """One view ``[..., *leaf.shape]`` per leaf into a batch of rows (or a single row)."""
        if self.single:
            return [rows]
        flat = self.flat(rows)
        out = []
        for leaf in self.leaves:
            part = flat[..., leaf.offset : leaf.offset + leaf.nbytes]
            if leaf.nbytes == 0:
                out.append(np.zeros((*flat.shape[:-1], *leaf.shape), leaf.dtype))
                continue
            strides = (*flat.strides[:-1], *np.zeros(leaf.shape, leaf.dtype).strides)
            out.append(np.ndarray((*flat.shape[:-1], *leaf.shape), leaf.dtype, part, 0, strides))
        return out

    def views(self, rows: np.ndarray) -> Any:
        """The batch as the space's own structure (dicts and tuples of arrays); every array is a view."""
        return self.assemble(self.leaf_views(rows))

    def assemble(self, leaves: Sequence[Any]) -> Any:
        """Leaf values in order -> the space's structure. Works on arrays, tensors or anything else.

        A OneOf becomes ``{"choice": ..., "options": (...)}``, a Sequence ``{"length": ..., "items": ...}``.
        """
        return _assemble(self.root, leaves)

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
    if max_length < 1:
        raise SpaceError(f"max_length={max_length} must be at least 1")
    space.fugu_max_length = int(max_length)  # type: ignore[attr-defined]
    return space


def convert(space: Any) -> gs.Space:
    """A Gymnasium space from a Gymnasium space or one of the old ``gym`` package (recognised by class name)."""
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
    """``("a", 0, "b")`` -> ``a/0/b``."""
    return "/".join(str(part) for part in path)


def _build(space: gs.Space, path: Path, leaves: list[Leaf], lead: tuple[int, ...]) -> Node:
    """Append the leaves of ``space`` in order and return its node; ``lead`` are the maxima of enclosing Sequences."""

    def leaf(dtype: Any, shape: Sequence[int], at: Path, of: gs.Space) -> int:
        leaves.append(Leaf(at, np.dtype(dtype), (*lead, *map(int, shape)), 0, of, len(lead)))
        return len(leaves) - 1

    if isinstance(space, gs.Box | gs.MultiDiscrete | gs.MultiBinary):
        _check_dtype(space, path)
        return Node(space, path, leaf(space.dtype, space.shape or (), path, space))
    if isinstance(space, gs.Discrete):
        return Node(space, path, leaf(space.dtype, (), path, space))
    if isinstance(space, gs.Text):
        return _text(space, path, sorted(space.character_set), int(space.max_length), leaf)
    if isinstance(space, gs.Dict):
        parts = tuple(_build(sub, (*path, key), leaves, lead) for key, sub in space.spaces.items())
        return Node(space, path, keys=tuple(space.spaces), children=parts)
    if isinstance(space, gs.Tuple):
        parts = tuple(_build(sub, (*path, i), leaves, lead) for i, sub in enumerate(space.spaces))
        return Node(space, path, keys=tuple(range(len(parts))), children=parts)
    if isinstance(space, gs.OneOf):
        choice = leaf(np.int64, (), (*path, "choice"), gs.Discrete(len(space.spaces)))
        parts = tuple(_build(sub, (*path, i), leaves, lead) for i, sub in enumerate(space.spaces))
        return Node(space, path, choice, keys=tuple(range(len(parts))), children=parts)
    if isinstance(space, gs.Sequence):
        maximum = getattr(space, "fugu_max_length", None)
        if maximum is None:
            raise SpaceError(
                f"{_at(path)}: a Sequence has no maximum length, but a row has a fixed size. Declare one: "
                f"fugu.spaces.bound(space{_subscript(path)}, max_length=32)"
            )
        length = leaf(np.int64, (), (*path, "length"), gs.Discrete(maximum + 1))
        part = _build(space.feature_space, (*path, "items"), leaves, (*lead, maximum))
        return Node(space, path, length, children=(part,), maximum=maximum)
    if isinstance(space, gs.Graph):
        raise SpaceError(
            f"{_at(path)}: Graph spaces have no fixed size and are not supported. Instead declare a Dict with padded arrays: "
            "Dict(nodes=Box(shape=(max_nodes, ...)), edges=Box(shape=(max_edges, ...)), edge_links=Box(shape=(max_edges, 2), "
            "dtype=np.int64), num_nodes=Discrete(max_nodes + 1), num_edges=Discrete(max_edges + 1))"
        )
    if hasattr(space, "mission_func") and hasattr(space, "ordered_placeholders"):
        texts = list(_missions(space))
        return _text(space, path, sorted(set("".join(texts))), max(map(len, texts)), leaf)
    raise SpaceError(
        f"{_at(path)}: {type(space).__name__} is not a space fugu can lay out. Supported: Box, Discrete, MultiDiscrete, "
        "MultiBinary, Text, Tuple, Dict, OneOf, Sequence. Convert it with gymnasium.wrappers.TransformObservation."
    )


def _text(space: gs.Space, path: Path, charset: list[str], maximum: int, leaf: Any) -> Node:
    dtype = np.uint8 if len(charset) < 2**8 else np.uint16 if len(charset) < 2**16 else np.uint32
    codes = {char: code for code, char in enumerate(charset, start=1)}
    return Node(space, path, leaf(dtype, (maximum,), path, space), codes=codes)


def _missions(space: Any) -> Iterator[str]:
    """Texts that bound a MiniGrid MissionSpace: all missions, or the longest ones where there are very many."""
    choices = space.ordered_placeholders or []
    if math.prod(len(options) for options in choices) > 100_000:
        yield "".join(itertools.chain.from_iterable(itertools.chain.from_iterable(choices)))  # every character at least
        choices = [[max(options, key=len)] for options in choices]
    for combination in itertools.product(*choices):
        yield space.mission_func(*combination)


def _check_dtype(space: gs.Space, path: Path) -> None:
    if space.dtype is None or np.dtype(space.dtype).kind not in "biuf" or np.dtype(space.dtype).itemsize > 8:
        raise SpaceError(f"{_at(path)}: dtype {space.dtype} is not supported; use a bool, integer or float of at most 8 bytes")


def _assemble(node: Node, leaves: Sequence[Any]) -> Any:
    space = node.space
    if isinstance(space, gs.Dict):
        return {key: _assemble(child, leaves) for key, child in zip(node.keys, node.children, strict=True)}
    if isinstance(space, gs.Tuple):
        return tuple(_assemble(child, leaves) for child in node.children)
    if isinstance(space, gs.OneOf):
        return {"choice": leaves[node.leaf], "options": tuple(_assemble(child, leaves) for child in node.children)}
    if isinstance(space, gs.Sequence):
        return {"length": leaves[node.leaf], "items": _assemble(node.children[0], leaves)}
    return leaves[node.leaf]


def _align(offset: int, to: int) -> int:
    return -(-offset // to) * to


def _at(path: Path) -> str:
    return f"space {path_name(path)!r}" if path else "the space"


def _subscript(path: Path) -> str:
    return "".join(f"[{part!r}]" for part in path if part != "items")
