"""A ``VecEnv`` as a TorchRL ``EnvBase`` of batch size ``[num_envs]``. Import it through ``as_torchrl``.

Comes in: actions as tensors, and which environments to reset (``_reset``). Goes out: tensors by key. A Dict of observations becomes
a nested entry for each key, a Tuple one for ``"0"``, ``"1"``, ..., anything else is ``"observation"``. Discrete values count from 0
whatever the space starts at. TorchRL resets what ended, and only that; nothing restarts by itself before.
"""

from __future__ import annotations

from typing import Any

import numpy as np
import torch
from gymnasium import spaces as gs
from tensordict import TensorDict, TensorDictBase
from torchrl.data import Binary, Bounded, Categorical, Composite, MultiCategorical, TensorSpec, Unbounded
from torchrl.envs import EnvBase

from fugu.emulation.actions import has_mask_method
from fugu.emulation.env import Rows
from fugu.errors import ConfigError, EnvError, SpaceError
from fugu.spaces import Layout
from fugu.spaces.layout import Leaf, Node
from fugu.vector.adapters import ARRAYS
from fugu.vector.vecenv import VecEnv

MASK = "action_mask"


class TorchRLFace(EnvBase):
    """``vec`` with one agent per environment. ``action_mask``: whether the key of that name is there; None: where environments are
    known to forbid actions. ``seeded``: a first reset uses the seeds of ``vec`` unless ``set_seed`` was called."""

    def __init__(self, vec: VecEnv, *, device: Any, action_mask: bool | None, seeded: bool) -> None:
        super().__init__(device=torch.device(device), batch_size=torch.Size([vec.num_envs]))
        self.vec, self._seeded = vec, seeded
        self._seed: int | None = None
        self._masks = vec.num_choices > 0 and (_forbids(vec) if action_mask is None else action_mask)
        self._costs = bool(vec.spec.costs)
        count = vec.num_envs
        obs = _spec(vec.obs_layout, vec.obs_layout.root, count, "observation")
        seen = obs if isinstance(obs, Composite) else Composite({"observation": obs}, shape=(count,))
        if self._masks:
            seen[MASK] = Binary(vec.num_choices, shape=(count, vec.num_choices), dtype=torch.bool)
        if self._costs:
            seen["cost"] = Unbounded(shape=(count, len(vec.spec.costs)), dtype=torch.float32)
        self.observation_spec = seen.to(self.device)
        action = _spec(vec.action_layout, vec.action_layout.root, count, "action")
        self.full_action_spec = Composite({"action": action}, shape=(count,)).to(self.device)
        self.reward_spec = Unbounded(shape=(count, 1), dtype=torch.float32, device=self.device)
        flag = Categorical(2, shape=(count, 1), dtype=torch.bool)
        names = ("done", "terminated", "truncated")
        self.done_spec = Composite({name: flag.clone() for name in names}, shape=(count,)).to(self.device)

    def close(self, *args: Any, **kwargs: Any) -> None:
        self.vec.close()
        super().close(*args, **kwargs)

    def _reset(self, tensordict: TensorDictBase | None = None, **kwargs: Any) -> TensorDictBase:
        which = None if tensordict is None else tensordict.get("_reset", None)
        if which is None or which.all():
            self.vec.reset(self._seeds())
        else:
            self.vec.reset_some(which.reshape(-1).cpu().numpy())
        rows = self.vec.rows
        ends = {name: torch.zeros(self.vec.num_envs, 1, dtype=torch.bool) for name in ("done", "terminated", "truncated")}
        return self._dict({**self._observed(rows), **ends})

    def _step(self, tensordict: TensorDictBase) -> TensorDictBase:
        packed = self.vec.action_layout.zeros(self.vec.num_envs)
        views = self.vec.action_layout.leaf_views(packed)
        _write(self.vec.action_layout.root, tensordict.get("action"), views)
        self.vec.send(packed)
        rows = self.vec.recv()
        terminated, truncated = _tensor(rows.terminated)[:, None], _tensor(rows.truncated)[:, None]
        outcome = {"reward": _tensor(rows.reward)[:, None], "terminated": terminated, "truncated": truncated}
        return self._dict({**self._observed(rows), **outcome, "done": terminated | truncated})

    def _set_seed(self, seed: int | None) -> None:
        self._seed = seed

    def _seeds(self) -> list[int | None] | None:
        """Return the seeds of a reset of all: environment i gets ``seed + i`` of the last ``set_seed``, once."""
        seed, seeded = self._seed, self._seeded
        self._seed, self._seeded = None, False
        if seed is not None:
            return [int(seed) + i for i in range(self.vec.num_envs)]
        return None if seeded else [None] * self.vec.num_envs

    def _observed(self, rows: Rows) -> dict[str, Any]:
        layout = self.vec.obs_layout
        read = _read(layout.root, layout.leaf_views(rows.obs))
        seen = read if isinstance(read, dict) else {"observation": read}
        if self._masks:
            seen[MASK] = _tensor(rows.action_mask)
        if self._costs:
            seen["cost"] = _tensor(rows.cost)
        return seen

    def _dict(self, values: dict[str, Any]) -> TensorDictBase:
        return TensorDict(values, batch_size=self.batch_size, device=self.device)


def _parts(node: Node) -> list[tuple[str, Node]] | None:
    """Return the parts of a Dict or Tuple by key; None for a single array."""
    if isinstance(node.space, gs.Dict | gs.Tuple):
        return [(str(key), child) for key, child in zip(node.keys, node.children, strict=True)]
    return None


def _spec(layout: Layout, node: Node, count: int, where: str) -> TensorSpec:
    parts = _parts(node)
    if parts is not None:
        return Composite({key: _spec(layout, child, count, f"{where}/{key}") for key, child in parts}, shape=(count,))
    if not isinstance(node.space, ARRAYS):
        raise SpaceError(
            f"{type(node.space).__name__} is no tensor; expected Box, Discrete, MultiDiscrete, MultiBinary, Dict or Tuple",
            where=where,
            fix="Use fugu.vector.make() itself, which keeps it as bytes of a row",
        )
    return _leaf_spec(layout.leaves[node.leaf], count, where)


def _leaf_spec(leaf: Leaf, count: int, where: str) -> TensorSpec:
    space = leaf.space
    try:
        dtype = torch.from_numpy(np.zeros(1, leaf.dtype)).dtype
    except TypeError:
        raise SpaceError(f"torch has no {leaf.dtype}", where=where, fix="Declare the space with another dtype") from None
    if isinstance(space, gs.Discrete):
        return Categorical(int(space.n), shape=(count,), dtype=dtype)
    if isinstance(space, gs.MultiDiscrete):
        sizes = space.nvec.ravel().tolist()
        return MultiCategorical(sizes, shape=(count, len(sizes)), dtype=dtype)
    if isinstance(space, gs.MultiBinary):
        return Binary(shape=(count, *space.shape), dtype=dtype)
    assert isinstance(space, gs.Box)
    shape = (count, *space.shape)
    if not (np.isfinite(space.low).all() and np.isfinite(space.high).all()):
        return Unbounded(shape=shape, dtype=dtype)
    low, high = (torch.from_numpy(np.array(bound)).expand(shape).clone() for bound in (space.low, space.high))
    return Bounded(low, high, shape=shape, dtype=dtype)


def _read(node: Node, leaves: list[np.ndarray]) -> Any:
    parts = _parts(node)
    if parts is not None:
        return {key: _read(child, leaves) for key, child in parts}
    view = leaves[node.leaf]
    if isinstance(node.space, gs.Discrete | gs.MultiDiscrete):
        view = view - node.space.start
    return _tensor(view.reshape(len(view), -1) if isinstance(node.space, gs.MultiDiscrete) else view)


def _write(node: Node, value: Any, leaves: list[np.ndarray]) -> None:
    parts = _parts(node)
    if parts is not None:
        for key, child in parts:
            _write(child, value.get(key), leaves)
        return
    view, array = leaves[node.leaf], value.detach().cpu().numpy()
    view[...] = array.reshape(view.shape)
    if isinstance(node.space, gs.Discrete | gs.MultiDiscrete):
        view += node.space.start


def _tensor(column: np.ndarray | None) -> torch.Tensor:
    assert column is not None
    return torch.from_numpy(np.array(column))


def _forbids(vec: VecEnv) -> bool:
    """Return True if the environments are known to forbid actions."""
    if isinstance(vec.observation_space, gs.Dict) and MASK in vec.observation_space.spaces:
        return True
    try:
        return vec.access("apply", "action_masks", (has_mask_method,), {}, [0])[0]
    except (ConfigError, EnvError):  # native worlds say it themselves
        return vec.masks_actions
