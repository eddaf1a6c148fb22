"""Random actions for many agents at once, and noise on the actions of others: as fast as numbers can be drawn.

In: an action layout and a seed. Out: rows ``[agents, *row_shape]``. Choices are uniform over what the action mask allows, numbers of a
Box uniform between its bounds; without a bound they are as Gymnasium draws them: normal, or exponential from the one bound.
"""

from __future__ import annotations

from collections.abc import Sequence

import numpy as np
from gymnasium import spaces as gs

from fugu.emulation.actions import Actions
from fugu.errors import ConfigError
from fugu.spaces import Layout, Leaf, Packer

BLOCK = 1 << 16
"""random actions that are drawn together"""


class RandomPlay:
    """Draws actions of ``layout`` for ``agents`` agents."""

    def __init__(self, layout: Layout, agents: int, seed: int) -> None:
        self.layout, self.agents = layout, agents
        self._random = np.random.default_rng(seed)
        self._plain = all(
            isinstance(leaf.space, gs.Discrete | gs.MultiDiscrete | gs.MultiBinary | gs.Box) for leaf in layout.leaves
        )
        self._plain &= _is_flat(layout.space)
        self._others = None if self._plain else Actions(layout.space, seed)
        self._packer = Packer(layout, finite=False, cast=True)
        self._block = layout.zeros(0, agents)
        self._at = 0

    def next(self, mask: np.ndarray | None = None) -> np.ndarray:
        """Return actions; ``mask`` ``[agents, choices]`` says which choices are allowed, None: all. Valid until the next call."""
        if mask is not None and not mask.all():
            return self._drawn(1, mask)[0]
        if self._at == len(self._block):
            self._block, self._at = self._drawn(max(1, min(64, BLOCK // self.agents)), None), 0
        self._at += 1
        return self._block[self._at - 1]

    def _drawn(self, steps: int, mask: np.ndarray | None) -> np.ndarray:
        rows = self.layout.zeros(steps, self.agents)
        if self._others is not None:
            for k in range(steps * self.agents):
                step, agent = divmod(k, self.agents)
                self._packer.pack(self._others.next(None if mask is None else mask[agent]), rows[step, agent, ...])
            return rows
        at = 0
        for leaf, view in zip(self.layout.leaves, self.layout.leaf_views(rows), strict=True):
            sizes = _choices(leaf)
            if sizes is not None and mask is not None:
                starts = np.ravel(np.asarray(getattr(leaf.space, "start", 0)))
                for k, size in enumerate(sizes.tolist()):
                    view.reshape(steps, self.agents, -1)[..., k] = self._allowed(mask[:, at : at + size]) + starts[k]
                    at += size
            else:
                view[...] = draw(leaf, (steps, self.agents), self._random)
        return rows

    def _allowed(self, mask: np.ndarray) -> np.ndarray:
        """Return an allowed choice for each agent, ``[agents]``, each with the same chance."""
        return np.argmax(self._random.random(mask.shape, np.float32) * mask + mask, axis=1)


class Noise:
    """Makes actions worse, each episode as much as its turn says: ``values`` go round.

    A choice or a bit is replaced by a random one with this chance; a number of a Box gets normal noise of this deviation, in halves of
    its range, and stays within its bounds.
    """

    def __init__(self, layout: Layout, envs: int, per_env: int, values: Sequence[float], seed: int) -> None:
        for value in values:
            if not 0 <= value < np.inf:
                raise ConfigError(f"noise {value} must be a number from 0 up")
        self.layout, self.values = layout, np.array(values, np.float64)
        self._random = np.random.default_rng(seed)
        self._play = RandomPlay(layout, envs * per_env, seed + 1)
        if not self._play._plain:
            raise ConfigError(f"there is no noise for actions of {layout.space}", fix="Leave out --noise")
        self._env, self._envs = np.repeat(np.arange(envs), per_env), envs
        self._number = np.full(envs * per_env, -1)

    def __call__(self, action: np.ndarray, first: np.ndarray, mask: np.ndarray | None) -> np.ndarray:
        """Return ``action`` with noise. ``first``: which agents' episodes begin."""
        self._number += first
        size = self.values[(self._env + self._number * self._envs) % len(self.values)]
        action, other = np.array(action), self._play.next(mask)
        random = self._random
        for leaf, view, drawn in zip(
            self.layout.leaves, self.layout.leaf_views(action), self.layout.leaf_views(other), strict=True
        ):
            each = size.reshape(-1, *[1] * (view.ndim - 1))
            if isinstance(leaf.space, gs.Box):
                low, high = leaf.space.low.astype(np.float64), leaf.space.high.astype(np.float64)
                bounded = np.isfinite(low) & np.isfinite(high)
                half = np.where(bounded, high / 2 - low / 2, 1.0)
                noisy = np.clip(view + each * half * random.standard_normal(view.shape), low, high)
                view[...] = noisy if leaf.dtype.kind == "f" else np.rint(noisy)
            else:
                view[...] = np.where(random.random(view.shape) < each, drawn, view)
        return action


def draw(leaf: Leaf, lead: tuple[int, ...], random: np.random.Generator) -> np.ndarray:
    """Return random values of a leaf, ``[*lead, *leaf.shape]``."""
    space, shape = leaf.space, (*lead, *leaf.shape)
    if isinstance(space, gs.Discrete):
        return random.integers(int(space.n), size=shape, dtype=_narrow(int(space.n))) + leaf.dtype.type(space.start)
    if isinstance(space, gs.MultiDiscrete):
        return random.integers(space.nvec, size=shape, dtype=_narrow(int(space.nvec.max()))) + space.start
    if isinstance(space, gs.MultiBinary):
        return random.integers(2, size=shape, dtype=np.int8)
    assert isinstance(space, gs.Box)
    if leaf.dtype.kind != "f":
        low, high = space.low.astype(object), space.high.astype(object)
        return random.integers(low, high, size=shape, dtype=leaf.dtype.type, endpoint=True)
    below, above = space.bounded_below, space.bounded_above
    if below.all() and above.all():
        low, high = space.low.astype(np.float64), space.high.astype(np.float64)
        return np.clip(low + random.random(shape, np.float32) * (high - low), low, high)
    low, high = np.where(below, space.low, 0.0), np.where(above, space.high, 0.0)
    between = random.uniform(low, np.where(below & above, high, low + 1.0), shape)
    tail, normal = random.exponential(size=shape), random.standard_normal(shape)
    return np.where(below & above, between, np.where(below, low + tail, np.where(above, high - tail, normal)))


def _narrow(count: int) -> type:
    """Return the narrowest integers with ``count`` values: they are drawn faster."""
    return next(kind for kind in (np.uint8, np.uint16, np.uint32, np.int64) if count - 1 <= np.iinfo(kind).max)


def _choices(leaf: Leaf) -> np.ndarray | None:
    if isinstance(leaf.space, gs.Discrete):
        return np.ravel(leaf.space.n)
    return np.ravel(leaf.space.nvec) if isinstance(leaf.space, gs.MultiDiscrete) else None


def _is_flat(space: gs.Space) -> bool:
    if isinstance(space, gs.Dict | gs.Tuple):
        return all(map(_is_flat, space.spaces.values() if isinstance(space, gs.Dict) else space.spaces))
    return not isinstance(space, gs.OneOf | gs.Sequence)
