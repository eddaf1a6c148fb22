"""Actions as a policy stores them -> rows as the environment gets them.

In: ``action [*batch, dims]``, columns grouped by kind as ``distribution`` describes. Out: rows ``[*batch, *row_shape]`` of the action
layout, every value inside its space:

    Discrete, MultiDiscrete    the choice plus the space's start
    MultiBinary                the bit
    Box, bounds below 1e30     low + (raw + 1) / 2 * (high - low), clipped: raw -1 is low, raw 1 is high
    Box, otherwise             raw, clipped to whichever bound there is

Numbers for a Box of integers are rounded to the nearest.
"""

from __future__ import annotations

import math
from dataclasses import dataclass

import numpy as np
import torch
from gymnasium import spaces as gs
from torch import Tensor, nn

from fugu.errors import SpaceError
from fugu.spaces import Layout, Leaf
from fugu.spaces.views import TORCH_DTYPES, leaf_tensors, write_leaves

UNBOUNDED = 1e30
"""size from which a bound is one in name only, such as the largest float: it would be useless as a unit of actions"""


class EnvAction(nn.Module):
    """Maps stored actions to rows. Constants are buffers, so that they move with the policy."""

    def __init__(self, layout: Layout) -> None:
        super().__init__()
        self.layout = layout
        self.row_dtype = TORCH_DTYPES[layout.dtype_name]
        self.plans: list[_Plan] = []
        columns = _columns(layout)
        for index, (leaf, column) in enumerate(zip(layout.leaves, columns, strict=True)):
            dtype = TORCH_DTYPES[leaf.dtype.name]
            if isinstance(leaf.space, gs.Box):
                self._add_bounds(index, leaf)
                self.plans.append(_Plan("real", column, leaf.shape, dtype))
                continue
            start = np.ravel(np.asarray(getattr(leaf.space, "start", 0)))
            shifted = bool(np.any(start != 0))
            if shifted:  # wraps around for uint64, and back when the sum becomes uint64 again
                self._keep(f"start{index}", start.astype(np.int64))
            self.plans.append(_Plan("shifted" if shifted else "plain", column, leaf.shape, dtype))

    def forward(self, action: Tensor) -> Tensor:
        leaves = [self._leaf(index, plan, action) for index, plan in enumerate(self.plans)]
        if self.layout.single:
            return leaves[0]
        rows = torch.empty(action.shape[:-1] + self.layout.row_shape, dtype=self.row_dtype, device=action.device)
        write_leaves(self.layout, rows, leaves)
        return rows

    def inverse(self, rows: Tensor) -> Tensor:
        """Return ``action [*batch, dims]`` in float64 whose rows these are; of a number at a bound, the one that is not clipped."""
        leaves = leaf_tensors(self.layout, rows)
        batch = rows.shape[: rows.dim() - len(self.layout.row_shape)]
        action = torch.zeros((*batch, sum(plan.columns[1] for plan in self.plans)), dtype=torch.float64, device=rows.device)
        for index, (plan, leaf) in enumerate(zip(self.plans, leaves, strict=True)):
            part = leaf.reshape(*batch, plan.columns[1])
            if plan.kind == "real":
                scale, shift = self.get_buffer(f"scale{index}").double(), self.get_buffer(f"shift{index}").double()
                part = (part.double() - shift) / torch.where(scale > 0, scale, 1.0)
            elif plan.kind == "shifted":
                part = part.long() - self.get_buffer(f"start{index}")
            action.narrow(-1, *plan.columns).copy_(part)
        return action

    def units(self) -> tuple[Tensor, Tensor]:
        """Return scale and shift of the columns of real numbers, ``[reals]`` in float64: ``raw * scale + shift`` is the number."""
        real = [index for index, plan in enumerate(self.plans) if plan.kind == "real"]
        scale, shift = (
            torch.cat([self.get_buffer(f"{name}{index}").double() for index in real] or [torch.zeros(0, dtype=torch.float64)])
            for name in ("scale", "shift")
        )
        return scale, shift

    def _leaf(self, index: int, plan: _Plan, action: Tensor) -> Tensor:
        """Return ``[*batch, *leaf.shape]`` of the leaf's dtype."""
        start, length = plan.columns
        part = action if length == action.shape[-1] else action.narrow(-1, start, length)
        if plan.kind == "real":
            part = self._bounded(index, part, plan.dtype)
        elif plan.kind == "shifted":
            part = part.long() + self.get_buffer(f"start{index}")
        return part.to(plan.dtype).reshape(part.shape[:-1] + plan.shape)

    def _bounded(self, index: int, raw: Tensor, dtype: torch.dtype) -> Tensor:
        scale, shift = self.get_buffer(f"scale{index}"), self.get_buffer(f"shift{index}")
        low, high = self.get_buffer(f"low{index}"), self.get_buffer(f"high{index}")
        scaled = torch.addcmul(shift, raw.to(scale.dtype), scale)
        # the bounds are numbers of the leaf's dtype, so becoming one cannot carry a clamped number past them
        return (scaled if dtype.is_floating_point else scaled.round()).clamp(low, high)

    def _add_bounds(self, index: int, leaf: Leaf) -> None:
        space = leaf.space
        assert isinstance(space, gs.Box)
        low, high = space.low.ravel().astype(np.float64), space.high.ravel().astype(np.float64)
        finite = (np.abs(low) < UNBOUNDED) & (np.abs(high) < UNBOUNDED)
        bounded = space.bounded_below.ravel() & space.bounded_above.ravel() & finite
        with np.errstate(all="ignore"):
            scale = np.where(bounded, high / 2 - low / 2, 1.0)
            shift = np.where(bounded, high / 2 + low / 2, 0.0)
        wide = leaf.dtype.kind != "f" or leaf.dtype.itemsize == 8
        self._keep(f"scale{index}", scale.astype(np.float64 if wide else np.float32))
        self._keep(f"shift{index}", shift.astype(np.float64 if wide else np.float32))
        if leaf.dtype.kind != "f":  # bounds of 64 bits may lie between two doubles: keep the one inside
            low, high = _inside(space.low.ravel(), low, 1), _inside(space.high.ravel(), high, -1)
            if (low > high).any():
                raise SpaceError(
                    f"action {leaf.name or 'space'!r}: {space} holds no number that a double can represent; shift its bounds towards 0"
                )
        self._keep(f"low{index}", low if wide else low.astype(leaf.dtype))
        self._keep(f"high{index}", high if wide else high.astype(leaf.dtype))

    def _keep(self, name: str, values: np.ndarray) -> None:
        self.register_buffer(name, torch.from_numpy(np.array(values)), persistent=False)


@dataclass(frozen=True, slots=True)
class _Plan:
    kind: str
    columns: tuple[int, int]
    """first column of the action, and the number of columns"""
    shape: tuple[int, ...]
    dtype: torch.dtype


def _columns(layout: Layout) -> list[tuple[int, int]]:
    """Return, per leaf, the columns of the action it has: categorical leaves come first, then binary ones, then Box."""
    kinds = [_kind(leaf) for leaf in layout.leaves]
    sizes = [math.prod(leaf.shape) for leaf in layout.leaves]
    ends = {kind: sum(size for size, other in zip(sizes, kinds, strict=True) if other < kind) for kind in range(3)}
    columns = []
    for kind, size in zip(kinds, sizes, strict=True):
        columns.append((ends[kind], size))
        ends[kind] += size
    return columns


def _kind(leaf: Leaf) -> int:
    return 2 if isinstance(leaf.space, gs.Box) else 1 if isinstance(leaf.space, gs.MultiBinary) else 0


def _inside(exact: np.ndarray, rounded: np.ndarray, direction: int) -> np.ndarray:
    """Return ``rounded``, moved to the next double in ``direction`` where rounding went past the bound ``exact``."""
    past = [(int(a) - int(b)) * direction > 0 for a, b in zip(exact, rounded, strict=True)]
    return np.where(past, np.nextafter(rounded, np.inf * direction), rounded)
