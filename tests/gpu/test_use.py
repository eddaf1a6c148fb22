"""When kernels of ours are used, and that all of them compile for a card."""

from __future__ import annotations

import threading
import warnings

import pytest
import torch

from fugu.compiler import shipped_headers
from fugu.errors import GpuError
from fugu.gpu import emulation, module, ready, use
from fugu.gpu.libraries import nvrtc
from fugu.gpu.module import FAST, cubin

KERNELS = {
    "adam.h": (),
    "gather.h": (),
    "loss.h": (),
    "lstm.h": ("FUGU_BF16 1",),
    "lstm_scan.h": ("FUGU_SIZE 64",),
    "mingru.h": ("FUGU_BF16 1",),
    "moments.h": (),
    "sample.h": (),
    "trace.h": (),
}
"""headers, and what some of them are compiled with as well"""


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

    monkeypatch.setattr(module, "compile_module", missing)
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
    assert (shipped_headers() / "fugu" / "cuda" / name).exists(), "CMakeLists.txt keeps it back"
    for defines in {(), KERNELS[name]}:
        lines = [*(f"#define {define}" for define in defines), f"#include <fugu/cuda/{name}>", ""]
        assert cubin("\n".join(lines), "sm_90", FAST, (), name).stat().st_size > 0


def test_a_thread_without_a_context_gets_one_once(monkeypatch: pytest.MonkeyPatch) -> None:
    class Driver:
        current, calls = 0, ()

        def cuCtxGetCurrent(self, out):
            self.calls += ("get",)
            out._obj.value = self.current
            return 0

        def cuDevicePrimaryCtxRetain(self, out, index):
            self.calls += (("retain", index),)
            out._obj.value = 7
            return 0

        def cuCtxSetCurrent(self, context):
            self.calls += (("set", context.value),)
            return 0

    driver = Driver()
    monkeypatch.setattr(module, "driver", lambda: driver)
    for _ in range(2):
        threads = [threading.Thread(target=lambda: [module.bind(torch.device("cuda", 3)) for _ in range(2)])]
        for thread in threads:
            thread.start()
            thread.join()
        driver.current = 7
    assert driver.calls == ("get", ("retain", 3), ("set", 7), "get")
