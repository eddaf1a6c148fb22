"""``fugu data``: what it says of recorded episodes, and what it makes of them."""

from __future__ import annotations

import json
import os
from pathlib import Path

import numpy as np
import pytest
from tests.data.cases import episode, spec_of

import fugu
from fugu.cli.main import main
from fugu.data import Writer, picking
from fugu.errors import ConfigError


@pytest.fixture(autouse=True)
def cache(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("XDG_CACHE_HOME", str(tmp_path / "cache"))


@pytest.fixture
def ten(tmp_path: Path) -> str:
    spec = spec_of("plain")
    with Writer(tmp_path / "ten", spec, recorded={"env": "plain"}) as writer:
        for number in range(10):
            rows = episode(spec, number + 1, number)
            rows["reward"][...] = 0
            rows["reward"][0] = number
            rows["truncated"][number] = number % 3 == 0
            rows["terminated"][number] = number % 3 != 0
            source = writer.source({"policy": "good" if number >= 5 else "bad", "noise": 0.5})
            writer.add(rows, terminated=number % 3 != 0, truncated=number % 3 == 0, source=source, seed=number)
    return str(tmp_path / "ten")


def test_it_says_what_is_in_the_file(ten: str, capsys: pytest.CaptureFixture[str]) -> None:
    assert main(["data", ten, "--check"]) == 0
    text = capsys.readouterr().out
    for part in (
        "10, of 55 steps",
        "6 terminated, 4 truncated",
        "50% 4.5",
        "policy good, noise 0.5: 5 episodes, mean return 7.00",
    ):
        assert part in text
    assert "Discrete(4)" in text and "nothing found" in text
    assert main(["data", ten, "--json"]) == 0
    about = json.loads(capsys.readouterr().out)
    assert about["returns"]["mean"] == 4.5 and about["lengths"]["100%"] == 10 and about["recorded"] == {"env": "plain"}


@pytest.mark.parametrize(
    ("filters", "episodes"),
    [
        (["top=0.2"], [8, 9]),
        (["return>=7"], [7, 8, 9]),
        (["length<3"], [0, 1]),
        (["source=bad"], [0, 1, 2, 3, 4]),
        (["source=1", "truncated"], [6, 9]),
        (["seed=4"], [4]),
        (["terminated", "top=0.5"], [5, 7, 8]),
        (["sound"], list(range(10))),
    ],
)
def test_filters_take_what_they_say(ten: str, filters: list[str], episodes: list[int]) -> None:
    data = picking.pick(fugu.data.open(ten), filters)
    assert data.seeds.tolist() == episodes and data.check() == []


@pytest.mark.parametrize(
    ("text", "says"),
    [
        ("tip=0.5", "there is no filter 'tip=0.5'. Did you mean 'top'"),
        ("top=5", "the share must be above 0"),
        ("return>=x", "'x' is no number"),
        ("source=expert", "no source has 'expert' among its values"),
        ("sound=1", "takes no value"),
        ("return", "needs a value"),
    ],
)
def test_filters_that_mean_nothing_are_refused(ten: str, text: str, says: str) -> None:
    with pytest.raises(ConfigError, match=says):
        picking.pick(fugu.data.open(ten), [text])


def test_several_are_filtered_and_joined(ten: str, tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    other = fugu.record("cartpole", tmp_path / "other", random=True, episodes=2)
    assert main(["data", ten, str(other.path), "--out", str(tmp_path / "no")]) == 2
    assert "observation_space: is Box" in capsys.readouterr().err
    assert main(["data", ten, ten, "--filter", "source=good", "--filter", "return<=6", "--out", str(tmp_path / "joined")]) == 0
    data = fugu.data.open(tmp_path / "joined")
    assert data.seeds.tolist() == [5, 6, 5, 6] and data.check() == []
    assert [data.sources[k]["policy"] for k in data.source] == ["good"] * 4
    assert main(["data", ten, "--filter", "return>100", "--out", str(tmp_path / "none")]) == 2
    assert "let no episode through" in capsys.readouterr().err


def test_it_converts_to_minaris_layout_and_back(ten: str, tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("MINARI_DATASETS_PATH", str(tmp_path / "root"))
    for out in (str(tmp_path / "x.hdf5"), "minari:mine/x-v0"):
        assert main(["data", ten, "--out", out]) == 0
        assert main(["data", out, "--out", str(tmp_path / f"back{len(out)}")]) == 0
        a, b = fugu.data.open(ten), fugu.data.open(tmp_path / f"back{len(out)}")
        assert all(a.column(name).tobytes() == b.column(name).tobytes() for name in a.forms)
    assert main(["data", ten, ten, "--out", str(tmp_path / "twice.hdf5")]) == 0
    assert fugu.data.open(tmp_path / "twice.hdf5").episodes == 20
    assert main(["record", "cartpole", "--random", "--episodes", "3", "--out", str(tmp_path / "direct.hdf5")]) == 0
    assert fugu.data.open(tmp_path / "direct.hdf5").episodes == 3 and not (tmp_path / "direct.parts").exists()


def test_what_is_wrong_is_listed_and_what_is_whole_saved(ten: str, tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    rows = np.memmap(Path(ten) / "obs.bin", np.float32, "r+").reshape(-1, 3)
    rows[4] = np.nan
    rows.flush()
    assert main(["data", ten, "--check"]) == 1
    assert "episode 1, obs: NaN or infinity, at step 2" in capsys.readouterr().out
    assert main(["data", ten, "--filter", "sound", "--check", "--out", str(tmp_path / "sound")]) == 0
    assert fugu.data.open(tmp_path / "sound").seeds.tolist() == [0, 2, 3, 4, 5, 6, 7, 8, 9]
    os.truncate(Path(ten) / "obs.bin", 12 * 30)
    assert main(["data", ten]) == 2
    assert "--salvage" in capsys.readouterr().err
    assert main(["data", ten, "--salvage", "--out", str(tmp_path / "whole")]) == 0
    assert fugu.data.open(tmp_path / "whole").episodes == 6


def test_it_draws_returns_and_lengths(ten: str, tmp_path: Path) -> None:
    assert main(["data", ten, "--plot", str(tmp_path / "x.png")]) == 0
    assert (tmp_path / "x.png").read_bytes()[:4] == b"\x89PNG"
    assert main(["data", ten, "--plot", str(tmp_path / "x.doc")]) == 2
