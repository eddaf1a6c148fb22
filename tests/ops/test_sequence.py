"""What kernels over rows of channels are compiled with, and that they compile for a card, where NVRTC is."""

from __future__ import annotations

import pytest
import torch

from fugu.errors import GpuError
from fugu.gpu.libraries import nvrtc
from fugu.gpu.module import FAST, cubin
from fugu.ops.sequence import wide


def test_four_channels_to_a_thread_where_all_rows_begin_at_fours() -> None:
    even = torch.zeros(3, 8)
    assert wide(even, size=8) == ("FUGU_WIDE 4",)
    assert wide(even.to(torch.bfloat16), size=8) == ("FUGU_BF16 1", "FUGU_WIDE 4")
    assert wide(even, size=6) == ()
    assert wide(even, torch.zeros(3, 10)[:, :8], size=8) == ()  # rows lie ten numbers apart
    assert wide(even[:, 2:6], size=4) == ()  # begins in the middle of four
    assert wide(even[:, 4:], size=4) == ("FUGU_WIDE 4",)
    assert wide(even.t(), size=8) == ()


@pytest.mark.parametrize("defines", [(), ("FUGU_WIDE 4",), ("FUGU_BF16 1",), ("FUGU_BF16 1", "FUGU_WIDE 4")], ids=str)
@pytest.mark.parametrize("header", ["mingru.h", "columns.h", "lstm_step.h"])
def test_kernels_compile_for_a_card(header: str, defines: tuple[str, ...]) -> None:
    try:
        nvrtc()
    except GpuError as error:
        pytest.skip(str(error))
    source = "\n".join([*(f"#define {define}" for define in defines), f"#include <fugu/cuda/{header}>", ""])
    assert cubin(source, "sm_90", FAST, (), header).stat().st_size > 0
