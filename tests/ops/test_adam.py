"""Adam beside torch's, and what keeps a run's start short."""

from __future__ import annotations

import subprocess
import sys

import pytest
import torch

from fugu.native import native
from fugu.ops.adam import Adam

SETTINGS = {"betas": (0.8, 0.95), "eps": 1e-5}


def parameters() -> list[torch.nn.Parameter]:
    generator = torch.Generator().manual_seed(0)
    return [torch.nn.Parameter(torch.randn(shape, generator=generator)) for shape in ((5, 3), (4,), ())]


def give_gradients(step: int, *owners: list[torch.nn.Parameter]) -> None:
    for mine in zip(*owners, strict=True):
        grad = torch.randn(mine[0].shape, generator=torch.Generator().manual_seed(step))
        for p in mine:
            p.grad = grad.clone()


@pytest.mark.parametrize("weight_decay", [0.0, 0.1])
def test_adam_takes_the_steps_of_torchs_adamw(weight_decay: float) -> None:
    mine, theirs = parameters(), parameters()
    adam = Adam(mine, learning_rate=1e-2, weight_decay=weight_decay, **SETTINGS)
    torchs = torch.optim.AdamW(theirs, lr=1e-2, weight_decay=weight_decay, **SETTINGS)
    for step in range(20):
        give_gradients(step, mine, theirs)
        adam.learning_rate = torchs.param_groups[0]["lr"] = 1e-2 / (1 + step)
        adam.step()
        torchs.step()
    torch.testing.assert_close(mine, theirs, rtol=1e-5, atol=1e-6)


@pytest.mark.parametrize("weight_decay", [0.0, 0.1])
def test_native_steps_are_torchs_to_the_bit(weight_decay: float, monkeypatch: pytest.MonkeyPatch) -> None:
    if native is None:
        pytest.skip("the native core is not built")
    one, other = ([*parameters(), torch.nn.Parameter(torch.linspace(-1, 1, 70_001))] for _ in range(2))
    adam, plain = (Adam(each, learning_rate=1e-2, weight_decay=weight_decay, **SETTINGS) for each in (one, other))
    for step in range(5):
        give_gradients(step, one, other)
        one[1].grad = other[1].grad = None
        one[0].grad = one[0].grad.t().contiguous().t()
        adam.step()
        with monkeypatch.context() as patch:
            patch.setattr("fugu.native.native", None)
            plain.step()
    assert all(torch.equal(p, q) for p, q in zip(one, other, strict=True))
    assert all(torch.equal(adam.state()[name], plain.state()[name]) for name in ("steps", "mean", "square"))


def test_adam_goes_on_from_its_state() -> None:
    one, other = parameters(), parameters()
    adam = Adam(one, learning_rate=1e-2, weight_decay=0.0, **SETTINGS)
    for step in range(3):
        give_gradients(step, one)
        adam.step()
    loaded = Adam(other, learning_rate=1e-2, weight_decay=0.0, **SETTINGS)
    loaded.load_state({name: value.clone() for name, value in adam.state().items()})
    for p, q in zip(one, other, strict=True):
        q.data.copy_(p.data)
    give_gradients(3, one, other)
    adam.step()
    loaded.step()
    assert all(torch.equal(p, q) for p, q in zip(one, other, strict=True))


def test_parameters_without_a_gradient_stay() -> None:
    used, unused = parameters()[:2]
    before = unused.detach().clone()
    used.grad = torch.ones_like(used)
    Adam([used, unused], learning_rate=1e-2, weight_decay=0.0, **SETTINGS).step()
    assert torch.equal(unused, before)


def test_training_does_not_import_torchs_compiler(tmp_path) -> None:
    """It takes a second or two, which is more than a short run takes to train."""
    script = (
        "import sys, fugu; fugu.train('cartpole', runs=sys.argv[1], steps=10_000, **{'log.board': 'off'}); "
        "print([name for name in ('torch._dynamo', 'torch._inductor') if name in sys.modules])"
    )
    done = subprocess.run([sys.executable, "-c", script, str(tmp_path)], capture_output=True, text=True, check=True)
    assert done.stdout.splitlines()[-1] == "[]"
