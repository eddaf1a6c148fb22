"""Draw actions that try all of an action space: every choice in turn, and boxes at their bounds as well as in between."""

from __future__ import annotations

from typing import Any

import numpy as np
from gymnasium import spaces as gs

from fugu.emulation.env import Rows, flat_mask
from fugu.spaces import Layout, Packer
from fugu.spaces.layout import Path

DECK_LIMIT = 10_000
"""a Discrete with more choices than this is sampled instead of dealt"""


class Actions:
    """A reproducible stream of valid actions for ``space``."""

    def __init__(self, space: gs.Space, seed: int) -> None:
        self.space = space
        self._random = np.random.default_rng(seed)
        self._decks: dict[Path, list[int]] = {}
        _seed(space, seed)

    def next(self, mask: np.ndarray | None = None) -> Any:
        """Return the next action; with ``mask`` (the choices of the leaves side by side) only an allowed one."""
        return self._draw(self.space, (), {} if mask is None else mask_parts(self.space, mask))

    def _draw(self, space: gs.Space, path: Path, masks: dict[Path, np.ndarray]) -> Any:
        if isinstance(space, gs.Dict):
            return {key: self._draw(part, (*path, key), masks) for key, part in space.spaces.items()}
        if isinstance(space, gs.Tuple):
            return tuple(self._draw(part, (*path, i), masks) for i, part in enumerate(space.spaces))
        mask = masks.get(path)
        if isinstance(space, gs.Discrete):
            if mask is not None and mask.any():
                return space.dtype.type(space.start + self._random.choice(np.flatnonzero(mask)))
            return space.dtype.type(space.start + self._deal(int(space.n), path))
        if isinstance(space, gs.MultiBinary) and mask is not None:
            return allowed_bits(space.sample(), mask)
        if isinstance(space, gs.MultiDiscrete):
            if mask is not None:
                return self._masked_multi_discrete(space, mask)
            choices = [self._deal(int(n), (*path, i)) for i, n in enumerate(space.nvec.ravel())]
            return (np.reshape(choices, space.nvec.shape) + space.start).astype(space.dtype)
        if isinstance(space, gs.Box):
            return self._box(space)
        return space.sample()

    def _deal(self, n: int, path: Path) -> int:
        """Deal from a shuffled deck: every choice comes once before any comes again."""
        if n > DECK_LIMIT:
            return int(self._random.integers(n))
        deck = self._decks.get(path)
        if not deck:
            deck = self._decks[path] = self._random.permutation(n).tolist()
        return deck.pop()

    def _box(self, space: gs.Box) -> np.ndarray:
        """Return a sample; one time in eight all at the lower bound, one in eight all at the upper, where there is one."""
        value = space.sample()
        side = self._random.integers(8)
        if side == 0:
            return np.where(np.isfinite(space.low), space.low, value).astype(space.dtype)
        if side == 1:
            return np.where(np.isfinite(space.high), space.high, value).astype(space.dtype)
        return value

    def _masked_multi_discrete(self, space: gs.MultiDiscrete, mask: np.ndarray) -> np.ndarray:
        parts = np.split(np.asarray(mask, bool).ravel(), np.cumsum(space.nvec.ravel())[:-1])
        choices = [self._random.choice(np.flatnonzero(part)) if part.any() else 0 for part in parts]
        return (np.reshape(choices, space.nvec.shape) + space.start).astype(space.dtype)


def action_rows(space: gs.Space, count: int, seed: int) -> np.ndarray:
    """Return ``count`` actions as rows, ``[count, *row_shape]``."""
    layout, actions = Layout(space), Actions(space, seed)
    packer, rows = Packer(layout, finite=False, cast=True), layout.zeros(count)
    for i in range(count):
        packer.pack(actions.next(), rows[i : i + 1].reshape(layout.row_shape))
    return rows


def allowed(action: np.ndarray, rows: Rows, space: gs.Space, obs: Layout | None = None) -> np.ndarray:
    """Return ``action``, rows of ``space``, with what is forbidden replaced by the first choice that is allowed.

    The mask of ``rows`` is for discrete choices alone; with ``obs``, the layout of observations, masks of bits count too.
    """
    if obs is not None:
        action = _bits_of_each(action, rows, Layout(space), obs)
    masks = rows.action_mask
    if masks is None or masks.all():
        return action
    action, at, layout = action.copy(), 0, Layout(space)
    for leaf, view in zip(layout.leaves, layout.leaf_views(action), strict=True):
        if not isinstance(leaf.space, gs.Discrete | gs.MultiDiscrete):
            continue
        sizes = np.ravel(leaf.space.n if isinstance(leaf.space, gs.Discrete) else leaf.space.nvec)
        choices = view.reshape(len(view), -1) - np.ravel(leaf.space.start)
        for k, size in enumerate(sizes.tolist()):
            mask = masks[:, at : at + size]
            fine = mask[np.arange(len(mask)), choices[:, k]] | ~mask.any(axis=1)
            choices[:, k] = np.where(fine, choices[:, k], mask.argmax(axis=1))
            at += size
        view[...] = (choices + np.ravel(leaf.space.start)).reshape(view.shape)
    return action


def has_bits(space: gs.Space) -> bool:
    """Return True if a part of ``space`` is a MultiBinary."""
    return any(isinstance(leaf.space, gs.MultiBinary) for leaf in Layout(space).leaves)


def has_mask_method(env: Any) -> bool:
    """Return True if ``env``, or what is wrapped in it, has a method ``action_masks``."""
    return callable(getattr(getattr(env, "unwrapped", env), "action_masks", None))


def mask_parts(space: gs.Space, mask: np.ndarray) -> dict[Path, np.ndarray]:
    """Split a mask by leaves of ``space``: choices of Discrete and MultiDiscrete, and, where there is room for them, a flag for each
    bit of MultiBinary (it may be 1) or two (it may be 0; it may be 1). A mask of another size says nothing."""
    leaves = Layout(space).leaves
    for flags in (0, 1, 2):
        sizes = [_flags(leaf.space, flags) for leaf in leaves]
        if sum(sizes) == mask.size:
            parts = np.split(np.asarray(mask, bool).ravel(), np.cumsum(sizes)[:-1])
            return {leaf.path: part for leaf, part in zip(leaves, parts, strict=True) if part.size}
    return {}


def allowed_bits(bits: np.ndarray, mask: np.ndarray) -> np.ndarray:
    """Return ``bits`` with those that must not be as they are turned over."""
    may = mask.reshape(bits.size, -1)
    zero, one = (np.ones(bits.size, bool), may[:, 0]) if may.shape[1] == 1 else (may[:, 0], may[:, 1])
    flat = bits.ravel()
    return np.where(flat & ~one, 0, np.where(~flat.astype(bool) & ~zero, 1, flat)).astype(bits.dtype).reshape(bits.shape)


def _flags(space: gs.Space, flags: int) -> int:
    if isinstance(space, gs.MultiBinary):
        return flags * int(np.prod(space.shape))
    return (
        int(space.n) if isinstance(space, gs.Discrete) else int(space.nvec.sum()) if isinstance(space, gs.MultiDiscrete) else 0
    )


def _bits_of_each(action: np.ndarray, rows: Rows, layout: Layout, obs: Layout) -> np.ndarray:
    """Return ``action`` with the bits that an agent's mask, in its observation or info, forbids turned over."""
    action = action.copy()
    views = layout.leaf_views(action)
    shown = [i for i, leaf in enumerate(obs.leaves) if leaf.path == ("action_mask",)]
    seen = obs.leaf_views(rows.obs)[shown[0]] if shown else None
    for i in range(len(action)):
        offered = seen[i] if seen is not None else rows.infos.get(rows.agents.start + i, {}).get("action_mask")
        if offered is None or not rows.mask[i]:
            continue
        parts = mask_parts(layout.space, flat_mask(offered, layout.space))
        for leaf, view in zip(layout.leaves, views, strict=True):
            if isinstance(leaf.space, gs.MultiBinary) and leaf.path in parts:
                view[i] = allowed_bits(view[i], parts[leaf.path])
    return action


def _seed(space: gs.Space, seed: int) -> None:
    try:
        space.seed(seed)
    except Exception:  # some spaces people write cannot be seeded; the draw is then not the same twice
        return
