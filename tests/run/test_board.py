"""What the board says: for every size of window it fits, and its numbers are the run's."""

from __future__ import annotations

import math
import random

import pytest
from rich.cells import cell_len

from fugu.run.board import ASCII, HISTORY, UNICODE, Header, Line, Progress, board, duration, limits, number, plain, sparkline

HEADER = Header(run="cartpole-20260102-030405", env="cartpole", total_steps=10_000_000)
METRICS = {
    "steps": 4_200_000,
    "updates": 128,
    "episodes": 12345,
    "episode/return": 475.25,
    "episode/length": 480.0,
    "env/score": 12.5,
    "loss/policy": -0.0123,
    "loss/kl": 0.0012,
    "loss/mine": 3.0,
    "time/env": 0.78,
    "time/update": 0.22,
    "system/cpu": 0.97,
    "system/memory": 1.5e9,
    "learning_rate": 2.5e-4,
}


def progress(**more: float) -> Progress:
    return Progress(metrics={**METRICS, **more}, history=[float(i) for i in range(100)], rate=1_210_000.0, uptime=9.5)


def text(lines: list[Line]) -> str:
    return "\n".join("".join(span for span, _ in line) for line in lines)


@pytest.mark.parametrize("width", [80, 120])
def test_everything_is_on_the_board(width: int) -> None:
    shown = text(board(HEADER, progress(), width, 24))
    for part in (
        "cartpole-20260102-030405",
        "cartpole · cpu",
        "42%  4.20M of 10.0M steps",
        "1.21M steps/s",
        "ETA 0:04",
        "up 0:09",
    ):
        assert part in shown
    for part in (
        "128 updates",
        "12.3k episodes",
        "return 475.2",
        "▁",
        "█",
        "length 480",
        "score",
        "12.50",
        "cpu 97%",
        "memory 1.5 GB",
    ):
        assert part in shown
    assert "limit env 78% of the time: more workers (fugu autotune cartpole) or a native env" in " ".join(shown.split())
    rows = {line.split()[0]: line for line in reversed(shown.splitlines()) if line.strip()}
    assert rows["env"].split()[2] == "78%" and "policy" in rows["env"] and "-0.0123" in rows["env"]
    assert shown.index("policy") < shown.index("kl") < shown.index("mine"), "the order of the table, then names of one's own"


def phases(**shares: float) -> list[str]:
    every = dict.fromkeys(("env", "inference", "copy", "rollout", "advantage", "update", "other"), 0.0) | shares
    lines = text(board(HEADER, progress(**{f"time/{name}": share for name, share in every.items()}), 120, 40)).splitlines()
    return [line.split()[0] for line in lines if line.split() and line.split()[0] in every]


def test_only_the_way_in_which_environments_are_stepped_has_rows() -> None:
    assert phases(env=0.5, update=0.5) == ["env", "inference", "copy", "advantage", "update", "other"]
    assert phases(rollout=0.5, update=0.5) == ["rollout", "advantage", "update", "other"]
    assert phases(rollout=0.5, copy=0.1) == ["copy", "rollout", "advantage", "update", "other"]
    shown = text(board(HEADER, progress(), 120, 40))
    assert "gpu" not in shown.lower()


def test_the_board_fits_every_window() -> None:
    many = {f"env/{i}": float(i) for i in range(40)} | {"env/" + "宽" * 50: 1.0}
    for state in (Progress(), progress(), progress(**many)):
        for width in (1, 2, 10, 25, 40, 60, 71, 72, 80, 120, 300):
            for height in (1, 2, 5, 10, 15, 20, 24, 60):
                lines = board(HEADER, state, width, height)
                assert 1 <= len(lines) <= height
                assert max(cell_len(line) for line in text(lines).split("\n")) <= width, (width, height)


def test_a_low_window_keeps_progress_and_results() -> None:
    shown = text(board(HEADER, progress(), 80, 6))
    assert "4.20M of 10.0M steps" in shown and "return 475.2" in shown and "limit" in shown and "policy" not in shown
    assert "4.20M of 10.0M steps" in text(board(HEADER, progress(), 80, 2))


def test_a_run_that_has_just_started_says_so() -> None:
    shown = text(board(HEADER, Progress(), 80, 24))
    assert "0%  0 of 10.0M steps" in shown and "no episode has ended yet" in shown and "nan" not in shown


def test_names_of_an_env_cannot_steer_the_terminal() -> None:
    state = progress(**{"env/\x1b[2J\nname": 1.0})
    header = Header(run="r\x1b]0;title\x07", env="e\x1b[31m", total_steps=1)
    for shown in (text(board(header, state, 100, 60)), plain(header, state)):
        assert all(c.isprintable() or c == "\n" for c in shown) and "\x1b" not in shown


def test_more_names_than_there_is_room_for_are_counted() -> None:
    shown = text(board(HEADER, progress(**{f"env/{i:03}": 1.0 for i in range(100)}), 100, 60))
    assert "and 90 more" in shown  # 101 names, 11 of them shown


def test_ascii_terminals_get_ascii() -> None:
    assert text(board(HEADER, progress(), 80, 24, ASCII)).isascii()


def test_the_plain_line_has_the_figures_and_no_more_than_one_line() -> None:
    line = plain(HEADER, progress())
    assert line.startswith("0:09 4.20M/10.0M steps  1.21M steps/s  ETA 0:04  return 475.2  length 480  ")
    assert line.endswith("  env/score 12.50  loss/kl 0.0012  env 78%  update 22%")
    assert plain(HEADER, Progress()) == f"0:00 0/10.0M steps  {HEADER.run}"
    resumed = Header(run="cartpole-20260102-030405", env="cartpole", total_steps=10_000_000, from_step=2_500_000)
    assert plain(resumed, Progress()) == f"0:00 2.50M/10.0M steps  {HEADER.run}"


@pytest.mark.parametrize(
    ("shares", "native", "device", "said"),
    [
        ({"env": 0.9}, False, "cpu", "env 90% of the time: more workers (fugu autotune cartpole) or a native env"),
        ({"env": 0.9}, True, "cpu", "env 90% of the time: more threads"),
        ({"update": 0.6}, False, "cpu", "a smaller network or a GPU"),
        ({"inference": 0.5}, False, "cpu", "more environments per batch"),
        ({"other": 0.5}, False, "cpu", "less often"),
        ({"env": 0.35, "update": 0.3}, False, "cpu", "nothing alone: env 35%, update 30% of the time"),
    ],
)
def test_what_limits_the_run_is_named_with_what_would_help(shares: dict, native: bool, device: str, said: str) -> None:
    header = Header(run="", env="cartpole", total_steps=1, native=native, device=device)
    assert said in limits({f"time/{phase}": share for phase, share in shares.items()}, header)


def test_half_precision_is_advised_where_it_would_help() -> None:
    for half in (True, False):
        said = limits({"time/update": 0.9}, Header(run="", env="x", total_steps=1, half=half))
        assert ("--precision bf16" in said) == half


def test_a_gpu_is_not_advised_to_who_has_one() -> None:
    assert "GPU" not in limits({"time/update": 0.9}, Header(run="", env="x", total_steps=1, device="cuda"))


def test_a_sparkline_shows_the_whole_history_in_its_width() -> None:
    assert sparkline([0, 1, 2, 3, 4, 5, 6, 7], 8, UNICODE.spark) == UNICODE.spark
    assert sparkline([0, 0, 7, 7], 2, UNICODE.spark) == "▁█"
    assert sparkline([5, 5, 5], 10, UNICODE.spark) == "▅▅▅"
    assert sparkline([1, math.nan, math.inf, 2], 10, UNICODE.spark) == "▁█"
    assert sparkline([], 10, UNICODE.spark) == sparkline([1.0], 0, UNICODE.spark) == ""
    rng = random.Random(0)
    for _ in range(200):
        values = [rng.choice((rng.gauss(0, 1), 1e300, -1e300, 0.1)) for _ in range(rng.randrange(1, 300))]
        width = rng.randrange(1, 80)
        assert len(sparkline(values, width, UNICODE.spark)) == min(width, len(values))


def test_a_long_history_is_merged_but_keeps_its_shape() -> None:
    state = Progress()
    for i in range(100_000):
        state.remember(float(i))
    assert len(state.history) < HISTORY
    assert state.history == sorted(state.history) and state.history[0] < 1000 and state.history[-1] > 99_000


@pytest.mark.parametrize(
    ("value", "shown"),
    [
        (0, "0"),
        (475, "475"),
        (475.25, "475.2"),
        (1.234, "1.23"),
        (-0.01234, "-0.0123"),
        (0.00025, "2.5e-04"),
        (9999, "9999"),
        (12345, "12.3k"),
        (999_999, "1.00M"),
        (1_210_000, "1.21M"),
        (4.2e9, "4.20G"),
        (math.nan, "-"),
        (-math.inf, "-"),
    ],
)
def test_numbers_are_short(value: float, shown: str) -> None:
    assert number(value) == shown


def test_durations_are_short() -> None:
    assert [duration(s) for s in (7.9, 754, 11045, 183845, math.inf)] == ["0:07", "12:34", "3:04:05", "2d 03:04", "-"]


def test_costs_are_shown_against_their_limit() -> None:
    kept = {"episode/cost": 9.9, "safe/limit": 10.0, "safe/lambda": 1.25, "safe/over_limit": 0.4}
    shown = text(board(HEADER, progress(**kept), 80, 24))
    assert "cost   9.90    limit 10   lambda 1.25   over it 40%" in shown
    assert "cost 9.90  lambda 1.25" in plain(HEADER, progress(**kept))
    over = {**kept, "episode/cost": 10.5}
    green, red = (dict(span for line in board(HEADER, progress(**m), 80, 24) for span in line) for m in (kept, over))
    assert green["9.90    "] == "bold green" and red["10.50   "] == "bold red"
    several = {"episode/cost/speed": 3.0, "safe/limit/speed": 5.0, "safe/lambda/speed": 0.5, "episode/cost/energy": 7.0}
    shown = text(board(HEADER, progress(**several), 80, 24))
    assert "energy 7" in shown and "speed  3       limit 5   lambda 0.5000" in shown
