"""The Ray backend: rows as those of any other, and what happens when a node is lost. Ray itself is in tests/cluster."""

from __future__ import annotations

import signal
import sys

import gymnasium
import numpy as np
import pytest

import fugu
from fugu.emulation.env import Infos
from fugu.errors import ConfigError, EnvError, EnvTimeout, MissingExtra, NotInstalled, WorkerDied
from fugu.vector import ray_actor, ray_cluster
from tests.contract.test_backends import Costly, record
from tests.vector.ray_here import RayHere, ray_here  # noqa: F401

SETTINGS = {
    "two nodes": {"nodes": 2, "num_workers": 1},
    "uneven": {"nodes": 4, "num_workers": 1},
    "pipelined": {"nodes": 4, "num_workers": 1, "batch_size": 3},
}


class Counting(gymnasium.Env):
    """Sees how many steps it took, and ends an episode after 50."""

    observation_space = gymnasium.spaces.Box(0, 100, (1,), np.float32)
    action_space = gymnasium.spaces.Discrete(2)

    def reset(self, *, seed: int | None = None, options: dict | None = None) -> tuple[np.ndarray, Infos]:
        super().reset(seed=seed)
        self.t = 0 if options is None else options["start"]
        return np.array([self.t], np.float32), {}

    def step(self, action: int) -> tuple[np.ndarray, float, bool, bool, dict]:
        if action == 1:
            raise ZeroDivisionError("one is not allowed")
        self.t += 1
        return np.array([self.t], np.float32), 1.0, self.t == 50, False, {}


@pytest.mark.parametrize("settings", SETTINGS.values(), ids=SETTINGS.keys())
@pytest.mark.usefixtures("ray_here")
def test_rows_equal_those_of_serial_byte_for_byte(settings):
    with fugu.vector.make(Costly, 6, backend="serial") as vec:
        expected = record(vec, 40, seed=11)
    with fugu.vector.make(Costly, 6, backend="ray", **settings) as vec:
        assert record(vec, 40, seed=11) == expected


@pytest.mark.usefixtures("ray_here")
def test_native_environments_are_stepped_in_c_on_the_node():
    rows = []
    for settings in ({}, {"backend": "ray", "nodes": 2, "on_error": "restart"}):
        with fugu.vector.make("cartpole", 6, **settings) as vec:
            vec.reset(seed=4)
            rows.append([vec.step(np.ones(6, np.int64))[0].copy() for _ in range(20)])
    assert np.array_equal(*rows)


def make(**settings):
    return fugu.vector.make(Counting, 4, backend="ray", nodes=2, **{"num_workers": 1, "isolate": False, **settings})


def steps(vec, count):
    for _ in range(count):
        rows = vec.step(np.zeros(4, np.int64))
    return rows


def test_a_lost_node_is_replaced_and_its_episodes_are_cut_off(ray_here):  # noqa: F811
    with make(on_error="restart") as vec:
        vec.reset(seed=1)
        steps(vec, 3)
        ray_here.actors[1].end()
        obs, reward, terminated, truncated, infos = steps(vec, 1)
        assert obs[:, 0].tolist() == [4, 4, 3, 3], "the last row known stands for the final one"
        assert truncated.tolist() == [False, False, True, True] and not terminated.any()
        assert reward.tolist() == [1, 1, 0, 0] and vec.rows.mask.tolist() == [True, True, False, False]
        assert infos[2]["restarted"] == "node" and "node 1 (10.0.0.1)" in infos[3]["error"] and 0 not in infos
        obs = steps(vec, 1)[0]
        assert obs[:, 0].tolist() == [5, 5, 0, 0] and vec.rows.first.tolist() == [False, False, True, True]
        assert steps(vec, 1)[0][:, 0].tolist() == [6, 6, 1, 1]
        assert vec.restarts == 1


def test_without_restarts_the_loss_of_a_node_is_an_error_that_names_it(ray_here):  # noqa: F811
    with make() as vec:
        vec.reset(seed=1)
        ray_here.actors[0].end()
        with pytest.raises(WorkerDied, match=r"node 0 \(10.0.0.1\) died") as error:
            steps(vec, 1)
    assert error.value.envs == (0, 1) and error.value.node == "0 (10.0.0.1)" and len(error.value.seeds) == 2


def test_a_node_that_hangs_is_late(ray_here, monkeypatch):  # noqa: F811
    monkeypatch.setattr("fugu.vector.ray.GRACE_S", 0.1)
    with make(step_timeout=0.2) as vec:
        vec.reset(seed=1)
        ray_here.actors[1].frozen.clear()
        with pytest.raises(EnvTimeout, match=r"no answer of node 1 \(10.0.0.1\) within 0.2 s \(step_timeout\)"):
            steps(vec, 1)
        ray_here.actors[1].frozen.set()


@pytest.mark.usefixtures("ray_here")
def test_the_budget_of_restarts_holds_for_nodes(ray_here):  # noqa: F811
    with make(on_error="restart", max_restarts=1) as vec:
        vec.reset(seed=1)
        ray_here.actors[0].end()
        steps(vec, 1)
        ray_here.actors[-1].end()
        with pytest.raises(EnvError, match="died"):
            steps(vec, 2)


@pytest.mark.usefixtures("ray_here")
def test_errors_of_an_environment_name_node_and_env():
    with make() as vec:
        vec.reset(seed=1)
        with pytest.raises(EnvError, match="one is not allowed") as error:
            vec.step(np.array([0, 0, 0, 1]))
        assert error.value.envs == (3,) and "node 1 (10.0.0.1)" in str(error.value)
        assert error.value.caused_by(ZeroDivisionError)
        vec.reset(seed=2)
        assert steps(vec, 1)[0][:, 0].tolist() == [1, 1, 1, 1], "a reset makes all well again"


@pytest.mark.usefixtures("ray_here")
def test_resets_with_options_of_some_envs_and_calls_reach_the_right_envs():
    with make() as vec:
        obs, _ = vec.reset(seed=1, options=[{"start": i} for i in range(4)])
        assert obs[:, 0].tolist() == [0, 1, 2, 3]
        steps(vec, 2)
        obs, _ = vec.reset_some(np.array([False, False, False, True]))
        assert obs[:, 0].tolist() == [2, 3, 4, 0]
        assert vec.get_attr("t", envs=[3, 1]) == [0, 3]
        vec.set_attr("t", [10, 20, 30, 40])
        assert steps(vec, 1)[0][:, 0].tolist() == [11, 21, 31, 41]


def test_nodes_are_shared_out_over_machines_in_turn(ray_here):  # noqa: F811
    ray_here.machines = 3
    cluster = ray_cluster.Cluster(None, 4)
    assert [(place.ident, place.sharing) for place in cluster.places(4)] == [("id0", 2), ("id1", 1), ("id2", 1), ("id0", 2)]
    assert len(cluster.places(None)) == 3
    cluster.leave()
    assert not ray_here.started, "what was started here ends with its last user"


def test_a_cluster_of_the_callers_own_is_left_as_it_was(ray_here):  # noqa: F811
    ray_here.init()
    with make() as vec:
        vec.reset()
    assert ray_here.started


def test_ray_does_not_keep_the_handler_of_sigterm(ray_here, monkeypatch):  # noqa: F811
    def init(**settings):
        ray_here.started = True
        signal.signal(signal.SIGTERM, signal.SIG_IGN)

    monkeypatch.setattr(ray_here, "init", init)
    before = signal.getsignal(signal.SIGTERM)
    ray_cluster.Cluster(None).leave()
    assert signal.getsignal(signal.SIGTERM) == before


def test_other_versions_on_a_node_are_refused(ray_here, monkeypatch):  # noqa: F811
    monkeypatch.setattr("fugu.vector.ray.versions", lambda: {**ray_actor.versions(), "fugu": "9"})
    with pytest.raises(ray_cluster.ClusterError, match=r"node 0 \(10.0.0.1\) has other versions .* fugu 9"):
        make()
    assert not ray_here.started


def test_without_ray_one_line_says_what_to_type(monkeypatch):
    monkeypatch.setitem(sys.modules, "ray", None)
    with pytest.raises(MissingExtra, match=r'pip install "fugu-rl\[ray\]"'):
        make()


def test_an_old_ray_is_refused(ray_here, monkeypatch):  # noqa: F811
    monkeypatch.setattr(RayHere, "__version__", "2.9.3")
    with pytest.raises(NotInstalled, match=r"Ray 2.9.3 is too old, 2.40 is needed"):
        make()


def test_a_cluster_that_cannot_be_joined_is_told_in_one_line(ray_here, monkeypatch):  # noqa: F811
    def init(**settings):
        raise ConnectionError("no\nsuch host")

    monkeypatch.setattr(ray_here, "init", init)
    with pytest.raises(
        ray_cluster.ClusterError, match=r"at 10.9.9.9:6379 cannot be joined: ConnectionError: no such host. Look"
    ):
        make(address="10.9.9.9:6379")


@pytest.mark.usefixtures("ray_here")
def test_steps_that_are_faster_than_a_call_are_told_of():
    with make() as vec:
        vec.reset(seed=1)
        with pytest.warns(RuntimeWarning, match="--rollout.nodes 2"):
            steps(vec, 100)


def test_settings_of_nodes_need_the_backend():
    with pytest.raises(ConfigError, match="backend='ray'"):
        fugu.vector.VectorConfig(num_envs=4, nodes=2)
    with pytest.raises(ConfigError, match="try nodes=4"):
        fugu.vector.VectorConfig(num_envs=4, nodes=8, backend="ray")
