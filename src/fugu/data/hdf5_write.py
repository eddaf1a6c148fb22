"""Episodes -> a file in Minari's layout, that Minari, d3rlpy and fugu open.

In: a ``DataSet``. Out: one HDF5 file, written under another name and renamed when it is whole. Its metadata stands in the file; beside
one called ``main_data.hdf5`` there is the ``metadata.json`` that Minari wants.
"""

from __future__ import annotations

import io
import json
import os
from collections.abc import Sequence
from pathlib import Path
from typing import Any

import gymnasium as gym
import numpy as np

from fugu import __version__, files
from fugu.data import minari
from fugu.data.dataset import DataSet
from fugu.data.format import fault
from fugu.emulation.spec_json import spec_to_json
from fugu.errors import MissingExtra
from fugu.spaces import Layout

STANDARD = ("obs", "action", "reward", "terminated", "truncated", "mask")
"""columns that are no infos"""


def h5py() -> Any:
    """Return the package, or say how to get it."""
    try:
        import h5py as found
    except ImportError:
        raise MissingExtra("Minari's HDF5 layout", "data") from None
    return found


def pillow() -> Any:
    try:
        from PIL import Image
    except ImportError:
        raise MissingExtra("compressing pictures as Minari does", "data") from None
    return Image


def write(data: DataSet, path: Path, name: str = "") -> None:
    """Write all episodes of ``data`` to ``path``. ``name``: what Minari calls the data set; made of the environment's if not given."""
    for layout, what in ((data.obs_layout, "observations"), (data.action_layout, "actions")):
        minari.refuse_unfit(layout, what)
    if path.exists():
        raise fault(path, "exists already", fix="Give another --out")
    library = h5py()
    draft = path.with_name(f".{path.name}.tmp")
    about = metadata(data, name)
    try:
        path.parent.mkdir(parents=True, exist_ok=True)
        draft.unlink(missing_ok=True)
        with library.File(draft, "x", libver="latest", track_order=True) as file:
            file.attrs["metadata"] = json.dumps(about)
            plan = Plan(data)
            for number in range(data.episodes):
                plan.write(file.create_group(f"episode_{number}"), number)
        _sync(draft)
        if path.name == minari.MAIN:
            files.write(path.parent / minari.METADATA, json.dumps(about, indent=1) + "\n")
        os.replace(draft, path)
    except OSError as error:
        draft.unlink(missing_ok=True)
        why = error.strerror or str(error).partition("(")[0].strip() or "the disk is full"
        raise fault(path, f"cannot be written: {why}") from error
    except BaseException:
        draft.unlink(missing_ok=True)
        raise


def metadata(data: DataSet, name: str) -> dict[str, Any]:
    """Return what Minari wants to know, and under ``fugu`` what makes the file read back the same."""
    recorded = data.about.get("recorded", {})
    env = recorded.get("env", "")
    about = {
        "total_episodes": data.episodes,
        "total_steps": data.steps,
        "data_format": "hdf5",
        "observation_space": json.dumps(minari.written(data.spec.observation_space)),
        "action_space": json.dumps(minari.written(data.spec.action_space)),
        "dataset_id": name or _dataset_id(data.spec.name),
        "minari_version": minari.LAYOUT,
        "author": [],
        "author_email": [],
        "algorithm_name": ", ".join(dict.fromkeys(str(source.get("policy", "")) for source in data.sources))[:500],
        minari.OURS: {
            "version": __version__,
            "env": spec_to_json(data.spec),
            "recorded": dict(recorded),
            "sources": list(data.sources),
            "action_mask": "action_mask" in data.forms,
            "reward": data.forms["reward"].dtype,
        },
    }
    if env in gym.registry:
        spec = gym.spec(env)
        spec.kwargs = {**spec.kwargs, **recorded.get("env_kwargs", {})}
        about["env_spec"] = spec.to_json()
    return about


def _dataset_id(env: str) -> str:
    plain = "".join(c if c.isalnum() or c in "-_" else "-" for c in env) or "recorded"
    return f"{plain}/fugu-v0"


class Plan:
    """Says what of an episode goes where in its group."""

    def __init__(self, data: DataSet) -> None:
        self.data = data
        self.infos = [name for name in data.forms if name not in STANDARD]
        self.columns = {name: data.column(name) for name in data.forms}
        self.obs, self.action = Parts(data.obs_layout, "observations"), Parts(data.action_layout, "actions")

    def write(self, group: Any, number: int) -> None:
        """Write one episode."""
        data, start, steps = self.data, int(self.data.starts[number]), int(self.data.lengths[number])
        acted, seen = slice(start, start + steps), slice(start, start + steps + 1)
        self.obs.write(group, self.columns["obs"][seen])
        self.action.write(group, self.columns["action"][acted])
        for name, column in (("rewards", "reward"), ("terminations", "terminated"), ("truncations", "truncated")):
            group.create_dataset(name, data=np.asarray(self.columns[column][acted]))
        mask = np.asarray(self.columns["mask"][seen])
        infos = {name: np.asarray(self.columns[name][seen]) for name in self.infos}
        if not mask[:-1].all():
            infos["mask"] = mask
        for name, values in infos.items():
            group.create_dataset(f"infos/{name}", data=values)
        group.attrs["id"] = number
        group.attrs["total_steps"] = steps
        if data.seeds[number] >= 0:
            group.attrs["seed"] = int(data.seeds[number])
        for name, value in (("number", data.numbers), ("source", data.source), ("agent", data.agents)):
            group.attrs[f"{minari.OURS}_{name}"] = int(value[number])


class Parts:
    """The leaves of a space, and how each is written."""

    def __init__(self, layout: Layout, root: str) -> None:
        self.layout = layout
        self.places = [f"{root}/{minari.place_of(leaf, layout.space)}".rstrip("/") for leaf in layout.leaves]
        self.texts = _texts(layout)

    def write(self, group: Any, rows: np.ndarray) -> None:
        views = self.layout.leaf_views(np.ascontiguousarray(rows))
        for index, (leaf, view, place) in enumerate(zip(self.layout.leaves, views, self.places, strict=True)):
            if index in self.texts:
                characters = self.texts[index]
                words = ["".join(characters[code - 1] for code in row if code) for row in view.tolist()]
                group.create_dataset(place, data=words, dtype=h5py().string_dtype("utf-8"))
            elif minari.is_picture(leaf.space):
                group.create_dataset(place, (len(view),), h5py().vlen_dtype(np.uint8))
                for k, picture in enumerate(view):
                    group[place][k] = png(picture)
            else:
                group.create_dataset(place, data=view)


def png(picture: np.ndarray) -> np.ndarray:
    """Return a picture, ``[height, width]`` or with 1, 3 or 4 channels, as the bytes of a file."""
    buffer = io.BytesIO()
    flat = picture[..., 0] if picture.ndim == 3 and picture.shape[2] == 1 else picture
    pillow().fromarray(np.ascontiguousarray(flat)).save(buffer, format="PNG")
    return np.frombuffer(buffer.getvalue(), np.uint8)


def _texts(layout: Layout) -> dict[int, Sequence[str]]:
    """Return the characters of the leaves that are texts, by their index."""
    found: dict[int, Sequence[str]] = {}
    todo = [layout.root]
    while todo:
        node = todo.pop()
        todo += node.children
        if node.codes is not None:
            found[node.leaf] = node.characters
    return found


def _sync(path: Path) -> None:
    descriptor = os.open(path, os.O_RDONLY)
    try:
        os.fsync(descriptor)
    finally:
        os.close(descriptor)
