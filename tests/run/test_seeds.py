"""Groups of runs: each as if it were alone, also after Ctrl-C, a kill or a seed that failed."""

from __future__ import annotations

import os
import re
import shutil
import signal
import subprocess
import sys
from pathlib import Path

import gymnasium as gym
import numpy as np
import pytest

import fugu
from fugu.cli.main import main
from fugu.errors import ConfigError, FuguError
from fugu.run import live, store
from fugu.run import train as training
from fugu.run.ending import Interrupted
from fugu.run.seeds import SeedsFailed
from fugu.run.spread import interval
from fugu.trainer.config import TrainConfig

TINY = {"steps": 1500, "num_envs": 8, "horizon": 8, "minibatch": 64, "threads": 1, "log.board": "off"}
FLAGS = ["--steps", "1500", "--num-envs", "8", "--horizon", "8", "--minibatch", "64", "--threads", "1", "--board", "off"]


@pytest.fixture(scope="module")
def alone(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """A folder with three runs of their own, called s4 to s6."""
    root = tmp_path_factory.mktemp("alone")
    for seed in (4, 5, 6):
        fugu.train("cartpole", runs=root, name=f"s{seed}", seed=seed, **TINY)
    return root


@pytest.fixture(scope="module")
def group(tmp_path_factory: pytest.TempPathFactory) -> fugu.Group:
    """The same runs as a group. Not to be changed."""
    return fugu.train("cartpole", runs=tmp_path_factory.mktemp("group"), name="g", tags=("a",), seeds=3, seed=4, **TINY)


def check_same(root: Path, alone: Path) -> None:
    for seed in (4, 5, 6):
        for file in ("metrics.jsonl", "config.toml"):
            assert (root / f"g-s{seed}" / file).read_bytes() == (alone / f"s{seed}" / file).read_bytes(), (seed, file)


def test_the_runs_of_a_group_are_those_of_its_seeds_alone(group: fugu.Group, alone: Path) -> None:
    check_same(group.root, alone)
    assert group.seeds == (4, 5, 6) and [run.config.seed for run in group] == [4, 5, 6] and len(group) == 3
    assert [run.path.name for run in group] == ["g-s4", "g-s5", "g-s6"]
    assert all(run.folder.label.tags == ("a",) for run in group)
    assert fugu.Group("g", group.root).path == fugu.Group(group.path).path == group.path == group.root / "g"


def test_a_group_evaluates_each_of_its_runs(group: fugu.Group) -> None:
    found = group.evaluate(4)
    means = [run.evaluate(4).mean for run in group]
    assert found.means == tuple(means) and found.mean == pytest.approx(np.mean(means)) and found.interval == interval(means)
    assert [*found.by_seed] == [4, 5, 6] and str(found).startswith("3 seeds: mean return ")


def test_a_finished_group_has_nothing_to_go_on_with_until_it_is_given_more(group: fugu.Group, tmp_path: Path) -> None:
    shutil.copytree(group.root, tmp_path / "runs")
    copy = fugu.Group("g", tmp_path / "runs")
    before = [run.folder.metrics.read_bytes() for run in copy]
    assert [run.folder.metrics.read_bytes() for run in copy.resume()] == before
    more = copy.resume(steps=2000)
    assert all(run.metrics()[-1]["steps"] >= 2000 and run.config.steps == 2000 for run in more)
    with pytest.raises(ConfigError, match="cannot change policy"):
        more.resume(hidden=(8,))


def interrupting(monkeypatch: pytest.MonkeyPatch, at: int) -> None:
    """Let Ctrl-C come with line ``at`` of all metrics."""
    lines = 0
    report = live.Report.__call__

    def counted(self: live.Report, metrics: dict[str, float]) -> None:
        nonlocal lines
        report(self, metrics)
        lines += 1
        if lines == at:
            os.kill(os.getpid(), signal.SIGINT)

    monkeypatch.setattr(live.Report, "__call__", counted)


def test_ctrl_c_in_the_second_seed_ends_the_group_which_then_goes_on_exactly(
    alone: Path, tmp_path: Path, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    updates = len((alone / "s4" / "metrics.jsonl").read_bytes().splitlines())
    interrupting(monkeypatch, updates + 10)
    monkeypatch.chdir(tmp_path)
    arguments = ["cartpole", "--name", "g", "--tag", "a", "--seeds", "3", "--seed", "4", *FLAGS]
    assert main(["train", *arguments]) == 130
    out = " ".join(capsys.readouterr().out.split())
    assert out.startswith("SIGINT: saved at step 6") and " of seed 5; go on with the whole group: " in out
    assert out.endswith("train --resume runs/g")
    assert [run.name for run in store.runs()] == ["g-s4", "g-s5"]
    assert main(["train", "--resume", "runs/g"]) == 0
    check_same(tmp_path / "runs", alone)
    assert all(run.label.seeds == (4, 5, 6) and run.label.tags == ("a",) for run in store.runs())
    lines = capsys.readouterr().out.split("\n")
    assert [line.partition(",")[0] for line in lines[1:4]] == [f"seed {seed}: runs/g-s{seed}" for seed in (4, 5, 6)]
    assert lines[4].startswith("group runs/g: mean return ") and "(standard error of 3 seeds)" in lines[4]


def failing_to_build(monkeypatch: pytest.MonkeyPatch, error: BaseException) -> None:
    """Let the trainer of seed 1 raise ``error`` when it is made."""
    make = training.make_trainer

    def raising(config: TrainConfig, *rest: object, **more: object) -> object:
        if config.seed == 1:
            raise error
        return make(config, *rest, **more)

    monkeypatch.setattr(training, "make_trainer", raising)


def test_ctrl_c_while_the_next_run_is_built_ends_the_group_as_well(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    failing_to_build(monkeypatch, KeyboardInterrupt())
    with pytest.raises(Interrupted, match=f"SIGINT at seed 1; go on with the whole group: fugu train --resume {tmp_path}/g"):
        fugu.train("cartpole", runs=tmp_path, name="g", seeds=2, **TINY)
    with pytest.raises(KeyboardInterrupt) as caught:
        fugu.train("cartpole", runs=tmp_path, name="h", seeds=(1, 2), **TINY)
    assert not isinstance(caught.value, Interrupted)


def test_an_error_that_only_a_later_seed_has_is_noted(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    failing_to_build(monkeypatch, ConfigError("no room"))
    with (
        pytest.warns(RuntimeWarning, match="no room"),
        pytest.raises(SeedsFailed, match="seed 1: ConfigError: no room") as caught,
    ):
        fugu.train("cartpole", runs=tmp_path, name="g", seeds=3, **{**TINY, "steps": 64})
    assert [*caught.value.errors] == [1] and caught.value.group is not None
    assert [run.config.seed for run in caught.value.group] == [0, 2] and caught.value.group.seeds == (0, 1, 2)


FAILING = """
import gymnasium, pathlib
RUNS = pathlib.Path(__file__).parent / "runs"
class Env(gymnasium.Wrapper):
    steps = 0
    def __init__(self):
        super().__init__(gymnasium.make("CartPole-v1"))
    def step(self, action):
        self.steps += 1
        if self.steps == 100 and (RUNS / "g-s1").exists() and not (RUNS / "g-s2").exists():
            raise ValueError("enough")
        return super().step(action)
"""


def test_a_seed_that_fails_is_noted_and_the_others_go_on(tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    env = tmp_path / "failing.py"
    env.write_text(FAILING)
    flags = [
        "--steps",
        "600",
        "--num-envs",
        "4",
        "--horizon",
        "8",
        "--minibatch",
        "32",
        "--backend",
        "serial",
        "--board",
        "off",
    ]
    arguments = [f"{env}:Env", "--name", "g", "--seeds", "3", "--runs", str(tmp_path / "runs"), "--threads", "1"]
    with pytest.warns(RuntimeWarning, match="seed 1 of .*/g: EnvError: ValueError: enough"):
        assert main(["train", *arguments, *flags]) == 1
    out, err = capsys.readouterr()
    states = [line.partition("/g-s")[2].partition(", return")[0] for line in out.splitlines() if line.startswith("seed ")]
    assert states == ["0, done", "1, failed", "2, done"] and "(standard error of 2 seeds)" in out
    assert "1 of the 3 seeds of" in err
    assert f"seed 1: EnvError: ValueError: enough (all of it in {tmp_path}/runs/g-s1/failed.txt)\n" in err
    assert f"go on with: fugu train --resume {tmp_path}/runs/g" in err
    assert len(fugu.Group("g", tmp_path / "runs").resume()) == 3


def test_a_group_of_which_nothing_was_kept_is_to_begin_again(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    failing_to_build(monkeypatch, FuguError("no world"))
    with pytest.warns(RuntimeWarning), pytest.raises(SeedsFailed, match="once that is mended, begin again: nothing was kept"):
        fugu.train("cartpole", runs=tmp_path, name="g", seeds=(1,), **TINY)


def test_a_setting_that_no_seed_can_have_ends_the_group_before_anything_starts(tmp_path: Path) -> None:
    with pytest.raises(ConfigError, match="minibatch"):
        fugu.train("cartpole", runs=tmp_path / "runs", seeds=3, **{**TINY, "minibatch": 10_000 * 8})
    assert not (tmp_path / "runs").exists()


@pytest.mark.parametrize(
    ("settings", "said"),
    [
        ({"seeds": 0}, "seeds=0 must be at least 1"),
        ({"seeds": (1, 1)}, "1 more than once"),
        ({"seeds": (1, 2), "seed": 3}, "seeds=\\(1, 2\\) and seed=3: which of the two"),
        ({"seeds": 2, "seed": 2**63 - 1}, "below 2\\*\\*63"),
        ({"name": "g"}, "there is a group of runs .*/g already"),
        ({"name": "g", "seeds": 2}, "there is a group of runs .*/g already"),
        ({"name": "g-s4"}, "there is a run .*/g-s4 already"),
        ({"name": "latest"}, "latest"),
        ({"tags": "a"}, "tags='a' must be a list"),
    ],
)
def test_wrong_names_and_seeds_are_refused_before_anything_starts(settings: dict, said: str, group: fugu.Group) -> None:
    before = sorted(group.root.iterdir())
    with pytest.raises(ConfigError, match=said):
        fugu.train("cartpole", runs=group.root, **settings, **TINY)
    assert sorted(group.root.iterdir()) == before


def test_groups_without_a_name_that_start_in_the_same_second_are_two(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(store, "dated", lambda env: f"{env}-20260102-030405")
    tiny = {**TINY, "steps": 64}
    names = [fugu.train("cartpole", runs=tmp_path, seeds=1, **tiny).name for _ in range(2)]
    assert names == ["cartpole-20260102-030405", "cartpole-20260102-030405-2"]
    assert store.find("latest", tmp_path).name == names[1] + "-s0"


def test_a_group_that_there_is_not_names_the_nearest(group: fugu.Group, tmp_path: Path) -> None:
    with pytest.raises(ConfigError, match="there is no group of runs 'gg' in .*Did you mean 'g'|Known: g"):
        fugu.Group("gg", group.root)
    with pytest.raises(ConfigError, match="fugu train ENV --seeds 5 makes one"):
        fugu.Group("g", tmp_path)


@pytest.mark.slow
def test_a_group_that_was_killed_goes_on_exactly(alone: Path, tmp_path: Path) -> None:
    code = (
        "import os, sys\nfrom fugu.cli.main import main\nfrom fugu.run import live\nreport, lines = live.Report.__call__, [0]\n"
        "def killing(self, metrics):\n    report(self, metrics)\n    lines[0] += 1\n"
        "    if lines[0] == 37: os.kill(os.getpid(), 9)\nlive.Report.__call__ = killing\nmain(sys.argv[1:])"
    )
    arguments = ["cartpole", "--name", "g", "--seeds", "3", "--seed", "4", *FLAGS]
    done = subprocess.run([sys.executable, "-c", code, "train", *arguments], cwd=tmp_path, capture_output=True)
    assert done.returncode == -9 and [run.name for run in store.runs(tmp_path / "runs")] == ["g-s4", "g-s5"]
    fugu.Group("g", tmp_path / "runs").resume()
    check_same(tmp_path / "runs", alone)


SESSION = """
import os, signal, gymnasium as gym, fugu
class Walk(gym.Wrapper):
    def __init__(self):
        super().__init__(gym.make("CartPole-v1"))
def stop(run, metrics):
    if metrics["updates"] == 3:
        os.kill(os.getpid(), signal.SIGINT)
fugu.train(Walk, name="g", seeds=2, callbacks=[stop], steps=1500, num_envs=4, horizon=8, minibatch=32, backend="serial", board="off")
"""


def test_a_group_that_exists_in_a_script_says_once_how_it_goes_on_and_ends_in_a_few_words(tmp_path: Path) -> None:
    (tmp_path / "script.py").write_text(SESSION)
    ended = subprocess.run([sys.executable, "script.py"], cwd=tmp_path, capture_output=True, text=True, timeout=100)
    again = "fugu train --resume runs/g --env my_file.py:Walk"
    note, end = ended.stderr.splitlines()  # and nothing of what had not been freed
    assert note.endswith(f"go on with fugu.Group('runs/g').resume(env=Walk) or {again}")
    assert re.sub(r"step \d+", "step N", end) == (
        f"Interrupted: SIGINT: saved at step N of seed 0; go on with the whole group: {again}"
    )
    assert ended.returncode == 130


def test_a_group_goes_on_with_what_it_is_given(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    env = tmp_path / "walk.py"
    env.write_text("import gymnasium as gym\ndef make():\n    return gym.make('CartPole-v1')\n")
    settings = {**TINY, "steps": 64, "num_envs": 4, "minibatch": 32, "backend": "serial"}
    fugu.train(lambda: gym.make("CartPole-v1"), runs=tmp_path, name="g", seeds=2, **settings)
    group = fugu.Group("g", tmp_path).resume(env=f"{env}:make", steps=128)
    assert {run.config.env for run in group} == {f"{env}:make"} and min(run.metrics()[-1]["steps"] for run in group) >= 128
