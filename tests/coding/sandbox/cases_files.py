"""Cases 23 to 35: what a program may see, change and leave behind in files, devices, descriptors and the environment."""

from __future__ import annotations

from tests.coding.sandbox.case import BOUNDED, CALL, RAN, TRIED, TRY, Case

READ = """
def read(path):
    with open(path, "rb") as file:
        return file.read(1000)
"""

# the kernel's own files and the machine's secrets; what the interpreter itself needs may be readable
READS = """
for path in ("/etc/shadow", "@HOME@/.bashrc", "@HOME@/.ssh", "/home", "/etc/ssh", "/var/log", "@SECRET@", "@HARNESS@"):
    attempt("read " + path, lambda: os.listdir(path) or 1 / 0 if os.path.isdir(path) else read(path))
"""
PASSWD = 'attempt("read passwd", lambda: b"root:" in read("/etc/passwd") or 1 / 0)\n'

WRITES = """
def write(path):
    with open(path, "a") as file:
        file.write("planted")
    return path
import json
for place in ("/", "/usr", "/usr/lib", "/etc", os.path.dirname(json.__file__), "@WORK@", "@HARNESS_DIR@", "/dev", "/proc/sys/kernel"):
    attempt("write into " + place, lambda: write(os.path.join(place, "fugu-planted")))
attempt("append to a module", lambda: write(json.__file__))
attempt("append to the harness's file", lambda: write("@SECRET@"))
attempt("remove the harness's file", lambda: os.remove("@SECRET@"))
attempt("rename the harness's file", lambda: os.rename("@SECRET@", "@SECRET@2"))
attempt("chmod the harness's file", lambda: os.chmod("@SECRET@", 0o777))
attempt("truncate the harness's file", lambda: os.truncate("@SECRET@", 0))
"""

ESCAPES = """
def linked():
    os.symlink("@SECRET@", "link")
    return read("link")
def hard():
    os.link("@SECRET@", "hard")
    return read("hard")
def up():
    return read("../" * 40 + "@SECRET@".lstrip("/"))
def by_handle():
    fd = os.open("/", os.O_RDONLY)
    return os.read(os.open("@SECRET@".lstrip("/"), os.O_RDONLY, dir_fd=fd), 100)
attempt("symlink", linked)
attempt("hard link", hard)
attempt("up", up)
attempt("open relative to /", by_handle)
up_from_here = "/proc/self/cwd/" + "../" * 40
for place in ("/proc/self/root", "/proc/1/root", up_from_here, "/proc/@PID@/root", "/proc/@PID@/cwd", "/proc/thread-self/root"):
    attempt("through " + place, lambda: read(place + "@SECRET@"))
attempt("chroot", lambda: os.chroot("/"))
"""

# where a careless harness would read results, or clean up, with its own rights
PLANTED = """
for name in ("result", "results.json", "stdout", "output", "report", ".fugu"):
    try:
        os.symlink("@SECRET@", name)
    except OSError:
        pass
for name, make in {
    "directory": lambda: os.symlink("@WORK@", "directory"),
    "pipe": lambda: os.mkfifo("pipe"),
    "locked": lambda: (os.mkdir("locked"), open("locked/file", "w").close(), os.chmod("locked", 0)),
    "newline": lambda: open("a\\nb\\x1b[31m", "w").close(),
    "not-utf8": lambda: open(b"\\xff\\xfe", "w").close(),
}.items():
    try:
        make()
    except (OSError, ValueError):
        pass
print("planted")
"""

NODES = """
attempt("block device", lambda: os.mknod("block", 0o60666, os.makedev(8, 0)))
attempt("character device", lambda: os.mknod("memory", 0o20666, os.makedev(1, 1)))
"""

DEVICES = """
for name in (
    "mem kmem kmsg port fuse kvm sda vda nvidia0 nvidiactl dri/card0 net/tun tty console vhost-net loop-control".split()
):
    attempt("open /dev/" + name, lambda: os.open("/dev/" + name, os.O_RDONLY | os.O_NONBLOCK))
"""

ENVIRONMENT = """
import ctypes
print(dict(os.environ))
getenv = ctypes.CDLL(None).getenv
getenv.restype = ctypes.c_char_p
for name in (b"FUGU_CANARY", b"HOME", b"USER", b"SSH_AUTH_SOCK", b"VIRTUAL_ENV", b"LD_PRELOAD", b"PYTHONPATH"):
    print(name, getenv(name))
try:
    print(open("/proc/self/environ", "rb").read())
except OSError:
    pass
"""

# the channel on which calls come and results go is a socket; without calls there is nothing to keep open
DESCRIPTORS = """
for fd in range(3, 1025):
    try:
        kind = os.fstat(fd).st_mode >> 12
    except OSError:
        continue
    if kind not in ALLOWED:
        print("ESCAPED open descriptor", fd, oct(kind))
"""

TERMINAL = """
import fcntl
attempt("/dev/tty", lambda: os.open("/dev/tty", os.O_RDWR))
for fd in (0, 1, 2):
    attempt("ttyname %d" % fd, lambda: os.ttyname(fd))
    attempt("TIOCSTI %d" % fd, lambda: fcntl.ioctl(fd, 0x5412, b"x"))
    attempt("TIOCLINUX %d" % fd, lambda: fcntl.ioctl(fd, 0x541C, b"\\x03"))
"""

PRIVILEGE = """
import shutil
try:
    shutil.copy("/bin/true", "mine")
    os.chmod("mine", 0o6755)
except OSError:
    pass
PR_GET_NO_NEW_PRIVS = 39
print("ESCAPED no_new_privs is not set" if libc.prctl(PR_GET_NO_NEW_PRIVS, 0, 0, 0, 0) == 0 else "denied new privileges")
attempt("chown", lambda: os.chown("mine", 12345, 12345))
"""

SETUID_PROGRAMS = """
import subprocess
def run(*command):
    if subprocess.run(command, stdin=subprocess.DEVNULL, capture_output=True, timeout=2).returncode:
        raise PermissionError(command[0])
attempt("su", lambda: run("/bin/su", "-c", "true"))
attempt("mount", lambda: run("/bin/mount", "-t", "tmpfs", "tmpfs", "/mnt"))
attempt("sudo", lambda: run("/usr/bin/sudo", "-n", "true"))
"""

OWN_MODULE = """
import sys
with open("written_here.py", "w") as file:
    file.write("answer = 42")
sys.path.insert(0, "")
import written_here
print(written_here.answer)
"""

CASES = [
    Case(number=23, name="secrets", source=TRY + READ + READS, needs="files", absent=("ESCAPED", "@CANARY@")),
    Case(number=23, name="passwd", source=TRY + READ + PASSWD, needs="files"),
    Case(number=24, name="writes", source=TRY + WRITES, needs="writes"),
    Case(number=26, name="links", source=TRY + READ + ESCAPES, needs="files", absent=("ESCAPED", "@CANARY@")),
    Case(number=27, name="planted", source=TRY + PLANTED, statuses=("ok", "violation"), absent=("@CANARY@",)),
    Case(number=28, name="mknod", source=TRY + NODES, needs="devices"),
    Case(number=29, name="devices", source=TRY + DEVICES, needs="devices"),
    Case(number=30, name="environment", source=TRY + ENVIRONMENT, statuses=RAN, absent=("@CANARY@", "/root", "/home")),
    Case(number=31, name="descriptors", source=TRY + "ALLOWED = ()\n" + DESCRIPTORS, statuses=RAN),
    Case(
        number=31,
        name="descriptors-with-calls",
        source=TRY + "ALLOWED = (12,)\n" + DESCRIPTORS + "def f():\n    return 1",
        calls=(("f", "[]"),),
        statuses=RAN,
    ),
    Case(number=32, name="terminal", source=TRY + TERMINAL, statuses=TRIED),
    Case(number=33, name="no-new-privileges", source=CALL + PRIVILEGE, needs="privileges"),
    Case(
        number=33,
        name="setuid-programs",
        source=TRY + SETUID_PROGRAMS,
        needs="privileges",
        statuses=BOUNDED,
        profile="program",
        limits={"processes": 8, "wall_s": 5.0},
        processes=True,
    ),
    Case(number=34, name="own-module", source=OWN_MODULE, statuses=RAN, stdout=b"42\n", needs="disk"),
]
