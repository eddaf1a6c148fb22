"""The harness as a hostile program would like to find it: secrets in files, memory, environment, sockets and shared memory. And a
record of everything that must be the same after a run.
"""

from __future__ import annotations

import ctypes
import hashlib
import os
import secrets
import shutil
import socket
import tempfile
import threading
import time
from pathlib import Path

import psutil

LEFTOVER = "fugu-leftover"
"""name of processes that must not survive"""


class World:
    """Made before a sandbox is opened, so that whatever leaks into one can leak."""

    def __init__(self) -> None:
        self.canary = "CANARY-" + secrets.token_hex(8)
        # outside pytest's folders, which only their owner may enter: what protects the secrets has to be the sandbox
        self.root = Path(tempfile.mkdtemp(prefix="fugu-world-"))
        self.work = self.root / "work"
        self.temp = self.root / "temp"
        for folder in (self.root, self.work, self.temp):
            folder.mkdir(exist_ok=True)
            folder.chmod(0o777)
        self.secret = self.work / "secret.txt"
        self.secret.write_text(self.canary)
        self.secret.chmod(0o666)
        self.environment = dict(os.environ)
        os.environ["FUGU_CANARY"] = self.canary
        os.environ["TMPDIR"] = str(self.temp)
        tempfile.tempdir = str(self.temp)
        self.inherited = os.open(self.secret, os.O_RDONLY)
        os.set_inheritable(self.inherited, True)
        self._listen()
        self._share()

    def _listen(self) -> None:
        self.abstract = "fugu-" + secrets.token_hex(4)
        places = {"tcp": ("127.0.0.1", 0), "unix": str(self.work / "socket"), "abstract": "\0" + self.abstract}
        self.sockets = []
        for kind, place in places.items():
            listener = socket.socket(socket.AF_INET if kind == "tcp" else socket.AF_UNIX)
            listener.bind(place)
            listener.listen(64)
            self.sockets.append(listener)
        (self.work / "socket").chmod(0o777)
        self.port = self.sockets[0].getsockname()[1]
        self.server = threading.Thread(target=self._answer, args=(self.sockets[0],), daemon=True)
        self.server.start()

    def _answer(self, listener: socket.socket) -> None:
        """Whoever gets through is told the secret."""
        while True:
            try:
                connection, _ = listener.accept()
            except OSError:
                return
            with connection:
                body = self.canary.encode()
                connection.sendall(b"HTTP/1.0 200 OK\r\nContent-Length: %d\r\n\r\n" % len(body) + body)

    def _share(self) -> None:
        self.shm_file = "fugu-" + secrets.token_hex(4)
        (Path("/dev/shm") / self.shm_file).write_text(self.canary)
        (Path("/dev/shm") / self.shm_file).chmod(0o666)
        libc = ctypes.CDLL(None, use_errno=True)
        libc.shmat.restype = ctypes.c_void_p
        self.shm_key = secrets.randbelow(1 << 30) + 1
        self.shm = libc.shmget(self.shm_key, 4096, 0o1666)
        if self.shm >= 0:
            where = libc.shmat(self.shm, None, 0)
            ctypes.memmove(where, self.canary.encode(), len(self.canary))
            libc.shmdt(ctypes.c_void_p(where))

    def fill(self, text: str) -> str:
        """``text`` with the names in @ signs replaced."""
        names = {
            "SECRET": self.secret,
            "WORK": self.work,
            "CANARY": self.canary,
            "HOME": Path.home(),
            "HARNESS": Path(__file__),
            "HARNESS_DIR": Path(__file__).parent,
            "PORT": self.port,
            "SOCKET": self.work / "socket",
            "ABSTRACT": self.abstract,
            "SHM_KEY": self.shm_key,
            "SHM_FILE": self.shm_file,
            "PID": os.getpid(),
            "GROUP": os.getpgrp(),
            "LEFTOVER": LEFTOVER,
        }
        for name, value in names.items():
            text = text.replace(f"@{name}@", str(value))
        return text

    def close(self) -> None:
        for listener in self.sockets:
            listener.shutdown(socket.SHUT_RDWR) if listener is self.sockets[0] else None
            listener.close()
        self.server.join(2)
        os.close(self.inherited)
        if self.shm >= 0:
            ctypes.CDLL(None).shmctl(self.shm, 0, None)
        (Path("/dev/shm") / self.shm_file).unlink(missing_ok=True)
        os.environ.clear()
        os.environ.update(self.environment)
        tempfile.tempdir = None
        shutil.rmtree(self.root, ignore_errors=True)

    def record(self) -> dict[str, object]:
        """Everything a run could have left behind, as values that are equal before and after."""
        mine = psutil.Process()
        workers = [process for process in mine.children(recursive=True) if _alive(process)]
        return {
            "zombies": sum(
                process.status() == psutil.STATUS_ZOMBIE for process in mine.children(recursive=True) if _exists(process)
            ),
            "processes": len(workers),
            "leftovers": _named(LEFTOVER),
            "descriptors": len(os.listdir("/proc/self/fd")),
            "descriptors of workers": sorted(_count(f"/proc/{process.pid}/fd") for process in workers),
            "mounts": _mounts(),
            "mounts of workers": sorted(_lines(f"/proc/{process.pid}/mountinfo") for process in workers),
            "shared memory": sorted(os.listdir("/dev/shm")),
            "sysv": _sysv(),
            "temporary files": sorted(os.listdir(self.temp)),
            "cgroups": sorted(str(path) for path in Path("/sys/fs/cgroup").glob("**/*fugu*")),
            "work": self._contents(),
        }

    def _contents(self) -> str:
        digest = hashlib.sha256()
        for path in sorted(self.work.rglob("*")):
            digest.update(f"{path} {path.lstat().st_mode}".encode() + (path.read_bytes() if path.is_file() else b""))
        return digest.hexdigest()

    def settle(self, seconds: float) -> None:
        """Waits, at most ``seconds``, until what earlier runs leave to others to clear up is gone: nothing changes any more."""
        until = time.monotonic() + seconds
        before = self.record()
        while time.monotonic() < until:
            time.sleep(0.3)
            if (now := self.record()) == before:
                return
            before = now

    def unchanged(self, before: dict[str, object], seconds: float = 1.0) -> dict[str, tuple[object, object]]:
        """What differs from ``before`` and still does after ``seconds``; empty when all is as it was."""
        until = time.monotonic() + seconds
        while True:
            now = self.record()
            different = {name: (before[name], now[name]) for name in before if before[name] != now[name]}
            if not different or time.monotonic() > until:
                return different
            time.sleep(0.02)


def _exists(process: psutil.Process) -> bool:
    try:
        process.status()
    except psutil.NoSuchProcess:
        return False
    return True


def _alive(process: psutil.Process) -> bool:
    return _exists(process) and process.status() != psutil.STATUS_ZOMBIE


def _count(folder: str) -> int:
    try:
        return len(os.listdir(folder))
    except OSError:
        return -1


def _mounts() -> list[str]:
    """What is mounted here, but for the storage that podman binds onto itself while any process of its own is running: it
    still clears up after an earlier test, or someone else's container, at moments of its choice."""
    lines = Path("/proc/self/mountinfo").read_text().splitlines()
    return [line for line in lines if not line.split()[4].endswith("/containers/storage/overlay")]


def _lines(file: str) -> int:
    try:
        return Path(file).read_text().count("\n")
    except OSError:
        return -1


def _named(name: str) -> int:
    """Processes of this name anywhere on the machine."""
    found = 0
    for place in Path("/proc").glob("[0-9]*/comm"):
        try:
            found += place.read_text().strip() == name
        except OSError:
            continue
    return found


def _sysv() -> str:
    try:
        return "".join(sorted(line.split()[1] for line in Path("/proc/sysvipc/shm").read_text().splitlines()[1:]))
    except OSError:
        return ""
