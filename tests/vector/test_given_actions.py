"""What callers hand over as actions, and which environments they may name: forms, mistakes, rows on which nobody acts."""

from types import SimpleNamespace
from typing import Any

import gymnasium as gym
import numpy as np
import pytest
from gymnasium import spaces as gs

import fugu.vector
from fugu.errors import ConfigError, EnvError, SpaceError
from fugu.vector import as_gymnasium, as_sb3
from fugu.vector.runner import check_distinct

BACKENDS = ["serial", "process"]


class Echo(gym.Env):
    """Says back what it was given; episodes have three steps."""

    observation_space = gs.Box(-100, 100, (1,))
    action_space: gs.Space = gs.Tuple((gs.Box(-1, 1, (2,)), gs.Discrete(3, start=1)))

    def __init__(self) -> None:
        self.told = 0

    def reset(self, *, seed: int | None = None, options: Any = None) -> Any:
        super().reset(seed=seed)
        self.steps = 0
        return np.zeros(1, np.float32), {}

    def step(self, action: Any) -> Any:
        self.steps += 1
        if not self.action_space.contains(action):
            raise ValueError(f"never send {action}")
        return np.full(1, self.steps, np.float32), self.worth(action), self.steps == 3, False, {}

    def worth(self, action: Any) -> float:
        return float(action[0].sum() + 10 * action[1])


class EchoDict(Echo):
    action_space = gs.Dict({"push": gs.Box(-1, 1, (2,)), "word": gs.Text(3, charset="xyz"), "mode": gs.Discrete(3)})

    def worth(self, action: Any) -> float:
        return float(action["push"].sum() + 10 * action["mode"])


class EchoBox(Echo):
    action_space = gs.Box(-1, 1, (2,))

    def worth(self, action: Any) -> float:
        return float(action.sum())


class EchoChoice(Echo):
    action_space = gs.MultiDiscrete([3, 2])

    def worth(self, action: Any) -> float:
        return float(action[0])


def started(opened: list[Any], env: Any, num_envs: int = 3, **settings: Any) -> fugu.vector.VecEnv:
    vec = fugu.vector.make(env, num_envs, **settings)
    opened.append(vec)
    vec.reset(seed=0)
    return vec


@pytest.mark.parametrize("backend,env", [("serial", Echo), ("serial", EchoDict), ("process", EchoDict)])
def test_structured_actions_may_come_as_a_list_with_one_for_each_env(backend: str, env: type[Echo], opened: list[Any]) -> None:
    env.action_space.seed(0)
    actions = [env.action_space.sample() for _ in range(3)]
    expected = np.array([env().worth(action) for action in actions], np.float32)
    vec = started(opened, env, backend=backend)
    np.testing.assert_allclose(vec.step(actions)[1], expected)
    np.testing.assert_allclose(vec.step(np.array(actions + [None], object)[:3])[1], expected)
    faces = [as_gymnasium(env, 3, backend=backend), as_sb3(env, 3, backend=backend)]
    opened += faces
    for face in faces:
        face.reset()
        np.testing.assert_allclose(face.step(actions)[1], expected)


def test_a_list_of_structured_actions_is_refused_where_it_does_not_fit(opened: list[Any]) -> None:
    vec = started(opened, Echo, backend="serial")
    good = (np.zeros(2, np.float32), 1)
    with pytest.raises(SpaceError, match=r"expected a list of 3, one per agent; got 2"):
        vec.step([good] * 2)
    with pytest.raises(SpaceError, match=r"agent 1: actions: .*9"):
        vec.step([good, (good[0], 9), good])
    with pytest.raises(SpaceError, match=r"agent 1: actions: 0: the space says shape \[2\], got \[3\]$"):
        vec.step([good, (np.zeros(3, np.float32), 1), good])
    vec.step([good] * 3)  # and it goes on


@pytest.mark.parametrize("backend", [*BACKENDS, "native"])
def test_a_ragged_action_is_one_typed_error_that_says_expected_and_got(backend: str, opened: list[Any]) -> None:
    vec = started(opened, "reverse" if backend == "native" else EchoBox, backend=backend)
    width = vec.action_space.shape[0]
    with pytest.raises(SpaceError, match=rf"expected shape \[3, {width}\], got a list of 3 .*lengths 2, 1, 2"):
        vec.step([[0, 0], [0], [0, 0]])
    with pytest.raises(SpaceError, match=rf"expected shape \[3, {width}\], got \[2, 2\]"):
        vec.step([[0, 0], [0, 0]])
    vec.step(np.zeros((3, width), vec.action_layout.dtype))


@pytest.mark.parametrize("env,bad", [(EchoBox, np.nan), (EchoChoice, 77)])
@pytest.mark.parametrize("backend", BACKENDS)
def test_the_action_on_the_row_after_an_ending_is_not_looked_at(
    backend: str, env: type[Echo], bad: Any, opened: list[Any]
) -> None:
    vec = started(opened, env, 2, backend=backend)
    good = np.zeros((2, 2), vec.action_layout.dtype)
    for _ in range(3):
        rows = vec.step(good)
    assert rows[2].all()
    obs, *_ = vec.step(np.full_like(good, bad))
    assert (obs == 0).all()
    with pytest.raises(SpaceError, match="actions"):
        vec.step(np.full_like(good, bad))
    assert (vec.step(good)[0] == 1).all()


def test_native_worlds_do_not_look_at_actions_after_an_ending_either(opened: list[Any]) -> None:
    vec = started(opened, "cartpole", 200, backend="native", env_kwargs={"max_steps": 9})
    rng, ignored = np.random.default_rng(0), 0
    for _ in range(60):
        action = rng.integers(0, 2, 200)
        waits = ~vec.rows.mask
        ignored += int(waits.sum())
        vec.step(np.where(waits, 2**40, action))
    assert ignored > 200
    acting = int(np.flatnonzero(vec.rows.mask)[-1])
    action[acting] = 2
    with pytest.raises(SpaceError, match=rf"2 at agent {acting} is outside"):
        vec.step(action)


def test_negative_indices_count_from_the_end(opened: list[Any]) -> None:
    vec, face = started(opened, Echo, backend="serial"), as_sb3(EchoBox, 3, backend="serial")
    opened.append(face)
    vec.set_attr("told", 5, envs=[-1])
    assert vec.get_attr("told") == [0, 0, 5] and vec.get_attr("told", envs=[-1, -3]) == [5, 0]
    face.reset()
    face.set_attr("told", 7, indices=[0, -1])
    assert face.get_attr("told") == [7, 0, 7] and face.get_attr("told", indices=-2) == [0]
    assert face.env_method("worth", np.ones(2), indices=[-1]) == [2.0]
    assert face.env_is_wrapped(gym.Wrapper, indices=-1) == [False]
    for i in (3, -4):
        with pytest.raises(ConfigError, match=f"no environment {i}: there are 3"):
            vec.get_attr("told", envs=[i])


@pytest.mark.parametrize("settings", [{}, {"batch_size": 1}])
def test_one_object_behind_several_rows_is_refused_in_this_process(settings: dict[str, Any]) -> None:
    env = gym.wrappers.TimeLimit(Echo(), 5)
    with pytest.raises(
        ConfigError, match=r"environments 0 and 2 are one and the same Echo object(.|\n)*lambda: Echo\(\.\.\.\)"
    ):
        fugu.vector.make([lambda: env, Echo, lambda: env], backend="serial", **settings)


def test_one_object_behind_several_rows_of_a_worker_is_refused() -> None:
    env = Echo()
    with pytest.raises((ConfigError, EnvError), match="environments 2 and 3 are one and the same Echo object"):
        fugu.vector.make([Echo, Echo, lambda: env, lambda: env], backend="process", num_workers=2)


def test_an_attribute_that_environments_share_is_no_environment() -> None:
    for name in ("echo", None):
        check_distinct([SimpleNamespace(env=name), SimpleNamespace(env=name)])


class Doubles(Echo):
    """Declares float32 and returns float64."""

    def reset(self, **kwargs: Any) -> Any:
        obs, info = super().reset(**kwargs)
        return obs.astype(np.float64), info


def test_cast_is_a_setting_of_the_config_too(opened: list[Any]) -> None:
    config = fugu.vector.VectorConfig(num_envs=1, backend="serial", cast=True)
    vec = fugu.vector.make(Doubles, config=config)
    opened.append(vec)
    assert vec.reset()[0].dtype == np.float32
    strict = fugu.vector.make(Doubles, 1, backend="serial")
    opened.append(strict)
    with pytest.raises(EnvError, match=r"cast=True in make\(\), --vector\.cast in training"):
        strict.reset()
