import math

import numpy as np
import pytest
import torch

from fugu.gpu import emulation
from fugu.native import native
from fugu.ops.laprop import LaProp
from fugu.ops.laprop_device import DeviceLaProp, make_laprop


@pytest.fixture(params=["native", "torch", "device"])
def kind(request: pytest.FixtureRequest, monkeypatch: pytest.MonkeyPatch) -> type:
    """What computes steps."""
    if request.param == "torch":
        monkeypatch.setattr("fugu.native.native", None)
    elif request.param == "native" and native is None:
        pytest.skip("the native core is not built")
    return DeviceLaProp if request.param == "device" else LaProp


def test_the_native_kernels_of_all_instruction_sets_agree_with_torch(instructions, monkeypatch):
    generator = torch.Generator().manual_seed(0)
    shapes = [(5000, 3), (17,), (), (0,)]
    found = []
    for core in ("native", "torch"):
        if core == "torch":
            monkeypatch.setattr("fugu.native.native", None)
        generator.manual_seed(1)
        tensors = [torch.nn.Parameter(0.1 * torch.randn(shape, generator=generator)) for shape in shapes]
        laprop = LaProp(tensors, learning_rate=0.01, betas=(0.9, 0.999), eps=1e-20, clip=0.3)
        for _ in range(5):
            for p in tensors:
                p.grad = torch.randn(p.shape, generator=generator)
            laprop.step()
        found.append([p.detach() for p in tensors])
    for mine, theirs in zip(*found, strict=True):
        torch.testing.assert_close(mine, theirs, rtol=1e-5, atol=1e-6)


def test_steps_are_those_of_numpy(kind):
    generator = torch.Generator().manual_seed(0)
    shapes = [(5, 3), (4,), ()]
    tensors = [torch.nn.Parameter(0.1 * torch.randn(shape, generator=generator)) for shape in shapes]
    tensors.append(torch.nn.Parameter(torch.zeros(2)))  # a tensor of zeros can learn
    laprop = kind(tensors, learning_rate=0.01, betas=(0.9, 0.999), eps=1e-20, clip=0.3)
    weights = [p.detach().double().numpy().copy() for p in tensors]
    means, squares = ([np.zeros_like(w) for w in weights] for _ in range(2))
    for t in range(1, 30):
        if t == 15:
            laprop.learning_rate = 0.003
        for i, p in enumerate(tensors):
            p.grad = 3.0 ** (t % 5 - 2) * torch.randn(p.shape, generator=generator)
            grad = p.grad.double().numpy()
            grad = grad / max(1.0, np.linalg.norm(grad) / (0.3 * max(1e-3, np.linalg.norm(weights[i]))))
            squares[i] = 0.999 * squares[i] + 0.001 * grad**2
            means[i] = 0.9 * means[i] + 0.1 * grad / np.sqrt(squares[i] / (1 - 0.999**t))
            weights[i] = weights[i] - (0.01 if t < 15 else 0.003) * means[i] / (1 - 0.9**t)
        laprop.step()
    for p, expected in zip(tensors, weights, strict=True):
        np.testing.assert_allclose(p.detach().numpy(), expected, atol=1e-5)


@pytest.mark.parametrize("after", [LaProp, DeviceLaProp])
def test_the_state_goes_on_where_it_was_saved(kind, after):
    def steps(laprop, p: torch.nn.Parameter, first: int, last: int) -> torch.Tensor:
        for t in range(first, last):
            p.grad = torch.full_like(p, float(t % 3 - 1))
            laprop.step()
        return p.detach().clone()

    settings = {"learning_rate": 0.1, "betas": (0.9, 0.99), "eps": 1e-8, "clip": 0.3}
    whole, cut = (torch.nn.Parameter(torch.ones(3, 2)) for _ in range(2))
    expected = steps(kind([whole], **settings), whole, 0, 8)
    before = kind([cut], **settings)
    steps(before, cut, 0, 5)
    after = after([cut], **settings)
    after.load_state({name: value.clone() for name, value in before.state().items()})
    torch.testing.assert_close(steps(after, cut, 5, 8), expected, rtol=0 if after is kind else 1e-5, atol=0)


def test_a_parameter_without_a_gradient_counts_as_one_with_zeros(kind):
    p = torch.nn.Parameter(torch.ones(2))
    laprop = kind([p], learning_rate=0.1, betas=(0.9, 0.999), eps=1e-20, clip=0.3)
    laprop.step()
    assert torch.equal(p, torch.ones(2))


def test_on_a_device_gradients_are_bounded_together_and_one_that_is_not_finite_changes_nothing():
    settings = {"learning_rate": 0.1, "betas": (0.9, 0.99), "eps": 1e-3, "clip": 0.3}
    ours, theirs = ([torch.nn.Parameter(torch.ones(3, 2)), torch.nn.Parameter(torch.full((4,), 2.0))] for _ in range(2))
    device, reference = DeviceLaProp(ours, **settings), LaProp(theirs, **settings)

    def give(gradients: list[torch.Tensor]) -> None:
        for p, q, gradient in zip(ours, theirs, gradients, strict=True):
            p.grad, q.grad = gradient.clone(), gradient.clone()

    give([torch.full((3, 2), math.inf), torch.ones(4)])
    assert not device.step(0.01).isfinite()
    for t in range(5):
        give([torch.full((3, 2), 0.1 * t), torch.arange(4.0)])
        expected = torch.nn.utils.clip_grad_norm_(theirs, 0.01)
        reference.step()
        torch.testing.assert_close(device.step(0.01), expected)
        kept = device.state()
        give([torch.full((3, 2), math.nan), torch.ones(4)])
        device.step(0.01)
        assert all(torch.equal(value, kept[name]) for name, value in device.state().items())
    torch.testing.assert_close(ours, theirs)


def test_parameters_on_a_device_are_served_there():
    settings = {"learning_rate": 0.1, "betas": (0.9, 0.99), "eps": 1e-3, "clip": 0.3}
    assert type(make_laprop([torch.nn.Parameter(torch.ones(2))], **settings)) is LaProp
    with emulation():
        assert type(make_laprop([torch.nn.Parameter(torch.ones(2))], **settings)) is DeviceLaProp
