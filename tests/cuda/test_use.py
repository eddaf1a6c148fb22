"""When kernels of ours are used, and that all of them compile for a card."""

from __future__ import annotations

import warnings
from pathlib import Path

import pytest
import torch

from fugu.cuda import emulation, ready, use
from fugu.cuda.libraries import nvrtc
from fugu.cuda.module import FAST, cubin
from fugu.emulation.build import shipped_headers
from fugu.errors import GpuError

NOT_KERNELS = {"emulate.h", "kernel.h", "rows.h"}
KERNELS = sorted(
    path.name
    for path in (Path(__file__).parents[2] / "native" / "cuda").glob("*.h")
    if 'extern "C"' in path.read_text() and path.name not in NOT_KERNELS
)


def test_tensors_of_the_cpu_are_for_torch_unless_emulation_is_on() -> None:
    x = torch.zeros(3)
    assert not ready(x)
    with emulation():
        assert ready(x, torch.zeros(2, dtype=torch.int64), None, torch.zeros(1, dtype=torch.bool))
        with emulation():
            pass
        assert ready(x)
        assert not ready(x, torch.zeros(3, device="meta"))
    assert not ready(x)


def test_only_single_precision_is_taken_unless_half_is_asked_for() -> None:
    with emulation():
        assert not ready(torch.zeros(3), torch.zeros(3, dtype=torch.float64))
        assert not ready(torch.zeros(3, dtype=torch.bfloat16))
        assert ready(torch.zeros(3, dtype=torch.bfloat16), torch.zeros(3), half=True)
        assert not ready(torch.zeros(3, dtype=torch.float16), half=True)


def test_a_card_without_a_compiler_is_said_once(monkeypatch: pytest.MonkeyPatch) -> None:
    def missing(*_: object, **__: object) -> None:
        raise GpuError("libnvrtc was not found\nand more")

    monkeypatch.setattr(use, "compile_module", missing)
    device = torch.device("cuda", 77)
    with pytest.warns(RuntimeWarning, match=r"cuda:77: torch's own .*libnvrtc was not found\)$"):
        assert not use.works(device)
    with warnings.catch_warnings():
        warnings.simplefilter("error")
        assert not use.works(device)
    use.works.cache_clear()


@pytest.mark.parametrize("name", KERNELS)
def test_every_kernel_compiles_for_a_card(name: str) -> None:
    try:
        nvrtc()
    except GpuError:
        pytest.skip("libnvrtc is not installed")
    if not (shipped_headers() / "fugu" / "cuda" / name).exists():
        pytest.fail(f"{name} is not shipped: CMakeLists.txt excludes its name")
    assert cubin(f"#include <fugu/cuda/{name}>\n", "sm_90", FAST, (), name).stat().st_size > 0
