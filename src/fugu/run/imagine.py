"""What a world model expects to see, beside what there is: it looks once, and then follows the policy's actions with closed eyes.

Images are shown as they are and as expected, side by side. Of other observations each number has a strip: what it was, and what was
expected from the last look on, in the units that the model reads. A vertical line is a look.
"""

from __future__ import annotations

from collections.abc import Sequence

import numpy as np
import torch
from torch import Tensor

from fugu.algorithm.contract import Algorithm
from fugu.errors import ConfigError
from fugu.policy.world import World
from fugu.rollout.acting import Carry

AHEAD = 30
"""steps from one look to the next"""
STRIPS = 12
"""numbers that are shown, the first ones"""
STEPS = 120
"""steps that a strip shows"""
BACKGROUND, LOOK, WAS, EXPECTED = (250, 250, 250), (205, 205, 205), (60, 60, 60), (230, 110, 20)


class Imagined:
    """Pictures of what was and what was expected, row after row of one agent."""

    def __init__(self, algorithm: Algorithm, name: str, ahead: int = AHEAD) -> None:
        if not isinstance(algorithm.policy, World):
            raise ConfigError(f"{name} learns no model of its world, so it imagines nothing; --imagine is for dreamer")
        self.world, self.ahead = algorithm.policy, ahead
        self._state: tuple[Tensor, Tensor] | None = None
        self._since = 0
        self._was: list[np.ndarray] = []
        self._expected: list[np.ndarray] = []
        self._looks: list[int] = []

    @torch.inference_mode()
    def expect(self, rows: Tensor, carry: Carry | None) -> tuple[list[Tensor], list[Tensor] | None]:
        """Return what is seen on ``rows [1, *row]`` and what was expected of it, leaf by leaf; None on the first row of an episode.
        ``carry`` is what the policy took along from the row before."""
        world, seen = self.world, self.world.shown(rows)
        if carry is None:
            self._state = None
            return seen, None
        if self._state is None or self._since == self.ahead:
            self._state, self._since = world.state(carry), 0
        self._state = world.follow(*self._state, carry["before"], None, greedy=True)
        self._since += 1
        return seen, world.decoder.shown(torch.cat(self._state, -1))

    def picture(self, rows: Tensor, carry: Carry | None, height: int) -> np.ndarray:
        """Return the picture after these rows, ``[height, width, 3]`` bytes."""
        looked = carry is not None and (self._state is None or self._since == self.ahead)
        seen, expected = self.expect(rows, carry)
        image = next((i for i, leaf in enumerate(seen) if leaf.dim() == 4), None)
        if image is not None:
            pair = [seen[image], torch.zeros_like(seen[image]) if expected is None else expected[image]]
            return np.concatenate([_scaled(_colours(each[0]), height) for each in pair], 1)
        if looked:
            self._looks.append(len(self._was))
        self._was.append(_numbers(seen))
        self._expected.append(np.full_like(self._was[-1], np.nan) if expected is None else _numbers(expected))
        start = max(0, len(self._was) - STEPS)
        return _strips(self._was[start:], self._expected[start:], [x - start for x in self._looks if x >= start], height)


def _numbers(leaves: Sequence[Tensor]) -> np.ndarray:
    return torch.cat([leaf[0].flatten() for leaf in leaves])[:STRIPS].cpu().numpy()


def _colours(pixels: Tensor) -> np.ndarray:
    """Return ``[height, width, 3]`` bytes of ``pixels [channels, height, width]`` in 0..1; of several frames the last."""
    shown = pixels[-3:] if len(pixels) % 3 == 0 else pixels[-1:]
    return (shown.expand(3, -1, -1).permute(1, 2, 0).clamp(0, 1) * 255).byte().cpu().numpy()


def _scaled(picture: np.ndarray, height: int) -> np.ndarray:
    """Return the picture with ``height`` rows, in its proportions."""
    width = max(1, round(picture.shape[1] * height / picture.shape[0]))
    rows = np.arange(height) * picture.shape[0] // height
    columns = np.arange(width) * picture.shape[1] // width
    return picture[rows][:, columns]


def _strips(was: list[np.ndarray], expected: list[np.ndarray], looks: list[int], height: int) -> np.ndarray:
    """Draw one strip per number, below each other."""
    step = max(2, height // STEPS)
    canvas = np.empty((height, STEPS * step, 3), np.uint8)
    canvas[:] = BACKGROUND
    for x in looks:
        canvas[:, x * step] = LOOK
    lines = np.stack([np.stack(was), np.stack(expected)])  # [2, steps, numbers]
    count = lines.shape[2]
    for number in range(count):
        top, bottom = height * number // count + 1, height * (number + 1) // count - 2
        values = lines[:, :, number]
        low, high = np.nanmin(values), np.nanmax(values)
        share = (values - low) / max(high - low, 1e-6)
        for line, colour in zip(bottom - share * max(bottom - top, 1), (WAS, EXPECTED), strict=True):
            _line(canvas, line, step, colour)
    return canvas


def _line(canvas: np.ndarray, heights: np.ndarray, step: int, colour: tuple[int, int, int]) -> None:
    """Draw a line through ``heights``, ``step`` pixels apart; with a gap where there is none."""
    x = np.arange((len(heights) - 1) * step + 1)
    y = np.interp(x / step, np.arange(len(heights)), heights)  # NaN beside NaN
    for column, (here, there) in enumerate(zip(y, np.append(y[1:], y[-1:]), strict=True)):
        if np.isfinite(here) and np.isfinite(there):
            low, high = sorted((round(here), round(there)))
            canvas[max(low, 0) : high + 1, column] = colour
