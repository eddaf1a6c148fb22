"""PPO's loss natively, on every instruction set there is, against its definition in float64: values and gradients."""

from __future__ import annotations

import math

import pytest
import torch

from tests.ops.cases import doubles, ppo, ppo_case, ppo_gradients


@pytest.mark.parametrize("rows, choices", [(1, 2), (1, 1), (3000, 4), (77, 19)])
@pytest.mark.parametrize("masked", [False, True])
@pytest.mark.parametrize("value_clip", [0.3, math.inf])
def test_ppo_loss_and_its_gradients_equal_the_definition(instructions, rows, choices, masked, value_clip):
    tensors, rest, mask = ppo_case(rows, choices, masked)
    found = ppo_gradients(tensors, rest, mask, value_clip=value_clip)
    exact = ppo_gradients([t.double() for t in tensors], doubles(rest), mask, value_clip=value_clip)
    for ours, theirs in zip(found, exact, strict=True):
        scale = max(1e-3 if theirs.dim() else 1.0, theirs.abs().max().item())
        assert ours.shape == theirs.shape
        assert (ours.double() - theirs).abs().max().item() <= 1e-5 * scale


def test_ppo_loss_of_one_row_by_hand(instructions):
    half = math.log(0.5)
    action, old_logprob, advantage = torch.tensor([1]), torch.tensor([half - math.log(1.5)]), torch.tensor([2.0])
    rest = [action, old_logprob, advantage, torch.tensor([1.0]), torch.tensor([0.0]), torch.ones(1)]
    loss = ppo([torch.zeros(1, 2), torch.tensor([2.0])], rest, None, value_clip=0.5, value_coef=0.25)
    by_hand = {"policy": -1.2 * 2, "value": 0.5 * 4, "entropy": math.log(2), "kl": 0.5 - math.log(1.5), "clip_fraction": 1.0}
    by_hand["total"] = -2.4 + 0.25 * 2 - 0.1 * math.log(2)
    assert {name: part.item() for name, part in loss._asdict().items()} == pytest.approx(by_hand, rel=1e-6)


def test_going_back_again_adds_the_same_gradients(instructions):
    (logits, value), rest, mask = ppo_case(50, 4)
    logits.requires_grad_()
    loss = ppo([logits, value], rest, mask).total
    assert type(loss.grad_fn).__name__ == "_PpoLossCategoricalBackward"
    loss.backward(retain_graph=True)
    once = logits.grad.clone()
    loss.backward(retain_graph=True)
    loss.backward()
    torch.testing.assert_close(logits.grad, 3 * once)


def test_rows_without_weight_give_nothing_even_if_they_are_nan(instructions):
    tensors, rest, mask = ppo_case(50, 4, masked=True)
    kept = torch.arange(50) % 3 != 0
    rest[-1] = torch.where(kept, rest[-1], 0)
    small = ppo_gradients([t[kept] for t in tensors], [c[kept] for c in rest], mask[kept])
    for column in (*tensors, *rest[1:-1]):
        column[~kept] = math.nan
    mask[~kept] = (torch.arange(50) % 2 == 0)[~kept, None]
    for dtype in (torch.float32, torch.float64):
        given = [tensor.to(dtype) for tensor in tensors], rest if dtype is torch.float32 else doubles(rest)
        *found, grad_logits, grad_value = (part.float() for part in ppo_gradients(*given, mask))
        for ours, theirs in zip((*found, grad_logits[kept], grad_value[kept]), small, strict=True):
            torch.testing.assert_close(ours, theirs, rtol=1e-5, atol=1e-6)
        assert (grad_logits[~kept] == 0).all()
        assert (grad_value[~kept] == 0).all()


@pytest.mark.parametrize("column", range(7))
def test_a_nan_in_a_row_that_counts_shows_in_the_loss(instructions, column):
    tensors, rest, mask = ppo_case(20, 3)
    floats = [*tensors, *rest[1:]]
    floats[column].view(20, -1)[7] = math.nan
    loss = ppo_gradients(tensors, rest, mask)[0]
    assert loss.isnan()
