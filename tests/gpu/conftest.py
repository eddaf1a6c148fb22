"""The device on which kernels are tested, as in ``tests/ops``."""

from tests.ops.conftest import device, full_precision

__all__ = ["device", "full_precision"]
