"""Cases 1 to 22: programs that want more than their share of the machine."""

from __future__ import annotations

from tests.coding.sandbox.case import BOUNDED, FAILED, QUICK, STOPPED, TRY, Case, each

FORKS = """
import os
while True:
    try:
        os.fork()
    except OSError:
        pass
"""

COUNTED_FORKS = """
import os, time
made = 0
for _ in range(200):
    try:
        child = os.fork()
    except OSError:
        break
    if child == 0:
        time.sleep(3)
        os._exit(0)
    made += 1
print("ESCAPED %d processes" % made if made > 16 else "bounded", flush=True)
os._exit(0)
"""

IN_CHILDREN = """
import os, time
for _ in range(10):
    if os.fork() == 0:
        os.setsid()
        if os.fork() == 0:
            @WORK@
            time.sleep(9)
        os._exit(0)
    os.wait()
time.sleep(9)
"""

THREADS = """
import threading, time
made = 0
try:
    for _ in range(3000):
        threading.Thread(target=time.sleep, args=(3,), daemon=True).start()
        made += 1
except RuntimeError:
    print("bounded", flush=True)
else:
    print("ESCAPED", made, "threads", flush=True)
import os
os._exit(0)
"""

# each takes memory in another way, up to 1 GiB; whoever gets there was not bounded
GREEDY = """
taken, keep = 0, []
try:
    while taken < 1 << 30:
        taken += take()
except (MemoryError, OSError) as error:
    print("bounded", type(error).__name__, flush=True)
else:
    print("ESCAPED with", taken >> 20, "MiB", flush=True)
"""
TAKE = {
    "mmap": """
import mmap
def take():
    block = mmap.mmap(-1, 32 << 20, flags=mmap.MAP_PRIVATE | mmap.MAP_ANONYMOUS)
    for i in range(0, 32 << 20, 4096):
        block[i] = 1
    keep.append(block)
    return 32 << 20
""",
    # what is left of each mapping is a page, but what was mapped from it stays
    "mmap-shared": """
import ctypes, mmap
libc = ctypes.CDLL(None, use_errno=True)
libc.mmap.restype = ctypes.c_void_p
libc.mmap.argtypes = [ctypes.c_void_p, ctypes.c_size_t, ctypes.c_int, ctypes.c_int, ctypes.c_int, ctypes.c_long]
libc.munmap.argtypes = [ctypes.c_void_p, ctypes.c_size_t]
def take(file=-1, flags=mmap.MAP_SHARED | mmap.MAP_ANONYMOUS, protection=3):
    where = libc.mmap(None, 32 << 20, protection, flags, file, 0)
    if where == ctypes.c_void_p(-1).value:
        raise OSError(ctypes.get_errno(), "mmap")
    ctypes.memset(where, 1, 32 << 20) if protection == 3 else ctypes.string_at(where, 32 << 20)
    libc.munmap(where + 4096, (32 << 20) - 4096)
    return 32 << 20
""",
    "memfd": """
import os
def take():
    fd = os.memfd_create("take")
    keep.append(fd)
    return sum(os.write(fd, bytes(1 << 20)) for _ in range(32))
""",
    "sysv-shm": """
import ctypes
libc = ctypes.CDLL(None, use_errno=True)
libc.shmat.restype = ctypes.c_void_p
def take():
    name = libc.shmget(0, 32 << 20, 0o1600)
    if name < 0:
        raise OSError(ctypes.get_errno(), "shmget")
    where = libc.shmat(name, None, 0)
    libc.shmctl(name, 0, None)
    if where in (None, ctypes.c_void_p(-1).value):
        raise OSError(ctypes.get_errno(), "shmat")
    ctypes.memset(where, 1, 32 << 20)
    return 32 << 20
""",
    "tmpfs": """
def take():
    keep.append(1)
    with open("file%d" % len(keep), "wb") as file:
        return sum(file.write(bytes(1 << 20)) for _ in range(3))
""",
    "pipes": """
import fcntl, os
def take():
    reader, writer = os.pipe()
    keep.append((reader, writer))
    try:
        fcntl.fcntl(writer, 1031, 1 << 20)  # F_SETPIPE_SZ
    except OSError:
        pass
    os.set_blocking(writer, False)
    return os.write(writer, bytes(1 << 20))
""",
}

TAKE["dev-zero"] = (
    TAKE["mmap-shared"]
    + """
import os
shared = take
def take():
    file = os.open("/dev/zero", os.O_RDONLY)
    try:
        return shared(file, mmap.MAP_SHARED, 1)
    finally:
        os.close(file)
"""
)

SIGNALS_IGNORED = """
import signal
for number in range(1, 65):
    try:
        signal.signal(number, signal.SIG_IGN)
    except (OSError, ValueError):
        pass
while True:
    pass
"""

REGEX = """
import re
re.match(r"(a+)+$", "a" * 60 + "b")
"""

# 1 GiB of zeros in a few kilobytes
UNPACKED = """
import bz2
unit = bz2.compress(bytes(4 << 20))
bz2.decompress(unit * 256)
"""

PYTHON_RECURSION = """
import sys
sys.setrecursionlimit(10**9)
def down(n):
    return down(n + 1) + 1
down(0)
"""

# through C on every level, so that the C stack is what runs out
C_RECURSION = """
import sys
sys.setrecursionlimit(10**9)
class A:
    pass
A.__call__ = A()
A()()
"""

FLOODS = {
    "stdout": "import os\nwhile True:\n    os.write(1, b'x' * 65536)",
    "stderr": "import os\nwhile True:\n    os.write(2, b'x' * 65536)",
    "alternating": "import os\nwhile True:\n    os.write(1, b'x' * 4096)\n    os.write(2, b'y' * 4096)",
    "print": "while True:\n    print('x' * 100)",
}

DRIP = """
import time
while True:
    print("x", flush=True)
    time.sleep(0.02)
"""

FILES = {
    "huge": """
def write():
    with open("huge", "wb") as file:
        return sum(file.write(bytes(1 << 20)) for _ in range(64))
attempt("huge file", write)
""",
    "sparse": """
def sparse():
    with open("sparse", "wb") as file:
        file.truncate(1 << 40)
        return os.path.getsize("sparse")
attempt("sparse file", sparse)
""",
    "million": """
def million():
    for i in range(2000):
        open("f%d" % i, "w").close()
    return i
attempt("files without end", million)
""",
    "descriptors": """
def many():
    return [os.dup(0) for _ in range(2000)]
attempt("descriptors without end", many)
""",
    "deep-tree": """
def deep():
    for i in range(10000):
        os.mkdir("d")
        os.chdir("d")
    return i
attempt("directories without end", deep)
""",
}

LATE = {
    "thread": """
import threading
def burn():
    while True:
        pass
threading.Thread(target=burn).start()
""",
    "atexit": """
import atexit
def burn():
    while True:
        pass
atexit.register(burn)
""",
    "finalizer": """
class Burn:
    def __del__(self):
        while True:
            pass
keep = Burn()
keep.me = keep
""",
}

CASES = [
    Case(
        number=1,
        name="fork-bomb",
        source=FORKS,
        statuses=("time_limit", "runtime_error", "violation"),
        needs="processes",
        limits={**QUICK, "processes": 16},
        profile="program",
        processes=True,
    ),
    Case(
        number=1,
        name="fork-bomb-compute",
        source=FORKS,
        statuses=("time_limit", "runtime_error", "violation"),
        needs="processes",
        limits=QUICK,
        processes=True,
    ),
    Case(
        number=1,
        name="forks-are-counted",
        source=COUNTED_FORKS,
        statuses=BOUNDED,
        needs="processes",
        limits={**QUICK, "processes": 16},
        profile="program",
        processes=True,
    ),
    *(
        Case(
            number=number,
            name=name,
            source=IN_CHILDREN.replace("@WORK@", work),
            statuses=statuses,
            needs="together",
            limits={"cpu_s": 1.0, "wall_s": 6.0, "processes": 16, "memory_mb": 256},
            profile="program",
            processes=True,
        )
        for number, name, work, statuses in (
            (7, "loops-in-children", "while True: pass", ("time_limit", "runtime_error")),
            (4, "bytearrays-in-children", "x = b'x' * (50 << 20)", ("memory_limit", "runtime_error")),
        )
    ),
    Case(
        number=3, name="thread-bomb", source=THREADS, statuses=BOUNDED, limits={"cpu_s": 1.0, "wall_s": 2.0, "memory_mb": 256}
    ),
    Case(
        number=4,
        name="bytearray",
        source="x = []\nwhile True:\n    x.append(bytearray(16 << 20))",
        statuses=("memory_limit",),
        limits={"memory_mb": 256},
    ),
    Case(
        number=4,
        name="caught",
        source="x = []\ntry:\n    while True:\n        x.append(bytearray(16 << 20))\nexcept MemoryError:\n"
        "    x = None\n    print('full')",
        statuses=("ok", "memory_limit"),
        limits={"memory_mb": 256},
    ),
    *(
        Case(
            number=5,
            name=name,
            source=take + GREEDY,
            statuses=BOUNDED,
            limits={"cpu_s": 2.0, "wall_s": 3.0, "memory_mb": 256},
            needs={"tmpfs": "disk", "mmap-shared": "memory", "dev-zero": "memory"}.get(name, ""),
        )
        for name, take in TAKE.items()
    ),
    Case(number=6, name="huge-integer", source="9**9**9", statuses=STOPPED, limits=QUICK),
    Case(number=7, name="loop", source="while True:\n    pass", statuses=STOPPED, limits=QUICK),
    Case(number=8, name="signals-ignored", source=SIGNALS_IGNORED, statuses=STOPPED, limits=QUICK),
    Case(number=9, name="sleep", source="import time\ntime.sleep(60)", statuses=STOPPED, limits=QUICK),
    Case(
        number=10, name="short-sleeps", source="import time\nwhile True:\n    time.sleep(0.001)", statuses=STOPPED, limits=QUICK
    ),
    Case(
        number=11,
        name="fifo",
        source="import os\nos.mkfifo('fifo')\nopen('fifo').read()",
        statuses=("time_limit", "runtime_error", "violation"),
        limits=QUICK,
    ),
    Case(number=11, name="pipe", source="import os\nos.read(os.pipe()[0], 1)", statuses=STOPPED, limits=QUICK),
    Case(number=11, name="stdin", source="import sys\nsys.stdin.read()\ninput()", statuses=FAILED, detail="EOFError"),
    Case(
        number=11,
        name="lock",
        source="import threading\nlock = threading.Lock()\nlock.acquire()\nlock.acquire()",
        statuses=STOPPED,
        limits=QUICK,
    ),
    Case(number=12, name="regex", source=REGEX, statuses=STOPPED, limits=QUICK),
    Case(
        number=13,
        name="unpacked",
        source=UNPACKED,
        statuses=("memory_limit", "time_limit"),
        limits={"cpu_s": 1.0, "wall_s": 1.5, "memory_mb": 128},
    ),
    Case(
        number=14,
        name="python-recursion",
        source=PYTHON_RECURSION,
        statuses=("runtime_error", "memory_limit", "time_limit"),
        limits={"memory_mb": 128},
    ),
    Case(number=14, name="c-recursion", source=C_RECURSION, statuses=("runtime_error", "memory_limit", "time_limit")),
    *each(15, FLOODS, statuses=("output_limit",)),
    Case(number=16, name="one-line", source="import sys\nsys.stdout.write('x' * 100_000_000)", statuses=("output_limit",)),
    Case(number=17, name="drip", source=DRIP, statuses=STOPPED, limits=QUICK),
    *each(18, {name: TRY + FILES[name] for name in ("huge", "sparse")}, needs="disk"),
    Case(number=18, name="million", source=TRY + FILES["million"], needs="inodes"),
    Case(number=19, name="descriptors", source=TRY + FILES["descriptors"]),
    Case(number=20, name="deep-tree", source=TRY + FILES["deep-tree"], statuses=BOUNDED, absent=()),
    Case(
        number=21,
        name="parentheses",
        source="(" * 250_000,
        statuses=("runtime_error", "time_limit", "memory_limit"),
        limits=QUICK,
    ),
    Case(
        number=21,
        name="parentheses-1mb",
        source="(" * 500_000 + ")" * 500_000,
        statuses=("runtime_error", "time_limit", "memory_limit"),
        limits={**QUICK, "source_kb": 2048},
    ),
    Case(number=21, name="terms", source="x = " + "1+" * 500_000 + "1", statuses=BOUNDED, limits={**QUICK, "source_kb": 2048}),
    Case(number=21, name="identifier", source="x" * 250_000, statuses=FAILED),
    Case(number=21, name="too-long", source="#" * 300_000, statuses=FAILED, detail="source"),
    *each(22, LATE, statuses=("ok", "time_limit"), limits=QUICK),
]
