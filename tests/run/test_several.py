"""A run of several ranks: one folder, one report, and processes that are started again when one of them is killed."""

from __future__ import annotations

import os
import subprocess
import sys
from types import SimpleNamespace
from typing import Any

import pytest

import fugu
from fugu.cli import processes
from fugu.errors import ConfigError
from fugu.trainer import checkpoint

SMALL: dict[str, Any] = {"num_envs": 8, "horizon": 8, "minibatch": 64, "threads": 1, "board": "off", "checkpoint.every": 2}

MORTAL = """
import os, signal
from pathlib import Path
import gymnasium as gym
import numpy as np

class Mortal(gym.Env):
    observation_space, action_space = gym.spaces.Box(-1, 1, (2,)), gym.spaces.Discrete(2)

    def __init__(self, grave, after):
        self.grave, self.after, self.steps = Path(grave), after, 0

    def reset(self, *, seed=None, options=None):
        super().reset(seed=seed)
        self.t = 0
        return self.np_random.uniform(-1, 1, 2).astype(np.float32), {}

    def step(self, action):
        self.steps, self.t = self.steps + 1, self.t + 1
        if os.environ.get("RANK") == "1" and self.steps > self.after and not self.grave.exists():
            self.grave.touch()
            os.kill(os.getpid(), signal.SIGKILL)
        return self.np_random.uniform(-1, 1, 2).astype(np.float32), float(action), self.t == 5, False, {}
"""


def test_two_ranks_of_one_process_make_one_run_that_goes_on(tmp_path):
    settings = {**SMALL, "ranks": {"mode": "exact", "shards": 2}}
    run = fugu.train("cartpole", runs=tmp_path, steps=1024, **settings)
    assert [each.name for each in tmp_path.iterdir() if each.is_dir()] == [run.folder.name]
    rows = run.metrics()
    assert rows[-1]["steps"] >= 1024 and rows[0]["steps"] <= 2 * 64
    assert checkpoint.load(checkpoint.find(run.folder.checkpoints)).state["ranks"] == 2
    again = fugu.train("cartpole", runs=tmp_path, steps=512, **settings)
    again.resume(steps=1024)
    rows = again.metrics()
    assert rows[-1]["steps"] >= 1024 and [row["updates"] for row in rows] == [*range(1, len(rows) + 1)]


def test_a_script_is_told_how_to_be_started_several_times(tmp_path):
    with pytest.raises(
        ConfigError, match=r"ranks.processes=2: a script is started 2 times by torchrun --nproc-per-node 2 SCRIPT.py"
    ):
        fugu.train("cartpole", runs=tmp_path, processes=2, steps=64)


def test_seeds_are_not_for_several_processes(tmp_path):
    with pytest.raises(ConfigError, match="leave --seeds or --processes out"):
        fugu.train("cartpole", runs=tmp_path, processes=2, seeds=2, steps=64)


@pytest.mark.parametrize(
    ("ends", "code", "lines"),
    [
        ([{}], 0, []),
        ([{0: 2}], 2, []),
        ([{1: -9, 0: -15}, {}], 0, ["fugu: rank 1 was killed by SIGKILL; going on from the last checkpoint (restart 1 of 3)"]),
        ([{0: 75}, {0: 1}], 1, ["fugu: a rank was lost; going on from the last checkpoint (restart 1 of 3)"]),
        ([{1: -9}] * 4, 75, None),
    ],
)
def test_only_what_was_killed_is_started_again(ends, code, lines, monkeypatch, capsys):
    from torch.distributed.elastic.multiprocessing.errors import ChildFailedError

    left = list(ends)
    names = set()

    def launch(settings: Any, program: str) -> Any:
        names.add(settings.run_id)

        def run(*argv: str) -> None:
            assert argv == ("-m", "fugu", "train", "cartpole")
            if found := left.pop(0):
                raise ChildFailedError("fugu", {rank: _failure(each) for rank, each in found.items()})

        return run

    monkeypatch.setattr("torch.distributed.launcher.api.elastic_launch", launch)
    assert processes.launch(["cartpole"], 2) == code
    assert not left and len(names) == 1
    if lines is not None:
        assert capsys.readouterr().err.splitlines() == lines


def _failure(code: int) -> Any:
    said = {"timestamp": 0, "local_rank": 0, "pid": 0, "error_file": "", "message": "", "error_file_data": {}}
    return SimpleNamespace(exitcode=code, timestamp_isoformat=lambda: "", signal_name=lambda: "", **said)


@pytest.mark.cluster
def test_a_killed_rank_is_started_again_and_the_run_goes_on(tmp_path):
    (tmp_path / "mortal.py").write_text(MORTAL)
    words = (
        "mortal.py:Mortal --env.grave grave --env.after 40 --processes 2 --steps 1600 --num-envs 4 --backend serial --horizon 8"
    )
    words += " --minibatch 32 --checkpoint.every 2 --threads 1 --board off --ranks.timeout 120"
    done = subprocess.run(
        [sys.executable, "-m", "fugu", "train", *words.split()],
        cwd=tmp_path,
        env={**os.environ, "OMP_NUM_THREADS": "1"},
        capture_output=True,
        text=True,
        timeout=3000,
    )
    assert done.returncode == 0, done.stderr
    assert "rank 1 was killed by SIGKILL; going on from the last checkpoint (restart 1 of 3)" in done.stderr
    assert (tmp_path / "grave").exists()
    (folder,) = [each for each in (tmp_path / "runs").iterdir() if each.is_dir()]
    run = fugu.Run(folder, trust_code=True)
    rows = run.metrics()
    assert rows[-1]["steps"] >= 1600 and [row["updates"] for row in rows] == [*range(1, len(rows) + 1)]
    assert run.config.ranks.processes == 2
    assert done.stdout.count("Next:") == 1  # rank 0 alone says what came of it
