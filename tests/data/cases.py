"""Specs and episodes to write: random, but the same each time."""

from __future__ import annotations

from typing import Any

import numpy as np
from gymnasium import spaces as gs

from fugu.data.format import forms_of
from fugu.emulation.env import EnvSpec
from fugu.spaces import Packer

SPACES: dict[str, tuple[gs.Space, gs.Space]] = {
    "plain": (gs.Box(-1, 1, (3,), np.float32), gs.Discrete(4)),
    "continuous": (gs.Box(-9, 9, (2,), np.float64), gs.Box(-2, 2, (2,), np.float32)),
    "image": (gs.Box(0, 255, (4, 5, 3), np.uint8), gs.MultiDiscrete([3, 2])),
    "dict": (
        gs.Dict(image=gs.Box(0, 255, (2, 2), np.uint8), where=gs.Tuple([gs.Discrete(5, start=2), gs.MultiBinary(3)])),
        gs.Dict(push=gs.Box(-1, 1, (2,), np.float32), mode=gs.Discrete(3)),
    ),
    "number": (gs.Discrete(7), gs.Discrete(3, start=-1)),
    "text": (gs.Text(6, charset="abc"), gs.Discrete(2)),
}


def spec_of(name: str, **more: Any) -> EnvSpec:
    obs, action = SPACES[name]
    return EnvSpec(obs, action, 1, name=name, **more)


def episode(
    spec: EnvSpec, steps: int, seed: int, *, action_mask: bool = False, reward: str = "float32"
) -> dict[str, np.ndarray]:
    """Return the columns of an episode of ``steps`` steps that terminates."""
    random = np.random.default_rng(seed)
    forms = forms_of(spec, reward=reward, action_mask=action_mask)
    rows = {name: np.zeros((steps + 1, *form.shape), form.dtype) for name, form in forms.items()}
    for name, layout, count in (("obs", spec.obs_layout, steps + 1), ("action", spec.action_layout, steps)):
        layout.space.seed(seed)
        packer = Packer(layout)
        for k in range(count):
            packer.pack(layout.space.sample(), rows[name][k, ...])
    rows["reward"][:steps] = random.normal(size=steps)
    rows["mask"][:steps] = True
    rows["terminated"][steps - 1] = True
    if action_mask:
        rows["action_mask"][...] = True
    for name, (shape, _) in spec.columns.items():
        rows[name][:steps] = random.normal(size=(steps, *shape))
    if spec.costs:
        rows["cost"][:steps] = random.random((steps, len(spec.costs)))
    return rows
