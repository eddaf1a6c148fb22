"""The system calls a program may make, as a filter the kernel applies.

``compute`` gets a list of what is allowed (files, memory, threads, clocks: what Python needs to compute), ``program`` everything but a
list of what is not. What is refused fails with EPERM, which Python shows as PermissionError; what we have never heard of fails with
ENOSYS, so that libraries fall back; what would have to be done for the whole machine is answered as if it were done; another machine's
calls (32-bit, x32) kill.

The filter is a binary search over ranges of numbers: the kernel evaluates it for every number when it is installed, and a list of
comparisons makes that several times as long.
"""

from __future__ import annotations

import errno
import os
import struct

from fugu.coding.sandbox import kernel
from fugu.coding.sandbox.syscalls import numbers

_ALLOW, _KILL, _ERRNO = 0x7FFF0000, 0x80000000, 0x00050000
_AUDIT = {"x86_64": 0xC000003E, "aarch64": 0xC00000B7}
_LOAD, _JUMP_EQUAL, _JUMP_AT_LEAST, _JUMP_ANY_BIT, _RETURN = 0x20, 0x15, 0x35, 0x45, 0x06
_NUMBER, _ARCHITECTURE, _ARGUMENTS = 0, 4, 16
_X32 = 0x40000000

_REFUSED, _UNKNOWN, _DONE = _ERRNO | errno.EPERM, _ERRNO | errno.ENOSYS, _ERRNO
_THREAD = 0x10000
_ANY_NAMESPACE = 0x7E020080

_FILES = """
read write readv writev pread64 pwrite64 preadv pwritev preadv2 pwritev2 lseek open openat openat2 creat close close_range dup dup2 dup3
pipe pipe2 poll ppoll select pselect6 epoll_create epoll_create1 epoll_ctl epoll_wait epoll_pwait epoll_pwait2 eventfd eventfd2
stat fstat lstat newfstatat statx statfs fstatfs access faccessat faccessat2 getdents getdents64 getcwd chdir fchdir readlink readlinkat
mkdir mkdirat rmdir unlink unlinkat rename renameat renameat2 link linkat symlink symlinkat mknod mknodat chmod fchmod fchmodat umask
truncate ftruncate fallocate utime utimes utimensat futimesat copy_file_range sendfile
"""
_MEMORY = "mmap munmap mprotect mremap madvise brk mincore membarrier"
_THREADS = """
futex set_robust_list get_robust_list set_tid_address rseq gettid sched_yield sched_getaffinity getcpu exit exit_group wait4 waitid
"""
_CLOCKS = """
clock_gettime clock_getres clock_nanosleep gettimeofday time times nanosleep getitimer setitimer alarm timer_create timer_settime
timer_gettime timer_getoverrun timer_delete timerfd_create timerfd_settime timerfd_gettime
"""
_SIGNALS = (
    "rt_sigaction rt_sigprocmask rt_sigreturn rt_sigpending rt_sigtimedwait rt_sigsuspend sigaltstack pause restart_syscall"
)
_SENDING = "kill tkill tgkill rt_sigqueueinfo rt_tgsigqueueinfo"
_ABOUT = """
getpid getppid getuid geteuid getgid getegid getgroups getresuid getresgid getpgid getpgrp getsid uname sysinfo getrlimit getrusage
getrandom getpriority capget
"""
_COMPUTE = _FILES + _MEMORY + _THREADS + " " + _CLOCKS + _SIGNALS + _ABOUT

# Their effect is the machine's: disks are flushed, pages that all programs read leave the cache. A program's own files are in memory
# and gone after it, so that there is nothing to write out; and advice need not be followed.
_NOTHING_TO_DO = "sync syncfs fsync fdatasync sync_file_range msync fadvise64 readahead"

# Namespaces and mounts; other processes' memory; what changes the machine; interfaces with a history of holes; what would let two
# executions talk to each other or hold memory that no limit counts; sockets of every family.
_NOT_FOR_PROGRAMS = """
unshare setns mount umount2 mount_setattr move_mount open_tree fsopen fsmount fsconfig fspick pivot_root chroot name_to_handle_at
open_by_handle_at lookup_dcookie
ptrace process_vm_readv process_vm_writev process_madvise process_mrelease kcmp pidfd_getfd pidfd_open pidfd_send_signal
acct adjtimex clock_adjtime clock_settime settimeofday sethostname setdomainname reboot kexec_load kexec_file_load init_module
finit_module delete_module create_module query_module get_kernel_syms swapon swapoff quotactl quotactl_fd syslog vhangup nfsservctl
bpf perf_event_open userfaultfd io_uring_setup io_uring_enter io_uring_register io_setup io_destroy io_submit io_cancel io_getevents
io_pgetevents keyctl add_key request_key personality iopl ioperm modify_ldt uselib ustat sysfs _sysctl vserver seccomp
landlock_create_ruleset landlock_add_rule landlock_restrict_self
fanotify_init fanotify_mark inotify_init inotify_init1 inotify_add_watch inotify_rm_watch
mbind set_mempolicy get_mempolicy migrate_pages move_pages set_mempolicy_home_node remap_file_pages
sched_setscheduler sched_setparam sched_setattr sched_setaffinity setpriority ioprio_set setrlimit
flock memfd_create memfd_secret mlock mlock2 mlockall vmsplice tee splice shmget shmat shmctl shmdt msgget msgsnd msgrcv msgctl semget
semop semctl semtimedop mq_open mq_unlink mq_timedsend mq_timedreceive mq_notify mq_getsetattr
socket socketpair bind connect listen accept accept4 sendto sendmsg sendmmsg recvfrom recvmsg recvmmsg getsockname getpeername
setsockopt getsockopt shutdown
"""

# Calls of which only some uses are harmless: argument -> the values that are.
_FCNTL = (1, (0, 1, 2, 3, 4, 1030, 1032))
"""duplicate, flags, size of a pipe; no locks or leases, which other executions could see on files that all can read"""
_IOCTL = (1, (0x5401, 0x5413, 0x541B, 0x5421, 0x5450, 0x5451))
"""is it a terminal, of what size, bytes to read, blocking or not, close on exec; above all not TIOCSTI"""
_PRCTL = (0, (15, 16))
"""name of a thread"""
_MADVISE = (2, (*range(5), *range(8, 12), *range(15, 21), 22, 23, 24, 102, 103))
"""not huge pages, which hold two megabytes for as long as four kilobytes of them are mapped; not pages merged with other programs'"""
_SHARED, _ANONYMOUS, _HUGE = 0x1, 0x20, 0x40000
_LIMIT_OF_CPU = 0


def filter_for(profile: str, *, signals: bool = True, writing: bool = True, sharing: bool = True) -> bytes | None:
    """Return the filter as the kernel takes it, or None on a machine whose calls we do not know.

    Without ``signals`` the program can send none, for where no namespace keeps it from reaching others. Without ``writing`` it opens no
    file for writing, for where nothing else stops that. Without ``sharing`` it maps no file as shared, for where it can open /dev/zero.
    """
    machine = os.uname().machine
    known = numbers(machine)
    if known is None:
        return None
    actions: dict[int, list[bytes]] = {}
    names = [name for name in known if profile == "program" and name not in _NOT_FOR_PROGRAMS.split()]
    if profile != "program":
        names = [name for name in (_COMPUTE + (" " + _SENDING if signals else "")).split() if name in known]
    for number in known.values():
        actions[number] = [_returns(_REFUSED)]
    for name in names:
        actions[known[name]] = [_returns(_ALLOW)]
    rules = {name: [_returns(_DONE)] for name in _NOTHING_TO_DO.split()}
    rules |= {"mmap": _mapping(sharing), "madvise": _one_of(*_MADVISE)}
    rules |= {"fcntl": _one_of(*_FCNTL), "ioctl": _one_of(*_IOCTL), "prctl": _one_of(*_PRCTL), "prlimit64": _own_limits()}
    rules["clone"] = _without_bits(0, _ANY_NAMESPACE) if profile == "program" else _with_bit(0, _THREAD)
    # glibc tries clone3 first and takes only "no such call" as a reason to use clone; its flags are in memory that no filter can read.
    rules["clone3"] = [_returns(_UNKNOWN)]
    if profile != "program":
        rules["fork"] = rules["vfork"] = [_returns(_REFUSED)]
    if not writing:
        rules |= _read_only(known)
    for name, code in rules.items():
        if name in known:
            actions[known[name]] = code
    head = [
        _statement(_LOAD, _ARCHITECTURE),
        _jump(_JUMP_EQUAL, _AUDIT[machine], 1, 0),
        _returns(_KILL),
        _statement(_LOAD, _NUMBER),
        _jump(_JUMP_AT_LEAST, _X32, 0, 1),
        _returns(_KILL),
    ]
    return b"".join(head + _search(_ranges(actions)))


def install(code: bytes) -> None:
    """Apply the filter to this process and to all it starts, for good. Needs no_new_privs."""
    kernel.syscall("seccomp", 1, 0, struct.pack("HxxxxxxQ", len(code) // 8, kernel.address(code)))


def _read_only(known: dict[str, int]) -> dict[str, list[bytes]]:
    """Allow open and openat for reading only; refuse every other call that changes a file."""
    flags = os.O_WRONLY | os.O_RDWR | os.O_CREAT | os.O_TRUNC
    changing = """
    openat2 creat truncate mkdir mkdirat rmdir unlink unlinkat rename renameat renameat2 link linkat symlink symlinkat mknod mknodat
    chmod fchmod fchmodat utime utimes utimensat futimesat
    """
    refused = {name: [_returns(_REFUSED)] for name in changing.split()}
    return refused | {"open": _without_bits(1, flags), "openat": _without_bits(2, flags)}


def _ranges(actions: dict[int, list[bytes]]) -> list[tuple[int, list[bytes]]]:
    """Return (first number, code), each valid up to the next; numbers we do not know get ENOSYS."""
    ranges: list[tuple[int, list[bytes]]] = []
    for number in range(max(actions) + 2):
        code = actions.get(number, [_returns(_UNKNOWN)])
        if not ranges or ranges[-1][1] != code:
            ranges.append((number, code))
    return ranges


def _search(ranges: list[tuple[int, list[bytes]]]) -> list[bytes]:
    """Build a tree of comparisons whose leaves are the ranges; those that only return share their returns, which come last."""
    answers = sorted({code[0] for _, code in ranges if len(code) == 1})
    tree: list[tuple[int, bytes | int, bytes | int] | bytes] = []  # (number, where to go at and above it, and below); or code

    def place(part: list[tuple[int, list[bytes]]]) -> bytes | int:
        """Put ``part`` next; return where it is, or its answer."""
        here, (_, code) = len(tree), part[0]
        if len(part) == 1:
            tree.extend(code if len(code) > 1 else ())
            return here if len(code) > 1 else code[0]
        middle = len(part) // 2
        tree.append(b"")
        below, above = place(part[:middle]), place(part[middle:])
        tree[here] = (part[middle][0], above, below)
        return here

    place(ranges)
    end = {answer: len(tree) + index for index, answer in enumerate(answers)}
    found: list[bytes] = []
    for here, each in enumerate(tree):
        if isinstance(each, bytes):
            found.append(each)
            continue
        yes, no = ((end[target] if isinstance(target, bytes) else target) - here - 1 for target in each[1:])
        assert max(yes, no) < 256, "a jump reaches 255 instructions"
        found.append(_jump(_JUMP_AT_LEAST, each[0], yes, no))
    return found + answers


def _one_of(argument: int, values: tuple[int, ...]) -> list[bytes]:
    """Allow where the low half of the argument, all that the kernel looks at, is among ``values``."""
    tests = [_jump(_JUMP_EQUAL, value, len(values) - index, 0) for index, value in enumerate(values)]
    return [_argument(argument), *tests, _returns(_REFUSED), _returns(_ALLOW)]


def _with_bit(argument: int, bit: int) -> list[bytes]:
    return [_argument(argument), _jump(_JUMP_ANY_BIT, bit, 1, 0), _returns(_REFUSED), _returns(_ALLOW)]


def _without_bits(argument: int, bits: int) -> list[bytes]:
    return [_argument(argument), _jump(_JUMP_ANY_BIT, bits, 0, 1), _returns(_REFUSED), _returns(_ALLOW)]


def _mapping(sharing: bool) -> list[bytes]:
    """Allow mappings whose pages are counted: by the limit on address space, or as files of the program's own folder.

    Anonymous memory that is shared stays whole for as long as one page of it is mapped, and only that page counts. Huge pages set aside
    by the machine's owner are not for programs.
    """
    tests = [_jump(_JUMP_ANY_BIT, _HUGE, 3, 0)]
    tests += [_jump(_JUMP_ANY_BIT, _ANONYMOUS, 0, 1)] if sharing else [_jump(_JUMP_ANY_BIT, _SHARED, 2, 1)]
    tests += [_jump(_JUMP_ANY_BIT, _SHARED, 1, 0)]
    return [_argument(3), *tests, _returns(_ALLOW), _returns(_REFUSED)]


def _own_limits() -> list[bytes]:
    """Allow limits of the caller itself to be read, and all but one to be set: at that on CPU time (of which none at all may be
    left) the kernel kills as somebody outside would, and a program killed from outside is not scored. The arguments: whom, which,
    to what (a pointer)."""
    return [
        *(_argument(0), _jump(_JUMP_EQUAL, 0, 0, 6)),
        *(_argument(1), _jump(_JUMP_EQUAL, _LIMIT_OF_CPU, 0, 5)),
        *(_argument(2), _jump(_JUMP_EQUAL, 0, 0, 2)),
        *(_argument(2, high=True), _jump(_JUMP_EQUAL, 0, 1, 0)),
        *(_returns(_REFUSED), _returns(_ALLOW)),
    ]


def _argument(index: int, *, high: bool = False) -> bytes:
    return _statement(_LOAD, _ARGUMENTS + 8 * index + 4 * high)


def _returns(value: int) -> bytes:
    return _statement(_RETURN, value)


def _statement(code: int, value: int) -> bytes:
    return struct.pack("<HBBI", code, 0, 0, value)


def _jump(code: int, value: int, yes: int, no: int) -> bytes:
    return struct.pack("<HBBI", code, yes, no, value)
