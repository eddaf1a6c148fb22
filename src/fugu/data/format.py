"""The fast form of recorded episodes: a folder with a file of plain rows for each column, an index of episodes, and ``DATA.json``.

    DATA.json       format, version, what was recorded (spaces, agents, columns), and a table of what played
    episodes.bin    a record of 48 bytes for each complete episode, in the order of their rows, each with a checksum
    obs.bin, ...    a file per column: rows one after the other, little-endian, nothing else

An episode of n steps has n + 1 rows, by the library's row convention: observation, action, and what the action produced; the last
row holds the final observation, with ``mask`` False and zeros for the action and its outcome. Rows are written before the record that
counts them, so a reader sees whole episodes at any moment, whatever became of the writer. ``closed`` in ``DATA.json`` says how many
there were when the recording ended by itself; from then on, a file that is shorter is damaged.
"""

from __future__ import annotations

import json
import math
import sys
from collections.abc import Mapping
from pathlib import Path
from typing import Any

import numpy as np

from fugu import __version__, files
from fugu.emulation.columns import Form, present
from fugu.emulation.env import EnvSpec
from fugu.emulation.spec_json import spec_from_json, spec_to_json
from fugu.errors import ConfigError, SpaceError, shown

ABOUT = "DATA.json"
INDEX = "episodes.bin"
FORMAT = "fugu data"
VERSION = (1, 0)
"""major: an older fugu cannot read it; minor: it can"""

MOST_SOURCES = 1 << 16
MOST_EPISODES = 1 << 28
RECORD = np.dtype(
    [
        ("length", "<i8"),
        ("total", "<f8"),
        ("seed", "<i8"),
        ("number", "<i8"),
        ("source", "<i4"),
        ("agent", "<i4"),
        ("terminated", "u1"),
        ("truncated", "u1"),
        ("unused", "u1", (2,)),
        ("checksum", "<u4"),
    ]
)
assert RECORD.itemsize == 48
_OFFSET, _PRIME = 0xCBF29CE484222325, 0x100000001B3
BLOCK = 1 << 14
"""records that are read at once"""


class DataError(ConfigError):
    """Recorded episodes cannot be read, written, or be learned from. ``episode`` and ``field`` say where, if it is one place."""

    episode: int | None = None
    field: str = ""


def fault(path: Path, problem: str, *, episode: int | None = None, field: str = "", fix: str = "") -> DataError:
    """Return the error about a place in the data at ``path``."""
    where = ", ".join([str(path), *([] if episode is None else [f"episode {episode}"]), *([field] if field else [])])
    error = DataError(shown(problem, most=600), where=shown(where), fix=fix)
    error.episode, error.field = episode, field
    return error


def column_file(name: str) -> str:
    return f"{name}.bin"


def forms_of(spec: EnvSpec, *, reward: str = "float32", action_mask: bool = False) -> dict[str, Form]:
    """Return the columns of recorded rows, by name: those of the environment, without ``first``, which the index says, and ``action``.

    ``reward``: its dtype, float64 where rewards are no float32 numbers. ``action_mask``: whether the environment forbids actions."""
    action = spec.action_layout
    forms = {form.name: form for form in present(spec, choices=None if action_mask else 0) if form.name != "first"}
    forms["reward"] = Form("reward", "outcome", reward, ())
    forms["action"] = Form("action", "next", action.dtype_name, action.row_shape)
    return forms


def row_bytes(forms: Mapping[str, Form]) -> int:
    """Return the bytes of a row, all columns together."""
    return sum(itemsize(form) for form in forms.values())


def itemsize(form: Form) -> int:
    return math.prod(form.shape) * np.dtype(form.dtype).itemsize


# what DATA.json says ----------------------------------------------------------------------------------------------------------------


def write_about(folder: Path, about: Mapping[str, Any]) -> None:
    files.write(folder / ABOUT, json.dumps(about, indent=1, allow_nan=False) + "\n")


def new_about(spec: EnvSpec, forms: Mapping[str, Form], recorded: Mapping[str, Any]) -> dict[str, Any]:
    """Return the contents of a new ``DATA.json``."""
    written = spec_to_json(spec)
    if written is None:
        raise SpaceError("the spaces have keys that JSON cannot hold; use text as keys of a Dict", where=spec.name)
    return {
        "format": FORMAT,
        "version": list(VERSION),
        "fugu": __version__,
        "env": written,
        "reward": forms["reward"].dtype,
        "action_mask": "action_mask" in forms,
        "recorded": dict(recorded),
        "sources": [],
        "closed": None,
    }


def read_about(folder: Path) -> dict[str, Any]:
    """Return what ``DATA.json`` of ``folder`` says, as far as its format, version and types are concerned."""
    path = folder / ABOUT
    if sys.byteorder != "little":
        raise fault(
            folder, "is little-endian, and this machine is not", fix="Convert it elsewhere: fugu data FILE --out x.hdf5"
        )
    try:
        about = json.loads(files.read(path, files.LARGEST))
    except OSError as error:
        raise fault(path, f"{error.strerror or error}") from None
    except (ValueError, RecursionError) as error:
        raise fault(path, f"is no JSON: {error}") from None
    if not isinstance(about, dict) or about.get("format") != FORMAT:
        raise fault(path, f"does not say that it is {FORMAT!r}")
    version = about.get("version")
    if not (isinstance(version, list) and len(version) == 2 and all(type(part) is int for part in version)):
        raise fault(path, f"has no version, but {version!r:.40}", field="version")
    if version[0] != VERSION[0]:
        raise fault(
            folder,
            f"is of data format {version[0]}.{version[1]}, written by fugu {about.get('fugu')!s:.20}; fugu {__version__} reads format "
            f"{VERSION[0]}",
            field="version",
            fix="pip install --upgrade fugu-rl" if version[0] > VERSION[0] else "Convert it with the fugu that wrote it",
        )
    kinds = {"sources": list, "recorded": dict, "action_mask": bool, "reward": str}
    for name, kind in kinds.items():
        if not isinstance(about.get(name), kind):
            raise fault(path, f"must be a {kind.__name__}, got {about.get(name)!r:.60}", field=name)
    if about["reward"] not in ("float32", "float64"):
        raise fault(path, f"must be float32 or float64, got {about['reward']!r:.40}", field="reward")
    if len(about["sources"]) > MOST_SOURCES or not all(isinstance(source, dict) for source in about["sources"]):
        raise fault(path, f"must be at most {MOST_SOURCES} objects", field="sources")
    closed = about.get("closed")
    if closed is not None and not (type(closed) is int and 0 <= closed <= MOST_EPISODES):
        raise fault(path, f"must be a number of episodes, got {closed!r:.40}", field="closed")
    return about


def spec_in(folder: Path, about: Mapping[str, Any]) -> EnvSpec:
    """Return the spec of the environment in ``about``."""
    try:
        return spec_from_json(about.get("env"))
    except SpaceError as error:
        raise fault(folder / ABOUT, error.complaint, field="env") from None


# the index --------------------------------------------------------------------------------------------------------------------------


def seal(records: np.ndarray, first: int) -> None:
    """Write the checksums of ``records``, whose first is number ``first`` of the index."""
    words = records.view("<u4").reshape(-1, RECORD.itemsize // 4)[:, :-1].astype(np.uint64)
    sums = np.arange(first, first + len(records), dtype=np.uint64) + np.uint64(_OFFSET)
    for word in words.T:  # FNV-1a, 32 bits at a time; each record holds its place, so that one out of place shows
        sums = (sums ^ word) * np.uint64(_PRIME)
    records["checksum"] = (sums >> np.uint64(32)).astype(np.uint32)


def sound(records: np.ndarray, first: int) -> int:
    """Return how many of ``records``, from the first on, are what was written."""
    sealed = records.copy()
    seal(sealed, first)
    bad = np.flatnonzero(sealed["checksum"] != records["checksum"])
    return int(bad[0]) if len(bad) else len(records)


def read_index(folder: Path) -> tuple[np.ndarray, int]:
    """Return the records of the index, up to the first that is none, and how many bytes the file has beyond them."""
    path = folder / INDEX
    found: list[np.ndarray] = []
    count = size = 0
    try:
        with files.reading(path) as file:
            size = file.seek(0, 2)
            file.seek(0)
            while data := file.read(BLOCK * RECORD.itemsize):
                records = np.frombuffer(data[: len(data) // RECORD.itemsize * RECORD.itemsize], RECORD)
                good = sound(records, count)
                found.append(records[:good])
                count += good
                if good * RECORD.itemsize < len(data) or count > MOST_EPISODES:
                    break
    except OSError as error:
        raise fault(path, f"{error.strerror or error}") from None
    return np.concatenate(found) if found else np.zeros(0, RECORD), size - count * RECORD.itemsize
