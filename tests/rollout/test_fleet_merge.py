"""Parts of a batch from several nodes: whose segment is where, and what stands for what is missing."""

from __future__ import annotations

import torch

from fugu.emulation.stats import EpisodeLog
from fugu.rollout.flat import header_of, read, written
from fugu.rollout.fleet_merge import lost_part, merged, part_of
from fugu.rollout.fleet_node import Played


def part(segments, horizon=3, start=0, once=(), **more):
    """A part whose rewards say which segment of which part they are of."""
    number = torch.arange(start, start + segments, dtype=torch.float32)
    columns = {
        "reward": number[:, None].expand(-1, horizon).contiguous(),
        "mask": torch.ones(segments, horizon, dtype=torch.bool),
        "first": torch.zeros(segments, horizon, dtype=torch.bool),
        "bootstrap": number,
        **more,
    }
    names = frozenset({"bootstrap", "group", "score", *once})
    log = EpisodeLog(0, 0.0, 0.0, {})
    return part_of(Played(header_of(columns), names, written(columns), 0, 0, log, None, None, {}, 0.0, 0))


def test_tensors_come_out_of_a_block_as_they_went_in():
    tensors = {
        "a": torch.arange(3, dtype=torch.int64),
        "half": torch.ones(2, 5, dtype=torch.bfloat16),
        "none": torch.zeros(0, 4),
        "one": torch.tensor(1.5, dtype=torch.float64),
        "across": torch.arange(6).view(2, 3).t(),
        "flag": torch.tensor([True, False]),
    }
    found = read(header_of(tensors), written(tensors))
    assert all(torch.equal(found[name], tensor) and found[name].dtype == tensor.dtype for name, tensor in tensors.items())


def test_segment_s_is_of_agent_s_modulo_agents_in_every_pass():
    batch = merged([part(4, start=0), part(6, start=10)], passes=2, groups=[0, 0])
    assert batch["bootstrap"].tolist() == [0, 1, 10, 11, 12, 2, 3, 13, 14, 15]
    assert batch["reward"][:, 0].tolist() == batch["bootstrap"].tolist()


def test_parts_of_unequal_length_and_columns_that_one_lacks():
    mask = torch.zeros(2, 2, 4, dtype=torch.bool)
    batch = merged([part(2, horizon=2, action_mask=mask), part(1, horizon=3, start=5)], passes=1, groups=[0, 0])
    assert batch["mask"].tolist() == [[True, True, False]] * 2 + [[True] * 3]
    assert not batch["action_mask"][:2, :2].any() and batch["action_mask"][:2, 2].all() and batch["action_mask"][2].all()


def test_groups_are_counted_over_all_nodes():
    groups = [torch.tensor([0, 0, 1, 1]), torch.tensor([0, 0])]
    batch = merged([part(4, group=groups[0]), part(2, group=groups[1])], passes=1, groups=[2, 1])
    assert batch["group"].tolist() == [0, 0, 1, 1, 2, 2]


def test_what_a_lost_node_played_is_masked():
    like = part(4, obs=torch.ones(4, 3, 2))
    batch = merged([like, lost_part(2, 3, like, 0)], passes=1, groups=[0, 0])
    assert batch["mask"].any(1).tolist() == [True] * 4 + [False] * 2
    assert batch["first"][4:].tolist() == [[True, False, False]] * 2 and not batch["obs"][4:].any()
    assert batch["lost"].any(1).tolist() == [False] * 4 + [True] * 2


def test_episodes_of_a_lost_node_have_no_score():
    like = part(4, group=torch.tensor([0, 0, 1, 1]), score=torch.ones(4))
    batch = merged([like, lost_part(2, 3, like, 1)], passes=1, groups=[2, 1])
    assert batch["score"].isnan().tolist() == [False] * 4 + [True] * 2 and batch["group"].tolist() == [0, 0, 1, 1, 2, 2]
