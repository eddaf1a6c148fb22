"""Episodes written and opened again; what is damaged is named with file, episode and field."""

from __future__ import annotations

import json
import os
from pathlib import Path

import numpy as np
import pytest

import fugu
from fugu.data import DataError, DataSet, Writer
from fugu.data.format import RECORD
from tests.data.cases import SPACES, episode, spec_of


def write(path: Path, name: str = "plain", lengths: tuple[int, ...] = (3, 5, 2), **settings: object) -> Path:
    spec = spec_of(name)
    with Writer(path, spec, recorded={"env": name}, **settings) as writer:  # type: ignore[arg-type]
        for number, length in enumerate(lengths):
            source = writer.source({"policy": "random" if number % 2 == 0 else "other"})
            rows = episode(spec, length, number, **settings)  # type: ignore[arg-type]
            writer.add(rows, terminated=True, truncated=False, source=source, seed=7, number=number)
    return path


@pytest.mark.parametrize("name", SPACES)
def test_what_was_written_is_read(tmp_path: Path, name: str) -> None:
    data = fugu.data.open(write(tmp_path / "d", name))
    assert data.check() == []
    assert data.lengths.tolist() == [3, 5, 2] and data.starts.tolist() == [0, 4, 10] and data.rows == 13
    assert data.seeds.tolist() == [7] * 3 and data.numbers.tolist() == [0, 1, 2]
    assert [data.sources[k]["policy"] for k in data.source] == ["random", "other", "random"]
    assert data.spec.observation_space == SPACES[name][0] and data.spec.action_space == SPACES[name][1]
    for number, length in enumerate((3, 5, 2)):
        expected = episode(spec_of(name), length, number)
        for column, rows in data.episode(number).items():
            assert rows.tobytes() == expected[column].tobytes(), column
        assert data.returns[number] == expected["reward"].astype(np.float64).sum()


def test_columns_are_memory_maps_that_nobody_can_write_to(tmp_path: Path) -> None:
    column = fugu.data.open(write(tmp_path / "d")).column("obs")
    assert isinstance(column, np.memmap) and not column.flags.writeable


def test_a_selection_keeps_the_rows_where_they_are(tmp_path: Path) -> None:
    data = fugu.data.open(write(tmp_path / "d"))
    some = data.select(data.lengths > 2).select([1, 0])
    assert some.lengths.tolist() == [5, 3] and some.starts.tolist() == [4, 0]
    assert some.column("obs") is data.column("obs")
    assert some.check() == []
    assert some.episode(0)["obs"].tobytes() == data.episode(1)["obs"].tobytes()


def test_action_masks_costs_and_own_columns_are_kept(tmp_path: Path) -> None:
    spec = spec_of("plain", costs=("energy", "heat"), columns={"risk": ((2,), "float32")})
    rows = episode(spec, 4, 1, action_mask=True)
    rows["action_mask"][0, :1] = rows["action"][0] == 0
    with Writer(tmp_path / "d", spec, action_mask=True) as writer:
        writer.add(rows, terminated=True, truncated=False, source=writer.source({}))
    data = fugu.data.open(tmp_path / "d")
    for name in ("cost", "risk", "action_mask"):
        assert (data.column(name) == rows[name]).all()
    assert data.spec.costs == ("energy", "heat")


def test_more_can_be_appended_of_the_same_spaces_only(tmp_path: Path) -> None:
    path, spec = write(tmp_path / "d"), spec_of("plain")
    with Writer(path, spec, append=True) as writer:
        writer.add(episode(spec, 6, 9), terminated=True, truncated=False, source=writer.source({"policy": "other"}))
    data = fugu.data.open(path)
    assert data.lengths.tolist() == [3, 5, 2, 6] and data.source.tolist() == [0, 1, 0, 1] and data.check() == []
    with pytest.raises(DataError, match="observation_space: is not that"):
        Writer(path, spec_of("continuous"), append=True)
    with pytest.raises(DataError, match="exists already"):
        Writer(path, spec)


def test_complete_episodes_are_read_while_others_are_written(tmp_path: Path) -> None:
    spec = spec_of("plain")
    writer = Writer(tmp_path / "d", spec)
    writer.add(episode(spec, 3, 0), terminated=True, truncated=False, source=writer.source({}))
    with open(tmp_path / "d" / "obs.bin", "ab") as file:
        file.write(b"half an episode")
    with open(tmp_path / "d" / "episodes.bin", "ab") as file:
        file.write(b"half a record")
    data = fugu.data.open(tmp_path / "d")
    assert data.episodes == 1 and data.check() == [] and "index" in data.missing
    writer.close(whole=False)
    with Writer(tmp_path / "d", spec, append=True) as again:
        again.add(episode(spec, 2, 1), terminated=True, truncated=False, source=0)
    data = fugu.data.open(tmp_path / "d")
    assert data.lengths.tolist() == [3, 2] and data.check() == [] and not data.missing


# damage -----------------------------------------------------------------------------------------------------------------------------


@pytest.mark.parametrize("column", ["obs", "action", "reward", "mask"])
def test_a_column_that_was_cut_off_is_named_with_its_first_episode(tmp_path: Path, column: str) -> None:
    path = write(tmp_path / "d")
    file = path / f"{column}.bin"
    os.truncate(file, file.stat().st_size * 9 // 13)  # in the second episode
    with pytest.raises(DataError, match=rf"{column}\.bin, episode 1, {column}: is cut off: \d of 13 rows") as caught:
        fugu.data.open(path)
    assert caught.value.episode == 1 and caught.value.field == column


def test_an_index_that_was_cut_off_or_changed_is_named(tmp_path: Path) -> None:
    path = write(tmp_path / "d")
    index = path / "episodes.bin"
    whole = index.read_bytes()
    for bad in (whole[: RECORD.itemsize * 2 + 5], whole[: RECORD.itemsize * 2] + b"\xff" + whole[RECORD.itemsize * 2 + 1 :]):
        index.write_bytes(bad)
        with pytest.raises(DataError, match="episode 2: is damaged or cut off: 3 episodes were recorded, 2 can be read"):
            fugu.data.open(path)


def damaged(path: Path, column: str, row: int, value: object) -> DataSet:
    data = fugu.data.open(path)
    form = data.forms[column]
    rows = np.memmap(path / f"{column}.bin", form.dtype, "r+", shape=(data.rows, *form.shape))
    rows[row] = value
    rows.flush()
    return fugu.data.open(path)


@pytest.mark.parametrize(
    ("column", "row", "value", "says"),
    [
        ("obs", 6, np.nan, "episode 1, obs: NaN or infinity, at step 2, nan"),
        ("obs", 9, np.inf, "episode 1, obs: NaN or infinity, at step 5, inf"),
        ("action", 4, 4, "episode 1, action: outside Discrete(4), at step 0, 4"),
        ("action", 11, -1, "episode 2, action: outside Discrete(4), at step 1, -1"),
        ("reward", 0, np.nan, "episode 0, reward: NaN or infinity, at step 0"),
        ("reward", 5, 1e6, "episode 1, return: is not the sum of the rewards"),
        ("terminated", 5, True, "episode 1, terminated: in the middle of the episode, at step 1"),
        ("terminated", 8, False, "episode 1, terminated: its last step and the index say different things"),
        ("mask", 3, True, "episode 0, mask: the row with the final observation must have mask False"),
    ],
)
def test_rows_that_no_training_should_see_are_named(tmp_path: Path, column: str, row: int, value: object, says: str) -> None:
    data = damaged(write(tmp_path / "d"), column, row, value)
    assert says in [str(problem) for problem in data.check()]
    with pytest.raises(DataError, match=r"episode \d, ") as caught:
        data.require()
    assert caught.value.episode is not None and caught.value.field


def test_actions_where_nobody_acts_may_be_anything(tmp_path: Path) -> None:
    assert damaged(write(tmp_path / "d"), "action", 3, 99).check() == []


def test_a_bool_that_is_none_is_named(tmp_path: Path) -> None:
    path = write(tmp_path / "d")
    with open(path / "truncated.bin", "r+b") as file:
        file.write(b"\x02")
    assert "episode 0, truncated: holds a byte that is neither true nor false, at step 0" in map(
        str, fugu.data.open(path).check()
    )


def test_a_mask_that_forbids_nothing_is_not_kept(tmp_path: Path) -> None:
    spec, path = spec_of("plain"), write(tmp_path / "d", action_mask=True)
    assert "action_mask" not in fugu.data.open(path).forms and not (path / "action_mask.bin").exists()
    rows = episode(spec, 2, 1, action_mask=True)
    with Writer(path, spec, action_mask=True, append=True) as writer:
        writer.add(rows, terminated=True, truncated=False, source=0)
        rows["action_mask"][0, 0] = False
        with pytest.raises(DataError, match="action_mask: has none, and actions are forbidden now"):
            writer.add(rows, terminated=True, truncated=False, source=0)
    assert fugu.data.open(path).episodes == 4


def test_forbidden_actions_are_named(tmp_path: Path) -> None:
    path, spec = tmp_path / "d", spec_of("plain")
    with Writer(path, spec, action_mask=True) as writer:
        for seed in range(3):
            rows = episode(spec, 3 + seed, seed, action_mask=True)
            rows["action_mask"][0, 0] &= seed != 2 or rows["action"][0] == 0
            writer.add(rows, terminated=True, truncated=False, source=writer.source({}))
    data = fugu.data.open(path)
    assert data.check() == []
    mask = np.ones(4, bool)
    mask[int(data.column("action")[5])] = False
    assert "episode 1, action: forbidden by the action mask, at step 1" in str(damaged(path, "action_mask", 5, mask).check()[0])


def test_nothing_recorded_and_endings_that_are_missing_are_named(tmp_path: Path) -> None:
    empty = fugu.data.open(write(tmp_path / "empty", lengths=()))
    assert empty.episodes == 0 and "there are none" in str(empty.check()[0])
    spec = spec_of("plain")
    rows = episode(spec, 3, 1)
    rows["terminated"][...] = False
    with Writer(tmp_path / "d", spec) as writer:
        writer.add(rows, terminated=False, truncated=False, source=writer.source({}))
    assert "episode 0, terminated: the last step neither ends" in str(fugu.data.open(tmp_path / "d").check()[0])


def test_other_spaces_are_named_before_anything_is_learned(tmp_path: Path) -> None:
    data = fugu.data.open(write(tmp_path / "d"))
    with pytest.raises(DataError, match="observation_space: was recorded with Box"):
        data.require(spec_of("continuous"))
    data.require(spec_of("plain"))


# foreign files ----------------------------------------------------------------------------------------------------------------------


def say(path: Path, **changes: object) -> None:
    about = json.loads((path / "DATA.json").read_text())
    (path / "DATA.json").write_text(json.dumps({**about, **changes}))


@pytest.mark.parametrize(
    ("changes", "says"),
    [
        ({"version": [2, 0], "fugu": "9.9"}, r"version: is of data format 2.0, written by fugu 9.9.*pip install --upgrade"),
        ({"version": "1"}, "version: has no version"),
        ({"format": "pickle"}, "does not say that it is 'fugu data'"),
        ({"reward": "object"}, "reward: must be float32 or float64"),
        ({"sources": "x"}, "sources: must be a list"),
        ({"closed": -1}, "closed: must be a number"),
        ({"env": {"num_agents": 1, "observation_space": {"type": "Box", "dtype": "float32", "shape": [1 << 40]}}}, "env: "),
        ({"sources": []}, "episode 1, source: is 1, expected from 0 to 0"),
    ],
)
def test_what_a_file_claims_is_not_believed(tmp_path: Path, changes: dict[str, object], says: str) -> None:
    path = write(tmp_path / "d")
    say(path, **changes)
    with pytest.raises(DataError, match=says):
        fugu.data.open(path)


def test_absurd_sizes_are_refused_at_once(tmp_path: Path) -> None:
    from fugu.data import format

    path = write(tmp_path / "d", lengths=(3,))
    records, _ = format.read_index(path)
    records = records.copy()
    for length in (1 << 60, -5, 0):
        records["length"] = length
        format.seal(records, 0)
        (path / "episodes.bin").write_bytes(records.tobytes())
        with pytest.raises(DataError, match=r"episode 0, length: is"):
            fugu.data.open(path)
    records["length"] = 1 << 40
    format.seal(records, 0)
    (path / "episodes.bin").write_bytes(records.tobytes())
    with pytest.raises(DataError, match=r"episode 0, (obs|action): is cut off"):
        fugu.data.open(path)


def test_links_and_pipes_are_refused(tmp_path: Path) -> None:
    path = write(tmp_path / "d")
    (path / "obs.bin").rename(tmp_path / "elsewhere")
    (path / "obs.bin").symlink_to(tmp_path / "elsewhere")
    with pytest.raises(fugu.errors.ConfigError, match="is a link"):
        fugu.data.open(path)
    (path / "obs.bin").unlink()
    os.mkfifo(path / "obs.bin")
    with pytest.raises(fugu.errors.ConfigError, match="is a pipe"):
        fugu.data.open(path)


def test_what_is_no_data_is_refused(tmp_path: Path) -> None:
    with pytest.raises(DataError, match="does not exist; Record|does not exist. Record"):
        fugu.data.open(tmp_path / "none")
    with pytest.raises(DataError, match="holds no recorded episodes"):
        fugu.data.open(tmp_path)
