"""Minari's layout: written, read back the same, as Minari itself writes it, and files that are none of that."""

from __future__ import annotations

import json
import os
from collections.abc import Callable
from pathlib import Path
from typing import Any

import h5py
import numpy as np
import pytest
from gymnasium import spaces as gs

import fugu
from fugu.data import DataError, DataSet, Writer, hdf5_read, hdf5_write, minari
from fugu.emulation.env import EnvSpec
from fugu.errors import SpaceError
from fugu.spaces import Layout
from tests.data.cases import SPACES, episode, spec_of

MORE = {
    "pictures": (gs.Box(0, 255, (40, 36, 3), np.uint8), gs.Discrete(2)),
    "grey": (
        gs.Dict(a=gs.Box(0, 255, (33, 36), np.uint8), b=gs.Box(-np.inf, np.inf, (2,), np.float32)),
        gs.Box(-1, 1, (2,), np.float32),
    ),
    "channel": (gs.Box(0, 255, (33, 36, 1), np.uint8), gs.Discrete(2)),
}


@pytest.fixture(autouse=True)
def cache(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Path:
    monkeypatch.setenv("XDG_CACHE_HOME", str(tmp_path / "cache"))
    return tmp_path / "cache" / "fugu" / "data"


@pytest.fixture(autouse=True)
def more(monkeypatch: pytest.MonkeyPatch) -> None:
    for name, pair in MORE.items():
        monkeypatch.setitem(SPACES, name, pair)


def recorded(path: Path, name: str = "plain", steps: tuple[int, ...] = (3, 5, 2), **more: Any) -> DataSet:
    spec = spec_of(name, **more)
    masks = bool(spec.costs)
    with Writer(path, spec, recorded={"env": name}, action_mask=masks, reward="float64" if masks else "float32") as writer:
        for number, count in enumerate(steps):
            rows = episode(spec, count, number, action_mask=masks, reward="float64" if masks else "float32")
            if masks:
                rows["action_mask"][0] = np.arange(4) == rows["action"][0]
            source = writer.source({"policy": "a" if number else "b", "noise": 0.5})
            writer.add(rows, terminated=True, truncated=False, source=source, seed=number - 1, number=number)
    return fugu.data.open(path)


def same(a: DataSet, b: DataSet) -> None:
    assert a.forms == b.forms and a.spec == b.spec and list(a.sources) == list(b.sources)
    for name in a.forms:
        assert a.column(name).tobytes() == b.column(name).tobytes(), name
    for name in ("starts", "lengths", "returns", "terminated", "truncated", "seeds", "numbers", "source", "agents"):
        assert (getattr(a, name) == getattr(b, name)).all(), name


@pytest.mark.parametrize("name", [*SPACES, *MORE])
def test_what_is_written_is_read_back_byte_for_byte(tmp_path: Path, name: str) -> None:
    data = recorded(tmp_path / "d", name)
    hdf5_write.write(data, tmp_path / "x.hdf5")
    same(data, fugu.data.open(tmp_path / "x.hdf5"))


def test_masks_costs_own_columns_and_wide_rewards_are_kept(tmp_path: Path) -> None:
    data = recorded(tmp_path / "d", costs=("heat",), columns={"risk": ((2,), "float32")})
    hdf5_write.write(data, tmp_path / "x.hdf5")
    again = fugu.data.open(tmp_path / "x.hdf5")
    same(data, again)
    assert again.forms["reward"].dtype == "float64" and "action_mask" in again.forms


def test_agents_of_a_team_and_rows_on_which_they_wait_are_kept(tmp_path: Path) -> None:
    data = fugu.record("connect4", tmp_path / "d", random=True, episodes=6)
    assert set(data.agents) == {0, 1} and not data.column("mask").all()
    hdf5_write.write(data, tmp_path / "x.hdf5")
    same(data, fugu.data.open(tmp_path / "x.hdf5"))


def test_a_selection_is_written_in_its_order(tmp_path: Path) -> None:
    data = recorded(tmp_path / "d")
    hdf5_write.write(data.select([2, 0]), tmp_path / "x.hdf5")
    assert fugu.data.open(tmp_path / "x.hdf5").lengths.tolist() == [2, 3]


def test_it_is_copied_once_and_again_when_it_changes(tmp_path: Path, cache: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    file = tmp_path / "x.hdf5"
    hdf5_write.write(recorded(tmp_path / "d"), file)
    first = fugu.data.open(file)
    monkeypatch.setattr(hdf5_read, "copy", lambda *_: pytest.fail("copied again"))
    assert fugu.data.open(file).path == first.path
    monkeypatch.undo()
    monkeypatch.setenv("XDG_CACHE_HOME", str(tmp_path / "cache"))
    file.unlink()
    hdf5_write.write(recorded(tmp_path / "other", steps=(4,)), file)
    assert fugu.data.open(file).lengths.tolist() == [4]
    assert len(list(cache.iterdir())) == 1, "the copy of what is no more is gone"


def test_it_is_as_minari_0_5_wants_it(tmp_path: Path) -> None:
    data = recorded(tmp_path / "d", "dict")
    hdf5_write.write(data, tmp_path / "m" / "main_data.hdf5", "mine/random-v3")
    about = json.loads((tmp_path / "m" / "metadata.json").read_text())
    assert about["dataset_id"] == "mine/random-v3" and about["data_format"] == "hdf5" and about["minari_version"] == "0.5.0"
    assert (about["total_episodes"], about["total_steps"]) == (3, 10)
    assert json.loads(about["action_space"])["subspaces"]["mode"] == {"type": "Discrete", "dtype": "int64", "start": 0, "n": 3}
    with h5py.File(tmp_path / "m" / "main_data.hdf5") as file:
        group = file["episode_1"]
        assert group["observations/where/_index_0"].shape == (6,) and group["actions/push"].shape == (5, 2)
        assert group["rewards"].shape == (5,) and group["terminations"][-1] and not group["truncations"][-1]
        assert dict(group.attrs)["id"] == 1 and dict(group.attrs)["total_steps"] == 5 and dict(group.attrs)["seed"] == 0
    assert fugu.data.open(tmp_path / "m").episodes == 3


def theirs(folder: Path, change: Callable[[Any], None] = lambda file: None, *, steps: int = 4, episodes: int = 3) -> Path:
    """Write a file as Minari does: chunked, float64, without anything of fugu's."""
    folder.mkdir(parents=True)
    about = {
        "total_episodes": episodes,
        "total_steps": steps * episodes,
        "data_format": "hdf5",
        "observation_space": json.dumps(
            {"type": "Box", "dtype": "float64", "shape": [2], "low": [-1.0, -np.inf], "high": [1.0, np.inf]}
        ),
        "action_space": json.dumps({"type": "Discrete", "dtype": "int64", "start": 0, "n": 3}),
        "dataset_id": "theirs/x-v0",
        "algorithm_name": "expert",
        "minari_version": "0.5.3",
    }
    (folder / "metadata.json").write_text(json.dumps(about))
    with h5py.File(folder / "main_data.hdf5", "w", track_order=True) as file:
        for number in range(episodes):
            group = file.create_group(f"episode_{number}")
            group.attrs.update({"id": number, "total_steps": steps, "seed": "None" if number else 7})
            for name, values in {
                "observations": np.arange(2.0 * (steps + 1)).reshape(-1, 2) / 100,
                "actions": np.arange(steps) % 3,
                "rewards": np.linspace(0, 1, steps),
                "terminations": np.arange(steps) == steps - 1,
                "truncations": np.zeros(steps, bool),
            }.items():
                group.create_dataset(name, data=values, chunks=True, maxshape=(None, *values.shape[1:]), compression="gzip")
        change(file)
    return folder


def test_what_minari_wrote_is_read(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    theirs(tmp_path / "root" / "theirs" / "x-v0" / "data")
    monkeypatch.setenv("MINARI_DATASETS_PATH", str(tmp_path / "root"))
    for path in (
        "minari:theirs/x-v0",
        tmp_path / "root" / "theirs" / "x-v0",
        tmp_path / "root/theirs/x-v0/data/main_data.hdf5",
    ):
        data = fugu.data.open(path)
        assert data.check() == [] and data.lengths.tolist() == [4, 4, 4] and data.seeds.tolist() == [7, -1, -1]
        assert data.forms["reward"].dtype == "float64" and data.returns.tolist() == [2.0] * 3
        assert data.spec.observation_space == gs.Box(np.array([-1, -np.inf]), np.array([1, np.inf]), dtype=np.float64)
        assert data.sources == [{"policy": "expert", "dataset": "theirs/x-v0"}]
        assert data.episode(1)["obs"][4].tolist() == [0.08, 0.09] and data.episode(1)["action"].tolist() == [0, 1, 2, 0, 0]
    with pytest.raises(DataError, match="does not exist; Download it first|Download it first: minari download theirs/y-v0"):
        fugu.data.open("minari:theirs/y-v0")
    with pytest.raises(fugu.errors.ConfigError, match="is no name of a data set"):
        fugu.data.open("minari:../../etc/x-v0")


# damage and bad intentions ------------------------------------------------------------------------------------------------------------


def replaced(name: str, values: Any, **settings: Any) -> Callable[[Any], None]:
    def change(file: Any) -> None:
        del file["episode_1"][name]
        file["episode_1"].create_dataset(name, data=values, **settings)

    return change


def linked(kind: Callable[[], Any]) -> Callable[[Any], None]:
    def change(file: Any) -> None:
        del file["episode_1/actions"]
        file["episode_1"]["actions"] = kind()

    return change


def without(name: str) -> Callable[[Any], None]:
    def change(file: Any) -> None:
        del file[name]

    return change


def objects(file: Any) -> None:
    del file["episode_1/rewards"]
    data = file["episode_1"].create_dataset("rewards", (4,), h5py.ref_dtype)
    data[0] = file["episode_0"].ref


def elsewhere(file: Any) -> None:
    del file["episode_1/rewards"]
    file["episode_1"].create_dataset("rewards", (4,), np.float64, external=[("/etc/passwd", 0, 32)])


def virtual(file: Any) -> None:
    del file["episode_1/rewards"]
    layout = h5py.VirtualLayout((4,), np.float64)
    layout[:] = h5py.VirtualSource("/etc/passwd", "x", (4,))
    file["episode_1"].create_virtual_dataset("rewards", layout)


@pytest.mark.parametrize(
    ("change", "says"),
    [
        (without("episode_1"), "episode 1, episode_1: is missing, though there are later ones"),
        (without("episode_1/rewards"), "episode 1, rewards: is missing"),
        (without("episode_1/observations"), "episode 1, observations: is missing"),
        (without("episode_1/terminations"), "episode 1, terminations: is missing"),
        (
            replaced("observations", np.zeros((4, 2))),
            r"episode 1, observations: expected numbers \[5, 2\], got float64\[4, 2\]",
        ),
        (replaced("actions", np.zeros((4, 2))), "episode 1, actions: expected"),
        (replaced("actions", np.zeros(4)), r"episode 1, actions: expected numbers \[4\], got float64"),
        (replaced("terminations", np.zeros(4)), "episode 1, terminations: expected flags"),
        (replaced("rewards", np.zeros(0)), "episode 1, rewards: is empty"),
        (replaced("rewards", [b"a", b"b"]), "episode 1, rewards: "),
        (
            replaced("rewards", None, shape=(1 << 50,), dtype="f8", chunks=(1 << 20,)),
            "episode 1, rewards: claims 9.01e[+]15 bytes",
        ),
        (linked(lambda: h5py.SoftLink("/episode_0/actions")), "episode 1, actions: is a link"),
        (linked(lambda: h5py.ExternalLink("/etc/passwd", "x")), "episode 1, actions: is a link"),
        (objects, "episode 1, rewards: holds object"),
        (elsewhere, "episode 1, rewards: lies in another file"),
        (virtual, "episode 1, rewards: lies in another file"),
    ],
)
def test_what_is_wrong_is_named_with_episode_and_field_and_leaves_nothing(
    tmp_path: Path, cache: Path, change: Callable[[Any], None], says: str
) -> None:
    path = theirs(tmp_path / "t", change)
    with pytest.raises(DataError, match=says):
        fugu.data.open(path)
    assert not any(cache.iterdir())


def test_rows_that_no_training_should_see_are_named(tmp_path: Path) -> None:
    obs = np.zeros((5, 2))
    obs[2, 1] = np.nan
    for change, says in (
        (replaced("observations", obs), "episode 1, obs: NaN or infinity, at step 2"),
        (replaced("actions", np.array([0, 1, 7, 0])), "episode 1, action: outside Discrete(3), at step 2, 7"),
        (replaced("terminations", np.zeros(4, bool)), "episode 1, terminated: the last step neither ends nor cuts off"),
    ):
        problems = fugu.data.open(theirs(tmp_path / says[-9:], change)).check()
        assert says in str(problems[0])


def test_files_that_are_cut_off_or_no_hdf5_are_named(tmp_path: Path) -> None:
    file = theirs(tmp_path / "t") / "main_data.hdf5"
    whole = file.read_bytes()
    for size in (0, 100, len(whole) // 2, len(whole) - 100):
        file.write_bytes(whole[:size])
        with pytest.raises(DataError, match=r"main_data\.hdf5.*(cut off|cannot be read)"):
            fugu.data.open(file)
    os.unlink(file)
    os.mkfifo(tmp_path / "pipe.hdf5")
    with pytest.raises(fugu.errors.ConfigError, match="is a pipe"):
        fugu.data.open(tmp_path / "pipe.hdf5")


def test_spaces_that_nobody_says_are_asked_for(tmp_path: Path) -> None:
    path = theirs(tmp_path / "t")
    (path / "metadata.json").write_text("{}")
    with pytest.raises(DataError, match="observation_space: is missing: nothing says what the numbers mean"):
        fugu.data.open(path)
    (path / "metadata.json").write_text('{"observation_space": "{\\"type\\": \\"Box\\", \\"shape\\": [99999999999]}"}')
    with pytest.raises(DataError, match=r"spaces|action_space"):
        fugu.data.open(path)


def test_what_the_layout_has_no_place_for_is_refused_by_name(tmp_path: Path) -> None:
    several = gs.OneOf([gs.Discrete(2), gs.Box(0, 1, (1,), np.float32)])
    with pytest.raises(SpaceError, match="observations: Minari's layout has no place for OneOf"):
        minari.refuse_unfit(Layout(several), "observations")
    with pytest.raises(SpaceError, match="which have 1, 3 or 4 channels, not 9"):
        minari.refuse_unfit(EnvSpec(gs.Box(0, 255, (64, 64, 9), np.uint8), gs.Discrete(2), 1).obs_layout, "observations")


def test_a_full_disk_leaves_no_half_file(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    def full(path: Path) -> None:
        raise OSError(28, "No space left on device")

    monkeypatch.setattr(hdf5_write, "_sync", full)
    with pytest.raises(DataError, match="cannot be written: No space left on device"):
        hdf5_write.write(recorded(tmp_path / "d"), tmp_path / "out" / "x.hdf5")
    assert not any((tmp_path / "out").iterdir())


@pytest.mark.extras
def test_minari_reads_ours_and_we_read_what_it_writes(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    package = pytest.importorskip("minari")
    from minari.data_collector import EpisodeBuffer

    monkeypatch.setenv("MINARI_DATASETS_PATH", str(tmp_path / "root"))
    for name in [name for name in SPACES if name != "channel"]:
        data = recorded(tmp_path / name, name)
        hdf5_write.write(data, tmp_path / "root" / "ours" / f"{name}-v0" / "data" / "main_data.hdf5", f"ours/{name}-v0")
        found = package.load_dataset(f"ours/{name}-v0")
        assert found.total_steps == data.steps and found.observation_space == data.spec.observation_space
        fields = ("observations", "actions", "rewards", "terminations", "truncations", "infos")
        buffers = [EpisodeBuffer(**{key: getattr(one, key) for key in ("id", *fields)}) for one in found.iterate_episodes()]
        if name in ("continuous", "plain", "number", "text"):  # Minari makes JPEG of uint8, and sorts the keys of a Dict
            package.create_dataset_from_buffers(
                f"theirs/{name}-v0",
                buffer=buffers,
                env=None,
                observation_space=found.observation_space,
                action_space=found.action_space,
            )
            again = fugu.data.open(f"minari:theirs/{name}-v0")
            for column in data.forms:
                assert data.column(column).tobytes() == again.column(column).tobytes()
