"""A file in Minari's layout -> a folder of the fast form.

In: an HDF5 file that anybody may have made. Out: its episodes in a new folder, copied a few at a time. Before a row
is copied all episodes are looked at: what is missing, of another shape or of an absurd size is a DataError with episode and field.
Links, parts in other files, filters that load code, and objects are refused.
"""

from __future__ import annotations

import io
import json
import re
import shutil
from collections.abc import Iterator, Mapping
from pathlib import Path
from typing import Any, NamedTuple

import numpy as np

from fugu import files
from fugu.data import minari
from fugu.data.format import MOST_EPISODES, DataError, fault, forms_of, row_bytes
from fugu.data.hdf5_write import Parts, h5py, pillow
from fugu.data.writer import Writer
from fugu.emulation.env import EnvSpec
from fugu.emulation.spec_json import spec_from_json
from fugu.errors import SpaceError, shown

FILTERS = {1: "deflate", 2: "shuffle", 3: "fletcher32", 32000: "lzf"}
"""compression that h5py brings along; others would load a library"""
INFLATED = 1100
"""most bytes that one compressed byte can stand for"""
TOGETHER = 1 << 24
"""bytes of episodes that are copied together"""
_EPISODE = re.compile(r"episode_(\d{1,9})")


class Claimed(NamedTuple):
    """Holds what a file says of itself, checked."""

    spec: EnvSpec
    recorded: dict[str, Any]
    sources: list[dict[str, Any]]
    action_mask: bool


def copy(path: Path, into: Path) -> None:
    """Copy the episodes of the HDF5 file ``path`` into the new folder ``into``."""
    library = h5py()
    files.refuse_odd(path)
    try:
        with library.File(path, "r") as file:
            Copy(path, file).run(into)
    except DataError:
        raise
    except (OSError, KeyError, RuntimeError, ValueError, TypeError) as error:
        why = str(error).partition("(")[2].rstrip(")") or str(error)
        raise fault(path, f"cannot be read as HDF5, or is cut off: {shown(why, most=200)}") from error


class Copy:
    """Copies one open file."""

    def __init__(self, path: Path, file: Any) -> None:
        self.path, self.file = path, file
        self.library = h5py()
        self.size = path.stat().st_size
        about = self._metadata()
        self.claimed = _claimed(path, about)
        self.episodes = self._episodes()
        self.lengths = [self._length(number) for number in self.episodes]
        spec = self.claimed.spec
        self.obs, self.action = Parts(spec.obs_layout, "observations"), Parts(spec.action_layout, "actions")
        self.reward = self._reward()
        self.forms = forms_of(spec, reward=self.reward, action_mask=self.claimed.action_mask)
        self.infos = {
            name: form for name, form in self.forms.items() if name in ("action_mask", "cost") or name in spec.columns
        }

    # --- what the file says of itself ---

    def _metadata(self) -> dict[str, Any]:
        beside = self.path.parent / minari.METADATA
        try:
            if "metadata" in self.file.attrs:
                text = self._text(self.file.attrs["metadata"])
            elif self.path.name == minari.MAIN and beside.is_file():
                text = files.read(beside, files.LARGEST).decode()
            else:  # Minari before 0.5
                found = {
                    name: self.file.attrs[name] for name in ("observation_space", "action_space") if name in self.file.attrs
                }
                text = json.dumps({name: self._text(value) for name, value in found.items()})
            about = json.loads(text)
        except (ValueError, RecursionError) as error:
            raise fault(self.path, f"is no JSON: {error}", field="metadata") from None
        if not isinstance(about, dict):
            raise fault(self.path, "is no JSON object", field="metadata")
        return about

    def _text(self, value: Any) -> str:
        if isinstance(value, bytes):
            value = value.decode()
        if not isinstance(value, str) or len(value) > files.LARGEST:
            raise fault(self.path, f"is no text but {type(value).__name__}", field="metadata")
        return value

    def _episodes(self) -> list[int]:
        """Return the numbers of the episodes, ascending."""
        names = [name for name in self.file if name.startswith("episode_")]
        if len(names) > MOST_EPISODES:
            raise fault(self.path, f"claims {len(names)} episodes")
        numbers = sorted(int(match[1]) for name in names if (match := _EPISODE.fullmatch(name)))
        if numbers != list(range(len(numbers))):
            gap = next(k for k, number in enumerate(numbers) if k != number)
            raise fault(self.path, "is missing, though there are later ones", episode=gap, field=f"episode_{gap}")
        return numbers

    def _length(self, number: int) -> int:
        group = self._node(self.file, f"episode_{number}", number, self.library.Group)
        rewards = self._data(group, "rewards", number)
        if rewards.ndim != 1 or rewards.dtype.kind not in "fiu":
            got = f"{rewards.dtype}{list(rewards.shape)}"
            raise fault(self.path, f"expected numbers [steps], got {got}", episode=number, field="rewards")
        if rewards.shape[0] < 1:
            raise fault(self.path, "is empty: an episode has at least one step", episode=number, field="rewards")
        return int(rewards.shape[0])

    def _reward(self) -> str:
        """Return the dtype that holds all rewards: float32 as environments give them if that loses nothing, else float64."""
        for number in self.episodes:
            rewards = self.file[f"episode_{number}/rewards"]
            if rewards.dtype == np.float32:
                continue
            exact = np.asarray(rewards[()], np.float64)
            with np.errstate(over="ignore"):
                if not np.array_equal(exact.astype(np.float32).astype(np.float64), exact, equal_nan=True):
                    return "float64"
        return "float32"

    # --- the rows ---

    def run(self, into: Path) -> None:
        """Copy everything. A DataError leaves nothing behind."""
        free, needed = shutil.disk_usage(_existing(into)).free, (sum(self.lengths) + len(self.lengths)) * row_bytes(self.forms)
        if needed > free:
            raise fault(
                self.path, f"holds {needed / 1e9:.1f} GB of rows, and {free / 1e9:.1f} GB of disk are free for them at {into}"
            )
        claimed = self.claimed
        recorded = {**claimed.recorded, "read_from": self.path.name}
        writer = Writer(into, claimed.spec, recorded=recorded, action_mask=claimed.action_mask, reward=self.reward)
        try:
            with writer:
                for source in claimed.sources:
                    writer.source(source)
                for part in self._parts():
                    self._copy(writer, part)
        except BaseException:
            shutil.rmtree(into, ignore_errors=True)
            raise

    def _parts(self) -> Iterator[list[int]]:
        most, rows = max(1, TOGETHER // max(1, row_bytes(self.forms))), 0
        part: list[int] = []
        for number, length in zip(self.episodes, self.lengths, strict=True):
            if part and rows + length + 1 > most:
                yield part
                part, rows = [], 0
            part.append(number)
            rows += length + 1
        if part:
            yield part

    def _copy(self, writer: Writer, numbers: list[int]) -> None:
        lengths = np.array([self.lengths[number] for number in numbers])
        ends = np.cumsum(lengths + 1)
        rows = {name: np.zeros((int(ends[-1]), *form.shape), form.dtype) for name, form in self.forms.items()}
        records: dict[str, list[int]] = {"seed": [], "number": [], "source": [], "agent": []}
        over: dict[str, list[bool]] = {"terminated": [], "truncated": []}
        for number, end, steps in zip(numbers, ends.tolist(), lengths.tolist(), strict=True):
            group = self._node(self.file, f"episode_{number}", number, self.library.Group)
            own = {name: column[end - steps - 1 : end] for name, column in rows.items()}
            self._fill(group, number, steps, own)
            for name, flags in over.items():
                flags.append(bool(own[name][steps - 1]))
            for name, values in records.items():
                values.append(self._attribute(group, number, name))
        writer.add_many(rows, lengths, **over, **records)

    def _fill(self, group: Any, number: int, steps: int, own: dict[str, np.ndarray]) -> None:
        """Read one episode into its rows."""
        self._leaves(group, number, self.obs, own["obs"])
        self._leaves(group, number, self.action, own["action"][:steps])
        for name, column in (("rewards", "reward"), ("terminations", "terminated"), ("truncations", "truncated")):
            values = self._shaped(group, name, number, (steps,), "fiu" if column == "reward" else "b")
            own[column][:steps] = values[()]
        own["mask"][:steps] = True
        infos = group.get("infos", getlink=True) if "infos" in group else None
        if infos is not None:
            found = self._node(group, "infos", number, self.library.Group)
            if "mask" in found and self.claimed.recorded:
                own["mask"][...] = self._shaped(found, "mask", number, (steps + 1,), "b")[()]
        for name, form in self.infos.items():
            if infos is None:
                raise fault(self.path, "is missing", episode=number, field=f"infos/{name}")
            kind = np.dtype(form.dtype).kind
            own[name][...] = self._shaped(found, name, number, (steps + 1, *form.shape), kind)[()]

    def _leaves(self, group: Any, number: int, parts: Parts, rows: np.ndarray) -> None:
        layout = parts.layout
        for index, (leaf, view, place) in enumerate(zip(layout.leaves, layout.leaf_views(rows), parts.places, strict=True)):
            if index in parts.texts:
                self._read_text(group, place, number, index, parts, view)
            elif len(leaf.shape) >= 2 and leaf.dtype == np.uint8 and self._data(group, place, number).ndim <= 2:
                # Minari compresses all of uint8 with two axes or more, and reads back only what is large
                self._read_pictures(group, place, number, view)
            else:
                kinds = {"f": "fiu", "i": "iu", "u": "iu", "b": "b"}[leaf.dtype.kind]
                if leaf.choice_range() is not None:
                    kinds += "b"
                values = self._shaped(group, place, number, view.shape, kinds)[()]
                if leaf.dtype.kind in "iu" and values.dtype.kind in "iu" and values.size:
                    info = np.iinfo(leaf.dtype)
                    if int(values.min()) < info.min or int(values.max()) > info.max:
                        raise fault(self.path, f"holds a number that does not fit {leaf.dtype}", episode=number, field=place)
                view[...] = values

    def _read_text(self, group: Any, place: str, number: int, index: int, parts: Parts, view: np.ndarray) -> None:
        data = self._data(group, place, number)
        if data.shape != (len(view),) or self.library.check_string_dtype(data.dtype) is None:
            raise fault(
                self.path, f"expected {len(view)} texts, got {data.dtype}{list(data.shape)}", episode=number, field=place
            )
        codes = {character: code for code, character in enumerate(parts.texts[index], start=1)}
        for k, word in enumerate(data.asstr()[()]):
            if len(word) > view.shape[1] or not set(word) <= codes.keys():
                raise fault(self.path, f"{word[:40]!r} at step {k} does not fit the space", episode=number, field=place)
            view[k, : len(word)] = [codes[character] for character in word]

    def _read_pictures(self, group: Any, place: str, number: int, view: np.ndarray) -> None:
        data = self._data(group, place, number)
        images, wanted = pillow(), view.shape[1:]
        if data.shape[0] != len(view):
            raise fault(self.path, f"expected {len(view)} pictures, got {data.shape[0]}", episode=number, field=place)
        for k in range(len(view)):
            try:
                with images.open(io.BytesIO(np.asarray(data[k], np.uint8).tobytes()), formats=("PNG", "JPEG")) as file:
                    if file.size != (wanted[1], wanted[0]):
                        raise ValueError(f"a picture of {file.size[0]} x {file.size[1]}")
                    found = np.asarray(file)
                view[k] = found.reshape(wanted)
            except (OSError, ValueError, SyntaxError) as error:
                raise fault(
                    self.path, f"is no picture {list(wanted)} at step {k}: {error}", episode=number, field=place
                ) from None

    # --- the parts of the file, each looked at before it is read ---

    def _node(self, group: Any, name: str, number: int, kind: Any) -> Any:
        """Return a part of the file by its path, if it and all above it lie there themselves."""
        at = group
        for step in name.split("/"):
            link = at.get(step, getlink=True) if isinstance(at, self.library.Group) and step in at else None
            if link is None:
                raise fault(self.path, "is missing", episode=number, field=name)
            if not isinstance(link, self.library.HardLink):
                raise fault(self.path, "is a link to somewhere else, which is not followed", episode=number, field=name)
            at = at[step]
        if not isinstance(at, kind):
            raise fault(self.path, f"is a {type(at).__name__}, not a {kind.__name__}", episode=number, field=name)
        return at

    def _data(self, group: Any, name: str, number: int) -> Any:
        """Return an array in the file, if it lies there, is not too large, and needs no code to be read."""
        data = self._node(group, name, number, self.library.Dataset)
        where: dict[str, Any] = {"episode": number, "field": name}
        if data.external or data.is_virtual:
            raise fault(self.path, "lies in another file, which is not read", **where)
        plist = data.id.get_create_plist()
        for k in range(plist.get_nfilters()):
            if (code := plist.get_filter(k)[0]) not in FILTERS:
                raise fault(self.path, f"is packed by filter {code}, which is none of {', '.join(FILTERS.values())}", **where)
        dtype = data.dtype
        plain = dtype.kind in "biuf" and dtype.itemsize <= 8
        text = self.library.check_string_dtype(dtype) is not None
        if not (plain or text or self.library.check_vlen_dtype(dtype) == np.dtype(np.uint8)):
            raise fault(self.path, f"holds {dtype}; expected numbers, texts or pictures", **where)
        stored = data.id.get_storage_size()
        if data.size * dtype.itemsize > min(stored, self.size) * INFLATED or (data.size and not stored):
            raise fault(
                self.path,
                f"claims {data.size * dtype.itemsize:.3g} bytes, and {stored} are there: it is cut off or made up",
                **where,
            )
        return data

    def _shaped(self, group: Any, name: str, number: int, shape: tuple[int, ...], kinds: str) -> Any:
        data = self._data(group, name, number)
        if data.shape != shape or data.dtype.kind not in kinds:
            expected = "flags" if kinds == "b" else "numbers"
            raise fault(
                self.path, f"expected {expected} {list(shape)}, got {data.dtype}{list(data.shape)}", episode=number, field=name
            )
        return data

    def _attribute(self, group: Any, number: int, name: str) -> int:
        key, other = ("seed", -1) if name == "seed" else (f"{minari.OURS}_{name}", number if name == "number" else 0)
        if key not in group.attrs or (name == "number" and not self.claimed.recorded):
            return other if name != "number" else 0
        value = group.attrs[key]
        if name == "seed" and not isinstance(value, int | np.integer):
            return other  # Minari writes "None" where there was none
        if not isinstance(value, int | np.integer) or not -1 <= int(value) < 1 << 62:
            raise fault(self.path, f"is {value!r:.40}, no number", episode=number, field=key)
        limit = {"source": len(self.claimed.sources), "agent": self.claimed.spec.num_agents}.get(name, 1 << 62)
        if int(value) >= limit:
            raise fault(self.path, f"is {int(value)}, expected less than {limit}", episode=number, field=key)
        return int(value)


def _claimed(path: Path, about: Mapping[str, Any]) -> Claimed:
    """Return what the metadata says of spaces and sources."""
    try:
        ours = about.get(minari.OURS)
        if isinstance(ours, dict):
            spec = spec_from_json(ours.get("env"))
            recorded, sources = ours.get("recorded"), ours.get("sources")
            fine = isinstance(sources, list) and all(isinstance(each, dict) for each in sources)
            if not isinstance(recorded, dict) or not fine or not isinstance(ours.get("action_mask"), bool):
                raise fault(path, "does not say what was recorded", field=f"metadata {minari.OURS}")
            _refuse_unfit(spec)
            return Claimed(spec, dict(recorded), sources or [{"policy": "unknown"}], ours["action_mask"])
        spaces = []
        for name in ("observation_space", "action_space"):
            if name not in about:
                raise fault(
                    path,
                    "is missing: nothing says what the numbers mean",
                    field=name,
                    fix="Minari 0.5 and later write it: load and save the data set with it",
                )
            value = about[name]
            spaces.append(minari.read_space(json.loads(value) if isinstance(value, str) else value))
        env = str(about.get("dataset_id", path.stem))[:200]
        spec = EnvSpec(spaces[0], spaces[1], 1, name=env)
        _refuse_unfit(spec)
        source = {"policy": str(about.get("algorithm_name") or "unknown")[:200], "dataset": env}
        return Claimed(spec, {}, [source], False)
    except SpaceError as error:
        raise fault(path, error.complaint, field="spaces") from None
    except (ValueError, RecursionError) as error:
        if isinstance(error, DataError):
            raise
        raise fault(path, f"is no JSON: {error}", field="metadata") from None


def _refuse_unfit(spec: EnvSpec) -> None:
    for layout, what in ((spec.obs_layout, "observations"), (spec.action_layout, "actions")):
        minari.refuse_unfit(layout, what)


def _existing(path: Path) -> Path:
    return next(folder for folder in (path, *path.absolute().parents) if folder.exists())
