"""Running moments against numpy over all rows at once."""

from __future__ import annotations

import numpy as np
import torch

from fugu.policy import RunningMoments


def test_moments_equal_those_of_all_unmasked_rows_together() -> None:
    rng = np.random.default_rng(0)
    moments = RunningMoments((3,))
    kept = []
    for rows in (1, 7, 30, 2):
        x = rng.normal(5, [1, 10, 0.01], (rows, 4, 3))
        mask = rng.random((rows, 4)) < 0.6
        moments.update(torch.from_numpy(x), torch.from_numpy(mask))
        kept.append(x[mask])
    together = np.concatenate(kept)
    assert float(moments.count) == len(together)
    np.testing.assert_allclose(moments.mean, together.mean(0))
    np.testing.assert_allclose(moments.var, together.var(0))


def test_far_from_zero_the_variance_stays_exact() -> None:
    moments = RunningMoments()
    for _ in range(10):
        moments.update(torch.tensor([1e9 - 1, 1e9 + 1], dtype=torch.float64))
    assert float(moments.var) == 1.0
    normalised = moments(torch.tensor([1e9 + 1], dtype=torch.float64))
    assert normalised.dtype == torch.float32 and float(normalised) == 1.0


def test_masked_and_broken_rows_leave_no_trace() -> None:
    moments = RunningMoments((2,))
    moments.update(torch.full((3, 2), torch.nan), torch.zeros(3, dtype=torch.bool))
    assert float(moments.count) == 0 and moments.mean.tolist() == [0, 0] and moments.var.tolist() == [1, 1]
    x = torch.tensor([[1.0, 2.0], [3.0, 6.0], [torch.nan, 0.0], [0.0, torch.inf], [9.0, 9.0]])
    moments.update(x, torch.tensor([True, True, True, True, False]))
    assert float(moments.count) == 2 and moments.mean.tolist() == [2, 4] and moments.var.tolist() == [1, 4]
    moments.update(x[2:4])
    assert moments.mean.tolist() == [2, 4]


def test_numbers_are_shifted_scaled_and_cut_off() -> None:
    moments = RunningMoments((2,))
    before = torch.tensor([[0.5, -3.0]])
    torch.testing.assert_close(moments(before), before)
    moments.update(torch.tensor([[1.0, 2.0], [3.0, 6.0]]))
    torch.testing.assert_close(moments(torch.tensor([[3.0, 0.0], [100.0, -100.0]])), torch.tensor([[1.0, -2.0], [10.0, -10.0]]))


def test_a_constant_number_becomes_zero() -> None:
    moments = RunningMoments((1,))
    moments.update(torch.full((9, 1), 4.0))
    assert moments(torch.full((1, 1), 4.0)).tolist() == [[0.0]]


def test_moments_are_saved() -> None:
    moments, other = RunningMoments((2,)), RunningMoments((2,))
    moments.update(torch.randn(20, 2))
    other.load_state_dict(moments.state_dict())
    assert float(other.count) == 20 and other.mean.dtype == torch.float64
    x = torch.randn(3, 2)
    assert torch.equal(moments(x), other(x))
