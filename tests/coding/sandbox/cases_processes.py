"""Cases 42 to 55: other processes, the kernel's privileged calls, and programs that crash."""

from __future__ import annotations

from tests.coding.sandbox.case import BOUNDED, CALL, QUICK, TRY, Case, each
from tests.coding.sandbox.cases_files import READ
from tests.coding.sandbox.cases_network import SOCKET

# SIGURG is ignored by default, so that a backend that fails this does no harm
KILLS = """
import signal
attempt("the harness", lambda: os.kill(@PID@, signal.SIGURG))
attempt("the harness's group", lambda: os.killpg(@GROUP@, signal.SIGURG))
if os.getpid() > 20:  # else it sees only its own box
    attempt("the parent", lambda: os.kill(os.getppid(), signal.SIGURG))
    attempt("init", lambda: os.kill(1, signal.SIGURG))
"""

TRACES = """
refused("ptrace attach", 101, 16, @PID@, 0, 0)
refused("ptrace seize", 101, 0x4206, @PID@, 0, 0)
class Span(ctypes.Structure):
    _fields_ = [("base", ctypes.c_void_p), ("length", ctypes.c_size_t)]
buffer = ctypes.create_string_buffer(16)
span = Span(ctypes.addressof(buffer), 16)
refused("process_vm_readv", 310, @PID@, ctypes.byref(span), 1, ctypes.byref(span), 1, 0)
refused("process_vm_writev", 311, @PID@, ctypes.byref(span), 1, ctypes.byref(span), 1, 0)
refused("pidfd_getfd", 438, 0, 0, 0)
refused("kcmp", 312, @PID@, @PID@, 0, 0, 0)
for name in ("mem", "maps", "environ", "fd", "syscall", "stack"):
    path = "/proc/@PID@/" + name
    attempt(path, lambda: os.listdir(path) if name == "fd" else open(path, "rb").read(100))
"""

DAEMON = """
import ctypes, os, signal, time
if os.fork() == 0:
    os.setsid()
    signal.signal(signal.SIGHUP, signal.SIG_IGN)
    if os.fork() == 0:
        ctypes.CDLL(None).prctl(15, b"@LEFTOVER@", 0, 0, 0)
        time.sleep(8)
    os._exit(0)
time.sleep(0.1)
print("done", flush=True)
"""

HOLDS_OUTPUT = """
import os, time
if os.fork() == 0:
    time.sleep(8)
    os._exit(0)
print("done", flush=True)
os._exit(0)
"""

ZOMBIES = """
import os
for _ in range(10):
    try:
        if os.fork() == 0:
            os._exit(0)
    except OSError:
        break
print("done", flush=True)
"""

# numbers of x86_64; the flags are new user, mount, pid, network, ipc, uts, cgroup and time namespaces
WALLS = """
FLAGS = {"user": 0x10000000, "mount": 0x20000, "pid": 0x20000000, "net": 0x40000000, "ipc": 0x8000000, "uts": 0x4000000,
         "cgroup": 0x2000000, "time": 0x80}
for name, flag in FLAGS.items():
    refused("unshare " + name, 272, flag)
refused("setns", 308, 0, 0)
refused("mount", 165, ctypes.c_char_p(b"none"), ctypes.c_char_p(b"/tmp"), ctypes.c_char_p(b"tmpfs"), 0, 0)
refused("umount", 166, ctypes.c_char_p(b"/tmp"), 2)
refused("pivot_root", 155, ctypes.c_char_p(b"/"), ctypes.c_char_p(b"/"))
refused("chroot", 161, ctypes.c_char_p(b"/"))
refused("open_tree", 428, -100, ctypes.c_char_p(b"/"), 1)
refused("move_mount", 429, -100, ctypes.c_char_p(b"/"), -100, ctypes.c_char_p(b"/"), 0)
refused("fsopen", 430, ctypes.c_char_p(b"tmpfs"), 0)
refused("fspick", 433, -100, ctypes.c_char_p(b"/"), 0)
refused("mount_setattr", 442, -100, ctypes.c_char_p(b"/"), 0, 0, 0)
refused("name_to_handle_at", 303, -100, ctypes.c_char_p(b"/"), ctypes.create_string_buffer(256), ctypes.create_string_buffer(8), 0)
refused("open_by_handle_at", 304, -100, ctypes.create_string_buffer(256), 0)
"""

CAPABILITIES = """
header = (ctypes.c_uint32 * 2)(0x20080522, 0)
data = (ctypes.c_uint32 * 6)()
got = libc.capget(header, data)
print("ESCAPED capabilities" if got == 0 and any(data) else "denied capabilities", list(data))
if os.getuid() != 0:
    attempt("setuid(0)", lambda: os.setuid(0))
    attempt("setgid(0)", lambda: os.setgid(0))
    attempt("setresuid(0)", lambda: os.setresuid(0, 0, 0))
attempt("setgroups", lambda: os.setgroups([0]))
"""

# with arguments that would do nothing even where they were allowed
KERNEL = """
for name, number, *arguments in (
    ("bpf", 321, 0, 0, 0), ("perf_event_open", 298, 0, 0, -1, -1, 0), ("userfaultfd", 323, 0), ("kexec_load", 246, 0, 0, 0, 0),
    ("kexec_file_load", 320, -1, -1, 0, 0, 0), ("reboot", 169, 0, 0, 0, 0), ("swapon", 167, 0, 0), ("swapoff", 168, 0),
    ("init_module", 175, 0, 0, 0), ("finit_module", 313, -1, 0, 0), ("delete_module", 176, 0, 0), ("clock_settime", 227, 0, 0),
    ("settimeofday", 164, 0, 0), ("adjtimex", 159, 0), ("sethostname", 170, 0, 1), ("setdomainname", 171, 0, 1),
    ("quotactl", 179, 0, 0, 0, 0), ("acct", 163, 0), ("syslog", 103, 3, 0, 0), ("iopl", 172, 3), ("ioperm", 173, 0, 1, 1),
    ("lookup_dcookie", 212, 0, 0, 0), ("fanotify_init", 300, 0, 0), ("vhangup", 153), ("io_uring_setup", 425, 1, 0),
    ("move_pages", 279, 0, 0, 0, 0, 0, 0), ("migrate_pages", 256, 0, 0, 0, 0), ("process_madvise", 440, -1, 0, 0, 0, 0),
):
    refused(name, number, *arguments)
"""

# mov eax, 20 (getpid); int 0x80; ret
OTHER_ABI = {
    "int80": """
import mmap
code = mmap.mmap(-1, 4096, flags=mmap.MAP_PRIVATE | mmap.MAP_ANONYMOUS, prot=7)
code.write(b"\\xb8\\x14\\x00\\x00\\x00\\xcd\\x80\\xc3")
address = ctypes.addressof(ctypes.c_char.from_buffer(code))
got = ctypes.CFUNCTYPE(ctypes.c_int)(address)()
print("ESCAPED" if got > 0 else "denied", "32-bit call", got)
""",
    "x32": """
got = libc.syscall(ctypes.c_long(0x40000000 + 39))
print("ESCAPED" if got > 0 else "denied", "x32 call", got)
""",
}

CLEARS = """
for name, call in {
    "personality": lambda: libc.personality(0x0040000),
    "dumpable": lambda: libc.prctl(4, 1, 0, 0, 0),
    "parent death": lambda: libc.prctl(1, 0, 0, 0, 0),
    "keep capabilities": lambda: libc.prctl(8, 1, 0, 0, 0),
    "subreaper": lambda: libc.prctl(36, 1, 0, 0, 0),
}.items():
    try:
        call()
    except Exception:
        pass
import time
time.sleep(60)
"""

LIMITS = """
import resource
for name in ("AS", "CPU", "FSIZE", "NOFILE", "NPROC", "CORE"):
    which = getattr(resource, "RLIMIT_" + name)
    hard = resource.getrlimit(which)[1]
    if hard != resource.RLIM_INFINITY:
        attempt("raise " + name, lambda: resource.setrlimit(which, (hard + 1, hard + 1)))
    else:
        print("ESCAPED no limit of", name)
attempt("nice", lambda: os.setpriority(os.PRIO_PROCESS, 0, -20))
attempt("real time", lambda: os.sched_setscheduler(0, os.SCHED_FIFO, os.sched_param(10)))
refused("ioprio_set", 251, 1, 0, (1 << 13) | 0)
try:
    os.sched_setaffinity(0, {0})  # harmless: fewer cores, never more
except OSError:
    pass
"""

UNKILLABLE = """
def unkillable():
    with open("/proc/self/oom_score_adj", "w") as file:
        file.write("-1000")
attempt("oom_score_adj", unkillable)
"""

CRASHES = {
    "segfault": ("import ctypes\nctypes.string_at(0)", ("runtime_error",)),
    "abort": ("import os\nos.abort()", ("runtime_error",)),
    "illegal-instruction": (
        "import ctypes, mmap\n"
        "code = mmap.mmap(-1, 4096, flags=mmap.MAP_PRIVATE | mmap.MAP_ANONYMOUS, prot=7)\ncode.write(b'\\x0f\\x0b')\n"
        "ctypes.CFUNCTYPE(None)(ctypes.addressof(ctypes.c_char.from_buffer(code)))()",
        ("runtime_error", "violation"),
    ),
    # the first process of a namespace cannot be stopped or killed from inside
    "stop": ("import os, signal\nos.kill(os.getpid(), signal.SIGSTOP)", ("ok", "time_limit", "runtime_error", "violation")),
    "kill": ("import os, signal\nos.kill(os.getpid(), signal.SIGKILL)", ("ok", "runtime_error", "violation")),
    "exit-code": ("import sys\nsys.exit(3)", ("runtime_error",)),
    "os-exit-code": ("import os\nos._exit(3)", ("runtime_error",)),
}

FRESH = """
import subprocess
code = sys.stdin.read()
def run():
    done = subprocess.run([sys.executable or "/usr/bin/python3", "-I", "-S", "-c", code], capture_output=True, text=True, timeout=3)
    print(done.stdout, done.stderr[-300:])
    raise OSError("ran and was searched for escapes")
attempt("a fresh interpreter", run)
"""

PROGRAM = {"processes": 16, "cpu_s": 2.0, "wall_s": 4.0}


def inside(code: str) -> bytes:
    return (CALL + READ + SOCKET + code).encode()


CASES = [
    Case(number=42, name="kills", source=TRY + KILLS, needs="others"),
    Case(number=43, name="traces", source=CALL + TRACES, needs="others", absent=("ESCAPED", "@CANARY@")),
    Case(
        number=43,
        name="other-processes",
        source=TRY + READ + 'attempt("cmdline", lambda: read("/proc/@PID@/cmdline"))',
        needs="files",
    ),
    Case(
        number=44,
        name="daemon",
        source=DAEMON,
        statuses=BOUNDED,
        needs="tree",
        profile="program",
        limits=PROGRAM,
        processes=True,
    ),
    Case(
        number=45,
        name="holds-output",
        source=HOLDS_OUTPUT,
        statuses=BOUNDED,
        needs="tree",
        profile="program",
        limits={**PROGRAM, "wall_s": 1.0, "cpu_s": 1.0},
        processes=True,
    ),
    Case(
        number=46,
        name="zombies",
        source=ZOMBIES,
        statuses=BOUNDED,
        needs="tree",
        profile="program",
        limits=PROGRAM,
        processes=True,
    ),
    Case(number=47, name="walls", source=CALL + WALLS, needs="kernel"),
    Case(number=48, name="capabilities", source=CALL + CAPABILITIES, needs="privileges"),
    Case(number=49, name="kernel", source=CALL + KERNEL, needs="kernel"),
    *each(
        50,
        {name: CALL + code for name, code in OTHER_ABI.items()},
        statuses=("ok", "violation", "runtime_error"),
        needs="kernel",
    ),
    Case(number=51, name="clears", source=CALL + CLEARS, statuses=("time_limit", "violation"), limits=QUICK),
    Case(number=52, name="unkillable", source=TRY + UNKILLABLE, needs="devices"),
    Case(number=52, name="limits", source=CALL + LIMITS, needs="kernel"),
    *(
        Case(number=53, name=name, source=source, statuses=statuses, limits=QUICK)
        for name, (source, statuses) in CRASHES.items()
    ),
    *(
        Case(
            number=55,
            name=name,
            source=TRY + FRESH,
            stdin=inside(code),
            needs=needs,
            statuses=BOUNDED,
            profile="program",
            limits=PROGRAM,
            processes=True,
            absent=("ESCAPED", "@CANARY@"),
        )
        for name, needs, code in (
            ("fresh-files", "files", 'attempt("secret", lambda: read("@SECRET@"))'),
            ("fresh-network", "network", 'attempt("tcp", lambda: socket.create_connection(("127.0.0.1", @PORT@), 0.3))'),
            ("fresh-walls", "kernel", WALLS),
        )
    ),
    Case(
        number=55,
        name="fresh-not-in-compute",
        source=TRY + "attempt('exec', lambda: os.execv('/bin/echo', ['echo', 'ESCAPED']))",
        needs="kernel",
        statuses=("ok", "violation"),
    ),
]
