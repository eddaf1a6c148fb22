"""Give each environment a seed of its own, from the one of the run or from those that a caller lists."""

from __future__ import annotations

from collections.abc import Sequence

import numpy as np

from fugu.errors import ConfigError

KEEP = -2
"""stands where a seed would for an environment that a reset leaves alone; native/engine.h has it too"""


def chosen_seeds(seed: int | Sequence[int | None] | None, out: np.ndarray, *, only: np.ndarray | None = None) -> None:
    """Write what the caller of ``reset`` asks for into ``out``, one seed per environment; -1 leaves one unseeded. ``only``,
    ``[num_envs]`` bool, are those to reset."""
    if only is not None:
        _check_some(only, len(out))
    if isinstance(seed, float | str | bytes):
        raise ConfigError(f"seed={seed!r} must be a whole number, or a list with one per environment")
    if seed is None:
        out[:] = -1
    elif isinstance(seed, int | np.integer):
        out[:] = env_seeds(int(seed), len(out))
    else:
        if len(seed) != len(out):
            raise ConfigError(f"{len(seed)} seeds for {len(out)} environments")
        for s in seed:
            if s is not None and (isinstance(s, bool) or not isinstance(s, int | np.integer) or not 0 <= s < 2**63):
                raise ConfigError(
                    f"{s!r} is no seed: they are whole numbers, must not be negative and fit 63 bits; None leaves one unseeded"
                )
        out[:] = [-1 if s is None else s for s in seed]
    if only is not None:
        out[~only] = KEEP


def _check_some(only: np.ndarray, count: int) -> None:
    if not isinstance(only, np.ndarray) or only.shape != (count,) or only.dtype != np.bool_:
        got = f"{only.dtype}{list(only.shape)}" if isinstance(only, np.ndarray) else f"{type(only).__name__} {only!r:.60}"
        raise ConfigError(f"which environments to reset must be an array of {count} bools; got {got}")
    if not only.any():
        raise ConfigError("which environments to reset: all are False, and at least one must be True")


def env_seeds(seed: int, num_envs: int) -> np.ndarray:
    """Return one seed per environment: distinct by construction, and unrelated between neighbouring run seeds.

    An odd step walks through all 2**31 seeds without meeting one twice; start and step come from the run seed.
    """
    entropy = 2 * seed if seed >= 0 else -2 * seed - 1  # SeedSequence takes no negative numbers, and -1 is not 1
    start, step = (int(x) for x in np.random.SeedSequence(entropy).generate_state(2, np.uint32))
    return (start + np.arange(num_envs, dtype=np.int64) * (step | 1)) % 2**31
