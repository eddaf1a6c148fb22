"""Native environments through Gymnasium alone: ``gymnasium.make`` and ``gymnasium.make_vec``."""

from __future__ import annotations

import subprocess
import sys
import warnings

import gymnasium
import numpy as np
import pytest
from gymnasium.utils.env_checker import check_env

import fugu
from fugu.emulation.native import descriptions, names
from fugu.envs import gymnasium_id
from fugu.errors import ConfigError, SpaceError

SINGLE = [name for name in names() if descriptions()[name]["agents"] == 1]
TEAMS = [name for name in names() if descriptions()[name]["agents"] > 1]


def test_ids_are_the_names_in_camel_case():
    assert gymnasium_id("cartpole") == "fugu/CartPole-v0"
    assert gymnasium_id("mountain_car") == "fugu/MountainCar-v0"
    assert {gymnasium_id(name) for name in SINGLE} <= set(gymnasium.registry)
    assert not {gymnasium_id(name) for name in TEAMS} & set(gymnasium.registry)
    assert all(gymnasium.spec(gymnasium_id(name)).max_episode_steps is None for name in SINGLE)


def test_module_prefix_is_enough_and_torch_is_not_imported():
    code = (
        "import gymnasium, sys\n"
        "gymnasium.make('fugu.envs:fugu/CartPole-v0').reset()\n"
        "gymnasium.make_vec('fugu.envs:fugu/CartPole-v0', num_envs=2).reset()\n"
        "sys.exit('torch' in sys.modules)\n"
    )
    assert subprocess.run([sys.executable, "-c", code]).returncode == 0


@pytest.mark.parametrize("name", SINGLE)
def test_passes_gymnasiums_own_check(name):
    renders = descriptions()[name]["renders"]
    env = gymnasium.make(gymnasium_id(name), render_mode="rgb_array" if renders else None)
    with warnings.catch_warnings():
        warnings.simplefilter("error")
        # Gymnasium's own CartPole and Pendulum get these two as well
        warnings.filterwarnings("ignore", message=".*Box (observation|action) space.*(infinity|symmetric).*")
        check_env(env.unwrapped)
    if renders:
        frame = env.unwrapped.render()
        assert frame.dtype == np.uint8 and frame.ndim == 3 and frame.shape[2] == 3 and frame.std() > 1
    env.close()


@pytest.mark.parametrize("name", SINGLE)
def test_env_and_vector_env_play_the_same_episodes(name):
    env = gymnasium.make(gymnasium_id(name)).unwrapped
    vec = gymnasium.make_vec(gymnasium_id(name), num_envs=3, vectorization_mode="vector_entry_point")
    assert isinstance(vec, gymnasium.vector.VectorEnv) and vec.num_envs == 3 and vec.spec.id == gymnasium_id(name)
    assert vec.single_observation_space == env.observation_space and vec.single_action_space == env.action_space
    env.action_space.seed(0)
    obs, info = env.reset(seed=12)
    many, _ = vec.reset(seed=11)
    ended = False
    for _ in range(120):
        same(obs, many, 1)
        if isinstance(env.action_space, gymnasium.spaces.Discrete):
            action = env.action_space.sample(info["action_mask"].astype(np.int8) if "action_mask" in info else None)
            batch = np.full(3, action)
        else:
            action = env.action_space.sample()
            batch = gymnasium.vector.utils.concatenate(
                env.action_space, [action] * 3, gymnasium.vector.utils.create_empty_array(env.action_space, 3)
            )
        if ended:  # the vector env resets by itself
            obs, info = env.reset()
            many, rewards, terminated, truncated, _ = vec.step(batch)
            assert rewards[1] == 0 and not terminated[1] and not truncated[1]
            ended = False
            continue
        obs, reward, term, trunc, info = env.step(action)
        many, rewards, terminated, truncated, _ = vec.step(batch)
        assert (reward, term, trunc) == (rewards[1], terminated[1], truncated[1])
        ended = term or trunc
    vec.close()


def same(one: object, many: object, at: int) -> None:
    if isinstance(one, dict):
        for key in one:
            same(one[key], many[key], at)
    else:
        np.testing.assert_array_equal(one, many[at])


def test_observations_are_the_callers_to_keep():
    env = gymnasium.make("fugu/CartPole-v0")
    first, _ = env.reset(seed=0)
    kept = first.copy()
    env.step(0)
    np.testing.assert_array_equal(first, kept)


def test_settings_reach_the_environment():
    env = gymnasium.make("fugu/CartPole-v0", max_steps=5, max_theta=10.0)
    env.reset(seed=0)
    assert [env.step(1)[3] for _ in range(5)] == [False] * 4 + [True]
    for limit in ({"max_steps": 5}, {"max_episode_steps": 5}):
        vec = gymnasium.make_vec("fugu/CartPole-v0", num_envs=2, max_theta=10.0, **limit)
        vec.reset(seed=0)
        assert [vec.step(np.ones(2, np.int64))[3].all() for _ in range(5)] == [False] * 4 + [True]
    with pytest.raises(ConfigError, match="Did you mean 'gravity'"):
        gymnasium.make("fugu/CartPole-v0", gravty=1.0)
    with pytest.raises(ConfigError, match="render_mode='human'"):
        gymnasium.make_vec("fugu/CartPole-v0", num_envs=2, render_mode="human")


def test_wrong_actions_are_refused():
    env = gymnasium.make("fugu/CartPole-v0", disable_env_checker=True)
    env.reset(seed=0)
    for action in (2, -1, 0.5, None):
        with pytest.raises(SpaceError):
            env.step(action)
    pendulum = gymnasium.make("fugu/Pendulum-v0", disable_env_checker=True)
    pendulum.reset(seed=0)
    with pytest.raises(SpaceError, match="action .*nan.* is outside Box"):
        pendulum.step(np.array([np.nan], np.float32))


def test_without_a_seed_every_world_starts_elsewhere():
    vec = gymnasium.make_vec("fugu/CartPole-v0", num_envs=50)
    first, again = vec.reset()[0], vec.reset()[0]
    assert len(np.unique(np.concatenate([first, again])[:, 0])) == 100
    starts = [gymnasium.make("fugu/CartPole-v0").reset()[0][0] for _ in range(5)]
    assert len(set(starts)) == 5


def test_ids_are_taken_wherever_an_environment_is_named():
    with fugu.vector.make("fugu/CartPole-v0", 2, backend="serial") as vec:
        vec.reset(seed=0)
        vec.step(np.ones(2, np.int64))
