"""``fugu eval``: the figures, the JSON, and wrong calls."""

from __future__ import annotations

import functools
import json
import math
import statistics
from pathlib import Path

import pytest

import fugu
from fugu.cli.main import main
from fugu.trainer.evaluate import evaluate


def evaluation(capsys: pytest.CaptureFixture[str], runs: Path, *arguments: str) -> dict:
    assert main(["eval", "latest", "--runs", str(runs), "--episodes", "40", *arguments, "--json"]) == 0
    return json.loads(capsys.readouterr().out)


def test_eval_prints_figures_that_follow_from_the_episodes_it_writes(runs: Path, capsys: pytest.CaptureFixture[str]) -> None:
    assert main(["eval", "latest", "--runs", str(runs), "--episodes", "40"]) == 0
    text = capsys.readouterr().out
    path = Path(text.split("written to")[1].strip())
    report = json.loads(path.read_text())
    returns = report["returns"]
    half = 1.96 * statistics.stdev(returns) / math.sqrt(40)
    mean = statistics.mean(returns)
    assert len(returns) == report["episodes"] == 40 and returns == [
        float(n) for n in report["lengths"]
    ]  # CartPole pays 1 per step
    assert f"mean return   {mean:.2f}   95% interval {mean - half:.2f} to {mean + half:.2f}" in text
    assert f"lowest        {min(returns):.2f}" in text and f"highest       {max(returns):.2f}" in text
    assert path == fugu.Run("latest", runs).path / f"eval-{report['checkpoint_step']}.json"


def test_the_same_seed_gives_the_same_episodes_and_another_one_others(runs: Path, capsys: pytest.CaptureFixture[str]) -> None:
    first = evaluation(capsys, runs)
    assert evaluation(capsys, runs) == first
    assert evaluation(capsys, runs, "--seed", "2")["returns"] != first["returns"]
    assert list(fugu.Run("latest", runs).evaluate(40).returns) == first["returns"]


def test_eval_takes_the_checkpoint_asked_for(runs: Path, capsys: pytest.CaptureFixture[str]) -> None:
    run = fugu.Run("latest", runs)
    oldest = min(int(path.name.removeprefix("step_")) for path in run.folder.checkpoints.glob("step_*"))
    out = run.path.parent / "mine.json"
    assert main(["eval", str(run.path), "--checkpoint", str(oldest), "--greedy", "--episodes", "5", "--json", str(out)]) == 0
    report = json.loads(out.read_text())
    assert report["checkpoint_step"] == oldest and report["greedy"]
    assert json.loads((run.path / f"eval-{oldest}-greedy.json").read_text()) == report


def test_settings_of_the_environment_can_differ_from_the_run(runs: Path, capsys: pytest.CaptureFixture[str]) -> None:
    report = evaluation(capsys, runs, "--env.max_steps", "7")
    assert max(report["lengths"]) == 7 and report["env_kwargs"] == {"max_steps": 7}


def test_an_evaluation_that_was_cut_says_so(
    runs: Path, capsys: pytest.CaptureFixture[str], monkeypatch: pytest.MonkeyPatch
) -> None:
    assert evaluation(capsys, runs)["cut"] == 0
    monkeypatch.setattr("fugu.run.player.evaluate", functools.partial(evaluate, max_steps=20))
    with pytest.warns(RuntimeWarning, match="had not ended after 20 steps"):
        report = evaluation(capsys, runs)
    assert report["cut"] > 0 and report["cut"] + report["episodes"] == 40 and max(report["lengths"]) <= 20
    with pytest.warns(RuntimeWarning):
        assert main(["eval", "latest", "--runs", str(runs), "--episodes", "40"]) == 0
    assert f"cut           {report['cut']} episodes did not end" in capsys.readouterr().out


@pytest.mark.parametrize(
    ("arguments", "code", "part"),
    [
        (["--checkpoint", "lates"], 2, "Did you mean 'latest'"),
        (["--checkpoint", "1"], 1, "the nearest"),
        (["--episodes", "0"], 2, "at least 1"),
        (["--seed", "-1"], 2, "negative"),
        (["--seed", str(10**23)], 2, "below 2**63"),
        (["--episods", "3"], 2, "--episodes"),
        (["--device", "abacus"], 2, "device='abacus'"),
    ],
)
def test_wrong_calls_of_eval_are_one_message(
    arguments: list[str], code: int, part: str, runs: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    assert (
        main(
            [
                "eval",
                "latest",
                "--runs",
                str(runs),
                *(arguments if "--episodes" in arguments else ["--episodes", "2", *arguments]),
            ]
        )
        == code
    )
    out, err = capsys.readouterr()
    assert part in err and "Traceback" not in err and out == ""


def test_a_run_that_is_not_there_gets_the_nearest_name(trained: Path, capsys: pytest.CaptureFixture[str]) -> None:
    name = fugu.Run("latest", trained).folder.name
    assert main(["eval", name[:-1], "--runs", str(trained)]) == 2
    assert name in capsys.readouterr().err


def test_eval_shows_what_episodes_cost(tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    fugu.train("knapsack_cmdp", runs=tmp_path, steps=2000, threads=1, board="off")
    assert main(["eval", "latest", "--runs", str(tmp_path), "--episodes", "8"]) == 0
    text = capsys.readouterr().out
    report = json.loads(Path(text.split("written to")[1].strip()).read_text())
    assert f"  mean cost     {statistics.mean(report['costs']['cost']):.2f}" in text


def test_one_episode_has_no_interval(runs: Path, capsys: pytest.CaptureFixture[str]) -> None:
    assert evaluation(capsys, runs, "--episodes", "1")["interval_95"] is None
    assert main(["eval", "latest", "--runs", str(runs), "--episodes", "1"]) == 0
    assert "   95% interval unknown from one episode\n" in capsys.readouterr().out


def test_a_result_that_cannot_be_kept_is_still_shown(runs: Path, capsys: pytest.CaptureFixture[str]) -> None:
    run = fugu.Run("latest", runs)
    (run.path / f"eval-{evaluation(capsys, runs)['checkpoint_step']}.json").unlink()
    (run.path / f"eval-{run.metrics()[-1]['steps']}.json").mkdir()
    with pytest.warns(RuntimeWarning, match="json cannot be written: Is a directory"):
        assert evaluation(capsys, runs)["episodes"] == 40
    with pytest.warns(RuntimeWarning, match="json cannot be written: Is a directory"):
        assert main(["eval", "latest", "--runs", str(runs), "--episodes", "2"]) == 0
    text = capsys.readouterr().out
    assert "mean return" in text and "written to" not in text


def test_a_result_is_shown_before_a_file_that_was_asked_for_fails(runs: Path, capsys: pytest.CaptureFixture[str]) -> None:
    assert main(["eval", "latest", "--runs", str(runs), "--episodes", "2", "--json", "no/such/folder/x.json"]) == 1
    out, err = capsys.readouterr()
    assert "mean return" in out and err == "no/such/folder/x.json cannot be written: No such file or directory\n"


def test_the_path_of_a_run_is_no_markup(runs: Path, capsys: pytest.CaptureFixture[str]) -> None:
    path = fugu.Run("latest", runs).path.rename(runs / "[red]x")
    assert main(["eval", str(path), "--episodes", "2"]) == 0
    assert capsys.readouterr().out.count("/[red]x") == 2
