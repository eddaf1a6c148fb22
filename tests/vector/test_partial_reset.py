"""Resetting some environments while the others stay as they are, and Gymnasium's DISABLED mode, which rests on it."""

import math
from typing import Any

import gymnasium as gym
import numpy as np
import pytest
from gymnasium.error import AlreadyPendingCallError, ClosedEnvironmentError, NoAsyncCallError
from gymnasium.vector import AutoresetMode, SyncVectorEnv

import fugu.vector
from fugu.errors import CallOrderError, ConfigError
from fugu.vector import as_gymnasium, as_sb3


def short_cartpole() -> gym.Env:
    return gym.make("CartPole-v1", max_episode_steps=12)


@pytest.mark.parametrize("backend", ["serial", "process"])
def test_disabled_mode_equals_sync_vector_env(backend: str, opened: list[Any]) -> None:
    mode = AutoresetMode.DISABLED
    ours = as_gymnasium(short_cartpole, 4, backend=backend, autoreset_mode=mode)
    theirs = SyncVectorEnv([short_cartpole] * 4, autoreset_mode=mode)
    opened += [ours, theirs]
    assert ours.metadata["autoreset_mode"] is mode is ours.autoreset_mode
    np.testing.assert_array_equal(ours.reset(seed=3)[0], theirs.reset(seed=3)[0])
    rng, resets = np.random.default_rng(0), 0
    for step in range(80):
        action = rng.integers(0, 2, 4)
        results = [face.step(action) for face in (ours, theirs)]
        for a, b in zip(results[0][:4], results[1][:4], strict=True):
            np.testing.assert_array_equal(a, b)
        ended = results[0][2] | results[0][3]
        if ended.any():
            resets += 1
            if resets == 1:
                with pytest.raises(CallOrderError, match=r"have ended, and autoreset is disabled.*reset_mask"):
                    ours.step(action)
            seed = [step + i for i in range(4)] if resets % 2 else None
            obs = [face.reset(seed=seed, options={"reset_mask": ended.copy()})[0] for face in (ours, theirs)]
            np.testing.assert_array_equal(*obs)
    assert resets > 5


def test_a_reset_mask_that_does_not_fit_is_refused(opened: list[Any]) -> None:
    ours = as_gymnasium("CartPole-v1", 3, backend="serial", autoreset_mode="disabled")
    opened.append(ours)
    with pytest.raises(CallOrderError, match="before reset"):
        ours.reset(options={"reset_mask": np.array([True, False, False])})
    ours.reset(options={"reset_mask": np.ones(3, bool)})
    for mask, got in (
        (np.ones(2, bool), r"bool\[2\]"),
        (np.ones(3, int), r"int64\[3\]"),
        ([True, False, True], "list"),
        (np.zeros(3, bool), "all are False"),
    ):
        with pytest.raises(ConfigError, match=got):
            ours.reset(options={"reset_mask": mask})
    ours.step(np.zeros(3, int))


@pytest.mark.parametrize("backend", ["native", "serial"])
def test_worlds_that_are_not_reset_go_on_as_if_nothing_had_happened(backend: str, opened: list[Any]) -> None:
    num_workers = {"num_workers": 2} if backend == "native" else {}
    a, b = (fugu.vector.make("foraging", 6, backend=backend, **num_workers) for _ in range(2))
    opened += [a, b]
    a.reset(seed=1), b.reset(seed=1)
    per = a.num_agents // 6
    which = np.array([True, False, False, True, False, False])
    kept = np.repeat(~which, per)
    rng = np.random.default_rng(0)
    for step in range(12):
        action = rng.integers(0, 6, a.num_agents)
        first, second = (vec.step(action) for vec in (a, b))
        if step == 4:
            before = {name: column.copy() for name, column in a.rows.columns.items()}
            a.reset_some(which, seed=[9] * 6)
            for name, column in a.rows.columns.items():
                np.testing.assert_array_equal(column[kept], before[name][kept])
            assert a.rows.first[~kept].all() and not a.rows.reward[~kept].any()
            third, fourth = slice(0, per), slice(3 * per, 4 * per)
            np.testing.assert_array_equal(a.rows.obs[third], a.rows.obs[fourth])
        for x, y in zip(first[:4], second[:4], strict=True):
            np.testing.assert_array_equal(x[kept], y[kept])


def test_statistics_of_environments_that_are_not_reset_go_on(opened: list[Any]) -> None:
    face = as_gymnasium(short_cartpole, 2, backend="serial", autoreset_mode="disabled", episode_stats=True)
    opened.append(face)
    face.reset(seed=0)
    actions = [0, 1]
    for step in range(6):
        face.step(np.full(2, actions[step % 2]))
    face.reset(options={"reset_mask": np.array([True, False])})
    lengths: dict[int, int] = {}
    for step in range(12):
        *_, infos = result = face.step(np.full(2, actions[step % 2]))
        ended = result[2] | result[3]
        for i in np.flatnonzero(ended):
            lengths.setdefault(int(i), int(infos["episode"]["l"][i]))
        if ended.any():
            face.reset(options={"reset_mask": ended})
    assert lengths == {0: 12, 1: 12}


def test_halves_of_step_and_reset_are_those_of_async_vector_env(opened: list[Any]) -> None:
    ours, whole = (as_gymnasium("CartPole-v1", 2, backend="serial") for _ in range(2))
    opened += [ours, whole]
    with pytest.raises(NoAsyncCallError, match=r"reset_wait\(\) without reset_async"):
        ours.reset_wait()
    ours.reset_async(seed=4)
    with pytest.raises(AlreadyPendingCallError, match=r"step_async\(\) while a reset is under way") as caught:
        ours.step_async(np.zeros(2, int))
    assert caught.value.name == "reset"
    np.testing.assert_array_equal(ours.reset_wait()[0], whole.reset(seed=4)[0])
    ours.step_async(np.ones(2, int))
    for call in (lambda: ours.step(np.ones(2, int)), ours.reset, lambda: ours.call("gravity"), ours.reset_wait):
        with pytest.raises(AlreadyPendingCallError, match="while a step is under way"):
            call()
    for a, b in zip(ours.step_wait()[:4], whole.step(np.ones(2, int))[:4], strict=True):
        np.testing.assert_array_equal(a, b)
    with pytest.raises(ConfigError, match=r"step_timeout=0\.5"):
        ours.step_wait(timeout=0.5)
    ours.step_async(np.ones(2, int))
    with pytest.warns(UserWarning, match=r"closed before step_wait"):
        ours.close()


def test_after_close_the_error_is_gymnasiums_own() -> None:
    ours = as_gymnasium("CartPole-v1", 2, backend="serial")
    ours.reset()
    ours.close()
    ours.close()
    for call in (
        ours.reset,
        lambda: ours.step(np.zeros(2, int)),
        lambda: ours.get_attr("gravity"),
        ours.reset_async,
        ours.render,
    ):
        with pytest.raises(ClosedEnvironmentError, match=r"after close\(\)"):
            call()


def test_environments_of_this_process_are_at_hand(opened: list[Any]) -> None:
    for face in (as_gymnasium, as_sb3):
        ours = face(short_cartpole, 2, backend="serial")
        opened.append(ours)
        ours.envs[1].unwrapped.gravity = 1.5
        assert ours.get_attr("gravity")[1] == 1.5 and math.isclose(ours.envs[0].unwrapped.gravity, 9.8)
    native = as_gymnasium("cartpole", 2)
    opened.append(native)
    with pytest.raises(AttributeError, match=r"backend='native'.*call\(\)"):
        _ = native.envs
