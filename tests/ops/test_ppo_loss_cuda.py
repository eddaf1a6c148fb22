"""PPO's loss on the device against the functions of torch that say what it is, those in float64: sums and gradients."""

from __future__ import annotations

import math
from typing import Any

import pytest
import torch
from gymnasium import spaces as gs

from fugu.ops import ppo_loss_cuda as cuda_loss
from fugu.ops.ppo_loss import Loss, normalized, ppo_loss, ppo_loss_of, row_weight, weighed
from fugu.policy.distribution import Distribution

SETTINGS = {"clip": 0.2, "value_coef": 0.5, "entropy_coef": 0.1}
COLUMNS = ("old_logprob", "advantage", "old_value", "value_target", "weight")


def random(*shape: int, seed: int = 0, scale: float = 1.0) -> torch.Tensor:
    return scale * torch.randn(*shape, generator=torch.Generator().manual_seed(seed))


def case(space: gs.Space, rows: int, masked: bool = False) -> tuple[Distribution, dict[str, Any]]:
    distribution = Distribution(space)
    mask = None
    if masked:
        mask = random(rows, distribution.choices, seed=8) > 0
        mask[torch.arange(rows), torch.arange(rows) % distribution.choices] = True
    params = random(rows, distribution.size)
    if distribution.reals:
        params[0, distribution.reals] = 5.0  # a deviation past its bound
    action = distribution.sample(params, mask, torch.Generator().manual_seed(2))
    weight = torch.rand(rows, generator=torch.Generator().manual_seed(3))
    columns: dict[str, Any] = {
        "params": params,
        "value": random(rows, seed=10),
        "action": action,
        "action_mask": mask,
        "old_logprob": distribution.logprob(params, action, mask) + random(rows, seed=7, scale=0.3),
        **{name: random(rows, seed=4 + i) for i, name in enumerate(("advantage", "old_value", "value_target"))},
        "weight": weight / weight.sum(),
    }
    return distribution, columns


def on(columns: dict[str, Any], device: torch.device) -> dict[str, Any]:
    return {name: None if column is None else column.to(device) for name, column in columns.items()}


def results(
    distribution: Distribution, columns: dict[str, Any], *, exact: bool = False, times: float = 3, **settings: float
) -> list[torch.Tensor]:
    """The loss, what it is made of, and its gradients, on the CPU."""
    leaves = [columns[name].detach().clone().requires_grad_() for name in ("params", "value")]
    if exact:
        leaves = [leaf.detach().double().requires_grad_() for leaf in leaves]
        logprob, entropy = distribution.evaluate(leaves[0], columns["action"], columns["action_mask"])
        rest = [columns[name].double() for name in COLUMNS]
        loss: Loss = ppo_loss_of(logprob, entropy, leaves[1], *rest, **{**SETTINGS, "value_clip": math.inf, **settings})
    else:
        rest = {name: column for name, column in columns.items() if name not in ("params", "value")}
        loss = ppo_loss(distribution, *leaves, **rest, **{**SETTINGS, **settings})
    grads = torch.autograd.grad(times * loss.total if times != 1 else loss.total, leaves)
    return [tensor.detach().cpu().double() for tensor in (*loss, *grads)]


@pytest.mark.parametrize(("size", "rows"), [(2, 1), (1, 3), (4, 1000), (19, 77), (200, 40)])
@pytest.mark.parametrize(("masked", "value_clip"), [(False, math.inf), (True, 0.3)])
def test_loss_of_choices_and_its_gradients(device: torch.device, size: int, rows: int, masked: bool, value_clip: float) -> None:
    distribution, columns = case(gs.Discrete(size), rows, masked)
    found = results(distribution, on(columns, device), value_clip=value_clip)
    exact = results(distribution, columns, exact=True, value_clip=value_clip)
    for ours, theirs in zip(found, exact, strict=True):
        scale = max(1e-3 if theirs.dim() else 1.0, theirs.abs().max().item())
        assert (ours - theirs).abs().max().item() <= 1e-5 * scale
    if masked:
        assert (found[-2][~columns["action_mask"]] == 0).all()


@pytest.mark.parametrize(("dims", "rows"), [(1, 1), (3, 500), (21, 50)])
@pytest.mark.parametrize("value_clip", [0.3, math.inf])
def test_loss_of_real_actions_and_its_gradients(device: torch.device, dims: int, rows: int, value_clip: float) -> None:
    distribution, columns = case(gs.Box(-1, 1, (dims,)), rows)
    found = results(distribution, on(columns, device), value_clip=value_clip, times=1)
    exact = results(distribution, columns, exact=True, value_clip=value_clip, times=1)
    for ours, theirs in zip(found, exact, strict=True):
        scale = max(1e-3 if theirs.dim() else 1.0, theirs.abs().max().item())
        assert (ours - theirs).abs().max().item() <= 2e-5 * scale
    assert found[-2][0, dims] == 0


@pytest.mark.parametrize("space", [gs.Discrete(4), gs.Box(-1, 1, (3,))])
def test_the_kernel_is_what_computed_it_and_its_bits_repeat(
    device: torch.device, space: gs.Space, monkeypatch: pytest.MonkeyPatch
) -> None:
    distribution, columns = case(space, 3000)
    called: list[str] = []
    real = cuda_loss.kernel
    monkeypatch.setattr(cuda_loss, "kernel", lambda *args: called.append(args[1]) or real(*args))
    monkeypatch.setattr(cuda_loss, "MAX_BLOCKS", 3)  # so that a block has several turns
    once, again = (results(distribution, on(columns, device)) for _ in range(2))
    assert called[:3] == ["ppo_categorical" if distribution.heads else "ppo_gaussian", "ppo_finish", "scale_unless_one"]
    assert all(torch.equal(one, other) for one, other in zip(once, again, strict=True))
    exact = results(distribution, columns, exact=True)
    torch.testing.assert_close(once[0], exact[0], rtol=1e-5, atol=1e-5)
    torch.testing.assert_close(once[-2], exact[-2], rtol=1e-3, atol=1e-6)


@pytest.mark.parametrize("space", [gs.Discrete(4), gs.Box(-1, 1, (3,))])
def test_rows_without_weight_give_nothing_even_if_they_are_nan(device: torch.device, space: gs.Space) -> None:
    distribution, columns = case(space, 50)
    kept = torch.arange(50) % 3 != 0
    columns["weight"] = torch.where(kept, columns["weight"], 0)
    small = results(distribution, on({k: None if c is None else c[kept] for k, c in columns.items()}, device), value_clip=0.3)
    for name in ("params", "value", *COLUMNS[:-1]):
        columns[name][~kept] = math.nan
    if distribution.heads:
        columns["action"][~kept] = 10**12
    found = results(distribution, on(columns, device), value_clip=0.3)
    for ours, theirs in zip(found, small, strict=True):
        torch.testing.assert_close(ours[kept] if ours.dim() else ours, theirs, rtol=1e-5, atol=1e-6)
        assert ours.dim() == 0 or (ours[~kept] == 0).all()


@pytest.mark.parametrize("name", ["params", "value", *COLUMNS])
def test_a_nan_in_a_row_that_counts_shows_in_loss_and_gradient(device: torch.device, name: str) -> None:
    distribution, columns = case(gs.Discrete(3), 20)
    columns[name][7] = math.nan
    found = results(distribution, on(columns, device), value_clip=0.3)
    assert found[0].isnan()
    assert found[-2][7].isnan().any() or found[-1][7].isnan()


def test_going_back_again_adds_the_same_gradients_and_the_entropy_may_be_on_the_device(device: torch.device) -> None:
    distribution, columns = case(gs.Discrete(3), 20)
    columns = on(columns, device)
    params, value = columns.pop("params").requires_grad_(), columns.pop("value")
    coef = torch.tensor(0.1, device=device)
    loss = ppo_loss(distribution, params, value, **columns, clip=0.2, value_coef=0.5, entropy_coef=coef).total
    (2 * loss).backward(retain_graph=True)
    once = params.grad.clone()
    (4 * loss).backward()
    torch.testing.assert_close(params.grad, 3 * once)
    other = ppo_loss(distribution, params, value, **columns, clip=0.2, value_coef=0.5, entropy_coef=0.1).total
    assert torch.equal(other, loss)


@pytest.mark.parametrize("shape", [(1, 1), (700, 3), (5, 200)])
@pytest.mark.parametrize("order", ["segment", "time"])
@pytest.mark.parametrize("offset", [0.0, 1000.0])
def test_advantages_are_normalised_over_rows_that_count(
    device: torch.device, shape: tuple[int, int], order: str, offset: float
) -> None:
    advantage, mask = offset + random(*shape, scale=3), random(*shape, seed=1) > -1
    exact = normalized(advantage.double(), row_weight(mask).double())
    given = (advantage.to(device), mask.to(device))
    if order == "time":
        given = (given[0].t().contiguous().t(), given[1].t().contiguous().t())
    found, weight = weighed(*given, normalize=True)
    torch.testing.assert_close(weight.cpu(), row_weight(mask))
    torch.testing.assert_close(found.cpu().double()[mask], exact[mask], rtol=1e-4, atol=1e-3 if offset else 1e-5)
    assert weighed(*given, normalize=False)[0].data_ptr() == given[0].data_ptr()


def test_nothing_that_counts_has_no_weight(device: torch.device) -> None:
    mask = torch.zeros(3, 4, dtype=torch.bool, device=device)
    advantage, weight = weighed(torch.full((3, 4), math.nan, device=device), mask, normalize=True)
    assert (advantage == 0).all() and (weight == 0).all()
