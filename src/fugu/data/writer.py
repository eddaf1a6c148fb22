"""``Writer``: appends complete episodes to a folder of the fast form, so that whatever happens those that are complete stay.

In: rows of whole episodes, by column. On the disk: first their rows, then the records that count them. A write that fails, because the
disk is full, is taken back to the last complete episode. A writer that is killed leaves rows without records behind, which no reader
looks at and the next writer overwrites.
"""

from __future__ import annotations

import contextlib
import errno
import os
from collections.abc import Mapping, Sequence
from pathlib import Path
from types import TracebackType
from typing import Any

import numpy as np

from fugu import files
from fugu.data import format
from fugu.data.format import RECORD, DataError, fault
from fugu.emulation.env import EnvSpec


class Writer:
    """Writes into ``path``, a new folder, or one with episodes of the same spaces if ``append``.

    ``recorded`` says, as JSON, what is recorded: environment, settings, command. ``action_mask``: whether there is such a column, if
    it forbids anything: one that never did is dropped at the end.
    ``reward``: dtype of rewards, float32 as the rows of environments have them, or float64.
    """

    def __init__(
        self,
        path: str | os.PathLike[str],
        spec: EnvSpec,
        *,
        recorded: Mapping[str, Any] | None = None,
        action_mask: bool = False,
        reward: str = "float32",
        append: bool = False,
    ) -> None:
        self.path = Path(path)
        self.spec = spec
        self.forms = format.forms_of(spec, reward=reward, action_mask=action_mask)
        self.episodes = self.rows = 0
        self._files: dict[str, int] = {}
        self._closed = self._forbids = False
        fresh = not (append and (self.path / format.ABOUT).is_file())
        if fresh:
            self._about = format.new_about(spec, self.forms, recorded or {})
            self._make_folder()
        else:
            self._continue()
        try:
            for name in (*self.forms, "episodes"):
                flags = os.O_RDWR | os.O_CREAT | (os.O_EXCL if fresh else 0)
                self._files[name] = files.opened(self.path / format.column_file(name), flags)
            self._about["closed"] = None
            format.write_about(self.path, self._about)  # from now on it can be opened
        except BaseException as error:
            for descriptor in self._files.values():
                os.close(descriptor)
            if isinstance(error, OSError):
                raise self._unwritable(error) from error
            raise
        self._take_back()

    def _make_folder(self) -> None:
        try:
            self.path.mkdir(parents=True)
        except FileExistsError:
            if not self.path.is_dir() or self.path.is_symlink() or any(self.path.iterdir()):
                raise fault(self.path, "exists already", fix="Give another --out, or --append to add to it") from None

    def _continue(self) -> None:
        from fugu.data.dataset import DataSet

        found = DataSet.at(self.path)
        other = found.spec.difference(self.spec)
        if other is None and found.spec.num_agents != self.spec.num_agents:
            other = "num_agents"
        rest = {name: form for name, form in self.forms.items() if name != "action_mask" or name in found.forms}
        if other is None and dict(found.forms) != rest:
            other = "columns"
        if other is not None:
            raise fault(self.path, "is not that of what is recorded now", field=other, fix="Give another --out")
        self._about, self.forms = dict(found.about), rest
        self.episodes, self.rows = found.episodes, found.rows
        self._forbids = "action_mask" in rest and self.episodes > 0

    # --- writing ---

    def source(self, played: Mapping[str, Any]) -> int:
        """Return the number of what plays from now on, in the table ``sources``; one that is in it already keeps its number."""
        table = self._about["sources"]
        if dict(played) not in table:
            self._about["sources"] = [*table, dict(played)]
            format.write_about(self.path, self._about)
        return self._about["sources"].index(dict(played))

    def add(self, columns: Mapping[str, np.ndarray], **record: Any) -> None:
        """Append one episode: its columns ``[length + 1, ...]``; ``record`` as in ``add_many``, a number each."""
        rows = len(columns["reward"])
        self.add_many(columns, [rows - 1], **{name: [value] for name, value in record.items()})

    def add_many(
        self,
        columns: Mapping[str, np.ndarray],
        lengths: Sequence[int] | np.ndarray,
        *,
        terminated: Any,
        truncated: Any,
        source: Any,
        seed: Any = -1,
        number: Any = 0,
        agent: Any = 0,
    ) -> None:
        """Append complete episodes: columns with the rows of all of them, one after the other; the rest is a number for each, or one
        for all. The last row of each must have ``mask`` False and no action, reward or ending."""
        if self._closed:
            raise fault(self.path, "this writer is closed")
        records = np.zeros(len(lengths), RECORD)
        given = {"length": lengths, "seed": seed, "number": number, "source": source, "agent": agent}
        for name, values in {**given, "terminated": terminated, "truncated": truncated}.items():
            records[name] = values
        if not len(records):
            return
        rows = records["length"] + 1
        firsts = np.cumsum(rows) - rows
        data = self._bytes_of(columns, int(rows.sum()))
        records["total"] = np.add.reduceat(np.asarray(columns["reward"], np.float64), firsts)
        format.seal(records, self.episodes)
        try:
            for name, part in data.items():
                _write_all(self._files[name], part, self.rows * format.itemsize(self.forms[name]))
            _write_all(self._files["episodes"], records, self.episodes * RECORD.itemsize)
        except OSError as error:
            self._take_back()
            raise self._unwritable(error) from error
        except BaseException:
            self._take_back()
            raise
        self.rows += int(rows.sum())
        self.episodes += len(records)

    def _bytes_of(self, columns: Mapping[str, np.ndarray], rows: int) -> dict[str, np.ndarray]:
        if "action_mask" in columns and not columns["action_mask"].all():
            if "action_mask" not in self.forms:
                raise fault(self.path, "has none, and actions are forbidden now", field="action_mask", fix="Give another --out")
            self._forbids = True
        if columns.keys() - {"action_mask"} != self.forms.keys() - {"action_mask"} or not self.forms.keys() <= columns.keys():
            raise fault(self.path, f"expected the columns {sorted(self.forms)}, got {sorted(columns)}")
        data = {}
        for name, form in self.forms.items():
            column = columns[name]
            if column.shape != (rows, *form.shape) or column.dtype != form.dtype:
                expected, got = f"{form.dtype}{[rows, *form.shape]}", f"{column.dtype}{list(column.shape)}"
                raise fault(self.path, f"expected {expected}, got {got}", field=name)
            data[name] = np.ascontiguousarray(column)
        return data

    def _take_back(self) -> None:
        """Cut all files after the last complete episode."""
        sizes = {name: self.rows * format.itemsize(form) for name, form in self.forms.items()}
        for name, size in {**sizes, "episodes": self.episodes * RECORD.itemsize}.items():
            with contextlib.suppress(OSError):  # what is left over is not looked at
                os.ftruncate(self._files[name], size)

    def _unwritable(self, error: OSError) -> DataError:
        full = error.errno in (errno.ENOSPC, errno.EDQUOT, errno.EFBIG)
        return fault(
            self.path,
            f"cannot be written: {error.strerror}; the {self.episodes} complete episodes in it stay",
            fix="Make room and go on with --append" if full else "",
        )

    # --- the end ---

    def sync(self) -> None:
        """Put everything on the disk, rows before the records that count them."""
        for descriptor in self._files.values():
            os.fsync(descriptor)

    def close(self, *, whole: bool = True) -> None:
        """Close the files. ``whole``: note how many episodes there are, so that a file that is cut off later is noticed."""
        if self._closed:
            return
        self._closed = True
        try:
            if whole:
                self.sync()
                self._about["closed"] = self.episodes
                drop = "action_mask" in self.forms and not self._forbids
                self._about["action_mask"] &= not drop
                format.write_about(self.path, self._about)
                if drop:
                    (self.path / format.column_file("action_mask")).unlink(missing_ok=True)
        except OSError as error:
            raise self._unwritable(error) from error
        finally:
            for descriptor in self._files.values():
                os.close(descriptor)

    def __enter__(self) -> Writer:
        return self

    def __exit__(self, kind: type[BaseException] | None, error: BaseException | None, trace: TracebackType | None) -> None:
        self.close(whole=kind is None)


def _write_all(descriptor: int, data: np.ndarray, offset: int) -> None:
    view = memoryview(data.reshape(-1).view(np.uint8).data) if data.nbytes else memoryview(b"")
    while view:
        written = os.pwrite(descriptor, view, offset)
        view, offset = view[written:], offset + written
