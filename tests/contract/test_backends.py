"""Every backend gives the rows of the serial one, byte for byte, wherever the order is determined."""

from __future__ import annotations

import functools
from typing import Any

import gymnasium
import numpy as np
import pytest

import fugu
from fugu.emulation import Rows
from fugu.vector.seeds import env_seeds

pytestmark = pytest.mark.usefixtures("no_leaks")


class Mixed(gymnasium.Env):
    """Structured spaces on both sides, random lengths, both kinds of ending, infos now and then, an action mask."""

    observation_space = gymnasium.spaces.Dict(
        image=gymnasium.spaces.Box(0, 255, (3, 3), np.uint8),
        speed=gymnasium.spaces.Box(-np.inf, np.inf, (2,), np.float32),
        text=gymnasium.spaces.Text(6, min_length=0),
        place=gymnasium.spaces.Tuple([gymnasium.spaces.Discrete(5, start=-2), gymnasium.spaces.MultiBinary(3)]),
    )
    action_space = gymnasium.spaces.Dict(move=gymnasium.spaces.Discrete(4), force=gymnasium.spaces.Box(-1, 1, (2,), np.float32))

    def reset(self, *, seed: int | None = None, options: dict[str, Any] | None = None) -> tuple[Any, dict[str, Any]]:
        super().reset(seed=seed)
        self.t, self.seen = 0, np.zeros(2, np.float32)
        self.length = int(self.np_random.integers(1, 9))
        return self._obs(), {"length": self.length}

    def step(self, action: dict[str, Any]) -> tuple[Any, float, bool, bool, dict[str, Any]]:
        self.t += 1
        self.seen = action["force"] + np.float32(action["move"])
        over = self.t >= self.length
        cut = over and self.length % 2 == 0
        return self._obs(), float(self.seen.sum()), over and not cut, cut, {"t": self.t} if self.t % 3 == 0 else {}

    def _obs(self) -> dict[str, Any]:
        random = self.np_random
        return {
            "image": random.integers(0, 256, (3, 3), np.uint8),
            "speed": self.seen,
            "text": "abcdef"[: int(random.integers(0, 7))],
            "place": (int(random.integers(-2, 3)), random.integers(0, 2, 3, np.int8)),
        }


class Costly(Mixed):
    """With two costs of each step, and an info in every one."""

    costs = ("force", "late")

    def step(self, action: dict[str, Any]) -> tuple[Any, float, bool, bool, dict[str, Any]]:
        obs, reward, terminated, truncated, info = super().step(action)
        return obs, reward, terminated, truncated, {**info, "force": abs(reward), "late": float(self.t > 3)}


def record(vec: fugu.vector.VecEnv, steps: int, seed: int) -> dict[int, list[Any]]:
    """Everything each agent sees over ``steps`` of its own steps, with actions that depend on nothing but agent and time."""
    rng = np.random.default_rng(seed)
    actions = vec.action_layout.zeros(steps, vec.num_agents)
    for view, leaf in zip(vec.action_layout.leaf_views(actions), vec.action_layout.leaves, strict=True):
        view[...] = rng.uniform(-1, 1, view.shape) if leaf.dtype.kind == "f" else rng.integers(0, leaf.space.n, view.shape)
    seen: dict[int, list[Any]] = {agent: [] for agent in range(vec.num_agents)}
    vec.async_reset(seed)
    batches = vec.config.num_batches
    for turn in range(steps * batches):
        rows = vec.recv()
        _note(seen, rows)
        vec.send(actions[turn // batches, rows.agents])
    return seen


def _note(seen: dict[int, list[Any]], rows: Rows) -> None:
    for i, agent in enumerate(range(rows.agents.start, rows.agents.stop)):
        info = {k: v for k, v in rows.infos.get(agent, {}).items() if k != "episode"}
        episode = rows.infos.get(agent, {}).get("episode", {})
        seen[agent].append(
            (
                rows.obs[i].tobytes(),
                rows.reward[i].tobytes(),
                bool(rows.terminated[i]),
                bool(rows.truncated[i]),
                bool(rows.first[i]),
                bool(rows.mask[i]),
                None if rows.action_mask is None else rows.action_mask[i].tobytes(),
                None if rows.cost is None else rows.cost[i].tobytes(),
                info,
                episode.get("r"),
                episode.get("l"),
                episode.get("c"),
            )
        )


SETTINGS = {
    "serial": {"backend": "serial"},
    "serial in batches": {"backend": "serial", "batch_size": 2},
    "process": {"backend": "process", "num_workers": 2},
    "process, uneven": {"backend": "process", "num_workers": 4},
    "process, isolated": {"backend": "process", "num_workers": 3, "isolate": True},
    "process, pipelined": {"backend": "process", "num_workers": 3, "batch_size": 2},
    "process, two workers a batch": {"backend": "process", "num_workers": 4, "batch_size": 3},
    "process, restartable": {"backend": "process", "num_workers": 2, "on_error": "restart"},
}


@functools.cache
def reference(env: Any) -> dict[int, list[Any]]:
    with fugu.vector.make(env, 6, backend="serial") as vec:
        return record(vec, 60, seed=11)


@pytest.mark.slow
@pytest.mark.parametrize("settings", SETTINGS.values(), ids=SETTINGS.keys())
@pytest.mark.parametrize("env", [Costly, "CartPole-v1", "Pendulum-v1"])
def test_backend_equals_serial_byte_for_byte(env, settings):
    with fugu.vector.make(env, 6, **settings) as vec:
        assert record(vec, 60, seed=11) == reference(env)


def test_rows_follow_the_convention_by_brute_force():
    """The serial rows, rebuilt from a plain loop over one environment."""
    with fugu.vector.make(Costly, 1, backend="serial", seed=3) as vec:
        seed = int(env_seeds(3, 1)[0])
        env, packer = Costly(), fugu.spaces.Packer(vec.obs_layout)
        vec.async_reset()
        obs, _ = env.reset(seed=seed)
        reward, cost, terminated, truncated, first = 0.0, [0.0, 0.0], False, False, True
        for t in range(200):
            rows = vec.recv()
            row = vec.obs_layout.zeros()
            packer.pack(obs, row)
            ended = terminated or truncated
            assert rows.obs[0].tobytes() == row.tobytes(), t
            assert (rows.reward[0], rows.terminated[0], rows.truncated[0]) == (np.float32(reward), terminated, truncated)
            assert (rows.first[0], rows.mask[0]) == (first, not ended)
            assert rows.cost[0].tolist() == [np.float32(number) for number in cost], t
            action = vec.action_layout.zeros(1)
            move, force = vec.action_layout.leaf_views(action)
            move[...], force[...] = t % 4, t % 3 - 1
            vec.send(action)
            if ended:
                obs, _ = env.reset()
                reward, cost, terminated, truncated, first = 0.0, [0.0, 0.0], False, False, True
            else:
                taken = {"move": move[0], "force": force[0]}
                obs, reward, terminated, truncated, info = env.step(taken)
                cost, first = [info["force"], info["late"]], False
        vec.recv()


@pytest.mark.parametrize("backend", ["serial", "process"])
def test_the_rows_before_stay_as_they_were(backend):
    with fugu.vector.make("CartPole-v1", 4, backend=backend) as vec:
        before, _ = vec.reset()
        kept = before.copy()
        after = vec.step(np.ones(4, np.int64))[0]
        assert np.array_equal(before, kept) and not np.array_equal(after, kept)


def test_first_finished_serves_fast_batches_first_and_slow_ones_within_the_lag():
    import time

    class Sleepy(gymnasium.Env):
        observation_space = gymnasium.spaces.Box(0, 1, (1,), np.float32)
        action_space = gymnasium.spaces.Discrete(2)

        def __init__(self, seconds: float) -> None:
            self.seconds = seconds

        def reset(self, *, seed: int | None = None, options: Any = None) -> tuple[Any, dict[str, Any]]:
            return np.zeros(1, np.float32), {}

        def step(self, action: Any) -> tuple[Any, float, bool, bool, dict[str, Any]]:
            time.sleep(self.seconds)
            return np.zeros(1, np.float32), 0.0, False, False, {}

    envs = [functools.partial(Sleepy, 0.2 if i == 1 else 0.0005) for i in range(4)]
    with fugu.vector.make(envs, backend="process", num_workers=4, batch_size=1, order="first_finished", max_lag=20) as vec:
        vec.async_reset()
        order = []
        for _ in range(80):
            rows = vec.recv()
            order.append(rows.agents.start)
            vec.send(np.zeros(1, np.int64))
    fast = order[: order.index(1, 4)] if 1 in order[4:] else order
    assert len(fast) >= 20, "the slow batch must not hold up the others"
    served = [0, 0, 0, 0]
    for agent in order:
        served[agent] += 1
        assert max(served) - served[1] <= 20 + 1, "the slow batch may not fall behind without bound"


def test_envs_with_other_maxima_do_not_share_a_batch():
    class Listing(gymnasium.Env):
        action_space = gymnasium.spaces.Discrete(2)

        def __init__(self, most: int) -> None:
            self.observation_space = fugu.spaces.bound(gymnasium.spaces.Sequence(gymnasium.spaces.Discrete(3)), most)

    with pytest.raises(fugu.errors.ConfigError, match="env 1 has another observation_space"):
        fugu.vector.make([functools.partial(Listing, 4), functools.partial(Listing, 5)], backend="serial")
