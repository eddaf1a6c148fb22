"""What a run is judged by has one definition and one name, on the board, at the end of a training and in the list of runs."""

from __future__ import annotations

import json
import math

import pytest

import fugu
from fugu.cli.main import main
from fugu.run.board import Header, Progress, board, plain
from fugu.run.measure import costs, measure
from fugu.run.overview import overviews
from fugu.trainer import checkpoint

SMALL = ("--num-envs", "8", "--horizon", "16", "--minibatch", "128", "--threads", "1", "--log.board", "off")


@pytest.mark.parametrize(
    ("rows", "evaluated", "found"),
    [
        ([{"steps": 1}], True, None),
        ([{"episode/return": math.nan}], True, None),
        ([{"episode/return": 1.0}, {}], True, "episode/return"),
        ([{"episode/return": 1.0}, {"score": 2.0}], True, "score"),
        ([{"eval/return": 3.0}, {"score": 2.0}], True, "eval/return"),
        ([{"eval/return": 3.0}, {"score": 2.0}], False, "score"),
        ([{"self_play/rating": 25.0, "score": 0.0, "eval/return": 0.0}], True, "self_play/rating"),
    ],
)
def test_a_run_is_judged_by_what_its_best_checkpoint_follows(rows, evaluated, found):
    assert measure(rows, evaluated=evaluated) == found


def test_costs_have_their_limits_beside_them():
    assert costs([{"episode/cost": 1.0}]) == {"": (1.0, None)}
    rows = [{"episode/cost/a": 1.0, "safe/limit/a": 5.0}, {"episode/cost/a": 2.0, "safe/limit/a": 6.0}]
    assert costs(rows) == {"/a": (2.0, 6.0)}


def test_the_board_the_last_line_and_the_list_say_the_same(tmp_path, capsys):
    assert main(["train", "cartpole", "--steps", "10000", *SMALL, "--target", "1000", "--runs", str(tmp_path)]) == 0
    done = next(line for line in capsys.readouterr().out.splitlines() if line.startswith("done: "))
    run = fugu.Run("latest", tmp_path)
    last = run.metrics()[-1]
    state = json.loads((checkpoint.find(run.folder.checkpoints, "latest") / "state.json").read_text())
    assert last["score"] == state["score"]["mean"] == state["merit"]
    assert f"score {last['score']:.1f} (mean return of the last 100 episodes)" in done
    assert f"{last['steps']:,} steps (whole batches; 10,000 asked)" in done and last["steps"] > 10_000
    assert "target 1000 not reached" in done
    (one,) = overviews(tmp_path)
    assert (one.measure, one.score) == ("score", last["score"]) and one.best_score == max(
        r.get("score", 0) for r in run.metrics()
    )
    header, progress = Header(run="r", env="e", total_steps=1), Progress(metrics=last)
    top = ["".join(text for text, _ in line) for line in board(header, progress, 100, 24)]
    shown = f"score {last['score']:.2f}"
    assert shown in plain(header, progress) and any(line.strip().startswith(shown) for line in top)


def test_self_play_ends_with_its_rating_which_a_target_means(tmp_path, capsys):
    command = ["train", "connect4", "--algorithm", "self_play", "--steps", "6000", *SMALL, "--runs", str(tmp_path)]
    assert main([*command, "--target", "20"]) == 0
    done = next(line for line in capsys.readouterr().out.splitlines() if line.startswith("done: "))
    run = fugu.Run("latest", tmp_path)
    last = run.metrics()[-1]
    assert f"rating {last['self_play/rating']:.1f} (" in done and "return" not in done
    assert last["self_play/rating"] >= 20 and last["steps"] < 6000 and last["score"] < 20
    (one,) = overviews(tmp_path)
    assert (one.measure, one.state) == ("self_play/rating", "done") and "steps (" not in done and "target" not in done
    assert main(["runs", "--runs", str(tmp_path)]) == 0
    assert f"{last['self_play/rating']:.2f} rating" in capsys.readouterr().out


def test_a_target_of_evaluations_is_done_by_an_evaluation(tmp_path):
    settings = {"steps": 50_000, "num_envs": 8, "horizon": 16, "minibatch": 128, "threads": 1, "log.board": "off"}
    settings |= {"eval.every": 1, "eval.episodes": 4, "target": 12.0}
    run = fugu.train("cartpole", runs=tmp_path, **settings)
    (one,) = overviews(tmp_path)
    assert run.metrics()[-1]["steps"] < 50_000 and (one.state, one.measure) == ("done", "eval/return")
