"""Group-relative advantages against numbers computed by hand and a slow loop."""

from __future__ import annotations

import math
import statistics

import pytest
import torch

from fugu.advantage.group import EPS, group_advantage, overlong_penalty

NAN = math.nan


def slow(score: list[float], group: list[int], scale: str) -> list[float]:
    everyone = [s for s in score if not math.isnan(s)]
    out = []
    for s, g in zip(score, group, strict=True):
        others = [t for t, h in zip(score, group, strict=True) if h == g and not math.isnan(t)]
        if math.isnan(s) or len(others) < 2 or len(set(others)) == 1:
            out.append(0.0)
            continue
        unit = {"group": others, "batch": everyone}.get(scale)
        out.append((s - statistics.mean(others)) / (1.0 if unit is None else statistics.stdev(unit) + EPS))
    return out


@pytest.mark.parametrize("scale", ["group", "batch", "none"])
def test_advantage_equals_the_slow_loop_with_gaps_ties_and_groups_out_of_order(scale):
    generator = torch.Generator().manual_seed(0)
    group = torch.randint(7, (60,), generator=generator)
    score = torch.randint(3, (60,), generator=generator).double()
    score[torch.rand(60, generator=generator) < 0.3] = NAN
    score[group == 5] = 0.1  # all alike
    score[group == 6] = NAN
    got = group_advantage(score, group, groups=8, scale=scale)
    assert got.advantage.tolist() == pytest.approx(slow(score.tolist(), group.tolist(), scale), abs=1e-12)
    assert not got.differs[5:].any() and got.differs[:5].all()
    assert got.scored.tolist() == [not math.isnan(s) for s in score.tolist()]


def test_advantage_by_hand():
    got = group_advantage(torch.tensor([1.0, 3.0, 5.0, NAN]), torch.zeros(4, dtype=torch.int64), groups=1, scale="group")
    assert got.advantage.tolist() == pytest.approx([-2 / (2 + EPS), 0, 2 / (2 + EPS), 0])
    assert got.deviation.tolist() == pytest.approx([2.0])


def test_scores_that_are_all_the_same_give_exactly_nothing():
    third = torch.full((7,), 1 / 3) * 10  # whose mean is not quite itself in float32
    got = group_advantage(third, torch.zeros(7, dtype=torch.int64), groups=1, scale="group")
    assert got.advantage.eq(0).all() and not got.differs.any() and got.deviation.eq(0).all()


def test_a_single_scored_member_and_an_unscored_group_have_no_advantage():
    score, group = torch.tensor([4.0, NAN, NAN, NAN, 2.0]), torch.tensor([0, 0, 1, 1, 2])
    got = group_advantage(score, group, groups=3, scale="none")
    assert got.advantage.eq(0).all() and not got.differs.any()


def test_overlong_penalty_at_its_corners():
    length = torch.tensor([0, 60, 61, 80, 99, 100])
    assert overlong_penalty(length, limit=100, margin=40).tolist() == pytest.approx([0, 0, -1 / 40, -0.5, -39 / 40, -1])
    assert overlong_penalty(length, limit=100, margin=0).eq(0).all()
