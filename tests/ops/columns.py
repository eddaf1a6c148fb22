"""Random columns: shaped noise, and rows laid out from explicit episodes by the row convention."""

from __future__ import annotations

from dataclasses import dataclass

import numpy as np


def noise(segments: int, horizon: int, seed: int = 0, ending: float = 0.1) -> dict[str, np.ndarray]:
    """Columns without any structure; a row may even be terminated and truncated at once."""
    rng = np.random.default_rng(seed)
    shape = (segments, horizon)
    return {
        "value": rng.standard_normal(shape, np.float32),
        "reward": rng.standard_normal(shape, np.float32),
        "terminated": rng.random(shape) < ending,
        "truncated": rng.random(shape) < ending,
        "bootstrap": rng.standard_normal(segments, np.float32),
    }


def random_ratio(segments: int, horizon: int, seed: int = 0) -> np.ndarray:
    return np.exp(0.5 * np.random.default_rng([seed, 1]).standard_normal((segments, horizon))).astype(np.float32)


@dataclass
class Episode:
    """What one agent lived through. ``value`` and ``row`` have one entry more than ``reward``: the final observation."""

    reward: list[float]
    value: list[float]
    row: list[int]
    """where each observation lies in the agent's endless row of rows"""
    terminated: bool


def live(
    rng: np.random.Generator, rows: int, mean_length: float, waiting: float
) -> tuple[dict[str, np.ndarray], list[Episode]]:
    """``rows + 1`` rows of one agent (the last one only for its value) and the episodes in them, by the row convention.

    Starts in the middle of things: sometimes with the final row of an episode of which nothing else is seen. With probability
    ``waiting`` a row is one in which the agent waits for its turn. What masked rows hold is random where nothing is promised.
    """
    reward, value = np.zeros(rows + 1), rng.standard_normal(rows + 1)
    terminated, truncated, mask = (np.zeros(rows + 1, bool) for _ in range(3))
    episodes: list[Episode] = []
    row = 0
    if rng.random() < 0.3:  # final row of an earlier episode
        reward[0], row = rng.standard_normal(), 1
    while row <= rows:
        length = int(rng.geometric(1 / mean_length))
        episode = Episode([], [], [], terminated=bool(rng.random() < 0.5))
        while row <= rows and len(episode.reward) < length:
            mask[row] = rng.random() >= waiting
            reward[row] = rng.standard_normal()
            episode.reward.append(float(reward[row]))
            episode.value.append(float(value[row]))
            episode.row.append(row)
            row += 1
        if row <= rows:
            (terminated if episode.terminated else truncated)[row - 1] = True
            episode.value.append(float(value[row]))
            episode.row.append(row)
            reward[row] = rng.standard_normal()  # zero from our envs; must not matter
            row += 1
        episodes.append(episode)
    columns = {"value": value, "reward": reward, "terminated": terminated, "truncated": truncated, "mask": mask}
    return columns, episodes
