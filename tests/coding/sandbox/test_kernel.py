"""System calls by name, with the compiled module, without it, and on a machine whose numbers are not known."""

from __future__ import annotations

import errno
import os

import pytest

from fugu.coding.sandbox import kernel, worker, zygote
from fugu.coding.sandbox.syscalls import numbers

DUPLICATE = 0


@pytest.fixture(params=["compiled", "ctypes", "unknown machine"])
def calls(request, monkeypatch):
    native = zygote._load(worker.library())
    if native is None and request.param == "compiled":
        pytest.skip("it was not built")
    monkeypatch.setattr(kernel, "_calls", None)
    monkeypatch.setattr(kernel, "_NUMBERS", {} if request.param == "unknown machine" else numbers(os.uname().machine))
    kernel.use(None if request.param == "ctypes" else native)


@pytest.mark.usefixtures("calls")
def test_a_call_answers_or_raises_what_went_wrong():
    copy = kernel.syscall("fcntl", 1, DUPLICATE, 100)
    os.close(copy)
    assert copy >= 100
    with pytest.raises(OSError, match=r"fcntl: Bad file descriptor") as caught:
        kernel.syscall("fcntl", copy, DUPLICATE, 100)
    assert caught.value.errno == errno.EBADF
    with pytest.raises(OSError, match=r"umount2: ") as caught:
        kernel.syscall("umount2", b"/there/is/no/such/thing", kernel.MNT_DETACH)
    assert caught.value.errno in (errno.ENOENT, errno.EPERM)


def test_a_call_that_the_c_library_does_not_have_does_not_exist(monkeypatch):
    monkeypatch.setattr(kernel, "_calls", None)
    monkeypatch.setattr(kernel, "_NUMBERS", {})
    kernel.use(None)
    with pytest.raises(OSError, match="landlock") as caught:
        kernel.syscall("landlock_create_ruleset", None, 0, 1)
    assert caught.value.errno == errno.ENOSYS
