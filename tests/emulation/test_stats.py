"""What environments say of an episode, and returns by agent: against plain loops over the same environments, seeds and moves."""

from __future__ import annotations

import warnings
from collections import defaultdict
from typing import Any, ClassVar

import gymnasium
import numpy as np
import pettingzoo
import pytest
from gymnasium import spaces as gs
from gymnasium.vector import AutoresetMode, SyncVectorEnv

from fugu import vector
from fugu.emulation.infos import numbers
from fugu.emulation.kinds import MOST, labels
from fugu.emulation.stats import EpisodeLog
from fugu.errors import ConfigError
from fugu.vector.vecenv import VecEnv

SEEDS = [11, 12, 13, 14, 15]
NAMES = ("distance", "odd")


class Walk(gymnasium.Env):
    """Episodes of 2 to 6 steps. ``odd`` is a number in some, text in others and missing in the rest; ``detail`` is large."""

    observation_space = gs.Box(-1, 1, (1,))
    action_space = gs.Discrete(3)

    def __init__(self, odd: bool = True) -> None:
        self.odd = odd

    def reset(self, *, seed: int | None = None, options: Any = None) -> Any:
        super().reset(seed=seed)
        self.left, self.distance = int(self.np_random.integers(2, 7)), 0
        return np.zeros(1, np.float32), {"is_success": True, "distance": 99}

    def step(self, action: Any) -> Any:
        self.left -= 1
        self.distance += int(action)
        info: dict[str, Any] = {"is_success": np.bool_(self.distance > 3), "distance": np.float32(self.distance)}
        info["detail"] = "x" * 1000
        if self.odd and self.distance % 3:
            info["odd"] = self.distance if self.distance % 3 == 1 else "two"
        return np.zeros(1, np.float32), float(action), self.left == 0, False, info


def moves(count: int, envs: int) -> np.ndarray:
    return np.random.default_rng(3).integers(0, 3, (count, envs))


def by_hand(steps: int) -> dict[str, list[float]]:
    """The numbers of each episode's last step, in a plain loop with a reset on the step after the ending."""
    found: dict[str, list[float]] = defaultdict(list)
    for column, seed in enumerate(SEEDS):
        env = Walk()
        env.reset(seed=seed)
        ended = False
        for action in moves(steps, len(SEEDS))[:, column]:
            if ended:
                env.reset()
                ended = False
                continue
            *_, ended, _, info = env.step(action)
            for name, value in info.items():
                if ended and not isinstance(value, str):
                    found[name].append(float(value))
    return found


def played(vec: VecEnv, steps: int) -> EpisodeLog:
    with warnings.catch_warnings():
        warnings.simplefilter("ignore")
        vec.reset(seed=SEEDS)
        for action in moves(steps, len(SEEDS)):
            vec.step(action)
        return vec.drain_log()


@pytest.mark.parametrize(
    "settings",
    [
        {"backend": "serial", "infos": "none"},
        {"backend": "serial", "infos": "all"},
        {"backend": "process", "num_workers": 2, "infos": "none"},
        {"backend": "process", "num_workers": 2, "infos": "episode"},
    ],
    ids=str,
)
def test_means_of_infos_are_those_of_a_plain_loop(settings: dict[str, Any]) -> None:
    expected = by_hand(60)
    with vector.make(Walk, len(SEEDS), episode_infos=NAMES, **settings) as vec:
        log = played(vec, 60)
        assert log.episodes == len(expected["distance"]) > 20
        for name in ("is_success", *NAMES):
            assert log.infos[name] == (len(expected[name]), pytest.approx(np.mean(expected[name])))
        assert vec.drain_log().infos["distance"] == (0, 0.0)


def test_infos_that_nobody_asked_for_do_not_travel() -> None:
    with vector.make(Walk, 2, infos="none", backend="process", num_workers=2, episode_infos=("distance",)) as vec:
        vec.reset(seed=0)
        infos = [info for _ in range(8) for info in vec.step(np.zeros(2, np.int64))[4].values()]
    assert infos and all(info.keys() == {"episode", "is_success", "distance"} for info in infos)


@pytest.mark.parametrize("mode", list(AutoresetMode))
def test_vector_envs_of_gymnasium_say_the_same_in_every_mode(mode: AutoresetMode) -> None:
    def make() -> SyncVectorEnv:
        return SyncVectorEnv([lambda: Walk(odd=False)] * len(SEEDS), autoreset_mode=mode)

    with vector.make(make, 1, backend="serial", infos="none", episode_infos=("distance",)) as vec:
        vec.reset(seed=0)
        last, ends = np.zeros(len(SEEDS)), []
        for action in moves(60, len(SEEDS)):
            acting = vec.rows.mask.copy()
            _, _, terminated, *_ = vec.step(action)
            last[acting] += action[acting]
            ends += last[terminated].tolist()
            last[terminated] = 0
        log = vec.drain_log()
    assert log.infos["distance"] == (len(ends), pytest.approx(np.mean(ends)))


def test_numbers_of_every_kind_count_and_nothing_else_does() -> None:
    class Strange:
        ndim = 0

        def item(self) -> str:
            return "text"

    info = {"a": True, "b": np.float64(2), "c": np.array(3), "d": 10**400, "e": np.nan, "f": "4", "g": [5], "h": None}
    info |= {"i": np.ones(1), "j": Strange(), "k": 1j, "l": np.inf}
    assert numbers(info, "abcdefghijklmn") == {"a": 1.0, "b": 2.0, "c": 3.0}
    assert numbers({"a": 1, "final_info": {"a": 2}}, "a") == {"a": 2.0}, "of the episode that ended, not the one that began"


def warned(names: tuple[str, ...], steps: int) -> list[str]:
    with warnings.catch_warnings(record=True) as caught:
        warnings.simplefilter("default")
        with vector.make(Walk, 4, backend="serial", infos="none", episode_infos=names) as vec:
            vec.reset(seed=0)
            for _ in range(steps):
                vec.step(np.ones(4, np.int64))
                vec.drain_log()
            early = len(caught)
        assert early == len(caught) or steps < 100
    return [str(each.message) for each in caught]


def test_a_name_that_is_only_sometimes_a_number_is_told_of_once() -> None:
    (said,) = warned(("distance", "odd"), 150)
    assert said == "info['odd'] is a number in some episodes only; its mean is over those that have it"


@pytest.mark.parametrize("steps", [12, 150])
def test_a_name_that_never_comes_is_told_of_once_at_the_latest_at_the_end(steps: int) -> None:
    (said,) = warned(("distanse",), steps)
    assert said.startswith("info['distanse'] is a number in no episode; set it in the last step's info")


class Fragile(Walk):
    """Fails now and then, in which case it says nothing."""

    def step(self, action: Any) -> Any:
        if self.np_random.random() < 0.1:
            raise OSError("no answer")
        return super().step(action)


@pytest.mark.parametrize("infos", ["none", "all"])
def test_environments_that_were_replaced_are_not_taken_for_episodes_that_say_nothing(infos: Any) -> None:
    with (
        warnings.catch_warnings(),
        vector.make(Fragile, 4, backend="serial", infos=infos, on_error="restart", max_restarts=99) as vec,
    ):
        warnings.simplefilter("error")
        vec.reset(seed=0)
        for _ in range(60):
            vec.step(np.ones(4, np.int64))
        log = vec.drain_log()
        assert vec.restarts > 5 and log.infos["is_success"][0] == log.episodes > 5


def test_environments_in_cpp_log_what_they_log() -> None:
    with pytest.raises(ConfigError, match="breakout says no 'scor' of an episode. Did you mean 'score'"):
        vector.make("breakout", 2, episode_infos=("scor",))
    with pytest.raises(ConfigError, match="cartpole says no 'x' of an episode. It says nothing; leave it out"):
        vector.make("cartpole", 2, backend="device", device="cpu", episode_infos=("x",))
    with pytest.raises(ConfigError, match=r"episode_infos='x' must be a list of names"):
        vector.make(Walk, 2, episode_infos="x")


class Pack(pettingzoo.ParallelEnv):
    """Wolves and a sheep, who are paid by their number and move; the sheep leaves after two steps, all others after four."""

    metadata: ClassVar = {"name": "pack_v0"}

    def __init__(self) -> None:
        self.possible_agents = ["wolf_0", "sheep", "wolf_1"]
        self.agents: list[str] = []

    def observation_space(self, agent: str) -> gs.Space:
        return gs.Box(-1, 1, (1,))

    def action_space(self, agent: str) -> gs.Space:
        return gs.Discrete(3)

    def reset(self, seed: int | None = None, options: Any = None) -> Any:
        self.agents, self.clock = list(self.possible_agents), 0
        return {a: np.zeros(1, np.float32) for a in self.agents}, {a: {} for a in self.agents}

    def step(self, actions: dict[str, Any]) -> Any:
        self.clock += 1
        here = list(self.agents)
        ends = {a: self.clock == (2 if a == "sheep" else 4) for a in here}
        self.agents = [a for a in here if not ends[a]]
        return (
            {a: np.zeros(1, np.float32) for a in here},
            {a: 10.0 * self.possible_agents.index(a) + float(actions[a]) for a in here},
            ends,
            dict.fromkeys(here, False),
            {a: {"hunger": self.clock} if a != "sheep" else {} for a in here},
        )


@pytest.mark.parametrize("settings", [{"backend": "serial"}, {"backend": "process", "num_workers": 2}], ids=str)
def test_returns_by_agent_and_kind_are_the_sums_of_the_environments_own_rewards(settings: dict[str, Any]) -> None:
    action = np.random.default_rng(1).integers(0, 3, (40, 6))
    sums: dict[str, list[float]] = defaultdict(list)
    for number in range(2):
        env, running = Pack(), dict.fromkeys(Pack().possible_agents, 0.0)
        env.reset()
        for row in action[:, 3 * number : 3 * number + 3]:
            if not env.agents:
                env.reset()
                continue
            chosen = {a: row[env.possible_agents.index(a)] for a in env.agents}
            _, rewards, ends, *_ = env.step(chosen)
            for agent, reward in rewards.items():
                running[agent] += reward
                if ends[agent]:
                    sums[agent].append(running[agent])
                    running[agent] = 0.0
    sums["wolf"] = sums["wolf_0"] + sums["wolf_1"]
    with vector.make(Pack, 2, infos="none", episode_infos=("hunger",), **settings) as vec, warnings.catch_warnings():
        warnings.simplefilter("ignore")
        vec.reset(seed=0)
        for row in action:
            vec.step(row)
        log = vec.drain_log()
    assert set(log.agents) == {"wolf_0", "wolf_1", "sheep", "wolf"}
    for label, returns in sums.items():
        length = 2 if label == "sheep" else 4
        assert log.agents[label] == (len(returns), pytest.approx(np.mean(returns)), length)
    assert log.infos["hunger"] == (len(sums["wolf"]), 4.0)


def test_agents_are_told_apart_by_name_and_kind_within_bounds() -> None:
    assert labels(["a_0", "a_1", "b"]) == {"a": (0, 1), "a_0": (0,), "a_1": (1,), "b": (2,)}
    assert labels(["a_0", "a_1"]) == {"a_0": (0,), "a_1": (1,)}, "one kind is all of them"
    assert labels(["speaker", "listener"]) == {"speaker": (0,), "listener": (1,)}
    assert labels(["a", "a_1", "b_1", "b_2"])["a"] == (0,), "an agent that is called as a kind keeps its name"
    assert labels([]) == labels(["only"]) == labels(["same", "same"]) == {}
    many = [f"a_{i}" for i in range(MOST)] + ["b"]
    assert labels(many) == {"a": tuple(range(MOST)), "b": (MOST,)}
    assert labels([f"x{i}y" for i in range(MOST + 1)]) == {}
