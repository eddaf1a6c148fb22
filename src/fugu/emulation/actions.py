"""Draw actions that try all of an action space: every choice in turn, and boxes at their bounds as well as in between."""

from __future__ import annotations

from typing import Any

import numpy as np
from gymnasium import spaces as gs

from fugu.emulation.env import Rows
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
        """Return the next action; with ``mask`` (the choices of the discrete leaves side by side) only an allowed one."""
        if mask is not None and isinstance(self.space, gs.Discrete) and mask.size == self.space.n and mask.any():
            return self.space.dtype.type(self.space.start + self._random.choice(np.flatnonzero(mask)))
        if mask is not None and isinstance(self.space, gs.MultiDiscrete) and mask.size == self.space.nvec.sum():
            return self._masked_multi_discrete(self.space, mask)
        return self._draw(self.space, ())

    def _draw(self, space: gs.Space, path: Path) -> Any:
        if isinstance(space, gs.Dict):
            return {key: self._draw(part, (*path, key)) for key, part in space.spaces.items()}
        if isinstance(space, gs.Tuple):
            return tuple(self._draw(part, (*path, i)) for i, part in enumerate(space.spaces))
        if isinstance(space, gs.Discrete):
            return space.dtype.type(space.start + self._deal(int(space.n), path))
        if isinstance(space, gs.MultiDiscrete):
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


def allowed(action: np.ndarray, rows: Rows, space: gs.Space) -> np.ndarray:
    """Return ``action`` with what the mask of ``rows`` forbids replaced by the first choice it allows."""
    masks = rows.action_mask
    if masks is None or not isinstance(space, gs.Discrete) or masks.all():
        return action
    fine = masks[np.arange(len(masks)), action - space.start] | ~masks.any(axis=1)
    return np.where(fine, action, space.start + masks.argmax(axis=1)).astype(action.dtype)


def _seed(space: gs.Space, seed: int) -> None:
    try:
        space.seed(seed)
    except Exception:  # some spaces people write cannot be seeded; the draw is then not the same twice
        return
