"""Recorded episodes as a source: which rows are drawn, what stands beside them, and going on where it stopped."""

from __future__ import annotations

from pathlib import Path

import numpy as np
import pytest
import torch

from fugu.data import DataSet, Writer, open
from fugu.rollout.acting import Actor
from fugu.rollout.dataset import Dataset, highest, rewards_to_go
from fugu.rollout.source import Stopped
from tests.data.cases import episode, spec_of

LENGTHS = (1, 2, 5, 5, 9, 30)
CPU = torch.device("cpu")


@pytest.fixture
def data(tmp_path: Path) -> DataSet:
    return recorded(tmp_path / "data")


def recorded(path: Path, name: str = "continuous", lengths: tuple[int, ...] = LENGTHS, **more: bool) -> DataSet:
    spec = spec_of(name)
    with Writer(path, spec, **more) as writer:
        source = writer.source({})
        for seed, length in enumerate(lengths):
            rows = episode(spec, length, seed, **more)
            if "action_mask" in rows:  # one that was not taken
                rows["action_mask"][0, (int(rows["action"][0]) + 1) % 4] = False
            writer.add(rows, source=source, terminated=True, truncated=False)
    return open(path)


def drawn(source: Dataset):
    return source.next(Actor(lambda seen: None)).batch


def made(data: DataSet, **settings) -> Dataset:
    source = Dataset(data, **{"horizon": 4, "minibatch": 4096, "to_go": True, "device": CPU, **settings})
    source.restart(0)
    return source


def test_rewards_to_go_are_those_of_numpy(data):
    left = rewards_to_go(data)
    for number in range(data.episodes):
        rows = data.episode(number)
        start, length = data.starts[number], data.lengths[number]
        expected = [float(np.sum(rows["reward"][step:], dtype=np.float64)) for step in range(length + 1)]
        np.testing.assert_allclose(left[start : start + length + 1], expected, rtol=1e-6, atol=1e-6)
        np.testing.assert_allclose(left[start], data.returns[number], rtol=1e-6, atol=1e-6)


def test_every_step_is_as_likely_as_any_other_to_begin_a_segment(data):
    """By chi-square, over all steps of all episodes: an episode is drawn in proportion to its length."""
    source = made(data, horizon=1, minibatch=100_000)
    episodes, steps = source._drawn()
    begins = np.concatenate([[0], np.cumsum(data.lengths)])
    counts = np.bincount(begins[episodes] + steps, minlength=begins[-1])
    expected = len(episodes) / begins[-1]
    chi = ((counts - expected) ** 2 / expected).sum()
    free = len(counts) - 1
    assert abs(chi - free) < 4 * np.sqrt(2 * free)
    shares = np.bincount(episodes, minlength=data.episodes) / len(episodes)
    np.testing.assert_allclose(shares, data.lengths / data.lengths.sum(), atol=0.01)


def test_segments_hold_the_rows_as_they_were_recorded_and_end_with_their_episode(data):
    source = made(data)
    episodes, steps = source._drawn()
    batch = source._batch(episodes, steps)
    left = rewards_to_go(data)
    for k in range(200):
        rows, length = data.episode(int(episodes[k])), int(data.lengths[episodes[k]])
        for j in range(4):
            t = int(steps[k]) + j
            assert batch["mask"][k, j] == (t < length) and batch["time"][k, j] == t
            if t >= length:
                assert batch["to_go"][k, j] == 0
                continue
            for name in ("obs", "reward", "terminated", "truncated"):
                np.testing.assert_array_equal(batch[name][k, j].numpy(), rows[name][t])
            np.testing.assert_allclose(batch["action"][k, j].numpy(), rows["action"][t] / 2, rtol=1e-6)  # of -2 to 2
            assert batch["first"][k, j] == (t == 0)
            assert batch["to_go"][k, j] == left[data.starts[episodes[k]] + t]
        after = min(int(steps[k]) + 4, length)
        np.testing.assert_array_equal(batch["obs_after"][k].numpy(), rows["obs"][after])
        assert batch["acts_after"][k] == (after < length)


def test_action_masks_come_along(tmp_path):
    batch = drawn(made(recorded(tmp_path / "data", "plain", action_mask=True)))
    assert batch["action_mask"].sum(-1)[batch["first"]].eq(3).all() and batch["action_mask_after"].shape == (1024, 4)


def test_it_goes_on_bit_for_bit_where_it_was_saved(data):
    source, other = made(data), made(data)
    drawn(source)
    saved = {name: tensor.clone() for name, tensor in source.snapshot().items()}
    expected = [drawn(source) for _ in range(2)]
    other.restart(5)
    assert other.fits(saved)
    other.restore(saved)
    for batch in expected:
        again = drawn(other)
        assert all(torch.equal(batch[name], again[name]) for name in batch.columns)


def test_steps_are_gradient_steps(data):
    source = made(data, together=3, minibatch=8)
    found = source.next(Actor(lambda seen: None))
    assert found.rows == source.played == 3 and found.batch.segments == 6


def test_the_best_episodes_are_those_with_the_highest_returns(data):
    best = highest(data, 0.34)
    assert best.returns.tolist() == [r for r in data.returns if r in sorted(data.returns)[-2:]]
    assert highest(data, 0.01).episodes == 1 and highest(data, 1.0) is data
    rows = {float(r) for number in range(best.episodes) for r in best.episode(number)["reward"]}
    batch = drawn(made(best))
    assert set(batch["reward"][batch["mask"]].tolist()) <= rows
    assert set(batch["to_go"][batch["mask"]].tolist()) <= set(rewards_to_go(best).tolist())


def test_nothing_is_copied_into_memory(data):
    source = made(data, to_go=False)
    assert isinstance(data.column("obs"), np.memmap)
    assert not any(isinstance(value, np.ndarray) and len(value) == data.rows for value in vars(source).values())


def test_it_stops_when_it_is_asked_to(data):
    with pytest.raises(Stopped):
        made(data).next(Actor(lambda seen: None), lambda: True)
