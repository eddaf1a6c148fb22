"""``fugu.record`` and ``fugu record``: policies, mixtures of checkpoints, noise and chance."""

from __future__ import annotations

import json
from pathlib import Path

import numpy as np
import pytest
from gymnasium import spaces as gs

import fugu
from fugu.cli.main import main
from fugu.data.random_play import Noise, RandomPlay
from fugu.errors import ConfigError
from fugu.spaces import Layout


def contents(path: Path) -> dict[str, bytes]:
    return {file.name: file.read_bytes() for file in path.iterdir()}


def test_the_same_call_writes_the_same_bytes_and_another_seed_others(trained: Path, tmp_path: Path) -> None:
    for name, seed in (("a", 1), ("b", 1), ("c", 2)):
        fugu.record("latest", tmp_path / name, runs=trained, episodes=6, noise=[0.0, 0.5], seed=seed)
    assert contents(tmp_path / "a") == contents(tmp_path / "b")
    assert contents(tmp_path / "a")["obs.bin"] != contents(tmp_path / "c")["obs.bin"]


def test_a_recording_has_the_returns_that_an_evaluation_finds(trained: Path, tmp_path: Path) -> None:
    data = fugu.record("latest", tmp_path / "d", runs=trained, episodes=8, greedy=True, seed=5)
    found = fugu.Run("latest", trained).evaluate(8, greedy=True, seed=5)
    assert sorted(data.returns) == sorted(found.returns)
    assert data.check() == [] and (data.lengths == data.returns).all()


def test_noise_goes_round_and_is_told(trained: Path, tmp_path: Path) -> None:
    data = fugu.record("latest", tmp_path / "d", runs=trained, episodes=30, noise=[0.0, 1.0], num_envs=7, greedy=True)
    amounts = np.array([data.sources[k]["noise"] for k in data.source])
    assert (amounts == 0).sum() == 15
    assert data.returns[amounts == 0].mean() > 2 * data.returns[amounts == 1].mean()
    assert all(data.sources[k]["policy"] == fugu.Run("latest", trained).folder.name for k in data.source)


def test_all_checkpoints_play_the_same_share(trained: Path, tmp_path: Path) -> None:
    run = fugu.Run("latest", trained)
    from fugu.trainer import checkpoint

    steps = checkpoint.steps(run.folder.checkpoints)
    data = fugu.record(run, tmp_path / "d", checkpoints="all", episodes=3 * len(steps))
    assert [source["checkpoint"] for source in data.sources] == steps
    assert np.bincount(data.source).tolist() == [3] * len(steps)


def test_what_is_impossible_is_refused_before_anything_is_played(trained: Path, tmp_path: Path) -> None:
    for wrong, says in (
        ({"episodes": 0}, "episodes=0 must be at least 1"),
        ({"episodes": 1, "steps": 1}, "give either episodes or steps"),
        ({"noise": -1.0}, "noise=-1.0 must be at least 0"),
        ({"random": True, "noise": 0.5}, "random play has no noise"),
        ({"checkpoints": []}, "checkpoints is empty"),
        ({"vectors": {"backend": "device"}}, "recorded from environments on the CPU"),
    ):
        with pytest.raises(ConfigError, match=says):
            fugu.record("latest", tmp_path / "d", runs=trained, **wrong)  # type: ignore[arg-type]
    with pytest.raises(ConfigError, match="'cartpole' is no run"):
        fugu.record("cartpole", tmp_path / "d")
    assert not (tmp_path / "d").exists()


def test_the_command_records_an_environment_by_chance(tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    assert main(["record", "cartpole", "--random", "--episodes", "20", "--out", str(tmp_path / "d")]) == 0
    assert "20 episodes, " in capsys.readouterr().out
    data = fugu.data.open(tmp_path / "d")
    assert data.check() == [] and data.sources == [{"policy": "random"}]
    about = json.loads((tmp_path / "d" / "DATA.json").read_text())
    assert about["recorded"]["env"] == "cartpole" and about["closed"] == 20
    assert main(["record", "cartpole", "--random", "--out", str(tmp_path / "d")]) == 2
    assert "exists already" in capsys.readouterr().err
    assert (
        main(["record", "cartpole", "--random", "--episodes", "5", "--seed", "2", "--append", "--out", str(tmp_path / "d")])
        == 0
    )
    assert fugu.data.open(tmp_path / "d").episodes == 25
    assert main(["record", "cartpole", "--random"]) == 2
    assert "--out is missing" in capsys.readouterr().err


SPACE = gs.Dict(
    choice=gs.Discrete(3, start=2),
    several=gs.MultiDiscrete([2, 300]),
    bits=gs.MultiBinary(2),
    push=gs.Box(np.array([-2, 0], np.float32), np.array([2, 8], np.float32)),
    whole=gs.Box(-3, 3, (2,), np.int16),
    half=gs.Box(np.array([0, -np.inf], np.float32), np.array([np.inf, 5], np.float32)),
    free=gs.Box(-np.inf, np.inf, (1,), np.float64),
)


def test_random_actions_are_in_their_space_and_use_all_of_it() -> None:
    layout = Layout(SPACE)
    chance = RandomPlay(layout, 500, 1)
    rows = np.stack([chance.next().copy() for _ in range(40)]).reshape(-1, *layout.row_shape)
    packer = fugu.spaces.Packer(layout)
    assert all(SPACE.contains(packer.unpack(row)) for row in rows[:2000])
    views = layout.views(rows)
    assert np.unique(views["choice"]).tolist() == [2, 3, 4] and len(np.unique(views["several"][:, 1])) == 300
    assert np.abs(np.bincount(views["choice"])[2:] / len(rows) - 1 / 3).max() < 0.02
    assert np.unique(views["whole"]).tolist() == list(range(-3, 4))
    assert abs(views["push"][:, 1].mean() - 4) < 0.1 and views["half"].min(0)[0] >= 0 and views["half"].max(0)[1] <= 5


def test_random_actions_keep_to_the_mask_and_use_all_of_it() -> None:
    layout = Layout(gs.MultiDiscrete([3, 4]))
    chance = RandomPlay(layout, 3000, 1)
    mask = np.ones((3000, 7), bool)
    mask[:, [1, 3, 4]] = False
    rows = chance.next(mask)
    assert np.unique(rows[:, 0]).tolist() == [0, 2] and np.unique(rows[:, 1]).tolist() == [2, 3]
    assert abs((rows[:, 0] == 0).mean() - 0.5) < 0.05


def test_noise_is_as_large_as_it_says_and_stays_in_the_space() -> None:
    layout = Layout(SPACE)
    action = layout.zeros(4000)
    views = layout.views(action)
    views["choice"][...], views["push"][...] = 2, [0, 4]
    noise = Noise(layout, 4000, 1, [0.0, 0.5], 1)
    noisy = layout.views(noise(action, np.ones(4000, bool), None))
    assert (noisy["push"][::2] == [0, 4]).all() and (noisy["choice"][::2] == 2).all()
    assert abs((noisy["choice"][1::2] != 2).mean() - 0.5 * 2 / 3) < 0.03
    assert abs(noisy["free"][1::2].std() - 0.5) < 0.03
    assert np.abs(noisy["push"][1::2, 1] - 4).max() <= 4 and 1.5 < noisy["push"][1::2, 1].std() < 2
    packer = fugu.spaces.Packer(layout)
    again = noise(action, np.ones(4000, bool), None)
    assert all(SPACE.contains(packer.unpack(row)) for row in again[:500])
    assert (layout.views(again)["push"][1::2] != [0, 4]).any(), "the next episode of the same agent has the next value"
