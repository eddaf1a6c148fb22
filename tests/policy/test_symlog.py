import numpy as np
import pytest
import torch

from fugu.ops.two_hot import between
from fugu.policy.symlog import TwoHot, symexp, symlog

TWO_HOT = TwoHot(255)


def random(*shape: int, seed: int = 0) -> torch.Tensor:
    return torch.randn(shape, generator=torch.Generator().manual_seed(seed))


def test_symexp_undoes_symlog():
    x = torch.cat([torch.linspace(-1e6, 1e6, 2001), torch.tensor([0.0, 1e-8, -1e-8])]).double()
    torch.testing.assert_close(symexp(symlog(x)), x, rtol=1e-9, atol=1e-15)


def test_two_hot_shares_sum_to_one_and_mean_the_number():
    y = symexp(19 * (2 * torch.rand(5000, generator=torch.Generator().manual_seed(0)) - 1))
    above, share = between(TWO_HOT.bins, y)
    table = np.zeros((len(y), 255))
    table[np.arange(len(y)), above] += share.numpy()
    table[np.arange(len(y)), above - 1] += 1 - share.numpy()
    assert (table >= 0).all() and (np.count_nonzero(table, 1) <= 2).all()
    np.testing.assert_allclose(table @ TWO_HOT.bins.double().numpy(), y.numpy(), rtol=1e-5, atol=1e-6)


@pytest.mark.parametrize("y", [1e30, -1e30, float(TWO_HOT.bins[0]), float(TWO_HOT.bins[-1]), 0.0])
def test_numbers_beyond_the_bins_are_taken_for_the_outermost(y):
    above, share = between(TWO_HOT.bins, torch.tensor([y]))
    found = TWO_HOT.bins[above - 1] * (1 - share) + TWO_HOT.bins[above] * share
    assert found.item() == max(min(y, TWO_HOT.bins[-1].item()), TWO_HOT.bins[0].item())


def test_logits_of_zeros_mean_exactly_zero():
    assert TWO_HOT.mean(torch.zeros(3, 255)).eq(0).all() and TWO_HOT.mean(torch.full((3, 255), 7.0)).eq(0).all()


def test_the_mean_is_that_of_the_bins():
    logits = random(20, 255)
    expected = (logits.double().softmax(-1) * TWO_HOT.bins.double()).sum(-1)
    torch.testing.assert_close(TWO_HOT.mean(logits).double(), expected, rtol=1e-4, atol=1.0)  # of bins up to 5e8


def test_the_loss_is_the_cross_entropy_of_torch():
    logits, y = random(50, 255), 100 * random(50, seed=1)
    above, share = between(TWO_HOT.bins, y)
    target = torch.zeros(50, 255).scatter_(1, above[:, None], share[:, None])
    target.scatter_add_(1, above[:, None] - 1, 1 - share[:, None])
    expected = torch.nn.functional.cross_entropy(logits, target, reduction="none")
    torch.testing.assert_close(TWO_HOT.loss(logits, y), expected, rtol=1e-5, atol=1e-5)


def test_minimising_the_loss_finds_the_number():
    logits = torch.zeros(1, 255, requires_grad=True)
    for _ in range(300):
        (gradient,) = torch.autograd.grad(TWO_HOT.loss(logits, torch.tensor([3.7])).sum(), logits)
        with torch.no_grad():
            logits -= 5 * gradient
    assert abs(TWO_HOT.mean(logits).item() - 3.7) < 0.2
