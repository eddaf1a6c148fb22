"""Checks and measurements of environments that refuse what their mask forbids, whatever form the mask has."""

from typing import Any

import gymnasium as gym
import numpy as np
import pettingzoo
import pytest
from gymnasium import spaces as gs
from gymnasium.vector import AutoresetMode, SyncVectorEnv, VectorEnv

from fugu.check import check_env
from fugu.emulation.actions import Actions, allowed
from fugu.emulation.env import Rows, flat_mask
from fugu.errors import SpaceError
from fugu.spaces import Layout, Packer
from fugu.vector import VectorConfig
from fugu.vector.autotune import Trial, measure

UNSEEDED = np.random.default_rng(0)


class Masked(gym.Env):
    """Offers a new mask on every step and refuses all else. ``flags``: choices per part, at least one of each allowed."""

    observation_space: gs.Space = gs.Box(0, 1, (2,))
    action_space: gs.Space = gs.Discrete(5)
    flags = (5,)
    where = "info"

    def reset(self, *, seed: int | None = None, options: Any = None) -> Any:
        super().reset(seed=seed)
        self.steps = 0
        return self.told()

    def step(self, action: Any) -> Any:
        if not self.fine(action):
            raise ValueError(f"{action} is forbidden by {self.mask}")
        self.steps += 1
        obs, info = self.told()
        return obs, 1.0, self.np_random.random() < 0.05, self.steps == 50, info

    def told(self) -> Any:
        self.mask = self.np_random.random(sum(self.flags)) < 0.4
        ends = np.cumsum(self.flags)
        for end, size in zip(ends, self.flags, strict=True):
            self.mask[end - 1 - self.np_random.integers(size)] = True
        obs = self.np_random.random(2, dtype=np.float32)
        info = {"action_mask": self.offered()} if self.where == "info" else {}
        return (obs, info) if self.where != "obs" else ({"seen": obs, "action_mask": self.mask.astype(np.int8)}, info)

    def offered(self) -> Any:
        return self.mask.copy()

    def fine(self, action: Any) -> bool:
        return self.mask[action]


class Multi(Masked):
    action_space = gs.MultiDiscrete([3, 4], start=[1, 0])
    flags = (3, 4)

    def fine(self, action: Any) -> bool:
        return self.mask[action[0] - 1] and self.mask[3 + action[1]]


class MultiInParts(Multi):
    def offered(self) -> Any:
        return self.mask[:3].astype(np.int8), self.mask[3:].astype(np.int8)


class MultiByMethod(Multi):
    where = "method"

    def action_masks(self) -> np.ndarray:
        return self.mask


class Bits(Masked):
    action_space = gs.MultiBinary(4)
    flags = (4,)

    def fine(self, action: Any) -> bool:
        return not action[~self.mask].any()


class BitsByMethod(Bits):
    where = "method"

    def action_masks(self) -> np.ndarray:
        return self.mask


class EitherBit(Masked):
    """Two flags for each bit: it may be 0, it may be 1."""

    action_space = gs.MultiBinary(3)
    flags = (2, 2, 2)

    def fine(self, action: Any) -> bool:
        return all(self.mask.reshape(3, 2)[np.arange(3), action])


class Parts(Masked):
    action_space = gs.Dict({"b": gs.Discrete(3, start=2), "a": gs.MultiDiscrete([2, 2]), "x": gs.Box(-1, 1, (2,))})
    flags = (2, 2, 3)

    def fine(self, action: Any) -> bool:
        return self.mask[action["a"][0]] and self.mask[2 + action["a"][1]] and self.mask[4 + action["b"] - 2]


class AsSampled(Masked):
    """Gives the mask as ``action_space.sample`` takes it, where the parts of the space are not in the order of their names."""

    action_space = gs.Dict([("b", gs.Discrete(3, start=2)), ("x", gs.Box(-1, 1, (2,))), ("a", gs.MultiDiscrete([2, 2]))])
    flags = (3, 2, 2)

    def offered(self) -> Any:
        b, *a = np.split(self.mask.astype(np.int8), [3, 5])
        self.action_space.sample({"a": tuple(a), "b": b, "x": None})
        return {"a": tuple(a), "b": b, "x": None}

    def fine(self, action: Any) -> bool:
        return self.mask[action["b"] - 2] and self.mask[3 + action["a"][0]] and self.mask[5 + action["a"][1]]


class PartsInObs(Parts):
    observation_space = gs.Dict({"seen": gs.Box(0, 1, (2,)), "action_mask": gs.MultiBinary(7)})
    where = "obs"


KINDS = [Masked, Multi, MultiInParts, MultiByMethod, Bits, BitsByMethod, EitherBit, Parts, AsSampled, PartsInObs]


@pytest.mark.parametrize("env", KINDS)
def test_check_takes_allowed_actions_only(env: type[Masked]) -> None:
    report = check_env(env, steps=60)
    assert report.ok, report
    told = [finding.where for finding in report.of("warning") if "training does not see it" in finding.problem]
    assert told == (["action_mask"] if issubclass(env, Bits | EitherBit) else [])


@pytest.mark.parametrize("env", KINDS)
def test_measuring_takes_allowed_actions_only(env: type[Masked]) -> None:
    whole = Trial("serial", VectorConfig(num_envs=2, backend="serial"))
    halves = Trial("halves", VectorConfig(num_envs=2, backend="serial", batch_size=1))
    measure(env, [whole, halves], seconds=0.02)
    assert not whole.error and whole.steps_per_second > 0
    if env is BitsByMethod:
        assert halves.error.startswith("action_masks() of a MultiBinary cannot be asked while other batches step")
    else:
        assert not halves.error and halves.steps_per_second > 0


def test_gymnasiums_checker_still_finds_what_is_wrong_where_actions_are_masked() -> None:
    class Forgetful(Multi):
        def reset(self, *, seed: int | None = None, options: Any = None) -> Any:
            obs, info = super().reset(seed=seed)
            self.np_random.random()
            return obs + np.float32(UNSEEDED.random() / 1e3), info

    assert not check_env(Forgetful, steps=60).ok


def test_allowed_replaces_only_what_is_forbidden() -> None:
    space = gs.Dict({"one": gs.Discrete(3, start=5), "two": gs.MultiDiscrete([2, 3]), "size": gs.Box(0, 1, (1,))})
    layout, packer = Layout(space), Packer(Layout(space))
    actions = [
        {"one": 5, "two": np.array([0, 2]), "size": np.array([0.25], np.float32)},
        {"one": 7, "two": np.array([1, 1]), "size": np.array([0.5], np.float32)},
    ]
    packed = layout.zeros(2)
    for row, action in zip(packed, actions, strict=True):
        packer.pack(action, row)
    masks = np.array([[0, 1, 1, 1, 1, 1, 1, 0], [1, 1, 1, 1, 1, 1, 1, 1]], bool)  # of "one", then of "two"
    zeros = np.zeros((2, 0))
    rows = Rows(zeros, *(np.zeros(2) for _ in range(4)), np.ones(2, bool), masks)
    found = [packer.unpack(row) for row in allowed(packed, rows, space)]
    assert found[0]["one"] == 6 and found[0]["two"].tolist() == [0, 0] and found[0]["size"] == [0.25]
    assert found[1]["one"] == 7 and found[1]["two"].tolist() == [1, 1]
    assert packer.unpack(packed[0])["one"] == 5, "the actions given are left as they are"


def test_masks_of_several_parts_lie_side_by_side() -> None:
    parts = {"a": (np.array([1, 0], np.int8), np.array([0, 1, 1], np.int8)), "b": np.array([True])}
    assert flat_mask(parts).tolist() == [True, False, False, True, True, True]
    assert flat_mask([0, 2, 1]).tolist() == [False, True, True]
    space = gs.Tuple([gs.Dict([("z", gs.Discrete(2)), ("y", gs.MultiDiscrete([2, 1])), ("x", gs.Box(0, 1))]), gs.Discrete(3)])
    assert flat_mask(({"y": (np.array([0, 1]), np.array([1])), "z": None, "x": None}, None), space).astype(int).tolist() == [
        *(1, 1, 0, 1, 1),
        *(1, 1, 1),
    ]
    assert flat_mask(({"z": np.array([0, 1])}, np.array([1, 0, 0])), space).astype(int).tolist() == [0, 1, 1, 1, 1, 1, 0, 0]
    with pytest.raises(SpaceError, match=r"action_mask: there is no part 'w'; parts of the actions are \['z', 'y', 'x'\]"):
        flat_mask(({"w": np.array([0, 1])}, None), space)
    drawn = {int(Actions(gs.Discrete(4, start=3), seed).next(np.array([0, 1, 0, 1], bool))) for seed in range(20)}
    assert drawn == {4, 6}


def vectorised(mode: AutoresetMode) -> VectorEnv:
    return SyncVectorEnv([lambda: gym.make("CartPole-v1", max_episode_steps=15)] * 2, autoreset_mode=mode)


@pytest.mark.parametrize("mode", list(AutoresetMode))
def test_a_vector_env_of_any_autoreset_mode_has_no_errors(mode: AutoresetMode) -> None:
    def make() -> VectorEnv:
        return vectorised(mode)

    report = check_env(make, steps=120)
    assert report.ok, report
    assert report.facts["episodes"] > 5 and report.facts["mean_episode_length"] < 15


class ByChance(pettingzoo.ParallelEnv):
    """Draws from a generator that no seed reaches."""

    metadata = {"name": "by_chance"}  # noqa: RUF012
    possible_agents = ["a"]  # noqa: RUF012

    def __init__(self) -> None:
        self.spaces = gs.Box(0, 1, (1,)), gs.Discrete(2)

    def observation_space(self, agent: str) -> gs.Space:
        return self.spaces[0]

    def action_space(self, agent: str) -> gs.Space:
        return self.spaces[1]

    def reset(self, seed: int | None = None, options: Any = None) -> Any:
        self.agents, self.steps = ["a"], 0
        return {"a": UNSEEDED.random(1, np.float32)}, {"a": {}}

    def step(self, actions: Any) -> Any:
        self.steps += 1
        over = self.steps == 9
        self.agents = [] if over else ["a"]
        return {"a": UNSEEDED.random(1, np.float32)}, {"a": 0.0}, {"a": over}, {"a": False}, {"a": {}}


def test_advice_on_seeds_can_be_followed_in_pettingzoo_environments() -> None:
    fixes = [finding.fix for finding in check_env(ByChance, steps=30).findings if finding.where == "determinism"]
    assert fixes and "np.random.default_rng(seed)" in fixes[0] and "super()" not in fixes[0]
