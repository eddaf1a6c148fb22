"""Where kernels are tested: emulated on the CPU, and on a card where there is one; those for the CPU in each of their forms."""

from __future__ import annotations

from collections.abc import Iterator
from contextlib import nullcontext
from functools import partial
from types import SimpleNamespace

import pytest
import torch

from fugu.gpu import emulation
from fugu.native import native

NAMES = (
    "mlp_forward",
    "mlp_backward",
    "lstm_forward",
    "lstm_backward",
    "lstm_kept",
    "sample_categorical",
    "ppo_loss_categorical",
    "norm_forward",
    "norm_backward",
    "stack_forward",
    "stack_backward",
    "two_hot_mean",
    "two_hot_loss",
    "two_hot_backward",
    "divergence",
    "divergence_backward",
    "mixed",
    "mixed_backward",
    "observe_kept",
    "observe_forward",
    "observe_backward",
    "roll",
    "laprop",
    "soft_critics",
    "soft_policy",
    "adam_means",
    "adam_follow",
)


@pytest.fixture(params=["cpu", pytest.param("cuda", marks=pytest.mark.gpu)])
def device(request: pytest.FixtureRequest) -> Iterator[torch.device]:
    with emulation() if request.param == "cpu" else nullcontext():
        yield torch.device(request.param, 0) if request.param == "cuda" else torch.device("cpu")


@pytest.fixture(params=["native", "portable", "reference"])
def kernel(request, monkeypatch):
    """The form in which advantages are computed: the best native kernel, the portable one, and the Python reference."""
    if request.param == "reference":
        monkeypatch.setattr("fugu.native.native", None)
    elif native is None:
        pytest.skip("the native core is not built")
    elif request.param == "portable":
        portable = SimpleNamespace(advantage=lambda *arguments: native.advantage(*arguments, portable=True))
        monkeypatch.setattr("fugu.native.native", portable)
    return request.param


@pytest.fixture(params=["avx512", "avx2", "portable"])
def instructions(request, monkeypatch):
    """The instruction set for which the native kernels of a learner were compiled."""
    if native is None:
        pytest.skip("the native core is not built")
    try:
        native.lstm_kept(1, set=request.param)
    except ValueError as error:
        pytest.skip(str(error))
    called = {name: partial(getattr(native, name), set=request.param) for name in NAMES}
    monkeypatch.setattr("fugu.native.native", SimpleNamespace(**called))
    return request.param


@pytest.fixture(autouse=True)
def full_precision() -> Iterator[None]:
    """Products of torch in float32: a training in the same process may have set tf32."""
    before = torch.get_float32_matmul_precision()
    torch.set_float32_matmul_precision("highest")
    yield
    torch.set_float32_matmul_precision(before)
