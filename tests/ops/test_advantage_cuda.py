"""GAE and V-trace on the device against their references, in both memory orders."""

from __future__ import annotations

import math

import numpy as np
import pytest
import torch

from fugu.advantage import gae, gae_reference, vtrace, vtrace_reference
from fugu.errors import SpaceError
from fugu.gpu import ready
from fugu.ops.advantage_cuda import trace
from tests.ops.columns import noise, random_ratio


def placed(array: np.ndarray, device: torch.device, order: str) -> torch.Tensor:
    tensor = torch.from_numpy(array).to(device)
    return tensor.t().contiguous().t() if order == "time" and tensor.dim() == 2 else tensor


def columns_of(segments: int, horizon: int, seed: int = 0) -> dict[str, np.ndarray]:
    mask = np.random.default_rng(seed + 9).random((segments, horizon)) < 0.8
    return {**noise(segments, horizon, seed), "ratio": random_ratio(segments, horizon, seed), "mask": mask}


def exact(columns: dict[str, np.ndarray]) -> dict[str, np.ndarray]:
    return {name: column.astype(np.float64) if column.dtype == np.float32 else column for name, column in columns.items()}


@pytest.mark.parametrize(("segments", "horizon"), [(1, 1), (33, 5), (40, 63), (32, 64), (3, 65), (2, 200)])
@pytest.mark.parametrize("order", ["segment", "time"])
@pytest.mark.parametrize("masked", [False, True])
def test_both_advantages_are_those_of_their_references(
    device: torch.device, segments: int, horizon: int, order: str, masked: bool
) -> None:
    columns = columns_of(segments, horizon)
    if not masked:
        del columns["mask"]
    tensors = {name: placed(column, device, order) for name, column in columns.items()}
    expected = vtrace_reference(**exact(columns), gamma=0.97, lam=0.9, rho_clip=1.2, c_clip=1.1)
    assert ready(tensors["value"])
    found = vtrace(**tensors, gamma=0.97, lam=0.9, rho_clip=1.2, c_clip=1.1)
    assert found.stride() == tensors["value"].stride()
    np.testing.assert_allclose(found.cpu(), expected, rtol=1e-4, atol=1e-4)
    del columns["ratio"], tensors["ratio"]
    expected = gae_reference(**exact(columns), gamma=0.97, lam=0.9)
    np.testing.assert_allclose(gae(**tensors, gamma=0.97, lam=0.9).cpu(), expected, rtol=1e-4, atol=1e-4)


def test_columns_of_different_orders_and_offsets_meet(device: torch.device) -> None:
    columns = columns_of(20, 64)
    tensors = {name: placed(column, device, "time" if i % 2 else "segment") for i, (name, column) in enumerate(columns.items())}
    longer = torch.zeros(20, 65, dtype=torch.bool, device=device)  # rows that start at odd addresses
    longer[:, :64] = tensors["terminated"]
    tensors["terminated"] = longer[:, :64]
    slab = torch.zeros(65, 20, dtype=torch.bool, device=device)
    slab[:64] = tensors["mask"].t()
    tensors["mask"] = slab[:64].t()
    expected = vtrace_reference(**exact(columns), gamma=0.97, lam=0.9)
    np.testing.assert_allclose(vtrace(**tensors, gamma=0.97, lam=0.9).cpu(), expected, rtol=1e-4, atol=1e-4)


@pytest.mark.parametrize("order", ["segment", "time"])
def test_nan_goes_no_further_than_the_cut_before_it(device: torch.device, order: str) -> None:
    columns = noise(4, 70, ending=0.0)
    columns["reward"][1, 50] = math.nan
    columns["terminated"][1, 20] = True
    columns["bootstrap"][2] = math.inf
    columns["truncated"][2, 40] = True
    columns["value"][3, 41], columns["terminated"][3, 40] = math.nan, True
    found = gae(**{name: placed(column, device, order) for name, column in columns.items()}, gamma=0.97, lam=0.9).cpu().numpy()
    expected = gae_reference(**columns, gamma=0.97, lam=0.9)
    assert np.array_equal(np.isfinite(found), np.isfinite(expected))
    assert np.isfinite(found[1, :21]).all() and np.isnan(found[1, 21:51]).all()


def test_target_and_surrogate_come_along(device: torch.device) -> None:
    columns = columns_of(37, 70)
    tensors = {name: placed(column, device, "time") for name, column in columns.items()}
    out = trace(**tensors, weights=(0.97, 0.97 * 0.9, 1.0, 1.0), target=True, surrogate=True)
    c = exact(columns)
    traced = vtrace_reference(**{name: column for name, column in c.items() if name != "mask"} | {
        "ratio": np.where(c["mask"], c["ratio"], 1.0)
    }, gamma=0.97, lam=0.9)  # fmt: skip
    following = np.concatenate([traced[:, 1:], np.zeros((37, 1))], 1)
    next_value = np.concatenate([c["value"][:, 1:], c["bootstrap"][:, None]], 1)
    delta = c["reward"] + 0.97 * np.where(c["terminated"], 0, next_value) - c["value"]
    surrogate = delta + 0.97 * 0.9 * np.where(c["terminated"] | c["truncated"], 0, following)
    np.testing.assert_allclose(out.surrogate.cpu(), np.where(c["mask"], surrogate, 0), rtol=1e-4, atol=1e-4)
    np.testing.assert_allclose(out.target.cpu(), np.where(c["mask"], traced, 0) + c["value"], rtol=1e-4, atol=1e-4)


def test_the_advantage_may_be_written_over_the_reward(device: torch.device) -> None:
    columns = noise(5, 20)
    tensors = {name: placed(column, device, "time") for name, column in columns.items()}
    expected = gae(**tensors, gamma=0.9, lam=0.9).clone()
    out = gae(**tensors, gamma=0.9, lam=0.9, out=tensors["reward"])
    assert out is tensors["reward"]
    assert torch.equal(out, expected)


def test_columns_that_do_not_fit_are_named(device: torch.device) -> None:
    tensors = {name: placed(column, device, "time") for name, column in noise(5, 20).items()}
    with pytest.raises(SpaceError, match=r"terminated: expected bool\[5, 20\] on .*, got float32\[5, 20\]"):
        gae(**tensors | {"terminated": tensors["reward"]}, gamma=0.9, lam=0.9)
    with pytest.raises(SpaceError, match="bootstrap: expected"):
        gae(**tensors | {"bootstrap": tensors["bootstrap"][1:]}, gamma=0.9, lam=0.9)
