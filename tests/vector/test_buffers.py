"""How the columns of a vector env lie in memory."""

from __future__ import annotations

import itertools

import numpy as np
import pytest
from gymnasium import spaces as gs

from fugu.emulation.env import EnvSpec
from fugu.vector.buffers import LINE, PAGE, Buffers


@pytest.mark.parametrize("num_agents", [1, 63, 1000, 4096])
def test_columns_lie_apart_on_lines_and_long_ones_on_pages(num_agents: int) -> None:
    spec = EnvSpec(gs.Box(-1, 1, (5,)), gs.Discrete(3), 1)
    buffers = Buffers(spec, num_agents, num_agents, head=200)
    columns = [buffers.head, buffers.seeds, buffers.action]
    for rows in buffers.rows:
        columns += [rows.obs, rows.reward, rows.terminated, rows.truncated, rows.first, rows.mask, rows.action_mask]
    places = sorted((column.ctypes.data, column.nbytes) for column in columns)
    for start, size in places:
        assert start % (LINE if size < PAGE else PAGE) == 0
    for (start, size), (next_start, next_size) in itertools.pairwise(places):
        assert next_start - (start + size) >= (0 if next_size < PAGE else PAGE)
    assert places[-1][0] + places[-1][1] - places[0][0] <= buffers.nbytes
    assert all(np.all(rows.action_mask) for rows in buffers.rows)
