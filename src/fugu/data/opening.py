"""``open``: a path becomes a ``DataSet``."""

from __future__ import annotations

import os
from pathlib import Path

from fugu.data.dataset import DataSet
from fugu.data.format import ABOUT, fault


def open(path: str | os.PathLike[str]) -> DataSet:
    """Open recorded episodes: a folder that ``fugu record`` wrote.

    What cannot be episodes is a ``DataError`` that names file, episode and field. The rows themselves are not read yet:
    ``DataSet.check`` looks at all of them.
    """
    at = Path(path)
    if (at / ABOUT).is_file():
        return DataSet.at(at)
    if not at.exists():
        raise fault(at, "does not exist", fix="Record something first: fugu record ENV --random --episodes 100 --out FILE")
    raise fault(at, "holds no recorded episodes", fix=f"Give a folder with a {ABOUT}")
