"""NetHack, made to obey its seed: NLE and MiniHack take no notice of ``reset(seed=...)``."""

from __future__ import annotations

from typing import Any

import gymnasium
import minihack  # noqa: F401  (registers its ids)
import nle  # noqa: F401


class Seeded(gymnasium.Wrapper):
    """Draws the game's own seeds from the environment's random numbers, which ``reset(seed=...)`` does set."""

    def reset(self, *, seed: int | None = None, options: dict[str, Any] | None = None) -> tuple[Any, dict[str, Any]]:
        base = self.unwrapped
        gymnasium.Env.reset(base, seed=seed)
        core, display = (int(n) for n in base.np_random.integers(2**31, size=2))
        base.seed(core=core, disp=display, reseed=False)
        return self.env.reset()


def score() -> gymnasium.Env:
    return Seeded(gymnasium.make("NetHackScore-v0", disable_env_checker=True))


def room() -> gymnasium.Env:
    return Seeded(gymnasium.make("MiniHack-Room-5x5-v0", disable_env_checker=True))
