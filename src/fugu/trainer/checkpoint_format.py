"""One checkpoint on disk: a folder of safetensors files, ``state.json`` and the ``MANIFEST.json`` that vouches for them.

In: ``tensors`` (group -> name -> Tensor) and ``state`` (JSON). Out: the same, or a CheckpointError saying which file is wrong and how.
``write`` is durable: every file and the folder are on the disk before it returns, the manifest last. ``read`` trusts nothing: sizes
and hashes are checked on the very bytes that are parsed, everything is bounded, and no format that can hold code is ever opened.
"""

from __future__ import annotations

import errno
import hashlib
import json
import math
import os
import re
import stat
from collections.abc import Iterable, Iterator, Mapping, Sequence
from pathlib import Path
from typing import Any

import psutil
import torch
from safetensors import SafetensorError
from safetensors import torch as safetensors

from fugu import __version__
from fugu.errors import FuguError

MANIFEST = "MANIFEST.json"
PAGES = "pages"
"""folder beside the checkpoints, with files of rows that several of them name"""
STATE = "state.json"
VERSION = (1, 0)
"""major: an older fugu cannot read it; minor: it can"""
DTYPES = (
    torch.float32,
    torch.float64,
    torch.float16,
    torch.bfloat16,
    torch.int64,
    torch.int32,
    torch.int16,
    torch.int8,
    torch.uint8,
    torch.bool,
)

_GROUP = re.compile(r"[a-z][a-z0-9_]{0,63}")
_MANIFEST_LIMIT = 1 << 20  # bytes
_STATE_LIMIT = 1 << 28
_HEADER_LIMIT = 1 << 25  # of the JSON at the head of a safetensors file: some 200,000 tensors
_CHUNK = 1 << 22
MOST_PAGES = 2
"""times the machine's memory that pages may have: they may have been in that of a GPU too"""


class CheckpointError(FuguError, RuntimeError):
    """A checkpoint could not be written, found or trusted."""


class Damaged(CheckpointError):
    """The bytes on the disk are not those that were written."""


def write(
    folder: Path,
    step: int,
    tensors: Mapping[str, Mapping[str, torch.Tensor]],
    state: Mapping[str, Any],
    best: bool,
    pages: Sequence[Mapping[str, Any]] = (),
) -> None:
    """Write into the existing, empty ``folder``. ``pages``: files that it shares with others. OSError if the disk refuses."""
    files: dict[str, dict[str, Any]] = {}
    for name, data in _contents(tensors, state):
        files[name] = {"size": len(data), "sha256": hashlib.sha256(data).hexdigest()}
        write_file(folder / name, data)
        del data  # before the next group is laid out
    about: dict[str, Any] = {
        "format": "fugu checkpoint",
        "version": list(VERSION),
        "fugu": __version__,
        "step": step,
        "best": best,
    }
    about["files"] = files
    if pages:
        about["pages"] = [dict(page) for page in pages]
    about["sha256"] = _own_hash(about)
    write_file(folder / MANIFEST, json.dumps(about, indent=1).encode())
    sync_folder(folder)


def read(folder: Path) -> tuple[int, dict[str, dict[str, torch.Tensor]], dict[str, Any]]:
    """Return step, tensors and state of the checkpoint in ``folder``, verified."""
    about = manifest(folder)
    size = _total(about["files"].values())
    if size > psutil.virtual_memory().available:
        raise CheckpointError(f"{folder} holds {show_bytes(size)}, more than the memory that is free here")
    tensors: dict[str, dict[str, torch.Tensor]] = {}
    state: dict[str, Any] = {}
    for name, expected in about["files"].items():
        data = bytearray()
        for chunk in _verified(folder / name, expected):
            data += chunk
        if name == STATE:
            state = _parse(folder / name, data)
        else:
            tensors[name.removesuffix(".safetensors")] = _tensors(folder / name, data)
    return about["step"], tensors, state


def verify(folder: Path, pages: bool = False) -> int:
    """Return the step of the checkpoint in ``folder``; Damaged if a file is missing, cut or changed. Holds one chunk at a time. Of the
    files it shares with others only the sizes are looked at, unless ``pages``."""
    about = manifest(folder)
    _check_total(folder, about["files"].values(), 1)
    if pages:
        _check_total(folder, about.get("pages", ()), MOST_PAGES)
    for name, expected in about["files"].items():
        for _ in _verified(folder / name, expected):
            pass
    for page in about.get("pages", ()):
        if pages:
            for _ in _verified(folder.parent / PAGES / page["name"], page):
                pass
        else:
            check_page(folder.parent / PAGES, page)
    return about["step"]


def _check_total(folder: Path, files: Iterable[Mapping[str, Any]], times: int) -> None:
    """Refuse what cannot have been in a machine's memory before all of it is read: a file of zeros takes no room on a disk."""
    size, memory = _total(files), psutil.virtual_memory().total
    if size > times * memory:
        raise CheckpointError(f"{folder} holds {show_bytes(size)}, and this machine has {show_bytes(memory)} of memory")


def _total(files: Iterable[Mapping[str, Any]]) -> int:
    return sum(file["size"] for file in files)


def check_page(folder: Path, page: Mapping[str, Any]) -> None:
    """Raise Damaged if a page is not there, or not as long as it was."""
    path = folder / page["name"]
    try:
        size = path.stat().st_size
    except OSError as error:
        raise Damaged(f"{path} is missing" if error.errno == errno.ENOENT else f"{path}: {error.strerror}") from None
    if size != page["size"]:
        raise Damaged(f"{path} has {size} bytes, not {page['size']}")


def write_page(folder: Path, temporary: Path, columns: Mapping[str, torch.Tensor]) -> dict[str, Any]:
    """Write rows into a file of ``folder`` that is called after what it holds, and return its name, size and hash. A file that is there
    already is not written again."""
    data = safetensors.save(_own_memory(columns))
    digest = hashlib.sha256(data).hexdigest()
    page: dict[str, Any] = {"name": f"{digest[:32]}-{len(data)}.safetensors", "size": len(data), "sha256": digest}
    path = folder / page["name"]
    try:
        for _ in _verified(path, page):
            pass
    except Damaged:
        write_file(temporary, data)
        for _ in _verified(temporary, page):
            pass
        os.replace(temporary, path)
    return page


def read_page(folder: Path, page: Mapping[str, Any]) -> dict[str, torch.Tensor]:
    """Return the rows of a page, verified."""
    data = bytearray()
    for chunk in _verified(folder / page["name"], page):
        data += chunk
    return _tensors(folder / page["name"], data)


def manifest(folder: Path) -> dict[str, Any]:
    """Return the manifest of ``folder``, which counts only if it is whole and of a known format."""
    path = folder / MANIFEST
    about = _parse(path, b"".join(_chunks(path, _MANIFEST_LIMIT)))
    version = about.get("version")
    if not (isinstance(version, list) and len(version) == 2 and all(isinstance(part, int) for part in version)):
        raise Damaged(f"{path}: no version")
    if version[0] != VERSION[0]:
        raise CheckpointError(
            f"{path} is of checkpoint format {version[0]}.{version[1]}, written by fugu {about.get('fugu')}; fugu {__version__} "
            f"reads format {VERSION[0]}: pip install --upgrade fugu-rl"
        )
    if about.get("sha256") != _own_hash(about):
        raise Damaged(f"{path}: changed since it was written")
    files, step = about.get("files"), about.get("step")
    whole = isinstance(files, dict) and STATE in files and isinstance(step, int) and all(map(_sound, files, files.values()))
    pages = about.get("pages", [])
    if not whole or not (isinstance(pages, list) and all(map(_sound_page, pages))):
        raise Damaged(f"{path}: incomplete")
    return about


def write_file(path: Path, data: bytes) -> None:
    """Write a new file that is on the disk when this returns."""
    descriptor = os.open(path, os.O_WRONLY | os.O_CREAT | os.O_EXCL | os.O_CLOEXEC, 0o644)
    try:
        view = memoryview(data)
        while view:
            view = view[os.write(descriptor, view) :]
        os.fsync(descriptor)
    finally:
        os.close(descriptor)


def sync_folder(folder: Path) -> None:
    """Put the names in ``folder`` on the disk: a rename lasts only after this."""
    descriptor = os.open(folder, os.O_RDONLY | os.O_DIRECTORY | os.O_CLOEXEC)
    try:
        os.fsync(descriptor)
    except OSError as error:
        if error.errno not in (errno.EINVAL, errno.ENOTSUP):  # some network file systems have no such call
            raise
    finally:
        os.close(descriptor)


def check(tensors: Mapping[str, Mapping[str, torch.Tensor]], state: Mapping[str, Any]) -> None:
    """Refuse what could not be read back, before anything is written."""
    for group, named in tensors.items():
        if not _GROUP.fullmatch(group):
            raise CheckpointError(f"tensor group {group!r} must be lower-case letters, digits and _, as it names a file")
        for name, tensor in named.items():
            if name == "__metadata__" or not isinstance(name, str):
                raise CheckpointError(f"tensors[{group!r}] cannot hold the name {name!r}")
            if not isinstance(tensor, torch.Tensor) or tensor.dtype not in DTYPES or tensor.layout != torch.strided:
                got = getattr(tensor, "dtype", type(tensor).__name__)
                known = ", ".join(str(dtype).removeprefix("torch.") for dtype in DTYPES)
                raise CheckpointError(f"tensors[{group!r}][{name!r}] is {got}; a checkpoint holds dense tensors of {known}")
    _check_json(state, "state")


def size_of(tensors: Mapping[str, Mapping[str, torch.Tensor]], state: Mapping[str, Any]) -> int:
    """Return the number of bytes that a checkpoint takes on the disk, without the names."""
    return sum(tensor.nbytes for named in tensors.values() for tensor in named.values()) + len(json.dumps(state))


def show_bytes(size: float) -> str:
    for unit in ("B", "kB", "MB", "GB"):
        if size < 1000 or unit == "GB":
            break
        size /= 1000
    return f"{size:.0f} B" if unit == "B" else f"{size:.1f} {unit}"


def _contents(tensors: Mapping[str, Mapping[str, torch.Tensor]], state: Mapping[str, Any]) -> Iterator[tuple[str, bytes]]:
    for group in sorted(tensors):
        yield f"{group}.safetensors", safetensors.save(_own_memory(tensors[group]))
    yield STATE, json.dumps(state, allow_nan=False, indent=1).encode()


def _own_memory(named: Mapping[str, torch.Tensor]) -> dict[str, torch.Tensor]:
    """Return contiguous tensors on the CPU of which no two share memory (tied weights do), as the format demands."""
    seen: set[int] = set()
    out = {}
    for name, tensor in named.items():
        tensor = tensor.detach().to("cpu").contiguous()
        if tensor.untyped_storage().data_ptr() in seen:
            tensor = tensor.clone()
        seen.add(tensor.untyped_storage().data_ptr())
        out[name] = tensor
    return out


def _sound(name: str, file: Any) -> bool:
    """Return whether the manifest may name this file: never one outside its folder."""
    plain = name == STATE or (name.endswith(".safetensors") and _GROUP.fullmatch(name.removesuffix(".safetensors")) is not None)
    return plain and isinstance(file, dict) and type(file.get("size")) is int and isinstance(file.get("sha256"), str)


def _sound_page(page: Any) -> bool:
    """Return whether the manifest may name this page: never one outside their folder."""
    if not isinstance(page, dict) or type(page.get("size")) is not int or not isinstance(page.get("sha256"), str):
        return False
    return page.get("name") == f"{page['sha256'][:32]}-{page['size']}.safetensors" and "/" not in page["name"]


def _own_hash(manifest: Mapping[str, Any]) -> str:
    rest = {key: value for key, value in manifest.items() if key != "sha256"}
    return hashlib.sha256(json.dumps(rest, sort_keys=True).encode()).hexdigest()


def _verified(path: Path, expected: Mapping[str, Any]) -> Iterator[bytes]:
    """Yield the bytes of ``path``; Damaged after the last if they are not the expected ones."""
    digest = hashlib.sha256()
    for chunk in _chunks(path, expected["size"], exactly=True):
        digest.update(chunk)
        yield chunk
    if digest.hexdigest() != expected["sha256"]:
        raise Damaged(f"{path}: its SHA-256 is not the one in {MANIFEST}")


def _chunks(path: Path, limit: int, exactly: bool = False) -> Iterator[bytes]:
    try:
        descriptor = os.open(path, os.O_RDONLY | os.O_NONBLOCK | os.O_CLOEXEC)  # not blocking: a pipe would wait for ever
        try:
            found = os.fstat(descriptor)
            if not stat.S_ISREG(found.st_mode):
                raise Damaged(f"{path} is not a file")
            if found.st_size > limit or (exactly and found.st_size != limit):
                raise Damaged(f"{path} has {found.st_size} bytes, {'not' if exactly else 'more than'} {limit}")
            left = found.st_size
            while left:
                chunk = os.read(descriptor, min(left, _CHUNK))
                if not chunk:
                    raise Damaged(f"{path} ended {left} bytes early")
                left -= len(chunk)
                yield chunk
        finally:
            os.close(descriptor)
    except FileNotFoundError:
        raise Damaged(f"{path} is missing") from None
    except OSError as error:
        raise Damaged(f"{path}: {error.strerror}") from None


def _parse(path: Path, data: bytes | bytearray) -> dict[str, Any]:
    if len(data) > _STATE_LIMIT:
        raise Damaged(f"{path} has {len(data)} bytes, more than {_STATE_LIMIT}")
    try:
        value = json.loads(data, parse_constant=_no_constant)
    except (ValueError, RecursionError) as error:
        raise Damaged(f"{path} is not JSON: {error}") from None
    if not isinstance(value, dict):
        raise Damaged(f"{path} is not a JSON object")
    return value


def _no_constant(name: str) -> None:
    raise ValueError(f"{name} is no JSON number")


def _tensors(path: Path, data: bytearray) -> dict[str, torch.Tensor]:
    header = int.from_bytes(data[:8], "little")
    if len(data) < 8 or header > min(len(data) - 8, _HEADER_LIMIT):
        raise Damaged(f"{path} announces a header of {header} bytes, more than a file of {len(data)} bytes can have")
    try:
        tensors = safetensors.load(bytes(data))
    except (SafetensorError, ValueError, KeyError, TypeError, RuntimeError) as error:
        raise Damaged(f"{path} is not a safetensors file: {error}") from None
    for name, tensor in tensors.items():
        if tensor.dtype not in DTYPES:
            raise Damaged(f"{path}: {name} is {tensor.dtype}, which no checkpoint holds")
    return tensors


def _check_json(value: Any, place: str) -> None:
    """Accept only what JSON gives back unchanged (a tuple comes back as a list)."""
    if value is None or isinstance(value, (str, bool)) or type(value) is int:
        return
    if type(value) is float:
        if not math.isfinite(value):
            raise CheckpointError(f"{place} is {value}; JSON has no such number, store None")
        return
    parts: Iterable[tuple[Any, Any]]
    if isinstance(value, Mapping):
        wrong = [key for key in value if not isinstance(key, str)]
        if wrong:
            raise CheckpointError(f"{place} has the key {wrong[0]!r}; JSON keys are text")
        parts = value.items()
    elif isinstance(value, (list, tuple)):
        parts = enumerate(value)
    else:
        hint = " (a tensor belongs in tensors)" if isinstance(value, torch.Tensor) else ""
        raise CheckpointError(f"{place} is a {type(value).__name__}; the state holds JSON only{hint}")
    for key, part in parts:
        _check_json(part, f"{place}[{key!r}]")
