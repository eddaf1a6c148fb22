"""A player for environments that write rows: every ``fugu.Env``, native or adapted."""

from __future__ import annotations

from collections.abc import Iterator
from typing import Any

import numpy as np

from fugu.check.player import Clock
from fugu.emulation.actions import action_rows, allowed, has_bits
from fugu.emulation.env import Env, Rows, spec_of
from fugu.spaces import Layout


class RowsPlayer:
    """Plays a ``fugu.Env``. It resets itself, so ``ended`` is only true before the first reset.

    Two sets of rows take turns, as in a vector env. ``poison`` fills them with values no env should leave there before each
    call. The actions of a few steps are packed once and used over and over.
    """

    POOL = 16

    def __init__(self, env: Env, seed: int, *, poison: bool = False) -> None:
        self.env, self.clock = env, Clock()
        self.layout = Layout(env.observation_space)
        self._slots = [Rows.zeros(spec_of(env)) for _ in range(2)]
        self.rows = self._slots[0]
        self.infos: Any = None
        self.ended, self._poison = True, poison
        self.action: Any = None
        self._bits = has_bits(env.action_space)
        actions = action_rows(env.action_space, self.POOL * env.num_agents, seed)
        self._pool = actions.reshape(self.POOL, env.num_agents, *actions.shape[1:])

    def reset(self, seed: int | None) -> None:
        self._turn()
        self.infos = self.clock.reset(self.env.reset, seed, self.rows)
        self.ended, self.action = False, None

    def step(self) -> None:
        action = self._pool[self.clock.steps % self.POOL].copy()
        if self._bits:
            self.rows.infos = self._offered()
        self.action = allowed(action, self.rows, self.env.action_space, self.layout if self._bits else None)
        self._turn()
        self.infos = self.clock.step(self.env.step, self.action, self.rows)

    def values(self) -> Iterator[tuple[str, Any]]:
        for leaf, view in zip(self.layout.leaves, self.layout.leaf_views(self.rows.obs), strict=True):
            yield "/".join(("obs", *map(str, leaf.path))), view
        yield from ((name, column) for name, column in self.rows.columns.items() if name not in ("obs", "action_mask"))

    def _offered(self) -> dict[int, Any]:
        """Return what the last call said by agent; where a method says what is allowed, its answer."""
        inner = getattr(self.env, "env", self.env)
        method = getattr(getattr(inner, "unwrapped", inner), "action_masks", None)
        if self.env.num_agents == 1 and callable(method):
            return {0: {"action_mask": method()}}
        return self.infos if isinstance(self.infos, dict) else {}

    def _turn(self) -> None:
        self.rows = self._slots[1] if self.rows is self._slots[0] else self._slots[0]
        if self._poison:
            self.layout.flat(self.rows.obs)[...] = 0xFF  # a float of these bytes is NaN, an integer -1
            for column in (*self.rows.outcome(), self.rows.first):
                column[...] = np.nan if column.dtype.kind == "f" else np.ones((), column.dtype)
            self.rows.mask[...] = False
