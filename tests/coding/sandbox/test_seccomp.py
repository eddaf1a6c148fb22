"""The filter of system calls, run by a small interpreter of its language: what each call gets, on both machines we know."""

from __future__ import annotations

import errno
import os
import struct

import pytest

from fugu.coding.sandbox import seccomp
from fugu.coding.sandbox.syscalls import numbers

ALLOW, KILL, ERRNO = 0x7FFF0000, 0x80000000, 0x00050000
ARCHITECTURES = {"x86_64": 0xC000003E, "aarch64": 0xC00000B7}


def evaluate(
    code: bytes, number: int, arguments: tuple[int, ...] = (), architecture: int = ARCHITECTURES["x86_64"]
) -> int | str:
    """What the kernel would do: "allow", "kill" or an errno."""
    data = struct.pack("<IIQ6Q", number & 0xFFFFFFFF, architecture, 0, *(arguments + (0,) * 6)[:6])
    program = [struct.unpack_from("<HBBI", code, offset) for offset in range(0, len(code), 8)]
    assert len(program) <= 4096
    accumulator, at = 0, 0
    while True:
        operation, yes, no, value = program[at]
        at += 1
        if operation == 0x20:
            (accumulator,) = struct.unpack_from("<I", data, value)
        elif operation == 0x06:
            if value & 0xFFFF0000 == ERRNO:
                return value & 0xFFFF
            return {ALLOW: "allow", KILL: "kill"}[value]
        else:
            met = {0x15: accumulator == value, 0x35: accumulator >= value, 0x45: bool(accumulator & value)}[operation]
            at += yes if met else no


@pytest.fixture(params=["x86_64", "aarch64"])
def machine(request, monkeypatch):
    real = os.uname()
    monkeypatch.setattr(os, "uname", lambda: type(real)((*real[:4], request.param)))
    return request.param


def decide(machine: str, profile: str, name: str, *arguments: int, **options: bool) -> int | str:
    code, known = seccomp.filter_for(profile, **options), numbers(machine)
    assert code is not None and known is not None
    if name not in known:
        pytest.skip(f"{machine} has no {name}")
    return evaluate(code, known[name], arguments, ARCHITECTURES[machine])


@pytest.mark.parametrize(
    "name", ["read", "write", "openat", "mmap", "futex", "exit_group", "clock_gettime", "getrandom", "rt_sigaction"]
)
def test_what_python_needs_is_allowed(machine, name):
    assert decide(machine, "compute", name) == decide(machine, "program", name) == "allow"


DENIED = """
socket socketpair connect bind unshare setns mount umount2 pivot_root chroot open_tree fsopen move_mount ptrace process_vm_readv
process_vm_writev bpf perf_event_open userfaultfd keyctl add_key request_key io_uring_setup io_uring_enter kexec_load reboot
swapon init_module finit_module delete_module clock_settime settimeofday sethostname setdomainname quotactl acct personality
sched_setscheduler sched_setaffinity setpriority ioprio_set shmget msgget semget mq_open memfd_create flock pidfd_open
pidfd_getfd open_by_handle_at seccomp syslog fanotify_init fanotify_mark mlockall modify_ldt iopl
inotify_init inotify_init1 inotify_add_watch inotify_rm_watch
"""


@pytest.mark.parametrize("name", DENIED.split())
@pytest.mark.parametrize("profile", ["compute", "program"])
def test_what_reaches_beyond_the_program_is_refused(machine, profile, name):
    assert decide(machine, profile, name) == errno.EPERM


@pytest.mark.parametrize("name", ["sync", "syncfs", "fsync", "fdatasync", "sync_file_range", "msync", "fadvise64", "readahead"])
@pytest.mark.parametrize("profile", ["compute", "program"])
def test_what_would_be_done_to_the_whole_machine_is_answered_as_if_done(machine, profile, name):
    """And not refused: a data base that cannot sync its file stops."""
    assert decide(machine, profile, name) == 0


PRIVATE, SHARED, CHECKED, ANONYMOUS, HUGE = 0x2, 0x1, 0x3, 0x20, 0x40000


@pytest.mark.parametrize("profile", ["compute", "program"])
@pytest.mark.parametrize(
    ("flags", "allowed"),
    [
        *((PRIVATE, True), (PRIVATE | ANONYMOUS, True), (SHARED, True), (CHECKED, True)),
        *((SHARED | ANONYMOUS, False), (CHECKED | ANONYMOUS, False), (PRIVATE | ANONYMOUS | HUGE, False)),
    ],
)
def test_memory_is_mapped_only_where_it_counts(machine, profile, flags, allowed):
    assert decide(machine, profile, "mmap", 0, 4096, 3, flags) == ("allow" if allowed else errno.EPERM)
    assert decide(machine, profile, "mmap", 0, 4096, 3, flags | 1 << 32) == ("allow" if allowed else errno.EPERM)


def test_without_sharing_no_file_is_mapped_as_shared(machine):
    for flags, answer in ((PRIVATE, "allow"), (PRIVATE | ANONYMOUS, "allow"), (SHARED, errno.EPERM), (HUGE, errno.EPERM)):
        assert decide(machine, "compute", "mmap", 0, 4096, 3, flags, sharing=False) == answer


@pytest.mark.parametrize(
    ("advice", "allowed"), [(4, True), (8, True), (9, True), (14, False), (12, False), (25, False), (21, False)]
)
def test_advice_on_memory_asks_for_no_huge_or_merged_pages(machine, advice, allowed):
    assert decide(machine, "compute", "madvise", 0, 4096, advice) == ("allow" if allowed else errno.EPERM)


def test_clone3_is_unknown_so_that_threads_are_made_by_clone(machine):
    assert decide(machine, "compute", "clone3") == decide(machine, "program", "clone3") == errno.ENOSYS


def test_clone_makes_threads_in_compute_and_processes_in_program_but_no_namespaces(machine):
    thread, process = 0x3D0F00, 0x1200011
    assert decide(machine, "compute", "clone", thread) == "allow"
    assert decide(machine, "compute", "clone", process) == errno.EPERM
    assert decide(machine, "program", "clone", process) == "allow"
    for flag in (0x20000, 0x2000000, 0x4000000, 0x8000000, 0x10000000, 0x20000000, 0x40000000, 0x80):
        assert decide(machine, "program", "clone", process | flag) == errno.EPERM


@pytest.mark.parametrize("name", ["execve", "execveat", "fork", "vfork"])
def test_only_program_executes(machine, name):
    assert decide(machine, "compute", name) == errno.EPERM
    assert decide(machine, "program", name) == "allow"


@pytest.mark.parametrize(
    ("command", "allowed"),
    [(1, True), (3, True), (1030, True), (6, False), (5, False), (37, False), (1024, False), (1031, False)],
)
def test_fcntl_has_no_locks_or_leases(machine, command, allowed):
    assert decide(machine, "compute", "fcntl", 0, command) == ("allow" if allowed else errno.EPERM)


def test_an_argument_is_compared_as_the_kernel_reads_it(machine):
    """TIOCSTI with rubbish in the half of the register that the kernel ignores is still TIOCSTI, and TCGETS is still TCGETS."""
    for high in (0, 1 << 32, 0xFFFFFFFF << 32):
        assert decide(machine, "compute", "ioctl", 0, 0x5412 | high) == errno.EPERM
        assert decide(machine, "compute", "ioctl", 0, 0x5401 | high) == "allow"


def test_limits_can_be_changed_only_for_oneself(machine):
    assert decide(machine, "compute", "prlimit64", 0) == "allow"
    assert decide(machine, "compute", "prlimit64", 4711) == errno.EPERM


@pytest.mark.parametrize("profile", ["compute", "program"])
def test_the_limit_on_cpu_time_can_be_read_but_not_set(machine, profile):
    """At it the kernel kills, as if from outside. The new limit is a pointer, of which both halves count."""
    cpu, stack, low, high = 0, 3, 0x1000, 0x7F00_0000_0000
    assert decide(machine, profile, "prlimit64", 0, cpu, 0, low) == "allow"
    assert decide(machine, profile, "prlimit64", 0, stack, high | low) == "allow"
    for new in (low, high, high | low):
        assert decide(machine, profile, "prlimit64", 0, cpu, new) == errno.EPERM
        assert decide(machine, profile, "prlimit64", 1 << 32, cpu | 1 << 32, new) == errno.EPERM
    assert decide(machine, profile, "setrlimit", cpu, low) == errno.EPERM


def test_other_architectures_and_x32_kill(machine):
    code = seccomp.filter_for("compute")
    assert code is not None
    assert evaluate(code, 1, (), 0x40000003) == "kill"
    assert evaluate(code, 0x40000000 + 1, (), ARCHITECTURES[machine]) == "kill"


def test_calls_nobody_has_heard_of_do_not_exist(machine):
    for profile in ("compute", "program"):
        code = seccomp.filter_for(profile)
        assert code is not None
        for number in (470, 500, 1000, 0x3FFFFFFF):
            assert evaluate(code, number, (), ARCHITECTURES[machine]) == errno.ENOSYS


def test_every_known_call_gets_what_its_list_says(machine):
    """The binary search agrees with the lists, number by number."""
    known = numbers(machine)
    compute, program = seccomp.filter_for("compute"), seccomp.filter_for("program")
    assert known is not None and compute is not None and program is not None
    special = {"fcntl", "ioctl", "prctl", "prlimit64", "clone", "clone3", "mmap", "madvise", *seccomp._NOTHING_TO_DO.split()}
    for name, number in known.items():
        if name not in special:
            allowed = name in (seccomp._COMPUTE + " " + seccomp._SENDING).split()
            assert evaluate(compute, number, (), ARCHITECTURES[machine]) == ("allow" if allowed else errno.EPERM), name
            refused = name in seccomp._NOT_FOR_PROGRAMS.split()
            assert evaluate(program, number, (), ARCHITECTURES[machine]) == (errno.EPERM if refused else "allow"), name


def test_without_writing_files_are_opened_for_reading_only(machine):
    read, write = os.O_RDONLY | os.O_CLOEXEC, os.O_WRONLY | os.O_CREAT
    assert decide(machine, "compute", "openat", 0, 0, read, writing=False) == "allow"
    assert decide(machine, "compute", "openat", 0, 0, write, writing=False) == errno.EPERM
    for name in (
        "unlinkat",
        "mkdirat",
        "truncate",
        "openat2",
        "renameat2",
        "linkat",
        "symlinkat",
        "chmod",
        "fchmod",
        "utimensat",
    ):
        assert decide(machine, "compute", name, writing=False) == errno.EPERM


def test_without_signals_none_can_be_sent(machine):
    for name in ("kill", "tkill", "tgkill", "rt_sigqueueinfo"):
        assert decide(machine, "compute", name) == "allow"
        assert decide(machine, "compute", name, signals=False) == errno.EPERM


def test_every_name_in_the_lists_is_a_call_of_some_machine():
    known = set(numbers("x86_64") or ()) | set(numbers("aarch64") or ())
    lists = seccomp._COMPUTE + " " + seccomp._SENDING + " " + seccomp._NOT_FOR_PROGRAMS + " " + seccomp._NOTHING_TO_DO
    assert set(lists.split()) <= known


def test_a_machine_that_is_not_known_gets_no_filter(monkeypatch):
    real = os.uname()
    monkeypatch.setattr(os, "uname", lambda: type(real)((*real[:4], "riscv64")))
    assert seccomp.filter_for("compute") is None
