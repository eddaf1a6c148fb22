"""The ``runs/`` folder: one folder per run, with a name of its own or ``<env>-<YYYYmmdd-HHMMSS>``, found by path, by name or as
``latest``.
"""

from __future__ import annotations

import contextlib
import fcntl
import json
import math
import os
import re
import shlex
import shutil
import struct
import sys
import time
from collections.abc import Iterator, Sequence
from dataclasses import dataclass, field, replace
from pathlib import Path
from typing import Any

from fugu import files
from fugu.errors import ConfigError, FuguError, did_you_mean, shown_line
from fugu.run.label import FILE, Label, plain, read_label, write_label

ROOT = Path("runs")

_TIME = re.compile(r"-(\d{8}-\d{6})(?:-(\d+))?(?:-s\d+)?$")
_AHEAD_S = 86_400.0
"""by which the clocks of two machines may differ; what claims to be of later than that says nothing"""
_LATEST = re.compile(r"latest(?:~(\d+))?")


class RunError(FuguError, RuntimeError):
    """A run folder is in use, or what is in it cannot be read."""


class NameTaken(ConfigError):
    """A run or a group of runs has the name already."""


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
    def ended(self) -> Path:
        """File that is there if a callback ended the training."""
        return self.at / "ended"

    @property
    def output(self) -> Path:
        """File with what was printed while a board was shown."""
        return self.at / "output.txt"

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
        ours = (self.at / ".lock").exists()  # and nothing else that took its place
        if ours and not (lines or self.checkpoints.exists() or self.diverged.exists()):
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
        """Return the start in seconds since 1970: as noted in the run, else by the time in its name, else by its config's."""
        return _started(self.at)[0]

    @property
    def label(self) -> Label:
        """Return the run's tags, its group and its start."""
        return read_label(self.at)

    @contextlib.contextmanager
    def lock(self) -> Iterator[None]:
        """Hold the run's lock while a process trains it; RunError if another one does. It ends with the process that holds it."""
        descriptor = files.opened(self.at / ".lock", os.O_RDWR | os.O_CREAT)
        try:
            try:
                fcntl.lockf(descriptor, fcntl.LOCK_EX | fcntl.LOCK_NB)  # not flock: that would live on in forked workers
            except (BlockingIOError, PermissionError):
                raise RunError(f"{self.path} is being trained by another process; stop that one, or start a new run") from None
            yield
        finally:
            os.close(descriptor)


def create(root: Path | str, env: str, name: str | None = None, label: Label | None = None) -> RunFolder:
    """Make a new folder for a run: ``name``, or one made of ``env`` and the time, distinct even if another run starts in the same
    second."""
    root = Path(root)
    base = name or dated(env)
    number = 1
    try:
        root.mkdir(parents=True, exist_ok=True)
        while True:
            path = root / (base if number == 1 else f"{base}-{number}")
            try:
                path.mkdir()
                break
            except FileExistsError:
                if name is not None:
                    raise taken(path) from None
                number += 1
        write_label(path, replace(label or Label(), started=time.time()))
    except OSError as error:
        raise ConfigError(f"no run can be kept in {root}: {error.strerror}") from None
    return RunFolder(path)


def refuse_taken(root: Path, name: str) -> None:
    """Raise a ConfigError if something is called ``name`` in ``root``, or a group of runs there is."""
    if (root / name).exists():
        raise taken(root / name)
    if any(run.label.group == name for run in runs(root)):
        path = root / name
        raise NameTaken(
            f"there is a group of runs {path} already; go on with it: fugu train --resume {shlex.quote(str(path))}, or give another "
            f"--name, such as {name}-2"
        )


def members(text: str | Path, root: Path | str = ROOT) -> list[RunFolder]:
    """Return the runs of the group that ``text`` means, its name in ``root`` or a path, oldest first; [] if there is none."""
    path = Path(text)
    for folder, name in ((Path(root), str(text)), (path.parent, path.name)):
        if found := [run for run in runs(folder) if run.label.group == name]:
            return found
    return []


def tagged(tags: Sequence[str], root: Path | str = ROOT) -> list[RunFolder]:
    """Return the runs in ``root`` that have all of ``tags``, oldest first; a ConfigError if there is none."""
    there = runs(root)
    found = [run for run in there if {*tags} <= {*run.label.tags}]
    if not found:
        known = sorted({tag for run in there for tag in run.label.tags})
        hint = f" Tags there are: {', '.join(known[:20])}" if known else " fugu train ENV --tag TAG gives a run one"
        raise ConfigError(f"no run in {root} has the tag{'s' * (len(tags) > 1)} {' and '.join(map(repr, tags))}.{hint}")
    return found


def dated(env: str) -> str:
    """Return a name made of ``env`` and the time."""
    return f"{_file_name(env)}-{time.strftime('%Y%m%d-%H%M%S')}"


def taken(path: Path) -> NameTaken:
    """Return the error about a folder that cannot be a new run."""
    if not is_run(path):
        return NameTaken(f"there is {path} already, and it is no run; give another --name, or move it away")
    again = f"fugu train --resume {shlex.quote(str(path))}"
    return NameTaken(f"there is a run {path} already; go on with it: {again}, or give another --name, such as {path.name}-2")


def runs(root: Path | str = ROOT) -> list[RunFolder]:
    """Return the runs in ``root``, oldest first."""
    root = Path(root)
    found = [path for path in root.iterdir() if is_run(path)] if root.is_dir() else []
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
    folders = [path for path in (Path(text), Path(root) / text) if text and path.is_dir()]
    for path in folders:
        if is_run(path):
            return RunFolder(path)
    if folders:
        raise ConfigError(f"{folders[0]} is not a run: it has no config.toml")
    if group := members(text, root):
        names = ", ".join(shown_line(run.name) for run in group[:6]) + (", ..." if len(group) > 6 else "")
        raise ConfigError(f"{text} is a group of {len(group)} runs; name one of them: {names}")
    if not there:
        raise ConfigError(f"there is no run {text!r}; {_none_yet(root)}")
    known = dict.fromkeys(name for run in there for name in (run.label.group, run.name) if name is not None)
    raise ConfigError(f"there is no run {text!r}, neither as a path nor in {root}.{did_you_mean(text, known)}")


def _none_yet(root: Path | str) -> str:
    return f"there is no run in {root} yet: fugu train ENV makes one"


def read_lines(path: Path) -> list[dict[str, float]]:
    """Return the whole lines of a JSONL file; [] if there is none. Half a line at the end is left by a kill, and is left out."""
    rows = []
    with contextlib.suppress(FileNotFoundError):
        for number, line in enumerate(files.lines(path), 1):
            row = parse_line(line)
            if row is not None and line.endswith(b"\n"):
                rows.append(row)
            elif line.endswith(b"\n") or len(line) == files.LINE:
                raise bad_line(path, number, line)
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
    """Return ``ALE-Pong-v5`` for ``ALE/Pong-v5``, ``MyEnv`` for ``some/where/my_env.py:MyEnv``, ``chess_v6`` for a game of
    PettingZoo's, all of which are made by a function of the same name."""
    place, _, name = env.rpartition(":")
    if name in ("env", "raw_env", "parallel_env"):
        name = Path(place).stem if place.endswith(".py") else place.rpartition(".")[2]
    if name.endswith((".h", ".py")):
        name = Path(name).stem
    return plain(name, "run")


def is_run(path: Path) -> bool:
    return (
        path.is_dir()
        and not path.name.startswith(".")
        and ((path / "config.toml").is_file() or (path / FILE).is_file() or _TIME.search(path.name) is not None)
    )


def _started(path: Path) -> tuple[float, int, str]:
    """Return the key that sorts runs: their start, and their number if they started in the same second."""
    match = _TIME.search(path.name)
    number = int(match[2] or 1) if match else 1
    noted, config = read_label(path).started, path / "config.toml"
    now = time.time() + _AHEAD_S
    if noted is not None and noted <= now:
        return noted, number, path.name
    written = min(float(int((config if config.exists() else path).stat().st_mtime)), now)
    if match:
        with contextlib.suppress(ValueError, OverflowError):  # digits that are no time
            named = time.mktime(time.strptime(match[1], "%Y%m%d-%H%M%S"))
            if named <= written + _AHEAD_S:  # nothing begins after it was written
                return named, number, path.name
    return written, 1, path.name
