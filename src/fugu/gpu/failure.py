"""torch's errors when a GPU has too little memory or fails, turned into one message that says what to do."""

from __future__ import annotations

from collections.abc import Iterator
from contextlib import contextmanager
from typing import Any

import torch

from fugu.errors import GpuError

_BROKEN: Any = getattr(torch, "AcceleratorError", ())
"""not in torch 2.8"""


@contextmanager
def explained() -> Iterator[None]:
    """Raise such errors as a ``GpuError`` inside the block."""
    try:
        yield
    except torch.OutOfMemoryError as error:
        raise GpuError(
            f"{_said(error)} Fewer environments (--num-envs), a shorter --horizon or a smaller --minibatch need less; "
            "nvidia-smi shows who else uses the card"
        ) from error
    except _BROKEN as error:
        raise GpuError(
            f"the GPU failed: {_said(error)}. fugu train --resume latest goes on from the last checkpoint; if it fails again, "
            "please report it with what CUDA_LAUNCH_BLOCKING=1 and --debug show"
        ) from error


def _said(error: RuntimeError) -> str:
    """Return what happened, without torch's general advice on its settings, which follows."""
    return str(error).strip().splitlines()[0].partition(" If reserved")[0]
