"""The ``runs/`` folder: one folder per run, ``<env>-<YYYYmmdd-HHMMSS>``, found by path, by name or as ``latest``."""

from __future__ import annotations

import contextlib
import fcntl
import json
import math
import os
import re
import shutil
import struct
import sys
import time
from collections.abc import Iterator
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

from fugu.errors import ConfigError, FuguError, did_you_mean

ROOT = Path("runs")

_TIME = re.compile(r"-(\d{8}-\d{6})(?:-(\d+))?$")
_LATEST = re.compile(r"latest(?:~(\d+))?")


class RunError(FuguError, RuntimeError):
    """A run folder is in use, or what is in it cannot be read."""


@dataclass(frozen=True)
class RunFolder:
    path: Path
    """path as the user gave it"""
    at: Path = field(init=False, compare=False)
    """absolute path, which holds wherever an environment, a policy or the program changes to later"""

    def __post_init__(self) -> None:
        object.__setattr__(self, "at", self.path.absolute())

    @property
    def name(self) -> str:
        return self.at.resolve().name

    @property
    def config(self) -> Path:
        return self.at / "config.toml"

    @property
    def metrics(self) -> Path:
        """File of the metrics that config and seed decide: the same, byte for byte, each time."""
        return self.at / "metrics.jsonl"

    @property
    def timing(self) -> Path:
        """File of the metrics that the machine decides: speed, time, memory."""
        return self.at / "timing.jsonl"

    @property
    def checkpoints(self) -> Path:
        return self.at / "checkpoints"

    @property
    def diverged(self) -> Path:
        """File of the minibatch on which the training came to NaN, if that is how it ended."""
        return self.at / "diverged.safetensors"

    @property
    def failed(self) -> Path:
        """File with the error that ended the training, if an error did."""
        return self.at / "failed.txt"

    @property
    def running(self) -> Path:
        """File that holds the number of the process that trains, for as long as it does."""
        return self.at / "running"

    @property
    def ended_without_a_word(self) -> bool:
        """Return whether the process that trained this run was killed, or left by ``os._exit``: its marker stayed, its lock did
        not."""
        marker = self.running  # looked at twice: the lock is taken before it is written, and given back after it is removed
        return marker.exists() and not self.locked and marker.exists()

    @property
    def origin(self) -> Path:
        """File that says where the run came from: command, versions, machine, commit."""
        return self.at / "origin.json"

    @property
    def code(self) -> Path:
        """Folder with copies of the user's own files."""
        return self.at / "code"

    @property
    def seal(self) -> Path:
        """File by which this user knows that nobody else made the run, or changed its code."""
        return self.at / "seal"

    @property
    def videos(self) -> Path:
        return self.at / "videos"

    @property
    def events(self) -> Path:
        """Folder that TensorBoard reads."""
        return self.at / "events"

    def read_metrics(self) -> list[dict[str, float]]:
        """Return the lines of ``metrics.jsonl``, oldest first; a number that was not finite is nan."""
        return read_lines(self.metrics)

    def read_timing(self) -> list[dict[str, float]]:
        return read_lines(self.timing)

    def discard_if_empty(self) -> None:
        """Remove the folder of a run that ended before there was anything to keep: it would be the latest run, and useless."""
        lines = self.metrics.exists() and self.metrics.stat().st_size
        if not (lines or self.checkpoints.exists() or self.diverged.exists()):
            shutil.rmtree(self.at, ignore_errors=True)

    @property
    def locked(self) -> bool:
        """Return whether another process trains this run. Only asks: taking the lock to find out could get in that process's way."""
        asked = struct.pack(
            "hhqqi4x", fcntl.F_WRLCK, os.SEEK_SET, 0, 0, 0
        )  # struct flock: kind, from where, start, length, pid
        try:
            with open(self.at / ".lock", "rb+") as file:
                answer = fcntl.fcntl(file, fcntl.F_GETLK, asked)
        except OSError:
            return False
        return bool(struct.unpack("hhqqi4x", answer)[0] != fcntl.F_UNLCK)

    @property
    def started(self) -> float:
        """Return the start in seconds since 1970: by the time in the name, or the config's if the folder was given another name."""
        return _started(self.at)[0]

    @contextlib.contextmanager
    def lock(self) -> Iterator[None]:
        """Hold the run's lock while a process trains it; RunError if another one does. It ends with the process that holds it."""
        descriptor = os.open(self.at / ".lock", os.O_RDWR | os.O_CREAT | os.O_CLOEXEC, 0o644)
        try:
            try:
                fcntl.lockf(descriptor, fcntl.LOCK_EX | fcntl.LOCK_NB)  # not flock: that would live on in forked workers
            except (BlockingIOError, PermissionError):
                raise RunError(f"{self.path} is being trained by another process; stop that one, or start a new run") from None
            yield
        finally:
            os.close(descriptor)


def create(root: Path | str, env: str) -> RunFolder:
    """Make a new folder for a run on ``env``, distinct even if another run starts in the same second."""
    root = Path(root)
    base = f"{_file_name(env)}-{time.strftime('%Y%m%d-%H%M%S')}"
    number = 1
    try:
        root.mkdir(parents=True, exist_ok=True)
        while True:
            path = root / (base if number == 1 else f"{base}-{number}")
            try:
                path.mkdir()
                return RunFolder(path)
            except FileExistsError:
                number += 1
    except OSError as error:
        raise ConfigError(f"no run can be kept in {root}: {error.strerror}") from None


def runs(root: Path | str = ROOT) -> list[RunFolder]:
    """Return the runs in ``root``, oldest first."""
    root = Path(root)
    found = [path for path in root.iterdir() if _is_run(path)] if root.is_dir() else []
    return [RunFolder(path) for path in sorted(found, key=_started)]


def find(text: str | Path, root: Path | str = ROOT) -> RunFolder:
    """Return the run that ``text`` means: a path, a name in ``root``, ``latest`` or ``latest~2`` (the second before the latest)."""
    text = str(text)
    there = runs(root)
    latest = _LATEST.fullmatch(text)
    if latest:
        back = int(latest[1] or 0)
        if back < len(there):
            return there[-1 - back]
        raise ConfigError(f"{text}: there are only {len(there)} runs in {root}" if there else f"{text}: {_none_yet(root)}")
    for path in (Path(text), Path(root) / text):
        if text and path.is_dir():
            if not _is_run(path):
                raise ConfigError(f"{path} is not a run: it has no config.toml")
            return RunFolder(path)
    if not there:
        raise ConfigError(f"there is no run {text!r}; {_none_yet(root)}")
    raise ConfigError(
        f"there is no run {text!r}, neither as a path nor in {root}.{did_you_mean(text, [r.name for r in there])}"
    )


def _none_yet(root: Path | str) -> str:
    return f"there is no run in {root} yet: fugu train ENV makes one"


def read_lines(path: Path) -> list[dict[str, float]]:
    """Return the whole lines of a JSONL file; [] if there is none. Half a line at the end is left by a kill, and is left out."""
    rows = []
    try:
        data = path.read_bytes()
    except FileNotFoundError:
        return []
    for number, line in enumerate(data.split(b"\n")[:-1], 1):
        row = parse_line(line)
        if row is None:
            raise bad_line(path, number, line)
        rows.append(row)
    return rows


def parse_line(line: bytes) -> dict[str, float] | None:
    """Return one line's metrics, ``updates`` and ``steps`` among them, or None if it is no such line."""
    try:
        row: Any = json.loads(line)
    except (ValueError, RecursionError):
        return None
    if not isinstance(row, dict) or not all(_is_number(row.get(name)) for name in ("updates", "steps")):
        return None
    if not all(value is None or _is_number(value) for value in row.values()):
        return None
    return {name: math.nan if value is None else value for name, value in row.items()}


def bad_line(path: Path, number: int, line: bytes) -> RunError:
    return RunError(f"{path}:{number} is not a line of metrics: {line[:80].decode(errors='replace').rstrip()}")


def _is_number(value: Any) -> bool:
    """Return whether ``value`` is a finite number; JSON may also hold whole numbers that no float can."""
    return isinstance(value, int | float) and abs(value) <= sys.float_info.max


def _file_name(env: str) -> str:
    """Return ``ALE-Pong-v5`` for ``ALE/Pong-v5``, ``MyEnv`` for ``some/where/my_env.py:MyEnv``."""
    name = env.rsplit(":", 1)[-1]
    if name.endswith((".h", ".py")):
        name = Path(name).stem
    name = re.sub(r"[^\w.+-]+", "-", name).strip("-.")
    return name[:80] or "run"


def _is_run(path: Path) -> bool:
    return (
        path.is_dir()
        and not path.name.startswith(".")
        and ((path / "config.toml").is_file() or _TIME.search(path.name) is not None)
    )


def _started(path: Path) -> tuple[float, int, str]:
    """Return the key that sorts runs: the time in the name, or the config's if the folder was given another name."""
    match = _TIME.search(path.name)
    if match:
        with contextlib.suppress(ValueError, OverflowError):  # digits that are no time
            return time.mktime(time.strptime(match[1], "%Y%m%d-%H%M%S")), int(match[2] or 1), path.name
    config = path / "config.toml"
    return float(int((config if config.exists() else path).stat().st_mtime)), 1, path.name
