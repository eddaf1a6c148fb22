"""The device on which kernels are tested, as in ``tests/ops``."""

from tests.ops.conftest import device

__all__ = ["device"]
