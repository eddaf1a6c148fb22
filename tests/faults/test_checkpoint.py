"""A kill at any moment of a save, a full disk, damaged and forged files: a whole checkpoint is always found, and nothing is run."""

from __future__ import annotations

import contextlib
import errno
import hashlib
import json
import os
import pickle
import random
import select
import shutil
import signal
import time
import warnings
from collections.abc import Callable, Iterator
from pathlib import Path
from typing import Any

import pytest
import torch

from fugu.trainer import checkpoint
from fugu.trainer.checkpoint import CheckpointError
from fugu.trainer.checkpoint_format import MANIFEST, _own_hash

CALLS = ("open", "write", "fsync", "rename", "mkdir", "close", "unlink", "rmdir")
"""the functions of os by which a save changes the disk"""


def save(folder: Path, step: int, number: int | None = None, **options: Any) -> Path:
    number = step if number is None else number
    tensors = {"policy": {"x": torch.full((1000,), float(number))}, "optimizer": {"x": torch.full((500,), number)}}
    return checkpoint.save(folder, step, tensors, {"number": number}, **options)


def number(path: Path) -> int:
    """What was saved there; the parts must belong together."""
    loaded = checkpoint.load(path)
    numbers = {int(v) for named in loaded.tensors.values() for v in named["x"].unique()} | {loaded.state["number"]}
    assert len(numbers) == 1, f"parts of different saves: {numbers}"
    return numbers.pop()


class Fault:
    """Calls ``strike`` in place of the ``at``-th call to the named functions of os; counts them all."""

    def __init__(
        self, monkeypatch: pytest.MonkeyPatch, at: int, strike: Callable[[str, Any, Any], Any], names: tuple[str, ...] = CALLS
    ) -> None:
        self.count = 0
        for name in names:
            monkeypatch.setattr(os, name, self._wrap(name, getattr(os, name), at, strike))

    def _wrap(self, name: str, real: Callable, at: int, strike: Callable[[str, Any, Any], Any]) -> Callable:
        def call(*args: Any, **kwargs: Any) -> Any:
            self.count += 1
            if self.count == at:
                return strike(name, real, args)
            return real(*args, **kwargs)

        return call


def die(name: str, real: Callable, args: Any) -> None:
    if name == "write":  # half of it reaches the disk
        real(args[0], bytes(args[1])[: len(args[1]) // 2])
    os.kill(os.getpid(), signal.SIGKILL)


@contextlib.contextmanager
def no_warnings() -> Iterator[None]:
    with warnings.catch_warnings():
        warnings.simplefilter("error")
        yield


def killed(action: Callable[[], None]) -> bool:
    """Run ``action`` in a fork of this process; whether it was killed before the end."""
    pid = os.fork()
    if pid == 0:
        code = 1
        try:
            action()
            code = 0
        finally:
            os._exit(code)
    status = os.waitstatus_to_exitcode(os.waitpid(pid, 0)[1])
    assert status in (0, -signal.SIGKILL), status
    return status != 0


@pytest.mark.slow
@pytest.mark.parametrize("scenario", ["first", "next", "again", "best"])
def test_a_kill_at_any_stage_of_a_save_leaves_the_old_or_the_new(
    tmp_path: Path, scenario: str, monkeypatch: pytest.MonkeyPatch
) -> None:
    old, new = {"first": ([], 4), "next": ([1, 2, 3], 4), "again": ([4], 4), "best": ([1, 2, 3], 4)}[scenario]
    stages = 0
    while True:
        stages += 1
        folder = tmp_path / str(stages)
        for step in old:
            save(folder, step, best=step == old[0])

        def action(folder: Path = folder, at: int = stages) -> None:
            Fault(monkeypatch, at, die)
            save(folder, new, number=100, best=scenario == "best")

        dead = killed(action)
        with no_warnings():  # nothing damaged is ever seen under a checkpoint's name
            if old:
                assert number(checkpoint.find(folder)) in (old[-1], 100)
                expected = 100 if scenario == "best" and number(checkpoint.find(folder)) == 100 else None
                assert number(checkpoint.find(folder, "best")) in ((expected,) if expected else (old[0], 100))
                if scenario != "again" and number(checkpoint.find(folder)) != 100:
                    assert checkpoint.steps(folder) == old, "something was deleted before the new one was there"
            elif checkpoint.steps(folder):
                assert number(checkpoint.find(folder)) == 100
            assert number(save(folder, 5)) == 5
        assert not [name for name in os.listdir(folder) if name.startswith(".tmp-")], "the next save sweeps"
        if not dead:
            break
    assert stages > 30


@pytest.mark.slow
def test_kills_at_random_moments_never_lose_a_finished_save(tmp_path: Path) -> None:
    rng = random.Random(3)
    reader, writer = os.pipe()
    saved = 0
    for _ in range(40):
        pid = os.fork()
        if pid == 0:
            with contextlib.suppress(BaseException):
                for step in range(saved + 1, saved + 10_000):
                    save(tmp_path, step, keep=2, best=step % 7 == 0)
                    os.write(writer, step.to_bytes(8, "little"))
            os._exit(1)
        saved = int.from_bytes(os.read(reader, 8), "little")
        time.sleep(rng.uniform(0.0, 0.02))  # a save takes a few milliseconds
        os.kill(pid, signal.SIGKILL)
        assert os.waitstatus_to_exitcode(os.waitpid(pid, 0)[1]) == -signal.SIGKILL
        while select.select([reader], [], [], 0)[0]:
            saved = int.from_bytes(os.read(reader, 8), "little")
        with no_warnings():
            assert number(checkpoint.find(tmp_path)) in (saved, saved + 1)
        saved = checkpoint.steps(tmp_path)[-1]
    os.close(reader)
    os.close(writer)
    assert saved >= 40


def test_between_two_of_one_step_the_newer_is_taken(tmp_path: Path) -> None:
    """What a kill leaves just before a replaced checkpoint is deleted."""
    shutil.copytree(save(tmp_path / "earlier", 4, number=1), tmp_path / ".old-step_000000004")
    path = save(tmp_path / "later", 4, number=2).rename(tmp_path / "step_000000004")
    assert number(checkpoint.find(tmp_path)) == number(checkpoint.find(tmp_path, 4)) == 2
    DAMAGES["cut by one"](path / "state.json")
    with pytest.warns(RuntimeWarning, match="passed over"):
        assert number(checkpoint.find(tmp_path)) == 1
    save(tmp_path, 4, number=3)
    assert sorted(name for name in os.listdir(tmp_path) if "step" in name) == ["step_000000004"]


@pytest.mark.slow
@pytest.mark.parametrize("code", [errno.ENOSPC, errno.EDQUOT, errno.EIO, errno.EROFS], ids=errno.errorcode.get)
def test_a_disk_that_refuses_at_any_stage_leaves_no_trace(tmp_path: Path, code: int) -> None:
    for step in (1, 2, 3):
        save(tmp_path, step)

    def refuse(name: str, real: Callable, args: Any) -> None:
        nonlocal writing
        writing = name != "open" or bool(args[1] & os.O_CREAT)
        if name == "write":
            real(args[0], bytes(args[1])[:7])
        raise OSError(code, os.strerror(code))

    at = failures = 0
    writing = False
    while True:
        at += 1
        with pytest.MonkeyPatch.context() as patch:
            fault = Fault(patch, at, refuse, ("open", "write", "fsync", "rename", "mkdir"))
            try:
                save(tmp_path, 4, number=100)
            except CheckpointError as error:
                failures += 1
                assert f"no checkpoint saved in {tmp_path}" in str(error) and os.strerror(code) in str(error)
                assert not [name for name in os.listdir(tmp_path) if name.startswith(".tmp-")]
                if writing and code in (errno.ENOSPC, errno.EDQUOT):
                    assert "needs 8.0 kB" in str(error) and "are free" in str(error)
        if fault.count < at:
            break
        with no_warnings():
            assert number(checkpoint.find(tmp_path)) in (3, 100)
        if checkpoint.steps(tmp_path)[-1] == 3:
            assert checkpoint.steps(tmp_path) == [1, 2, 3]
        else:  # refused after the rename: it is there
            checkpoint.truncate(tmp_path, after=3)
            for step in (1, 2, 3):
                save(tmp_path, step)
    assert failures > 12


def test_a_short_write_is_continued(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    real = os.write
    monkeypatch.setattr(os, "write", lambda descriptor, data: real(descriptor, data[:100]))
    assert number(save(tmp_path, 1)) == 1


def test_an_interrupt_leaves_no_trace(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    def interrupt(name: str, real: Callable, args: Any) -> None:
        raise KeyboardInterrupt

    save(tmp_path, 1)
    Fault(monkeypatch, 3, interrupt, ("write",))
    with pytest.raises(KeyboardInterrupt):
        save(tmp_path, 2)
    assert sorted(os.listdir(tmp_path)) == [".lock", "step_000000001"]


def test_a_power_cut_cannot_show_an_unwritten_checkpoint(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """The disk may forget or reorder whatever was not synced: so sync files, then their folder, rename, sync the parent, delete."""
    events: list[tuple[str, str]] = []
    names: dict[int, str] = {}
    real = {name: getattr(os, name) for name in ("open", "write", "fsync", "rename")}

    def open_(path: Any, *args: Any, **kwargs: Any) -> int:
        descriptor = real["open"](path, *args, **kwargs)
        names[descriptor] = str(path)
        return descriptor

    def write(descriptor: int, data: Any) -> int:
        events.append(("write", names[descriptor]))
        return real["write"](descriptor, data)

    def fsync(descriptor: int) -> None:
        events.append(("fsync", names[descriptor]))
        real["fsync"](descriptor)

    def rename(source: Any, target: Any) -> None:
        events.append(("rename", f"{source} {target}"))
        real["rename"](source, target)

    save(tmp_path, 1)
    for name, function in (("open", open_), ("write", write), ("fsync", fsync), ("rename", rename)):
        monkeypatch.setattr(os, name, function)
    save(tmp_path, 2, keep=1)

    appears = next(i for i, (kind, text) in enumerate(events) if kind == "rename" and text.endswith("step_000000002"))
    temporary = events[appears][1].split()[0]
    written = {text for kind, text in events[:appears] if kind == "write"}
    assert {os.path.basename(text) for text in written} == {
        "policy.safetensors",
        "optimizer.safetensors",
        "state.json",
        MANIFEST,
    }
    for path in written:
        last_write = max(i for i, event in enumerate(events) if event == ("write", path))
        assert ("fsync", path) in events[last_write:appears]
    assert [text for kind, text in events[:appears] if kind == "write"][-1].endswith(MANIFEST)
    assert events[appears - 1] == ("fsync", temporary)
    assert events[appears + 1] == ("fsync", str(tmp_path))
    deletion = next(i for i, (kind, text) in enumerate(events) if kind == "rename" and "step_000000001 " in text)
    assert deletion > appears + 1


def flip(path: Path, at: int) -> None:
    data = bytearray(path.read_bytes())
    data[at] ^= 16
    path.write_bytes(data)


DAMAGES: dict[str, Callable[[Path], object]] = {
    "missing": lambda path: path.unlink(),
    "empty": lambda path: path.write_bytes(b""),
    "cut by one": lambda path: os.truncate(path, path.stat().st_size - 1),
    "cut in half": lambda path: os.truncate(path, path.stat().st_size // 2),
    "longer": lambda path: path.write_bytes(path.read_bytes() + b" "),
    "first byte": lambda path: flip(path, 0),
    "middle byte": lambda path: flip(path, path.stat().st_size // 2),
    "last byte": lambda path: flip(path, -1),
    "zeros": lambda path: path.write_bytes(bytes(path.stat().st_size)),
    "of another step": lambda path: path.write_bytes((path.parents[1] / "step_000000001" / path.name).read_bytes()),
    "a pipe": lambda path: (path.unlink(), os.mkfifo(path)),
    "a folder": lambda path: (path.unlink(), path.mkdir()),
}


@pytest.mark.parametrize("name", ["policy.safetensors", "optimizer.safetensors", "state.json", MANIFEST])
@pytest.mark.parametrize("damage", DAMAGES)
def test_a_damaged_checkpoint_is_refused_and_the_one_before_is_used(tmp_path: Path, name: str, damage: str) -> None:
    if name == MANIFEST and damage == "longer":
        pytest.skip("white space after JSON changes nothing")
    for step in (1, 2, 3):
        save(tmp_path, step, best=step == 3)
    damaged = tmp_path / "step_000000003"
    DAMAGES[damage](damaged / name)
    with pytest.raises(CheckpointError, match="step_000000003"):
        checkpoint.load(damaged)
    with pytest.raises(CheckpointError, match="step_000000003"):
        checkpoint.find(tmp_path, 3)
    with pytest.raises(CheckpointError, match="known as the best" if name == MANIFEST else "step_000000003"):
        checkpoint.find(tmp_path, "best")
    with pytest.warns(RuntimeWarning, match="step_000000003 passed over: .*") as caught:
        assert number(checkpoint.find(tmp_path)) == 2
    assert len(caught) == 1 and "\n" not in str(caught[0].message)
    assert number(save(tmp_path, 3, number=33)) == 33, "training can go on over it"


def test_a_manifest_that_names_another_step_is_refused(tmp_path: Path) -> None:
    path = save(tmp_path, 3)
    text = (path / MANIFEST).read_text()
    assert '"step": 3' in text
    (path / MANIFEST).write_text(text.replace('"step": 3', '"step": 7'))
    with pytest.raises(CheckpointError, match="MANIFEST.json: changed since it was written"):
        checkpoint.load(path)


def test_when_all_are_damaged_it_says_so(tmp_path: Path) -> None:
    for step in (1, 2):
        (save(tmp_path, step) / MANIFEST).unlink()
    with (
        pytest.warns(RuntimeWarning),
        pytest.raises(CheckpointError, match="none of the 2 checkpoints .* is whole; train anew"),
    ):
        checkpoint.find(tmp_path)


def test_a_file_more_in_the_folder_harms_nothing(tmp_path: Path) -> None:
    (save(tmp_path, 1) / "notes.txt").write_text("my best one")
    (tmp_path / "step_abc").mkdir()
    (tmp_path / "notes").write_text("")
    assert number(checkpoint.find(tmp_path)) == 1


def forge(path: Path, name: str, data: bytes) -> None:
    """Replace a file and vouch for it, as someone could who wants a checkpoint of theirs to be loaded."""
    (path / name).write_bytes(data)
    manifest = json.loads((path / MANIFEST).read_text())
    manifest["files"][name] = {"size": len(data), "sha256": hashlib.sha256(data).hexdigest()}
    manifest["sha256"] = _own_hash(manifest)
    (path / MANIFEST).write_text(json.dumps(manifest))


def safetensors_file(header: Any, data: bytes = b"") -> bytes:
    text = header if isinstance(header, bytes) else json.dumps(header).encode()
    return len(text).to_bytes(8, "little") + text + data


class Canary:
    def __init__(self, path: Path) -> None:
        self.path = str(path)

    def __reduce__(self) -> Any:
        return os.mkdir, (self.path,)


FORGERIES: dict[str, bytes] = {
    "header of 2^60 bytes": (1 << 60).to_bytes(8, "little") + b"{}",
    "header longer than the file": (1 << 20).to_bytes(8, "little") + b"{}",
    "no header": b"\0\0\0",
    "overlapping tensors": safetensors_file(
        {n: {"dtype": "U8", "shape": [4], "data_offsets": [0, 4]} for n in ("a", "b")}, b"1234"
    ),
    "outside the file": safetensors_file({"a": {"dtype": "U8", "shape": [1 << 40], "data_offsets": [0, 1 << 40]}}, b"1234"),
    "size overflow": safetensors_file({"a": {"dtype": "F32", "shape": [1 << 62, 16], "data_offsets": [0, 0]}}),
    "negative": safetensors_file({"a": {"dtype": "U8", "shape": [-4], "data_offsets": [0, 4]}}, b"1234"),
    "unknown dtype": safetensors_file({"a": {"dtype": "PICKLE", "shape": [4], "data_offsets": [0, 4]}}, b"1234"),
    "dtype that is never saved": safetensors_file({"a": {"dtype": "U16", "shape": [2], "data_offsets": [0, 4]}}, b"1234"),
    "deep nesting": safetensors_file(b"[" * 100_000),
}


@pytest.mark.parametrize("forgery", FORGERIES)
def test_a_forged_tensor_file_is_refused(tmp_path: Path, forgery: str) -> None:
    path = save(tmp_path, 1)
    forge(path, "policy.safetensors", FORGERIES[forgery])
    with pytest.raises(CheckpointError, match="policy.safetensors"):
        checkpoint.load(path)


@pytest.mark.parametrize("name", ["policy.safetensors", "state.json", MANIFEST, "extra.pt"])
def test_a_pickle_is_never_run(tmp_path: Path, name: str) -> None:
    path = save(tmp_path, 1)
    canary = tmp_path / "canary"
    data = pickle.dumps(Canary(canary))
    if name == MANIFEST:
        (path / name).write_bytes(data)
    else:
        forge(path, name, data)
    with pytest.raises(CheckpointError, match=name if name != "extra.pt" else "incomplete"):
        checkpoint.load(path)
    assert not canary.exists()
    pickle.loads(data)
    assert canary.exists(), "the canary would have sung"


@pytest.mark.parametrize(
    "name", ["../policy.safetensors", "/etc/passwd", "a/b.safetensors", ".safetensors", "model.pt", "policy.SAFETENSORS"]
)
def test_a_manifest_cannot_name_files_elsewhere(tmp_path: Path, name: str) -> None:
    path = save(tmp_path, 1)
    manifest = json.loads((path / MANIFEST).read_text())
    manifest["files"][name] = manifest["files"]["policy.safetensors"]
    manifest["sha256"] = _own_hash(manifest)
    (path / MANIFEST).write_text(json.dumps(manifest))
    with pytest.raises(CheckpointError, match="incomplete"):
        checkpoint.load(path)


@pytest.mark.parametrize("text", ['{"a": NaN}', '{"a": Infinity}', "[1]", "", "[" * 100_000, '{"a": 1,}', "\xff"])
def test_state_that_is_not_strict_json_is_refused(tmp_path: Path, text: str) -> None:
    path = save(tmp_path, 1)
    forge(path, "state.json", text.encode("latin-1"))
    with pytest.raises(CheckpointError, match="state.json is not"):
        checkpoint.load(path)


def test_a_checkpoint_larger_than_the_memory_is_refused_before_it_is_read(tmp_path: Path) -> None:
    path = save(tmp_path, 1)
    manifest = json.loads((path / MANIFEST).read_text())
    manifest["files"]["policy.safetensors"]["size"] = 1 << 43
    manifest["sha256"] = _own_hash(manifest)
    (path / MANIFEST).write_text(json.dumps(manifest))
    with open(path / "policy.safetensors", "wb") as file:
        file.truncate(1 << 43)  # a hole: takes no space
    with pytest.raises(CheckpointError, match="more than the memory"):
        checkpoint.load(path)


def test_two_writers_take_turns(tmp_path: Path) -> None:
    children = []
    for child in range(3):
        pid = os.fork()
        if pid == 0:
            code = 1
            try:
                for i in range(15):
                    save(tmp_path, 100 * child + i, keep=50)
                code = 0
            finally:
                os._exit(code)
        children.append(pid)
    assert [os.waitstatus_to_exitcode(os.waitpid(pid, 0)[1]) for pid in children] == [0, 0, 0]
    with no_warnings():
        assert [number(tmp_path / f"step_{step:09d}") for step in checkpoint.steps(tmp_path)] == checkpoint.steps(tmp_path)
    assert len(checkpoint.steps(tmp_path)) == 45


def test_nothing_stays_open(tmp_path: Path, no_leaks: None) -> None:
    save(tmp_path, 1)
    path = save(tmp_path, 2)
    DAMAGES["cut in half"](path / "state.json")
    with pytest.warns(RuntimeWarning):
        checkpoint.load(checkpoint.find(tmp_path))
