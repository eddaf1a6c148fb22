"""Training that is killed, interrupted, or fed garbage: nothing is lost, nothing hangs, and resuming is exact."""

from __future__ import annotations

import contextlib
import json
import os
import random
import signal
import subprocess
import sys
import time
from pathlib import Path

import psutil
import pytest

from fugu.cli.main import main
from tests.timing import in_time

FAST = [
    *("--steps", "40000", "--horizon", "16", "--minibatch", "256", "--num-envs", "32", "--vector.num-workers", "1"),
    *("--threads", "1", "--checkpoint.every", "5", "--log.board", "off"),
]

SLOW_ENV = """
import time
import gymnasium, numpy as np

class Slow(gymnasium.Env):
    observation_space = gymnasium.spaces.Box(-1, 1, (2,))
    action_space = gymnasium.spaces.Discrete(2)
    def reset(self, *, seed=None, options=None):
        super().reset(seed=seed)
        return np.zeros(2, np.float32), {}
    def step(self, action):
        time.sleep(STEP)
        return np.zeros(2, np.float32), REWARD, False, False, {}
"""


PAY = """
    paid = 0
    def pay(self):
        self.paid += 1
        import json
        return json.loads('no') if self.paid > 320 else 0.0
"""


def fugu(*arguments: str, cwd: Path, **settings) -> subprocess.Popen:
    return subprocess.Popen(
        [sys.executable, "-m", "fugu", *arguments],
        cwd=cwd,
        text=True,
        stdout=subprocess.PIPE,
        stderr=subprocess.PIPE,
        **settings,
    )


def finish(process: subprocess.Popen, seconds: float = 60) -> tuple[int, str]:
    out, err = process.communicate(timeout=seconds)
    return process.returncode, out + err


def only_run(root: Path) -> Path:
    (run,) = (root / "runs").iterdir()
    return run


def wait_for(condition, seconds: float = 30):
    end = time.monotonic() + seconds
    while not condition():
        assert time.monotonic() < end, "waited in vain"
        time.sleep(0.02)


@pytest.mark.slow
@pytest.mark.parametrize(
    "env, extra",
    [
        ("cartpole", []),
        ("cartpole", ["--core", "lstm", "--core-size", "16"]),
        ("CartPole-v1", ["--backend", "serial", "--vector.num-workers", "1"]),
        ("CartPole-v1", ["--backend", "serial", "--vector.num-workers", "1", "--core", "lstm", "--core-size", "16"]),
    ],
)
def test_a_killed_and_resumed_run_writes_the_same_metrics(env, extra, tmp_path):
    (tmp_path / "whole").mkdir()
    (tmp_path / "killed").mkdir()
    code, said = finish(fugu("train", env, *FAST, *extra, cwd=tmp_path / "whole"))
    assert code == 0, said
    process = fugu("train", env, *FAST, *extra, cwd=tmp_path / "killed")
    wait_for(lambda: list((tmp_path / "killed").glob("runs/*/checkpoints/step_*/MANIFEST.json")))
    time.sleep(random.uniform(0, 0.5))
    process.kill()
    process.communicate()
    for _ in range(2):  # killed once more while it goes on
        process = fugu("train", "--resume", "latest", cwd=tmp_path / "killed")
        time.sleep(random.uniform(2.5, 4.0))
        process.kill()
        process.communicate()
    process = fugu("train", "--resume", "latest", cwd=tmp_path / "killed")
    code, said = finish(process)
    assert code == 0 or "has done its" in said, said
    whole = (only_run(tmp_path / "whole") / "metrics.jsonl").read_bytes()
    resumed = (only_run(tmp_path / "killed") / "metrics.jsonl").read_bytes()
    assert whole == resumed and len(whole.splitlines()) > 50


MILLION = [
    *("--algorithm", "sac", "--steps", "1240000", "--num-envs", "1000", "--hidden", "32", "32", "--minibatch", "256"),
    *("--replay.size", "1000000", "--replay.start", "1000000", "--replay.every", "10", "--replay.ratio", "1", "--epochs", "1"),
    *("--threads", "1", "--vector.num-workers", "1", "--checkpoint.every", "8", "--log.board", "off"),
]


@pytest.mark.slow
def test_a_run_with_a_replay_of_a_million_rows_that_is_killed_goes_on_exactly(tmp_path):
    for folder in ("whole", "killed"):
        (tmp_path / folder).mkdir()
    code, said = finish(fugu("train", "pendulum", *MILLION, cwd=tmp_path / "whole"))
    assert code == 0, said
    process = fugu("train", "pendulum", *MILLION, cwd=tmp_path / "killed")
    wait_for(lambda: list((tmp_path / "killed").glob("runs/*/checkpoints/step_*/MANIFEST.json")), 60)
    time.sleep(random.uniform(0, 0.3))
    process.kill()
    process.communicate()
    assert process.returncode == -signal.SIGKILL
    pages = only_run(tmp_path / "killed") / "checkpoints" / "pages"
    assert sum(page.stat().st_size for page in pages.iterdir()) > 1_000_000 * 4 * (3 + 1 + 1)
    code, said = finish(fugu("train", "--resume", "latest", cwd=tmp_path / "killed"))
    assert code == 0, said
    whole, resumed = ((only_run(tmp_path / folder) / "metrics.jsonl").read_bytes() for folder in ("whole", "killed"))
    rows = [json.loads(line) for line in whole.splitlines()]
    assert whole == resumed and len(rows) == 24 and rows[-1]["learned"] == 24 * 39 * 256
    assert len({row["loss/value"] for row in rows}) == 24


@pytest.mark.slow
@pytest.mark.parametrize("number, code", [(signal.SIGINT, 130), (signal.SIGTERM, 143)])
def test_a_signal_saves_and_names_the_way_on(number, code, tmp_path):
    process = fugu("train", "cartpole", *FAST, "--steps", "1e9", cwd=tmp_path)
    wait_for(
        lambda: list(tmp_path.glob("runs/*/metrics.jsonl")) and only_run(tmp_path).joinpath("metrics.jsonl").stat().st_size
    )
    began = time.monotonic()
    process.send_signal(number)
    status, said = finish(process)
    took = time.monotonic() - began
    assert status == code
    assert "fugu train --resume" in said and "Traceback" not in said
    lines = [json.loads(line) for line in (only_run(tmp_path) / "metrics.jsonl").read_text().splitlines()]
    saved = max(int(p.name.split("_")[1]) for p in (only_run(tmp_path) / "checkpoints").glob("step_*"))
    assert saved == lines[-1]["steps"]
    in_time(took, 5)
    process = fugu("train", "--resume", "latest", "--steps", str(saved + 2000), cwd=tmp_path)
    code, said = finish(process)
    assert code == 0, said


LOOP = """
import fugu
for seed in range(3):
    print(seed, flush=True)
    try:
        fugu.train("cartpole", steps=10**9, seed=seed, num_envs=8, horizon=8, minibatch=64, threads=1, **{"log.board": "off"})
    except Exception:
        continue
"""


def test_ctrl_c_ends_a_loop_that_goes_on_after_errors(tmp_path):
    process = subprocess.Popen(
        [sys.executable, "-c", LOOP], cwd=tmp_path, text=True, stdout=subprocess.PIPE, stderr=subprocess.PIPE
    )
    try:
        wait_for(lambda: any(file.stat().st_size for file in tmp_path.glob("runs/*/metrics.jsonl")))
        process.send_signal(signal.SIGINT)
        out, err = process.communicate(timeout=60)
    finally:
        process.kill()
    run = only_run(tmp_path)
    assert out == "0\n" and process.returncode == 130, err
    assert err.startswith("Interrupted: SIGINT: saved at step ") and err.endswith(f"fugu train --resume runs/{run.name}\n"), err
    assert len(err.splitlines()) == 1 and list(run.glob("checkpoints/step_*/MANIFEST.json"))


@pytest.mark.slow
def test_a_signal_while_an_environment_is_slow_saves_within_seconds_and_leaves_no_process(tmp_path):
    (tmp_path / "slow.py").write_text(SLOW_ENV.replace("STEP", "3.0").replace("REWARD", "0.0"))
    arguments = ["--num-envs", "2", "--horizon", "8", "--minibatch", "16", "--steps", "1000", "--log.board", "off"]
    process = fugu("train", "slow.py:Slow", "--vector.num-workers", "2", *arguments, cwd=tmp_path)
    try:
        wait_for(lambda: list(tmp_path.glob("runs/*/timing.jsonl")))
        time.sleep(1.0)
        children = psutil.Process(process.pid).children(recursive=True)
        assert children
        began = time.monotonic()
        process.send_signal(signal.SIGINT)
        status, said = finish(process)
        took = time.monotonic() - began
        assert status == 130 and "fugu train --resume" in said, said
        assert not any(child.is_running() and child.status() != psutil.STATUS_ZOMBIE for child in children)
        assert list(only_run(tmp_path).glob("checkpoints/step_*"))
        in_time(took, 5)
    finally:
        process.kill()


def test_a_signal_to_every_process_of_a_run_saves_like_one_to_the_first(tmp_path):
    """What service managers and job schedulers do. The workers get it well before, the worst order there is."""
    (tmp_path / "slow.py").write_text(SLOW_ENV.replace("STEP", "0.01").replace("REWARD", "0.0"))
    arguments = ["--num-envs", "2", "--horizon", "8", "--minibatch", "16", "--steps", "1e6", "--log.board", "off"]
    process = fugu("train", "slow.py:Slow", "--vector.num-workers", "2", *arguments, cwd=tmp_path)
    try:
        wait_for(lambda: any(file.stat().st_size for file in tmp_path.glob("runs/*/timing.jsonl")))
        children = psutil.Process(process.pid).children(recursive=True)
        assert children
        began = time.monotonic()
        for child in children:
            child.terminate()
        time.sleep(0.3)
        process.terminate()
        status, said = finish(process)
        took = time.monotonic() - began
        assert status == 143, said
        assert "fugu train --resume" in said and "worker" not in said, said
        assert not any(child.is_running() and child.status() != psutil.STATUS_ZOMBIE for child in children)
        assert list(only_run(tmp_path).glob("checkpoints/step_*"))
        in_time(took, 5)
    finally:
        process.kill()


def test_rewards_that_are_not_numbers_stop_training_with_the_cause(tmp_path):
    (tmp_path / "bad.py").write_text(SLOW_ENV.replace("STEP", "0").replace("REWARD", "float('nan')"))
    arguments = ["--num-envs", "2", "--horizon", "8", "--minibatch", "16", "--steps", "1000", "--log.board", "off"]
    code, said = finish(fugu("train", "bad.py:Slow", "--backend", "serial", *arguments, cwd=tmp_path))
    assert code == 1 and "in run/train.py" not in said
    assert "reward: nan is not finite" in said and "env 0, during step" in said, said


def test_an_error_of_an_environment_is_a_few_lines_and_a_file(tmp_path, monkeypatch, capsys):
    (tmp_path / "paying.py").write_text(SLOW_ENV.replace("STEP", "0").replace("REWARD", "self.pay()") + PAY)
    monkeypatch.chdir(tmp_path)
    command = ["train", "paying.py:Slow", "--num-envs", "2", "--horizon", "8", "--minibatch", "16", "--steps", "1000"]
    command += ["--threads", "1", "--log.board", "off", "--isolate", "True", "--vector.num-workers", "1"]
    assert main(command) == 1
    said = capsys.readouterr().err
    lines = [line for line in said.splitlines() if not line.startswith("warning: ")]
    run = only_run(tmp_path)
    assert lines[0] == "JSONDecodeError: Expecting value: line 1 column 1 (char 0)", said
    assert [line.partition(", line ")[2] for line in lines[1:3]] == [
        "13: return np.zeros(2, np.float32), self.pay(), False, False, {}",
        "19: return json.loads('no') if self.paid > 320 else 0.0",
    ]
    assert lines[3].strip() == "where: worker 0, env 0, during step" and len(lines) == 6, said
    assert lines[5] == f"  saved at step 640; go on with: fugu train --resume runs/{run.name}"
    assert "json/decoder.py" in (run / "failed.txt").read_text()
    assert main([*command, "--debug"]) == 1
    said = capsys.readouterr().err
    assert "json/decoder.py" in said and "fugu/vector/shard.py" in said


@pytest.mark.slow
@pytest.mark.skipif(os.geteuid() != 0, reason="mounting a small disk needs root")
def test_a_full_disk_costs_checkpoints_but_not_the_earlier_ones(tmp_path):
    disk = tmp_path / "disk"
    disk.mkdir()
    if subprocess.run(["mount", "-t", "tmpfs", "-o", "size=8m", "tmpfs", str(disk)], capture_output=True).returncode:
        pytest.skip("no small disk can be mounted here")
    try:
        process = fugu("train", "cartpole", *FAST, "--steps", "1e9", cwd=disk)
        wait_for(lambda: list(disk.glob("runs/*/checkpoints/step_*/MANIFEST.json")))
        filler = disk / "filler"
        with contextlib.suppress(OSError), filler.open("wb") as file:
            while True:
                file.write(bytes(4096))
                file.flush()
        code, said = finish(process, 60)
        assert code == 1 and "Traceback" not in said and "space" in said.lower(), said
        filler.unlink()
        code, said = finish(fugu("train", "--resume", "latest", "--steps", "60000", cwd=disk))
        assert code == 0 or "has done its" in said, said
    finally:
        subprocess.run(["umount", "-l", str(disk)], check=False)
