"""Worlds of native environments that are played at random, and what is done to their states, for the tests of saved states."""

from __future__ import annotations

import functools
from collections.abc import Iterator, Mapping
from typing import Any

import numpy as np

import fugu
from fugu.emulation.actions import action_rows
from fugu.emulation.env import Rows
from fugu.emulation.native import descriptions, native_spec
from fugu.spaces import Layout
from fugu.vector.vecenv import VecEnv

LANES = ("acrobot", "cartpole", "mountain_car", "pendulum")
"""stepped a block of 64 at a time; the states of all others lie one after the other"""
BLOCK = 64


def worlds(name: str, count: int, seed: int, settings: Mapping[str, Any] | None = None) -> VecEnv:
    """Return worlds at the beginning of their first episode, parked."""
    vec = fugu.vector.make(name, count, env_kwargs=settings or {}, num_workers=1)
    vec.async_reset(seed=seed)
    vec.recv()
    vec.park()
    return vec


def play(vec: VecEnv, steps: int, seed: int) -> Iterator[Rows]:
    """Step with random actions, and return each time what came of it; parked meanwhile."""
    deck = actions(vec.spec.name)
    random = np.random.default_rng(seed)
    for _ in range(steps):
        vec.unpark()
        vec.send(deck[random.integers(0, len(deck), vec.num_agents)])
        rows = vec.recv()
        vec.park()
        yield rows


@functools.cache
def actions(name: str) -> np.ndarray:
    return action_rows(native_spec(name, {}).action_space, 512, 0)


def random_settings(name: str, random: np.random.Generator) -> dict[str, Any]:
    """Return settings within their ranges, many of them at a bound."""
    described, settings = descriptions()[name], {}
    for key, default in described["params"].items():
        low, high = described["bounds"][key]
        value = random.choice([low, high, default, random.uniform(low, high), min(high, default * random.uniform(0.5, 2))])
        value = float(np.clip(value, low, high))
        settings[key] = int(value) if isinstance(default, int) else value
    settings["max_steps"] = int(random.choice([0, 1, 7, 1000]))
    return settings


def misfit(name: str, obs: np.ndarray) -> str:
    """Return in what way observations are outside of their space; nothing if they are not."""
    layout = Layout(native_spec(name, {}).observation_space)
    for view, leaf in zip(layout.leaf_views(obs), layout.leaves, strict=True):
        choices = leaf.choice_range()
        low, high = choices if choices is not None else (leaf.space.low, leaf.space.high)
        inside = (view >= low) & (view <= high)
        if not inside.all():
            return f"{leaf.name}: {view[~inside][:5]}"
    return ""


NUMBERS = {
    "<u1": (0, 1, 2, 3, 7, 8, 64, 127, 128, 255),
    "<u2": (0, 1, 127, 1000, 2515, 2516, 0x7FFF, 0x8000, 0xFFFF),
    "<i4": (0, 1, -1, 5, 63, 64, 2**16, 2**30, 2**30 + 1, 2**31 - 1, 2**31 - 2, -(2**31)),
    "<f4": (0.0, -0.0, 1.0, -1.0, 0.5, 1e-38, 3.0, 1e6, 1e30, 3.4e38, -3.4e38, np.inf, -np.inf, np.nan),
    "<u8": (0, 1, 2**32, 2**63 - 1, 2**63, 2**64 - 1),
    "<f8": (0.0, 1e308, -1e308, np.inf, np.nan),
}
"""extremes that a field of a state may hold"""


def spoilt(state: np.ndarray, other: np.ndarray, random: np.random.Generator) -> np.ndarray:
    """Return ``state`` with something done to it: random bytes, bits turned round, extremes in a field, or a part of ``other``, of
    the same size."""
    state = state.copy()
    kind = random.integers(0, 8)
    if kind == 0:
        state[...] = random.integers(0, 256, len(state), np.uint8)
    elif kind < 3:
        for _ in range(random.integers(1, 5)):
            state[random.integers(len(state))] ^= np.uint8(1 << random.integers(8))
    elif kind < 7:
        for _ in range(random.integers(1, 3)):
            dtype = str(random.choice(list(NUMBERS)))
            wide = np.dtype(dtype).itemsize
            some = min(len(state), 128)  # beside a large board there are small fields, on both sides
            low, high = ((0, len(state)), (0, some), (len(state) - some, len(state)))[random.integers(3)]
            at = int(random.integers(-(-low // wide), high // wide)) * wide
            value = NUMBERS[dtype][random.integers(len(NUMBERS[dtype]))]
            state[at : at + wide] = np.frombuffer(np.array(value, dtype).tobytes(), np.uint8)
    else:
        low, high = sorted(random.integers(0, len(state) + 1, 2))
        state[low:high] = other[low:high]
    return state
