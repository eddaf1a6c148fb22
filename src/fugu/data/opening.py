"""``open``: a path becomes a ``DataSet``.

The fast form is mapped as it is. A file in Minari's layout is copied once into the fast form, in the cache folder; opened again, it is
that copy, as long as the file is the same.
"""

from __future__ import annotations

import contextlib
import hashlib
import json
import os
import shutil
from pathlib import Path

from fugu import files
from fugu.compiler import cache_folder
from fugu.data import minari
from fugu.data.dataset import DataSet
from fugu.data.format import ABOUT, fault

SUFFIXES = (".hdf5", ".h5")
KEPT = "data"
"""folder of the cache with copies"""
NOTE = "OF.json"
"""file of a copy that says what it is a copy of"""


def open(path: str | os.PathLike[str], *, salvage: bool = False) -> DataSet:
    """Open recorded episodes: a folder that ``fugu record`` wrote, a file or folder in Minari's layout, or ``minari:NAME``, the data
    set of that name that Minari has on this machine.

    What cannot be episodes is a ``DataError`` that names file, episode and field. The rows of the fast form are not read yet:
    ``DataSet.check`` looks at all of them. ``salvage``: of a folder that is damaged or cut off, open the whole episodes before that.
    """
    if isinstance(path, str) and path.startswith(minari.PREFIX):
        at = minari.folder_of(path.removeprefix(minari.PREFIX))
        if not (at / minari.MAIN).is_file():
            name = path.removeprefix(minari.PREFIX)
            raise fault(at, "does not exist", fix=f"Download it first: minari download {name}")
        return _copied(at / minari.MAIN)
    at = Path(path)
    if (at / ABOUT).is_file():
        return DataSet.at(at, salvage=salvage)
    for main in (at / minari.MAIN, at / "data" / minari.MAIN):
        if main.is_file():
            return _copied(main)
    if at.suffix in SUFFIXES and at.exists() and not at.is_dir():
        return _copied(at)
    if not at.exists():
        raise fault(at, "does not exist", fix="Record something first: fugu record ENV --random --episodes 100 --out FILE")
    raise fault(at, "holds no recorded episodes", fix=f"Give a folder with a {ABOUT}, or a file .hdf5 in Minari's layout")


def _copied(path: Path) -> DataSet:
    """Return the copy of a file in Minari's layout, made now unless there is one."""
    from fugu.data import hdf5_read

    files.refuse_odd(path)
    real, found = path.resolve(), path.stat()
    beside = path.parent / minari.METADATA
    note = {"path": str(real), "size": found.st_size, "changed": found.st_mtime_ns, "file": found.st_ino}
    if beside.is_file():
        note["metadata"] = beside.stat().st_mtime_ns
    root = cache_folder() / KEPT
    folder = root / hashlib.sha256(str(real).encode()).hexdigest()[:24]
    with contextlib.suppress(OSError, ValueError):
        if json.loads(files.read(folder / NOTE, files.SMALL)) == note:
            return DataSet.at(folder)
    draft = root / f".{folder.name}.{os.getpid()}"
    shutil.rmtree(draft, ignore_errors=True)
    root.mkdir(parents=True, exist_ok=True)
    try:
        hdf5_read.copy(path, draft)
        files.write(draft / NOTE, json.dumps(note))
        shutil.rmtree(folder, ignore_errors=True)
        os.replace(draft, folder)
    except OSError as error:
        if not (folder / NOTE).is_file():  # not made by another process meanwhile
            raise fault(path, f"cannot be copied to {folder}: {error.strerror}") from error
    finally:
        shutil.rmtree(draft, ignore_errors=True)
    return DataSet.at(folder)
