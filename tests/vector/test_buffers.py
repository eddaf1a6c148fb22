"""How the columns of a vector env lie in memory."""

from __future__ import annotations

import itertools

import numpy as np
import pytest
from gymnasium import spaces as gs

from fugu.emulation.env import EnvSpec
from fugu.vector.buffers import LINE, PAGE, Buffers

SPEC = EnvSpec(gs.Box(-1, 1, (5,)), gs.Discrete(3), 1)


def in_groups(num_agents: int, groups: int) -> Buffers:
    size = num_agents // groups
    return Buffers(SPEC, num_agents, num_agents, groups=[slice(i * size, (i + 1) * size) for i in range(groups)], head=200)


@pytest.mark.parametrize("groups", [1, 3])
@pytest.mark.parametrize("num_agents", [3, 63, 1002, 4098, 18432])
def test_columns_lie_apart_on_lines_and_long_ones_on_pages(num_agents: int, groups: int) -> None:
    buffers = in_groups(num_agents, groups)
    columns = [buffers.head, buffers.seeds, buffers.action]
    for rows in itertools.chain(*buffers.rows):
        columns += [rows.obs, rows.reward, rows.terminated, rows.truncated, rows.first, rows.mask, rows.action_mask]
    places = sorted((column.ctypes.data, column.nbytes) for column in columns)
    for start, size in places:
        assert start % (LINE if size < PAGE else PAGE) == 0
    for (start, size), (next_start, next_size) in itertools.pairwise(places):
        assert next_start - (start + size) >= (0 if next_size < PAGE else PAGE)
    assert places[-1][0] + places[-1][1] - places[0][0] <= buffers.nbytes
    assert all(np.all(rows.action_mask) for rows in itertools.chain(*buffers.rows))


@pytest.mark.parametrize("num_agents", [3, 1002, 4098, 18432])
def test_rows_of_a_group_lie_in_one_block_and_all_blocks_alike(num_agents: int) -> None:
    buffers = in_groups(num_agents, 3)
    blocks, places = [], []
    for rows in itertools.chain(*buffers.rows):
        columns = [rows.obs, rows.reward, rows.terminated, rows.truncated, rows.first, rows.mask, rows.action_mask]
        start, end = rows.obs.ctypes.data, max(column.ctypes.data + column.nbytes for column in columns)
        places.append([column.ctypes.data - start for column in columns])
        blocks.append((start, end))
    assert all(place == places[0] for place in places)
    assert all(end <= start for (_, end), (start, _) in itertools.pairwise(sorted(blocks)))


def test_a_part_is_the_rows_of_its_agents_and_never_of_two_groups() -> None:
    buffers = in_groups(12, 3)
    for rows in itertools.chain(*buffers.rows):
        rows.reward[...] = np.arange(rows.agents.start, rows.agents.stop)
    part = buffers.part(1, slice(5, 8))
    assert part.agents == slice(5, 8) and part.reward.tolist() == [5, 6, 7]
    part.reward[...] = -1
    assert buffers.rows[1][1].reward.tolist() == [4, -1, -1, -1] and buffers.rows[1][0].reward.tolist() == [4, 5, 6, 7]
    with pytest.raises(AssertionError, match="two groups"):
        buffers.part(0, slice(3, 6))
