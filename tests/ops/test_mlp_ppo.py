"""The fused network against torch: outputs, loss and gradients. Run by the emulator here, by the card where there is one."""

from __future__ import annotations

import math
from dataclasses import replace
from typing import Any

import pytest
import torch
from torch import Tensor

from fugu.algorithm.parts.scale import ValueScale
from fugu.ops import mlp_ppo as mlp
from fugu.ops.mlp import mlp_reference
from fugu.ops.mlp_plan import MlpShape
from fugu.ops.ppo_loss import normalized, ppo_loss_of, row_weight
from fugu.policy.normalize import RunningMoments

DEVICES = ["cpu", pytest.param("cuda", marks=pytest.mark.gpu)]
SHAPES = [
    MlpShape(4, (64, 64), 2),
    MlpShape(116, (128,), 18, "relu"),
    MlpShape(8, (16, 32, 64), 7),
    MlpShape(5, (48,), 31, "relu"),
    MlpShape(116, (128, 128), 3),
]
SETTINGS = {"clip": 0.2, "value_clip": 0.3, "value_coef": 0.5, "entropy_coef": 0.01}
ERROR = {("cpu", 1): 6e-3, ("cpu", 3): 3e-6, ("cuda", 1): 6e-3, ("cuda", 3): 1e-5}
"""of outputs, and a quarter of that of gradients, relative to the largest; by passes. A card's sums are cut off, not rounded"""


def network(shape: MlpShape, device: str, seed: int = 0) -> tuple[list[Tensor], list[Tensor]]:
    generator = torch.Generator().manual_seed(seed)
    weights, biases = [], []
    for into, out in zip(shape.widths, shape.widths[1:], strict=False):
        weights.append((torch.randn(out, into, generator=generator) * 1.2 / math.sqrt(into)).to(device).requires_grad_())
        biases.append((torch.randn(out, generator=generator) * 0.2).to(device).requires_grad_())
    return weights, biases


def batch(shape: MlpShape, rows: int, device: str, seed: int = 1, *, masked: float = 0.2) -> dict[str, Tensor]:
    generator = torch.Generator().manual_seed(seed)
    columns = {
        "obs": torch.randn(rows, shape.inputs, generator=generator),
        "action": torch.randint(shape.choices, (rows,), generator=generator),
        "old_logprob": -math.log(shape.choices) + 0.3 * torch.randn(rows, generator=generator),
        "advantage": 0.7 + torch.randn(rows, generator=generator),
        "old_value": torch.randn(rows, generator=generator),
        "value_target": torch.randn(rows, generator=generator),
        "mask": torch.rand(rows, generator=generator) >= masked,
    }
    columns["old_value"] = columns["value_target"] + 0.5 * torch.randn(rows, generator=generator)
    for name in ("obs", "old_logprob", "advantage", "old_value", "value_target"):
        columns[name][~columns["mask"]] = math.nan
    columns["action"][~columns["mask"]] = -7
    return {name: column.to(device) for name, column in columns.items()}


def reference(
    shape: MlpShape, weights: list[Tensor], biases: list[Tensor], columns: dict[str, Tensor], normalize: bool, **settings: Any
) -> tuple[dict[str, Tensor], list[Tensor]]:
    """Loss and gradients by torch, on the rows that count."""
    rows = {name: column[columns["mask"]] for name, column in columns.items()}
    out = mlp_reference(rows["obs"], weights, biases, shape.activation, last="none")
    logp = out[:, :-1].log_softmax(-1)
    logprob, entropy = logp.gather(-1, rows["action"][:, None]).squeeze(-1), -(logp.exp() * logp).sum(-1)
    weight = row_weight(rows["mask"])
    advantage = normalized(rows["advantage"], weight) if normalize else rows["advantage"]
    loss = ppo_loss_of(
        logprob,
        entropy,
        out[:, -1],
        rows["old_logprob"],
        advantage,
        rows["old_value"],
        rows["value_target"],
        weight,
        **settings,
    )
    return {name: number.detach() for name, number in loss._asdict().items()}, list(
        torch.autograd.grad(loss.total, [*weights, *biases])
    )


def assert_near(got: Tensor, expected: Tensor, error: float) -> None:
    """Within ``error``, in units of the largest number there is."""
    assert got.shape == expected.shape
    scale = max(float(expected.abs().max()), 1e-3)
    assert float((got - expected).abs().max()) <= error * scale, f"{float((got - expected).abs().max()) / scale} of the largest"


@pytest.mark.slow
@pytest.mark.parametrize("device", DEVICES)
@pytest.mark.parametrize("passes", [1, 3])
@pytest.mark.parametrize("shape", SHAPES, ids=str)
def test_outputs_are_those_of_torch(shape: MlpShape, passes: int, device: str) -> None:
    shape = replace(shape, passes=passes)
    weights, biases = network(shape, device)
    obs = torch.randn(77, shape.inputs, device=device)
    logits, value = mlp.mlp_forward(shape, obs, weights, biases)
    expected = mlp_reference(obs, weights, biases, shape.activation, last="none").detach()
    assert_near(torch.cat([logits, value[:, None]], -1), expected, ERROR[device, passes])


@pytest.mark.parametrize("device", DEVICES)
@pytest.mark.parametrize("passes", [1, 3])
@pytest.mark.parametrize("shape", SHAPES, ids=str)
def test_loss_and_gradients_are_those_of_torch(shape: MlpShape, passes: int, device: str) -> None:
    shape = replace(shape, passes=passes)
    weights, biases = network(shape, device)
    columns = batch(shape, 301 if max(shape.hidden) < 128 else 83, device)
    expected, gradients = reference(shape, weights, biases, columns, True, **SETTINGS)
    loss, stats = mlp.mlp_ppo(shape, weights=weights, biases=biases, **columns, **SETTINGS, normalize_advantage=True)
    got = torch.autograd.grad(loss, [*weights, *biases])
    assert_near(loss.detach(), expected["total"], ERROR[device, passes])
    for name in ("policy", "value", "entropy", "kl"):
        assert_near(stats[name], expected[name], ERROR[device, passes])
    assert abs(float(stats["clip_fraction"] - expected["clip_fraction"])) <= (0.02 if passes == 1 else 1e-6)
    for one, other in zip(got, gradients, strict=True):
        assert_near(one, other, 4 * ERROR[device, passes])


@pytest.mark.parametrize("rows", [1, 15, 16, 17, 129])
def test_any_number_of_rows_is_taken(rows: int) -> None:
    shape = MlpShape(3, (16,), 2, passes=3)
    weights, biases = network(shape, "cpu")
    columns = batch(shape, rows, "cpu", masked=0.0)
    expected, gradients = reference(shape, weights, biases, columns, False, **SETTINGS)
    sums = mlp.mlp_ppo_sums(shape, weights=weights, biases=biases, **columns, **SETTINGS)
    assert_near(sums[mlp.LOSS], expected["total"], 1e-5)
    got_weights, got_biases = mlp.gradients(shape, sums)
    for one, other in zip([*got_weights, *got_biases], gradients, strict=True):
        assert_near(one, other, 2e-5)


@pytest.mark.parametrize("masked", [1.0, 0.5])
def test_rows_that_do_not_count_give_nothing_though_they_are_nan(masked: float) -> None:
    shape = MlpShape(4, (16,), 3)
    weights, biases = network(shape, "cpu")
    columns = batch(shape, 70, "cpu", masked=masked)
    sums = mlp.mlp_ppo_sums(shape, weights=weights, biases=biases, **columns, **SETTINGS, normalize_advantage=True)
    assert torch.isfinite(sums).all()
    assert bool((sums == 0).all()) == (masked == 1.0)


def test_no_rows_give_zeros() -> None:
    shape = MlpShape(4, (16,), 3)
    weights, biases = network(shape, "cpu")
    columns = {name: column[:0] for name, column in batch(shape, 3, "cpu").items()}
    assert not mlp.mlp_ppo_sums(shape, weights=weights, biases=biases, **columns, **SETTINGS).any()
    assert mlp.mlp_forward(shape, columns["obs"], weights, biases)[0].shape == (0, 3)


@pytest.mark.parametrize("device", DEVICES)
def test_the_same_rows_give_the_same_bits(device: str) -> None:
    shape = MlpShape(4, (64, 64), 2)
    weights, biases = network(shape, device)
    columns = batch(shape, 700, device)
    once, again = (mlp.mlp_ppo_sums(shape, weights=weights, biases=biases, **columns, **SETTINGS) for _ in range(2))
    assert torch.equal(once, again)


@pytest.mark.parametrize("value_clip", [math.inf, 0.1])
@pytest.mark.parametrize("clip", [0.05, 10.0])
def test_clipping_is_that_of_the_loss(clip: float, value_clip: float) -> None:
    shape = MlpShape(4, (32,), 3, passes=3)
    weights, biases = network(shape, "cpu")
    columns = batch(shape, 90, "cpu")
    settings = {**SETTINGS, "clip": clip, "value_clip": value_clip}
    expected, gradients = reference(shape, weights, biases, columns, False, **settings)
    loss, stats = mlp.mlp_ppo(shape, weights=weights, biases=biases, **columns, **settings)
    assert_near(loss.detach(), expected["total"], 1e-5)
    assert_near(stats["clip_fraction"], expected["clip_fraction"], 1e-5)
    for one, other in zip(torch.autograd.grad(loss, [*weights, *biases]), gradients, strict=True):
        assert_near(one, other, 2e-5)


def test_gradients_are_scaled_by_what_follows_the_loss() -> None:
    shape = MlpShape(4, (16,), 2)
    weights, biases = network(shape, "cpu")
    columns = batch(shape, 40, "cpu")
    loss, _ = mlp.mlp_ppo(shape, weights=weights, biases=biases, **columns, **SETTINGS)
    once, thrice = (torch.autograd.grad(factor * loss, weights[0], retain_graph=True)[0] for factor in (1.0, 3.0))
    torch.testing.assert_close(thrice, 3 * once)


def test_the_weight_of_entropy_is_read_when_the_kernel_runs() -> None:
    shape = MlpShape(4, (16,), 2)
    weights, biases = network(shape, "cpu")
    columns = batch(shape, 40, "cpu")
    settings = {**SETTINGS, "entropy_coef": 0.3}
    as_number = mlp.mlp_ppo_sums(shape, weights=weights, biases=biases, **columns, **settings)
    as_tensor = mlp.mlp_ppo_sums(
        shape, weights=weights, biases=biases, **columns, **{**settings, "entropy_coef": torch.tensor(0.3)}
    )
    other = mlp.mlp_ppo_sums(shape, weights=weights, biases=biases, **columns, **SETTINGS)
    assert torch.equal(as_number, as_tensor)
    assert not torch.equal(as_number, other)


@pytest.mark.parametrize("order", ["time", "segment", "mixed", "every second segment"])
def test_segments_are_read_in_either_memory_order(order: str) -> None:
    """Rows of some segments of slabs [time, agents], or of [segments, time], or of both; NaN in all other rows."""
    shape = MlpShape(5, (16,), 2)
    weights, biases = network(shape, "cpu")
    segments, horizon = 6, 7
    flat = batch(shape, segments * horizon, "cpu", masked=0.1)
    columns = {}
    for name, column in flat.items():
        rows = column.unflatten(0, (segments, horizon))
        if order == "segment" or (order == "mixed" and name == "advantage"):
            columns[name] = rows
            continue
        step = 2 if order == "every second segment" else 1
        slab = torch.zeros(horizon + 1, 20, *column.shape[1:], dtype=column.dtype)
        if column.is_floating_point():
            slab[:] = math.nan
        own = slab[:horizon, 3 : 3 + step * segments : step]
        own.copy_(rows.transpose(0, 1))
        columns[name] = own.transpose(0, 1)
    sums = mlp.mlp_ppo_sums(shape, weights=weights, biases=biases, **columns, **SETTINGS, normalize_advantage=True)
    expected = mlp.mlp_ppo_sums(shape, weights=weights, biases=biases, **flat, **SETTINGS, normalize_advantage=True)
    torch.testing.assert_close(sums, expected, rtol=1e-4, atol=1e-5)
    logits, value = mlp.mlp_forward(shape, columns["obs"], weights, biases)
    expected_logits, expected_value = mlp.mlp_forward(shape, flat["obs"], weights, biases)
    assert torch.equal(logits.reshape(-1, 2)[flat["mask"]], expected_logits[flat["mask"]])
    assert torch.equal(value.reshape(-1)[flat["mask"]], expected_value[flat["mask"]])


def test_columns_of_another_type_or_shape_are_refused() -> None:
    shape = MlpShape(4, (16,), 2)
    weights, biases = network(shape, "cpu")
    columns = batch(shape, 20, "cpu")
    with pytest.raises(TypeError, match="entropy_coef: expected"):
        in_double = {**SETTINGS, "entropy_coef": torch.tensor(0.1, dtype=torch.float64)}
        mlp.mlp_ppo_sums(shape, weights=weights, biases=biases, **columns, **in_double)
    wrong = {"action": columns["action"].int(), "mask": columns["mask"].float(), "advantage": columns["advantage"][:-1]}
    for name, column in wrong.items():
        with pytest.raises(TypeError, match="expected"):
            mlp.mlp_ppo_sums(shape, weights=weights, biases=biases, **{**columns, name: column}, **SETTINGS)
    with pytest.raises(TypeError, match="contiguous"):
        mlp.mlp_forward(shape, columns["obs"], [weights[0].t().contiguous().t(), *weights[1:]], biases)


def test_observations_and_values_are_normalised_by_moments() -> None:
    """As ``ActorCritic`` and ``ValueScale`` do; the moments are read when the kernel runs."""
    shape = MlpShape(4, (32,), 3, passes=3)
    weights, biases = network(shape, "cpu")
    columns = batch(shape, 60, "cpu")
    moments, values = RunningMoments((4,), clip=1.5), ValueScale()
    given = {"moments": moments, "value_moments": values.moments}
    for seed in (1, 2):
        moments.update(torch.randn(50, 4, generator=torch.Generator().manual_seed(seed)) * torch.arange(1, 5) + 3)
        values.update(5 + 3 * torch.randn(50), torch.ones(50, dtype=torch.bool))
        seen = {**columns, "obs": moments(columns["obs"])}
        seen |= {name: values.scaled(columns[name]) for name in ("old_value", "value_target")}
        expected, gradients = reference(shape, weights, biases, seen, False, **SETTINGS)
        loss, _ = mlp.mlp_ppo(shape, weights=weights, biases=biases, **columns, **SETTINGS, **given)
        assert_near(loss.detach(), expected["total"], 1e-5)
        for one, other in zip(torch.autograd.grad(loss, [*weights, *biases]), gradients, strict=True):
            assert_near(one, other, 2e-5)
        logits, _ = mlp.mlp_forward(shape, columns["obs"], weights, biases, moments=moments)
        plain, _ = mlp.mlp_forward(shape, seen["obs"], weights, biases)
        torch.testing.assert_close(logits, plain, rtol=1e-5, atol=1e-5, equal_nan=True)
