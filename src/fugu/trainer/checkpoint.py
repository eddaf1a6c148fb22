"""The checkpoints of one run: ``checkpoints/step_000000123/`` folders, of which at least one is whole at every moment.

``save`` writes to ``.tmp-*``, verifies what it wrote, renames, and only then deletes what is beyond ``keep``. Killed at any point
it leaves the earlier checkpoints as they were, and a ``.tmp-*`` that the next save removes. Order is by step: clocks play no part.
The latest one that was saved as the best says so in its manifest, and rotation spares it. Rows of a replay are in ``pages/``, files
that are written once, are named after their contents, and go when no checkpoint names them any more. The contents are in
``checkpoint_format.py``.
"""

from __future__ import annotations

import contextlib
import errno
import fcntl
import os
import re
import shutil
import time
import uuid
import warnings
from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass
from functools import partial
from pathlib import Path
from typing import Any

import torch

from fugu import files
from fugu.errors import ConfigError, FuguError
from fugu.rollout.source import Page
from fugu.trainer.checkpoint_format import (
    PAGES,
    CheckpointError,
    Damaged,
    check,
    check_page,
    manifest,
    read,
    read_page,
    show_bytes,
    size_of,
    sync_folder,
    verify,
    write,
    write_page,
)

__all__ = ["Checkpoint", "CheckpointError", "find", "fitting_into", "load", "pages", "save", "steps", "truncate"]

BEST = "best"
"""folder beside the checkpoints in which evaluations during training keep the best policy"""

_NAME = re.compile(r"(?:\.old-)?step_(?P<step>\d{9,18})")
_LOCK_SECONDS = 60.0


@dataclass(frozen=True)
class Checkpoint:
    path: Path
    step: int
    tensors: dict[str, dict[str, torch.Tensor]]
    """group -> name -> tensor, on the CPU"""
    state: dict[str, Any]


def save(
    folder: Path | str,
    step: int,
    tensors: Mapping[str, Mapping[str, torch.Tensor]],
    state: Mapping[str, Any],
    *,
    keep: int = 3,
    best: bool = False,
    pages: Sequence[Page] = (),
) -> Path:
    """Add the checkpoint of ``step`` to ``folder`` and return its path. ``keep`` of them stay, and the ``best``. Those of ``pages``
    that are not written yet are.

    A second save of one step replaces the first. CheckpointError, with everything earlier untouched, if it cannot be written.
    """
    if type(step) is not int or not 0 <= step < 10**18:
        raise CheckpointError(f"step={step!r} must be a whole number from 0 up")
    if keep < 1:
        raise CheckpointError(f"keep={keep} must be at least 1")
    check(tensors, state)
    folder = Path(folder)
    try:
        if not folder.is_dir():
            if folder.name == BEST:
                folder.parent.mkdir(exist_ok=True)
            folder.mkdir(exist_ok=True)  # but not that of its run: one that is gone is not to come back with nothing else in it
            sync_folder(folder.parent)
        with _alone(folder):
            _write_pages(folder, pages)
            path = _write(folder, step, tensors, state, best, [page.file for page in pages if page.file is not None])
            with contextlib.suppress(OSError, CheckpointError):
                # it is saved; what could not be deleted now is deleted by a later save
                _rotate(folder, step, keep)
                _drop_pages(folder)
    except OSError as error:
        needed = size_of(tensors, state) + sum(_size(page) for page in pages if page.file is None)
        raise CheckpointError(_refused(folder, error, needed)) from error
    return path


def load(path: Path | str) -> Checkpoint:
    """Return the checkpoint at ``path`` (see ``find``); CheckpointError if a single bit of it is not what was saved."""
    path = Path(path)
    if not path.is_dir():
        raise CheckpointError(f"{path} is not a checkpoint: expected a folder such as checkpoints/step_000000123")
    return Checkpoint(path, *read(path))


def pages(path: Path) -> Iterator[Page]:
    """Yield the pages that the checkpoint at ``path`` names, in their order."""
    folder = path.parent / PAGES
    for page in manifest(path).get("pages", ()):
        yield Page(partial(read_page, folder, page), page)


def find(folder: Path | str, which: str | int = "latest", *, whole: bool = False) -> Path:
    """Return the checkpoint that is ``latest``, ``best`` or of one step. Only ``latest`` passes over damaged ones, with a warning.
    ``whole``: the hashes of its pages are checked too, which playing has no use for."""
    folder = Path(folder)
    if which == "best" and (evaluated := steps(folder / BEST)) and evaluated[-1] > (_best(folder) or -1):
        folder, which = folder / BEST, "latest"
    found = _checkpoints(folder)
    if which == "best":
        step = _best(folder)
        if step is None:
            raise CheckpointError(
                f"{folder} has no checkpoint that is known as the best: use latest. There is one after a checkpoint that was written "
                "when 100 episodes had ended, or after an evaluation (--eval.every)"
            )
        which = step
    if isinstance(which, str) and which.isdecimal():
        which = int(which)
    if isinstance(which, int):
        of_step = [path for path in found if _step(path) == which]
        if not of_step:
            near = sorted(steps(folder), key=lambda step: abs(step - which))[:3]
            raise CheckpointError(
                f"{folder} has no checkpoint of step {which}" + (f"; the nearest: {sorted(near)}" if near else "")
            )
        verify(of_step[-1])
        return of_step[-1]
    if which != "latest":
        raise CheckpointError(f"which={which!r} must be latest, best or a step")
    for path in reversed(found):
        try:
            verify(path, whole)
            return path
        except CheckpointError as error:
            warnings.warn(f"checkpoint {path.name} passed over: {error}", RuntimeWarning, stacklevel=2)
    if found:
        raise CheckpointError(f"none of the {len(found)} checkpoints in {folder} is whole; train anew")
    raise CheckpointError(
        f"there is no checkpoint in {folder}: its run has not come to the first one. If it no longer runs, train anew"
    )


def newest_policy(run: str) -> Mapping[str, torch.Tensor]:
    """Return the weights of the newest policy of the run in the folder ``run``."""
    folder = Path(run) / "checkpoints" if (Path(run) / "checkpoints").is_dir() else Path(run)
    try:
        newest = find(folder, "latest")
    except CheckpointError:
        raise ConfigError(
            f"self_play.opponents: {run} is no folder of a run with a checkpoint in it; give paths, as in "
            "--self-play.opponents runs/connect4-20260131-120000"
        ) from None
    return load(newest).tensors["policy"]


@contextlib.contextmanager
def fitting_into(path: Path) -> Iterator[None]:
    """Turn an error while the contents of the checkpoint at ``path`` are put in place into a CheckpointError that says what does
    not fit."""
    try:
        yield
    except CheckpointError as error:
        raise CheckpointError(f"{path}: {error}") from None
    except FuguError:
        raise
    except Exception as error:  # whatever those who put it in place raise
        lines = [line.strip() for line in str(error).splitlines()]
        first = lines[1] if len(lines) > 1 else f"{type(error).__name__}: {error}"
        raise CheckpointError(
            f"what {path} holds does not fit the network or the environment of now: {first} Put the policy's file, the environment and "
            "config.toml back as they were when it was written, or train anew"
        ) from error


def steps(folder: Path | str) -> list[int]:
    """Return the steps of which ``folder`` has a checkpoint, ascending, damaged or not."""
    return sorted({_step(path) for path in _checkpoints(Path(folder))})


def truncate(folder: Path | str, after: int) -> None:
    """Delete the checkpoints of steps beyond ``after``: a run resumed there would otherwise be overtaken by its own past."""
    folder = Path(folder)
    if not folder.is_dir():
        return
    try:
        with _alone(folder):
            for path in _checkpoints(folder):
                if _step(path) > after:
                    _delete(path)
            _drop_pages(folder)
    except OSError as error:
        raise CheckpointError(_refused(folder, error)) from error


def _write_pages(folder: Path, pages: Sequence[Page]) -> None:
    """Write the pages that are not there; each is noted in its ``file``."""
    if not pages:
        return
    if (folder / PAGES).is_symlink():
        raise CheckpointError(
            f"{folder / PAGES} is a link, and rows would be written, and deleted, elsewhere; replace it with a folder"
        )
    (folder / PAGES).mkdir(exist_ok=True)
    for page in pages:
        if page.file is not None:
            with contextlib.suppress(Damaged):
                check_page(folder / PAGES, page.file)
                continue
        temporary = folder / f".tmp-{uuid.uuid4().hex}"
        try:
            page.file = write_page(folder / PAGES, temporary, page.columns())
        finally:
            temporary.unlink(missing_ok=True)
    sync_folder(folder / PAGES)


def _drop_pages(folder: Path) -> None:
    """Delete the pages that no checkpoint names."""
    if not (folder / PAGES).is_dir() or (folder / PAGES).is_symlink():
        return
    named: set[str] = set()
    for path in _checkpoints(folder):
        try:
            named |= {page["name"] for page in manifest(path).get("pages", ())}
        except Damaged:  # of which nothing can be read anyway
            continue
        except CheckpointError:  # of another version, and not for us to judge
            return
    for path in (folder / PAGES).iterdir():
        if path.name not in named:
            _remove(path)


def _size(page: Page) -> int:
    return sum(column.nbytes for column in page.columns().values())


def _write(
    folder: Path,
    step: int,
    tensors: Mapping[str, Mapping[str, torch.Tensor]],
    state: Mapping[str, Any],
    best: bool,
    pages: Sequence[Mapping[str, Any]],
) -> Path:
    for stale in folder.glob(".tmp-*"):  # we hold the lock, so their writers are dead
        _remove(stale)
    temporary = folder / f".tmp-{uuid.uuid4().hex}"
    target = folder / f"step_{step:09d}"
    aside = folder / f".old-{target.name}"
    temporary.mkdir()
    try:
        write(temporary, step, tensors, state, best or _is_best(target), pages)
        try:
            verify(temporary)
        except CheckpointError as error:
            raise CheckpointError(
                f"no checkpoint saved in {folder}: read back, it is not what was written ({error})"
            ) from error
        if target.exists():
            if aside.exists():
                _delete(aside)
            os.rename(target, aside)  # still found under this name, should the next line never run
        os.rename(temporary, target)
        sync_folder(folder)
    except BaseException:
        _remove(temporary)
        raise
    if aside.exists():
        _delete(aside)
    return target


def _rotate(folder: Path, new: int, keep: int) -> None:
    spared = (*steps(folder)[-keep:], new, _best(folder))
    for path in _checkpoints(folder):
        if _step(path) not in spared:
            _delete(path)


def _delete(path: Path) -> None:
    """Delete a checkpoint. Under its own name it is whole or gone, never half of it."""
    grave = path.with_name(f".tmp-{uuid.uuid4().hex}")
    os.rename(path, grave)
    _remove(grave)


def _remove(path: Path) -> None:
    if path.is_dir() and not path.is_symlink():
        shutil.rmtree(path, ignore_errors=True)
    else:
        path.unlink(missing_ok=True)


def _checkpoints(folder: Path) -> list[Path]:
    """Return the checkpoints by step; of one step, the one that a save was just replacing comes first."""
    try:
        paths = [path for path in folder.iterdir() if _NAME.fullmatch(path.name) and path.is_dir()]
    except FileNotFoundError:
        return []
    except OSError as error:
        raise CheckpointError(f"{folder} cannot be read: {error.strerror}") from None
    return sorted(paths, key=lambda path: (_step(path), not path.name.startswith(".old-")))


def _step(path: Path) -> int:
    match = _NAME.fullmatch(path.name)
    assert match is not None
    return int(match["step"])


def _best(folder: Path) -> int | None:
    return next((_step(path) for path in reversed(_checkpoints(folder)) if _is_best(path)), None)


def _is_best(path: Path) -> bool:
    try:
        return manifest(path).get("best") is True
    except CheckpointError:
        return False


@contextlib.contextmanager
def _alone(folder: Path) -> Iterator[None]:
    """Hold the folder's lock, which the system releases when its holder dies."""
    if folder.is_symlink():
        raise CheckpointError(
            f"{folder} is a link, and checkpoints would be written, and deleted, elsewhere; replace it with a folder"
        )
    descriptor = files.opened(folder / ".lock", os.O_RDWR | os.O_CREAT)
    try:
        deadline = time.monotonic() + _LOCK_SECONDS
        while True:
            try:
                fcntl.flock(descriptor, fcntl.LOCK_EX | fcntl.LOCK_NB)
                break
            except BlockingIOError:
                if time.monotonic() > deadline:
                    raise CheckpointError(f"another process has been writing to {folder} for {_LOCK_SECONDS:.0f} s") from None
                time.sleep(0.01)
            except OSError as error:
                if error.errno not in (errno.ENOSYS, errno.ENOTSUP, errno.ENOLCK):
                    raise
                break  # a file system without locks; there is one writer to a run anyway
        try:
            yield
        finally:
            # not left to close(): a child forked meanwhile has the descriptor too, and would keep the lock
            fcntl.flock(descriptor, fcntl.LOCK_UN)
    finally:
        os.close(descriptor)


def _refused(folder: Path, error: OSError, needed: int = 0) -> str:
    text = f"no checkpoint saved in {folder}: {error.strerror or error}"
    if needed and error.errno in (errno.ENOSPC, errno.EDQUOT, errno.EFBIG):
        text += f". It needs {show_bytes(needed)}"
        with contextlib.suppress(OSError):
            text += f"; {show_bytes(shutil.disk_usage(folder).free)} are free"
    return text + "; earlier checkpoints are untouched"
