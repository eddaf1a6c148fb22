"""What only real processes can show: the same bytes over Ray, and nodes that are killed or stopped."""

from __future__ import annotations

import contextlib
import dataclasses
import json
import os
import random
import signal
import time
import warnings

import numpy as np
import psutil
import pytest

import fugu
from fugu.cli.main import main
from fugu.emulation.place import Name
from fugu.errors import EnvTimeout, WorkerDied
from fugu.rollout.config import RolloutConfig
from fugu.trainer.build import make_trainer
from fugu.trainer.interrupt import Interrupt
from tests.contract.test_backends import Costly, record
from tests.rollout.test_fleet import BASE, PYTHON, train
from tests.vector.test_ray import Counting, steps

pytestmark = [pytest.mark.cluster, pytest.mark.usefixtures("cluster"), pytest.mark.timeout(900)]


class Sleepy(Counting):
    """Takes another time for each step."""

    def step(self, action):
        time.sleep(random.random() / 200)
        return super().step(0)


@pytest.fixture(autouse=True)
def nothing_left(cluster):
    """Fails a test after which an actor lives that was not there before."""

    def actors():
        found = psutil.process_iter(["cmdline"])
        return {
            p.pid for p in found if any(name in " ".join(p.info["cmdline"] or ()) for name in ("ray::Node", "ray::FleetNode"))
        }

    before = actors()
    yield
    until = time.monotonic() + 30
    while actors() - before and time.monotonic() < until:
        time.sleep(0.1)
    assert not actors() - before


@pytest.mark.parametrize("env", [Costly, "CartPole-v1", "cartpole"])
@pytest.mark.parametrize("settings", [{"nodes": 2}, {"nodes": 4, "batch_size": 3}], ids=["two nodes", "pipelined"])
def test_rows_equal_those_of_serial_byte_for_byte(env, settings):
    with fugu.vector.make(env, 6, backend="serial") as vec:
        expected = record(vec, 60, seed=11)
    with fugu.vector.make(env, 6, backend="ray", **settings) as vec:
        assert record(vec, 60, seed=11) == expected


def make(**settings):
    return fugu.vector.make(Counting, 4, backend="ray", nodes=2, **{"num_workers": 1, "isolate": False, **settings})


def pids(vec):
    return [member.pid for member in vec._runner._nodes.members]


def test_a_node_that_is_killed_is_replaced():
    with make(on_error="restart") as vec:
        vec.reset(seed=1)
        steps(vec, 3)
        os.kill(pids(vec)[1], signal.SIGKILL)
        began = time.monotonic()
        obs, _, _, truncated, infos = steps(vec, 1)
        took = time.monotonic() - began
        assert obs[:, 0].tolist() == [4, 4, 3, 3] and truncated.tolist() == [False, False, True, True]
        assert infos[2]["restarted"] == "node" and vec.rows.mask.tolist() == [True, True, False, False]
        assert steps(vec, 1)[0][:, 0].tolist() == [5, 5, 0, 0] and vec.rows.first.tolist() == [False, False, True, True]
        print(f"from kill -9 to the next row: {took:.1f} s")


def test_a_node_that_is_killed_is_named():
    with make() as vec:
        vec.reset(seed=1)
        os.kill(pids(vec)[0], signal.SIGKILL)
        with pytest.raises(WorkerDied, match=r"node 0 .* died"):
            steps(vec, 1)


def test_a_node_that_is_stopped_is_late_and_leaves_nothing_behind():
    with make(step_timeout=1.0) as vec:
        vec.reset(seed=1)
        stopped = pids(vec)[1]
        os.kill(stopped, signal.SIGSTOP)
        with pytest.raises(EnvTimeout, match=r"no answer of node 1"):
            steps(vec, 1)
    until = time.monotonic() + 20
    while psutil.pid_exists(stopped) and psutil.Process(stopped).status() != "zombie" and time.monotonic() < until:
        time.sleep(0.1)
    assert not psutil.pid_exists(stopped) or psutil.Process(stopped).status() == "zombie"


def on_nodes(config, nodes, lag=0):
    return dataclasses.replace(config, rollout=RolloutConfig(nodes=nodes, lag=lag))


@pytest.mark.parametrize("config", [BASE, PYTHON], ids=["native", "python"])
def test_one_node_without_lag_learns_bit_for_bit_what_one_process_learns(config):
    assert train(on_nodes(config, 1)) == train(config)


@pytest.mark.parametrize("lag", [0, 1])
def test_timing_makes_no_difference(lag):
    env = Name(f"{__name__}:Sleepy", Sleepy)
    config = on_nodes(dataclasses.replace(PYTHON, env=env, steps=6 * 128), 2, lag)
    assert train(config) == train(config)


def test_a_fleet_goes_on_after_a_node_was_killed():
    trainer = make_trainer(on_nodes(BASE, 2, lag=1))
    alive, wait = [], []

    def report(metrics):
        measured = trainer.source.measured()
        alive.append(measured["nodes/alive"])
        wait.append(measured["nodes/wait"])
        if len(alive) == 3:
            os.kill(trainer.source.vec.nodes.members[1].pid, signal.SIGKILL)

    with contextlib.closing(trainer), warnings.catch_warnings(record=True) as told:
        warnings.simplefilter("always")
        trainer.start()
        trainer.run(report, Interrupt())
    assert 1.0 in alive and alive[-1] == 2.0, "one batch without the node, then it is back"
    assert any("node 1" in str(each.message) and "cannot be repeated exactly" in str(each.message) for each in told)
    print(f"seconds for the batch with the loss: {wait[alive.index(1.0)]:.1f}")


def test_cluster_check_says_all_there_is(capsys):
    assert main(["cluster", "check", "--json", "--calls", "5", "--megabytes", "4"]) == 0
    report = json.loads(capsys.readouterr().out)
    machine = report["machines"][0]
    assert machine["cores"] >= 1 and machine["round_trip_ms"] > 0 and machine["mb_per_s"] > 0 and not machine["problem"]
    assert np.isfinite(machine["store"]) and machine["versions"] == report["here"]
