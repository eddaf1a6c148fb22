"""``fugu plot``: what is drawn, and what is refused."""

from __future__ import annotations

import sys
from pathlib import Path

import numpy as np
import pytest

import fugu
from fugu.cli.main import main
from fugu.errors import ConfigError
from fugu.run import curves, store

pytest.importorskip("matplotlib")


def test_a_plot_is_a_picture_in_the_runs_folder(runs: Path, capsys: pytest.CaptureFixture[str]) -> None:
    image = pytest.importorskip("PIL.Image")
    assert main(["plot", "--runs", str(runs)]) == 0
    path = Path(capsys.readouterr().out.strip())
    assert path == fugu.Run("latest", runs).path / "curves.png"
    with image.open(path) as picture:
        small = picture.size
        assert len(picture.convert("RGB").getcolors(1 << 20)) > 10
    out = runs / "two.png"
    arguments = ["--metric", "episode/return", "--metric", "time/env", "--metric", "loss/kl", "--smooth", "3", "--x", "time"]
    assert main(["plot", "latest", "latest~1", "--runs", str(runs), "-o", str(out), *arguments]) == 0
    with image.open(out) as picture:
        assert picture.size[0] == 2 * small[0] and picture.size[1] > 1.5 * small[1]  # two columns, two rows of panels
    assert fugu.Run("latest", runs).plot(runs / "x.svg", metrics=["loss/entropy"]).read_text().startswith("<?xml")
    assert fugu.Run("latest", runs).plot(runs / "y.svg", metrics="loss/entropy").read_text().count("<!-- loss/entropy -->") == 1


def test_curves_are_what_was_logged_over_steps_or_seconds(runs: Path) -> None:
    folders = store.runs(runs)
    drawn = curves._curves(folders, ("episode/return", "time/update"), "steps")
    assert list(drawn) == ["episode/return", "time/update"] and list(drawn["episode/return"]) == [f.name for f in folders]
    lines = [row for row in folders[0].read_metrics() if "episode/return" in row]
    at, values = drawn["episode/return"][folders[0].name]
    assert at.tolist() == [row["steps"] for row in lines] and values.tolist() == [row["episode/return"] for row in lines]
    seconds, same = curves._curves(folders, ("episode/return",), "time")["episode/return"][folders[0].name]
    assert same.tolist() == values.tolist() and (np.diff(seconds) > 0).all()
    wall = folders[0].read_timing()[-1]["time/wall"]
    assert seconds[-1] == pytest.approx(wall, rel=0.01)


def test_short_names_mean_the_one_metric_they_can_mean(runs: Path) -> None:
    folders = store.runs(runs)
    assert list(curves._curves(folders, ("return", "kl", "episode/return", "length"), "steps")) == [
        "episode/return",
        "loss/kl",
        "episode/length",
    ]
    assert curves._meant("return", {"eval/return", "loss/kl"}) == "eval/return"
    assert curves._meant("return", {"eval/return", "episode/return", "episode/return/a"}) == "episode/return"
    assert curves._meant("won", {"env/won", "eval/env/won"}) == "env/won"
    assert curves._meant("return/a", {"episode/return/a", "eval/return/a", "episode/return"}) == "episode/return/a"
    assert curves._meant("reference_kl", {"loss/kl"}) == "loss/reference_kl", "which this run did not log"
    with pytest.raises(ConfigError, match="'a' could be episode/length/a or episode/return/a; type one of them"):
        curves._meant("a", {"episode/return/a", "episode/length/a"})


def test_smoothing_is_the_mean_of_neighbours() -> None:
    values = np.array([1.0, 2.0, 6.0, 3.0])
    assert curves.smoothed(values, 1).tolist() == values.tolist()
    assert curves.smoothed(values, 3).tolist() == [1.5, 3.0, 11 / 3, 4.5]
    assert curves.smoothed(values, 99).shape == values.shape


@pytest.mark.parametrize(
    ("arguments", "code", "part"),
    [
        (["--metric", "retrun"], 2, "there is no metric 'retrun'"),
        (["--metric", "loss/entropi"], 2, "Did you mean 'loss/entropy'"),
        (["--metric", "system/gpu"], 1, "did not log 'system/gpu'; there are: episode/length"),
        (["-o", "x.jpg"], 2, "try x.png"),
        (["-o", "."], 2, "file, got '.'; try curves.png"),
        (["-o", ".."], 2, "file, got '..'; try ../curves.png"),
        (["--smooth", "0"], 2, "at least 1"),
        (["--x", "tim"], 2, "time"),
        (["--metrc", "x"], 2, "--metric"),
        (["latest~7"], 2, "only 2 runs"),
    ],
)
def test_wrong_calls_of_plot_are_one_message(
    arguments: list[str], code: int, part: str, trained: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    assert main(["plot", *arguments, "--runs", str(trained)]) == code
    out, err = capsys.readouterr()
    assert part in err and "Traceback" not in err and out == ""


def test_without_the_extra_it_says_what_to_install(
    trained: Path, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    monkeypatch.setitem(sys.modules, "matplotlib.figure", None)
    assert main(["plot", "--runs", str(trained)]) == 1
    assert capsys.readouterr().err.strip().endswith('pip install "fugu-rl[plot]"')


def test_costs_are_drawn_with_their_limit(tmp_path: Path) -> None:
    run = fugu.train("knapsack_cmdp", algorithm="safe_ppo", runs=tmp_path, steps=12_000, **{"log.board": "off"})
    assert curves._usual([run.folder]) == ["episode/return", "episode/cost", "safe/lambda"]
    assert curves._limits([run.folder], "episode/cost") == [10.0] and curves._limits([run.folder], "episode/return") == []
    assert (
        "<!-- limit 10 -->" in run.plot(tmp_path / "curves.svg").read_text()
    )  # labels are shapes, with what they say beside them
