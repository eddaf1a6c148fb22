"""Where kernels are tested: emulated on the CPU, and on a card where there is one."""

from __future__ import annotations

from collections.abc import Iterator
from contextlib import nullcontext

import pytest
import torch

from fugu.cuda import emulation


@pytest.fixture(params=["cpu", pytest.param("cuda", marks=pytest.mark.gpu)])
def device(request: pytest.FixtureRequest) -> Iterator[torch.device]:
    with emulation() if request.param == "cpu" else nullcontext():
        yield torch.device(request.param, 0) if request.param == "cuda" else torch.device("cpu")
