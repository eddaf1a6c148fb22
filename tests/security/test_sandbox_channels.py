"""Ways out of a program that are no door: calls that act on the whole machine, and news of what another program does."""

from __future__ import annotations

from collections.abc import Iterator

import pytest

from fugu.coding.sandbox import Outcome, Program, Sandbox, SandboxConfig
from fugu.coding.sandbox.contract import Profile
from fugu.coding.sandbox.probe import examine
from fugu.errors import SandboxError

PROFILES: tuple[Profile, ...] = ("compute", "program")


@pytest.fixture(scope="module")
def sandbox() -> Iterator[Sandbox]:
    try:
        report = examine()
    except SandboxError as error:
        pytest.skip(str(error))
    if report.level < 3:
        pytest.skip(f"level 3 is needed: {report.missing}")
    with Sandbox(SandboxConfig(workers=1)) as opened:
        yield opened


def run(sandbox: Sandbox, source: str, profile: Profile) -> Outcome:
    (outcome,) = sandbox.run([Program(source=source.encode(), profile=profile)])
    return outcome


WATCHER = """
import ctypes, os, time
libc = ctypes.CDLL(None, use_errno=True)
watch = libc.inotify_init1(os.O_NONBLOCK)
libc.inotify_add_watch(watch, os.path.join(os.path.dirname(os.__file__), "this.py").encode(), 0x20)  # opened
time.sleep(0.6)
try:
    print("HEARD", os.read(watch, 4096))
except OSError as error:
    print("nothing", error.errno)
"""
OPENER = """
import os, time
for _ in range(8):
    time.sleep(0.05)
    open(os.path.join(os.path.dirname(os.__file__), "this.py")).close()
"""


def test_no_program_hears_of_files_that_another_opens(sandbox):
    """Morse by opening a file of the standard library: across all walls, with as many bits a second as one likes."""
    heard, _ = sandbox.run([Program(source=text.encode(), profile="program") for text in (WATCHER, OPENER)])
    assert heard.stdout.startswith(b"nothing"), heard


# A descriptor that does not exist: the kernel would say so if it were asked.
FLUSHES = """
import ctypes
libc = ctypes.CDLL(None, use_errno=True)
for name, arguments in {
    "sync": (), "syncfs": (99,), "fsync": (99,), "fdatasync": (99,), "sync_file_range": (99, 0, 0, 7),
    "posix_fadvise": (99, 0, 0, 4), "readahead": (99, 0, 4096),
}.items():
    print(name, getattr(libc, name)(*arguments))
print("msync", libc.msync(ctypes.c_void_p(4096), 4096, 4))
"""


@pytest.mark.parametrize("profile", PROFILES)
def test_no_program_flushes_the_disks_or_the_cache_of_the_machine(sandbox, profile):
    outcome = run(sandbox, FLUSHES, profile)
    assert outcome.status == "ok" and {line.split()[1] for line in outcome.stdout.splitlines()} == {b"0"}, outcome


@pytest.mark.parametrize("profile", PROFILES)
def test_a_file_of_ones_own_can_still_be_synced_and_mapped(sandbox, profile):
    source = """
import mmap, os
with open("own", "w+b") as file:
    file.write(bytes(8192))
    file.flush()
    os.fsync(file)
    with mmap.mmap(file.fileno(), 8192) as shared:
        shared[:5] = b"hello"
        shared.flush()
print(open("own", "rb").read(5))
"""
    outcome = run(sandbox, source, profile)
    assert (outcome.status, outcome.stdout) == ("ok", b"b'hello'\n"), outcome
