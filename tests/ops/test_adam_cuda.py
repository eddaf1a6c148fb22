"""Adam on the device beside the one on the CPU: same steps, same state, same bound on the gradient."""

from __future__ import annotations

import math
from unittest.mock import patch

import pytest
import torch
from torch import nn

from fugu.errors import FuguError
from fugu.ops.adam import Adam, DeviceAdam
from fugu.trainer.config import OptimizerConfig
from fugu.trainer.optimizer import Optimizer

SETTINGS = {"learning_rate": 1e-2, "betas": (0.8, 0.95), "eps": 1e-5}
SHAPES = ((5, 3), (4,), (), (70, 9), (32,))


def parameters(device: torch.device | str = "cpu", times: int = 1) -> list[nn.Parameter]:
    generator = torch.Generator().manual_seed(0)
    return [nn.Parameter(torch.randn(shape, generator=generator).to(device)) for shape in SHAPES * times]


def give_gradients(step: int, *owners: list[nn.Parameter]) -> None:
    generator = torch.Generator().manual_seed(step)
    for mine in zip(*owners, strict=True):
        grad = torch.randn(mine[0].shape, generator=generator)
        for p in mine:
            p.grad = grad.to(p.device)


def assert_equal(ours: list[nn.Parameter], theirs: list[nn.Parameter]) -> None:
    for p, q in zip(ours, theirs, strict=True):
        torch.testing.assert_close(p.detach().cpu(), q.detach(), rtol=2e-5, atol=2e-6)


@pytest.mark.parametrize("weight_decay", [0.0, 0.1])
@pytest.mark.parametrize("max_norm", [0.5, math.inf])
def test_steps_are_those_of_the_cpu(device: torch.device, weight_decay: float, max_norm: float) -> None:
    ours, theirs = parameters(device), parameters()
    adam = DeviceAdam(ours, weight_decay=weight_decay, **SETTINGS)
    reference = Adam(theirs, weight_decay=weight_decay, **SETTINGS)
    for step in range(20):
        give_gradients(step, ours, theirs)
        adam.learning_rate = reference.learning_rate = 1e-2 / (1 + step)
        norm = adam.step(max_norm)
        expected = nn.utils.get_total_norm([p.grad for p in theirs])
        torch.testing.assert_close(norm.cpu(), expected, rtol=1e-5, atol=0)
        if max_norm < math.inf:
            nn.utils.clip_grads_with_norm_(theirs, max_norm, expected)
        reference.step()
    assert_equal(ours, theirs)


@pytest.mark.parametrize("times", [1, 30])
def test_state_goes_to_the_cpu_and_back_also_where_there_are_many_tensors(device: torch.device, times: int) -> None:
    ours, theirs, others = parameters(device, times), parameters(times=times), parameters(device, times)
    adam, reference = (kind(mine, weight_decay=0.0, **SETTINGS) for kind, mine in ((DeviceAdam, ours), (Adam, theirs)))
    assert (adam.gathered is not None) == (times == 30)
    for step in range(3):
        give_gradients(step, ours, theirs)
        ours[1].grad = theirs[1].grad = None
        adam.step()
        reference.step()
    for name, value in adam.state().items():
        assert value.shape == reference.state()[name].shape
        torch.testing.assert_close(value.cpu(), reference.state()[name], rtol=1e-5, atol=1e-6)
    loaded = DeviceAdam(others, weight_decay=0.0, **SETTINGS)
    loaded.load_state(reference.state())
    for p, q in zip(others, theirs, strict=True):
        p.data.copy_(q.data)
    give_gradients(3, ours, theirs, others)
    for optimizer in (adam, reference, loaded):
        optimizer.step()
    assert_equal(ours, theirs)
    assert_equal(others, theirs)


@pytest.mark.parametrize("bad", [math.nan, math.inf])
def test_a_gradient_that_is_not_finite_changes_nothing(device: torch.device, bad: float) -> None:
    ours = parameters(device)
    adam = DeviceAdam(ours, weight_decay=0.1, **SETTINGS)
    give_gradients(0, ours)
    adam.step()
    before = [adam.flat.clone(), adam.mean.clone(), adam.square.clone(), adam.steps[1].clone()]
    ours[3].grad[7, 2] = bad
    assert not adam.step(0.5).isfinite()
    assert all(torch.equal(a, b) for a, b in zip(before, (adam.flat, adam.mean, adam.square, adam.steps[1]), strict=True))
    give_gradients(1, ours)
    assert adam.step(0.5).isfinite()
    assert adam.state()["steps"] == 2


def test_the_optimizer_takes_the_same_steps_with_it(device: torch.device) -> None:
    torch.manual_seed(0)
    x, found = torch.randn(50, 6), []
    for where in (torch.device("cpu"), device):
        torch.manual_seed(1)
        net = nn.Sequential(nn.Linear(6, 20), nn.Tanh(), nn.Linear(20, 3)).to(where)
        if where.type == "cpu" and not found:  # before: the optimizer of the CPU
            with patch("fugu.gpu.use.emulated", False):
                optimizer = Optimizer({"policy": net}, OptimizerConfig(max_grad_norm=0.1))
        else:
            optimizer = Optimizer({"policy": net}, OptimizerConfig(max_grad_norm=0.1))
        assert isinstance(optimizer.parts["policy"].adam, DeviceAdam if found else Adam)
        for step in range(5):
            optimizer.set_progress(step / 5)
            norm = optimizer.step(net(x.to(where)).square().sum())
        found.append([norm.cpu(), *(p.detach().cpu() for p in net.parameters())])
    for theirs, ours in zip(*found, strict=True):
        torch.testing.assert_close(ours, theirs, rtol=1e-4, atol=1e-6)


def test_a_parameter_that_was_moved_is_noticed(device: torch.device) -> None:
    ours = parameters(device)
    adam = DeviceAdam(ours, weight_decay=0.0, **SETTINGS)
    ours[2].data = ours[2].data.clone()
    give_gradients(0, ours)
    with pytest.raises(FuguError, match="has moved"):
        adam.step()
