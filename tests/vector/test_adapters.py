"""The faces of a vector env towards Gymnasium and SB3, against SyncVectorEnv and DummyVecEnv on the same seeds and actions."""

import sys
from copy import deepcopy
from typing import Any, ClassVar

import gymnasium as gym
import numpy as np
import pytest
from gymnasium import spaces as gs
from gymnasium.vector import AutoresetMode, SyncVectorEnv, VectorEnv
from gymnasium.wrappers.vector import RecordEpisodeStatistics

import fugu.vector
from fugu.check import check_env
from fugu.errors import ConfigError, MissingExtra
from fugu.spaces import bound
from fugu.vector.adapters import as_gymnasium, as_sb3

BACKENDS = ["serial", "process"]
MODES = [AutoresetMode.NEXT_STEP, AutoresetMode.SAME_STEP]
STEPS = 300


class Parts(gym.Env):
    """Every kind of space in observation and action; the action's parts come back in the info, as do seed and options."""

    metadata: ClassVar[dict[str, Any]] = {"render_modes": ["rgb_array"], "render_fps": 3}
    observation_space = gs.Dict(
        {
            "text": gs.Text(6, min_length=0, charset="abc"),
            "pair": gs.Tuple((gs.Discrete(4, start=2), gs.MultiBinary(3))),
            "image": gs.Box(0, 255, (2, 2), np.uint8),
            "either": gs.OneOf((gs.Discrete(3), gs.Box(-1, 1, (2,)))),
            "many": bound(gs.Sequence(gs.Box(-1, 1, (1,))), 64),
        }
    )
    action_space = gs.Dict({"word": gs.Text(3, charset="xyz"), "push": gs.Box(-1, 1, (2,)), "mode": gs.Discrete(3)})

    def __init__(self, length: int = 5, render_mode: str | None = None) -> None:
        self.length, self.render_mode = length, render_mode
        self.observation_space = deepcopy(self.observation_space)  # with random numbers of its own
        self.gain = 1.0

    def reset(self, *, seed: int | None = None, options: dict[str, Any] | None = None) -> tuple[Any, dict[str, Any]]:
        super().reset(seed=seed)
        self.observation_space.seed(int(self.np_random.integers(2**31)))
        self.steps = 0
        return self.observation_space.sample(), {"options": options, "nested": {"seed": -1 if seed is None else seed}}

    def step(self, action: Any) -> tuple[Any, Any, bool, bool, dict[str, Any]]:
        self.steps += 1
        ended = self.np_random.random() < 0.1
        info = {"word": action["word"], "push": action["push"].copy(), "mode": action["mode"]} if self.steps % 2 else {}
        return self.observation_space.sample(), self.np_random.random() / 3, ended, self.steps == self.length, info

    def render(self) -> Any:
        return np.full((2, 3, 3), self.steps, np.uint8)

    def add(self, a: int, b: int = 0) -> int:
        return a + b + self.length


class Arrays(Parts):
    """A nested action of arrays only."""

    action_space = gs.Dict({"push": gs.Box(-1, 1, (2,)), "rest": gs.Tuple((gs.Discrete(3), gs.MultiBinary(2)))})

    def step(self, action: Any) -> tuple[Any, Any, bool, bool, dict[str, Any]]:
        mode, bits = action["rest"]
        return super().step({"word": str(bits), "push": action["push"], "mode": mode})


class Either(Parts):
    """An action of which no batched array exists."""

    action_space = gs.OneOf((gs.Discrete(3), gs.Box(-1, 1, (2,))))

    def step(self, action: Any) -> tuple[Any, Any, bool, bool, dict[str, Any]]:
        choice, value = action
        return super().step({"word": str(value), "push": np.zeros(2, np.float32), "mode": choice})


class Flat(Parts):
    """What SB3 can show: a Dict of arrays, a Discrete action."""

    observation_space = gs.Dict(
        {"image": gs.Box(0, 255, (2, 2), np.uint8), "speed": gs.Box(-1, 1, (3,)), "gear": gs.Discrete(4)}
    )
    action_space = gs.Discrete(3)

    def step(self, action: Any) -> tuple[Any, Any, bool, bool, dict[str, Any]]:
        return super().step({"word": "x", "push": np.zeros(2, np.float32), "mode": action})


class OneArray(gym.Env):
    """Hands out the same array and the same info dict for ever, as hurried envs do."""

    observation_space = gs.Box(-100, 100, (1,))
    action_space = gs.Discrete(2)

    def reset(self, *, seed: int | None = None, options: Any = None) -> tuple[Any, dict[str, Any]]:
        super().reset(seed=seed)
        self.obs, self.info = getattr(self, "obs", np.zeros(1, np.float32)), getattr(self, "info", {"x": 1})
        self.obs[:] = 0
        return self.obs, self.info

    def step(self, action: Any) -> tuple[Any, float, bool, bool, dict[str, Any]]:
        self.obs += 1
        return self.obs, 1.0, bool(self.obs[0] == 3), False, self.info


class Double(OneArray):
    """Declares float32 and returns float64."""

    def step(self, action: Any) -> tuple[Any, float, bool, bool, dict[str, Any]]:
        obs, *rest = super().step(action)
        return obs.astype(np.float64) + 0.1, *rest


class Fragile(OneArray):
    """Raises in the second step of its first life."""

    lives = 0

    def step(self, action: Any) -> tuple[Any, float, bool, bool, dict[str, Any]]:
        if self.obs[0] == 1 and Fragile.lives == 0:
            Fragile.lives += 1
            raise ValueError("broken")
        return super().step(action)


class Team:
    """Two agents in one env."""

    num_agents = 2
    observation_space = gs.Box(-1, 1, (1,))
    action_space = gs.Discrete(2)

    def reset(self, seed: int | None, out: Any) -> None:
        out.start()

    def step(self, action: Any, out: Any) -> None: ...

    def close(self) -> None: ...


class Single(Team):
    num_agents = 1


def with_statistics() -> gym.Env:
    return doubled(gym.wrappers.RecordEpisodeStatistics(gym.make("CartPole-v1")))


def short_cartpole() -> gym.Env:
    return gym.make("CartPole-v1", max_episode_steps=20)


def monitored() -> gym.Env:
    from stable_baselines3.common.monitor import Monitor

    return doubled(Monitor(short_cartpole()))


def doubled(env: gym.Env) -> gym.Env:
    """Other rewards than those the statistics inside saw."""
    return gym.wrappers.TransformReward(env, lambda reward: 2 * reward)


def assert_same(ours: Any, theirs: Any, where: str = "") -> None:
    """Equal to the last bit, with equal structure, dtypes and shapes."""
    if isinstance(theirs, dict):
        assert isinstance(ours, dict) and set(ours) == set(theirs), (where, ours, theirs)
        for key in theirs:
            assert_same(ours[key], theirs[key], f"{where}/{key}")
    elif isinstance(theirs, tuple | list):
        assert type(ours) is type(theirs) and len(ours) == len(theirs), (where, ours, theirs)
        for i, (a, b) in enumerate(zip(ours, theirs, strict=True)):
            assert_same(a, b, f"{where}/{i}")
    elif isinstance(theirs, np.ndarray):
        assert isinstance(ours, np.ndarray) and (ours.dtype, ours.shape) == (theirs.dtype, theirs.shape), (where, ours, theirs)
        if theirs.dtype == object:
            assert_same(list(ours), list(theirs), where)
        else:
            assert ours.tobytes() == theirs.tobytes(), (where, ours, theirs)
    else:
        assert ours == theirs, (where, ours, theirs)


def pair(env: Any, backend: str, num_envs: int = 3, **kwargs: Any) -> tuple[VectorEnv, VectorEnv]:
    """The same environments behind our face and in a SyncVectorEnv."""
    make = (lambda: gym.make(env)) if isinstance(env, str) else env
    mode = kwargs.get("autoreset_mode", AutoresetMode.NEXT_STEP)
    return as_gymnasium(env, num_envs, backend=backend, **kwargs), SyncVectorEnv([make] * num_envs, autoreset_mode=mode)


def assert_same_play(ours: VectorEnv, theirs: VectorEnv, steps: int = STEPS) -> int:
    """Reset and step both with the same seeds and actions; returns how many episodes ended."""
    assert_same(ours.reset(seed=7), theirs.reset(seed=7))
    theirs.action_space.seed(1)
    ended = 0
    for t in range(steps):
        action = theirs.action_space.sample()
        obs, reward, *rest = theirs.step(action)
        expected = (obs, reward.astype(np.float32).astype(np.float64), *rest)  # rows hold float32 rewards
        assert_same(ours.step(action), expected, f"step {t}: ")
        ended += int((expected[2] | expected[3]).sum())
    return ended


# --- Gymnasium ---


@pytest.mark.parametrize("mode", MODES)
@pytest.mark.parametrize("env", ["CartPole-v1", "Pendulum-v1", "FrozenLake-v1", "Blackjack-v1"])
@pytest.mark.parametrize("backend", BACKENDS)
def test_gymnasium_face_equals_sync_vector_env(backend: str, env: str, mode: AutoresetMode, opened: list[Any]) -> None:
    ours, theirs = pair(env, backend, autoreset_mode=mode)
    opened += [ours, theirs]
    assert isinstance(ours, VectorEnv)
    for name in ("single_observation_space", "observation_space", "single_action_space", "action_space"):
        assert getattr(ours, name) == getattr(theirs, name)
    for name in ("num_envs", "metadata", "render_mode"):
        assert getattr(ours, name) == getattr(theirs, name)
    assert ours.spec.id == env
    assert assert_same_play(ours, theirs) >= 3


@pytest.mark.parametrize("mode", MODES)
@pytest.mark.parametrize("backend,env", [*((backend, Parts) for backend in BACKENDS), ("serial", Arrays), ("serial", Either)])
def test_every_kind_of_space_and_info_equals_sync_vector_env(
    backend: str, env: type[Parts], mode: AutoresetMode, opened: list[Any]
) -> None:
    ours, theirs = pair(env, backend, autoreset_mode=mode)
    opened += [ours, theirs]
    assert assert_same_play(ours, theirs, 60) > 20
    assert ours.observation_space.contains(ours.reset()[0])


@pytest.mark.parametrize("backend", BACKENDS)
def test_seeds_and_options_reach_the_envs_as_gymnasium_says(backend: str, opened: list[Any]) -> None:
    ours, theirs = pair(Flat, backend)
    opened += [ours, theirs]
    for kwargs in (
        {"seed": 5},
        {},
        {"seed": [4, None, 9]},
        {"options": {"a": 1}},
        {"seed": 2**40, "options": {}},
    ):
        if kwargs.get("seed") == [4, None, 9]:  # an env without seed goes on with its own random numbers
            assert_same(ours.reset(seed=1), theirs.reset(seed=1))
        assert_same(ours.reset(**kwargs), theirs.reset(**kwargs))
    assert_same(ours.np_random_seed, theirs.np_random_seed)
    with pytest.raises(ConfigError, match="must not be negative"):
        ours.reset(seed=-1)
    with pytest.raises(ConfigError, match="2 seeds for 3"):
        ours.reset(seed=[1, 2])


@pytest.mark.parametrize("mode", MODES)
def test_a_reset_that_demands_seed_and_options_gets_both(mode: AutoresetMode, opened: list[Any]) -> None:
    class Demanding(Flat):
        def reset(self, seed: int | None, options: dict[str, Any] | None) -> tuple[Any, dict[str, Any]]:  # type: ignore[override]
            return super().reset(seed=seed, options=options)

    _, theirs = pair(Flat, "serial", autoreset_mode=mode)
    ours = as_gymnasium(Demanding, 3, backend="serial", autoreset_mode=mode)
    opened += [ours, theirs]
    assert assert_same_play(ours, theirs, 60) > 3
    report = check_env(Demanding, steps=50)
    assert not report.has("reset()", "error"), str(report)


def test_without_a_seed_the_first_reset_is_random_unless_one_was_set(opened: list[Any]) -> None:
    def first_obs(*args: Any, **settings: Any) -> bytes:
        env = as_gymnasium(*args, **settings)
        opened.append(env)
        return env.reset()[0].tobytes()

    assert first_obs("CartPole-v1", 2, backend="serial") != first_obs("CartPole-v1", 2, backend="serial")
    seeded = first_obs("CartPole-v1", 2, backend="serial", seed=3)
    assert seeded == first_obs("CartPole-v1", 2, backend="serial", seed=3)
    assert seeded == first_obs(fugu.vector.make("CartPole-v1", 2, backend="serial", seed=3))


@pytest.mark.parametrize("backend", BACKENDS)
def test_observations_are_copies_by_default_and_views_on_request(backend: str, opened: list[Any]) -> None:
    fresh, views = (as_gymnasium("Blackjack-v1", 2, backend=backend, copy=copy) for copy in (True, False))
    opened += [fresh, views]
    for env in (fresh, views):
        env.reset(seed=0)
    kept, held = fresh.step(np.ones(2, int))[0], views.step(np.ones(2, int))[0]
    before = [part.copy() for part in kept]
    again = [env.step(np.ones(2, int))[0] for env in (fresh, views)]
    third = [env.step(np.ones(2, int))[0] for env in (fresh, views)]
    assert_same(list(kept), before)
    assert not np.shares_memory(kept[0], third[0][0]) and np.shares_memory(held[0], third[1][0])
    assert not np.shares_memory(held[0], again[1][0])


@pytest.mark.parametrize("mode", MODES)
@pytest.mark.parametrize("backend", BACKENDS)
def test_cleanrl_loop_with_record_episode_statistics_runs_unchanged(
    backend: str, mode: AutoresetMode, opened: list[Any]
) -> None:
    returns = []
    for envs in pair("CartPole-v1", backend, 4, autoreset_mode=mode):
        envs = RecordEpisodeStatistics(envs)
        opened.append(envs)
        assert isinstance(envs.single_action_space, gs.Discrete)
        obs = np.zeros((50, envs.num_envs, *envs.single_observation_space.shape), np.float32)
        generator = np.random.default_rng(0)
        next_obs, _ = envs.reset(seed=1)
        logged = []
        for step in range(50):
            obs[step] = next_obs
            action = generator.integers(envs.single_action_space.n, size=envs.num_envs)
            next_obs, _, terminations, truncations, infos = envs.step(action)
            if "episode" in infos:
                ended = infos["_episode"]
                assert_same(ended, terminations | truncations)
                logged += zip(infos["episode"]["r"][ended].tolist(), infos["episode"]["l"][ended].tolist(), strict=True)
        returns.append((logged, list(envs.return_queue), obs.tobytes()))
    assert returns[0] == returns[1] and len(returns[0][0]) > 4


@pytest.mark.parametrize("backend", BACKENDS)
def test_an_envs_own_episode_statistics_stay_as_they_are(backend: str, opened: list[Any]) -> None:
    ours, theirs = pair(with_statistics, backend)
    asked = as_gymnasium(with_statistics, 3, backend=backend, episode_stats=True)
    opened += [ours, theirs, asked]
    for env in (ours, theirs, asked):
        env.reset(seed=0)
    seen = 0
    for _ in range(60):
        results = [env.step(np.ones(3, int)) for env in (ours, theirs, asked)]
        for *_, infos in results:
            if "episode" in infos:
                del infos["episode"]["t"]
                seen += 1
        assert_same(results[0], results[1])
        assert_same(results[2], results[1])
    assert seen >= 9


def test_episode_stats_are_added_when_asked_for(opened: list[Any]) -> None:
    stats = as_gymnasium("CartPole-v1", 2, backend="serial", episode_stats=True)
    plain = RecordEpisodeStatistics(as_gymnasium("CartPole-v1", 2, backend="serial"))
    opened += [stats, plain]
    stats.reset(seed=0), plain.reset(seed=0)
    for _ in range(40):
        ours, expected = (env.step(np.ones(2, int))[-1] for env in (stats, plain))
        assert ("episode" in ours) == ("episode" in expected)
        if "episode" in ours:
            assert_same(ours["_episode"], expected["_episode"])
            for key in ("r", "l"):
                assert_same(ours["episode"][key], expected["episode"][key])


@pytest.mark.parametrize("backend", BACKENDS)
def test_attributes_methods_and_frames_come_as_from_sync_vector_env(backend: str, opened: list[Any]) -> None:
    ours = as_gymnasium(Parts, 3, backend=backend, env_kwargs={"render_mode": "rgb_array"})
    theirs = SyncVectorEnv([lambda: Parts(render_mode="rgb_array")] * 3)
    opened += [ours, theirs]
    for env in (ours, theirs):
        env.reset(seed=0)
        env.set_attr("gain", 2.5)
        env.set_attr("length", [1, 2, 3])
        env.step(env.action_space.sample())
    assert ours.render_mode == "rgb_array"
    for name, args, kwargs in (("add", (1,), {"b": 5}), ("gain", (), {}), ("length", (), {}), ("render", (), {})):
        assert_same(ours.call(name, *args, **kwargs), theirs.call(name, *args, **kwargs))
    assert_same(ours.get_attr("length"), (1, 2, 3))
    assert_same(ours.render(), theirs.render())
    with pytest.raises(AttributeError, match="no_such_thing"):
        ours.get_attr("no_such_thing")
    with pytest.raises(ConfigError, match="2 values for 3"):
        ours.set_attr("length", [1, 2])
    ours.close()
    assert ours.closed
    ours.close()


def test_a_made_vec_env_is_shown_with_the_autoreset_it_has(opened: list[Any]) -> None:
    vec = fugu.vector.make("CartPole-v1", 3, backend="serial", autoreset="same_step")
    ours = fugu.vector.as_gymnasium(vec)
    theirs = SyncVectorEnv([lambda: gym.make("CartPole-v1")] * 3, autoreset_mode=AutoresetMode.SAME_STEP)
    opened += [ours, theirs]
    assert ours.vec is vec and ours.metadata["autoreset_mode"] is AutoresetMode.SAME_STEP
    assert assert_same_play(ours, theirs, 60) > 3


def test_what_cannot_be_shown_is_refused_before_work_starts() -> None:
    for face in (as_gymnasium, as_sb3):
        with pytest.raises(ConfigError, match=r"one agent per environment, but Team has 4 agents in 2 envs"):
            face(Team, 2, backend="serial")
        with pytest.raises(ConfigError, match="leave batch_size out"):
            face("CartPole-v1", 4, batch_size=2, backend="serial")
        with pytest.raises(ConfigError, match="leave it out"):
            face("CartPole-v1", 2, autoreset="same_step")
    with pytest.raises(ConfigError, match=r"'sometimes' must be one of AutoresetMode\.NEXT_STEP"):
        as_gymnasium("CartPole-v1", 2, autoreset_mode="sometimes")
    with pytest.raises(ConfigError, match="infos='episode'"):
        as_sb3("CartPole-v1", 2, infos="none", backend="serial")
    with pytest.raises(ConfigError, match="restarts on the next step"):
        as_sb3(Single, 2, backend="serial")
    with fugu.vector.make("CartPole-v1", 2, backend="serial") as vec:
        with pytest.raises(ConfigError, match="num_workers is a setting of make"):
            as_gymnasium(vec, num_workers=2)
        with pytest.raises(ConfigError, match="restarts on the next step"):
            as_sb3(vec)
        vec.reset()  # a refused one is not closed


def test_a_final_observation_survives_an_env_that_reuses_its_array(opened: list[Any]) -> None:
    ours = as_gymnasium(OneArray, 1, backend="serial", autoreset_mode="SameStep")
    opened.append(ours)
    ours.reset()
    infos = [ours.step(np.zeros(1, int))[-1] for _ in range(3)]
    assert infos[2]["final_obs"][0] == [3.0]


def test_statistics_do_not_go_into_the_info_dict_an_env_keeps(opened: list[Any]) -> None:
    ours = as_gymnasium(OneArray, 1, backend="serial", episode_stats=True)
    opened.append(ours)
    ours.reset()
    infos = [ours.step(np.zeros(1, int))[-1] for _ in range(4)]
    assert infos[2]["episode"]["r"][0] == 3.0 and "episode" not in infos[3]


def test_observations_are_cast_as_gymnasium_does(opened: list[Any]) -> None:
    ours, theirs = pair(Double, "serial")
    opened += [ours, theirs]
    assert_same_play(ours, theirs, 20)


def test_a_replaced_env_has_a_final_observation_too(opened: list[Any], monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(Fragile, "lives", 0)
    ours = as_gymnasium(Fragile, 1, backend="serial", autoreset_mode="SameStep", on_error="restart")
    opened.append(ours)
    ours.reset()
    ours.step(np.zeros(1, int))
    obs, _, terminated, truncated, infos = ours.step(np.zeros(1, int))
    assert (truncated[0], terminated[0]) == (True, False)
    assert infos["restarted"][0] == "env" and infos["final_obs"][0] == [1.0] == obs[0]
    assert ours.step(np.zeros(1, int))[0] == [0.0]


# --- Stable-Baselines3 ---


@pytest.mark.parametrize("env", [short_cartpole, Flat])
@pytest.mark.parametrize("backend", BACKENDS)
def test_sb3_face_equals_dummy_vec_env(backend: str, env: Any, opened: list[Any]) -> None:
    from stable_baselines3.common.vec_env import DummyVecEnv, VecEnv

    ours, theirs = as_sb3(env, 3, backend=backend), DummyVecEnv([env] * 3)
    opened += [ours, theirs]
    assert isinstance(ours, VecEnv)
    for name in ("num_envs", "observation_space", "action_space", "render_mode", "metadata"):
        assert getattr(ours, name) == getattr(theirs, name)
    assert_same(ours.seed(11), theirs.seed(11))
    assert_same(ours.reset(), theirs.reset())
    generator = np.random.default_rng(0)
    returns, lengths, limits, ended = np.zeros(3), np.zeros(3, int), 0, 0
    for _ in range(150):
        action = generator.integers(ours.action_space.n, size=3)
        for face in (ours, theirs):
            face.step_async(action)
        result, expected = ours.step_wait(), theirs.step_wait()
        returns += expected[1]
        lengths += 1
        for i, info in enumerate(result[3]):
            episode = info.pop("episode", None)
            assert (episode is not None) == expected[2][i]
            if episode is not None:
                assert episode["l"] == lengths[i] and episode["r"] == pytest.approx(returns[i]) and episode["t"] >= 0
                returns[i], lengths[i] = 0, 0
                ended += 1
                limits += info["TimeLimit.truncated"]
        assert_same(result, expected)
        assert_same(ours.reset_infos, theirs.reset_infos)
    assert 0 < limits < ended
    assert_same(ours.reset(), theirs.reset())  # without seed() the envs go on with their own random numbers


@pytest.mark.parametrize("backend", BACKENDS)
def test_sb3_options_reach_each_env_once(backend: str, opened: list[Any]) -> None:
    from stable_baselines3.common.vec_env import DummyVecEnv

    ours, theirs = as_sb3(Flat, 2, backend=backend), DummyVecEnv([Flat] * 2)
    opened += [ours, theirs]
    for options in ({"a": 1}, [{"a": 1}, {}], None):
        for face in (ours, theirs):
            face.seed(0)
            face.set_options(options)
            face.reset()
        assert_same(ours.reset_infos, theirs.reset_infos)
        for face in (ours, theirs):
            face.reset()
        assert_same(ours.reset_infos, theirs.reset_infos)
    ours.set_options([{"a": 1}])
    with pytest.raises(ConfigError, match="1 options for 2"):
        ours.reset()


@pytest.mark.parametrize("backend", BACKENDS)
def test_sb3_attributes_methods_wrappers_and_images(backend: str, opened: list[Any]) -> None:
    from gymnasium.wrappers import TimeLimit
    from stable_baselines3.common.monitor import Monitor
    from stable_baselines3.common.vec_env import DummyVecEnv

    ours = as_sb3(Flat, 3, backend=backend, env_kwargs={"render_mode": "rgb_array"})
    theirs = DummyVecEnv([lambda: Flat(render_mode="rgb_array")] * 3)
    wrapped = as_sb3(short_cartpole, 2, backend=backend)
    opened += [ours, theirs, wrapped]
    for face in (ours, theirs):
        face.seed(0)
        face.reset()
        face.set_attr("gain", [1, 2, 3])
        face.set_attr("length", 9, indices=[2])
        face.step(np.zeros(3, int))
    assert ours.get_attr("gain") == theirs.get_attr("gain") == [[1, 2, 3]] * 3
    assert ours.get_attr("length", indices=2) == theirs.get_attr("length", indices=2) == [9]
    assert ours.env_method("add", 1, b=2, indices=[0, 2]) == theirs.env_method("add", 1, b=2, indices=[0, 2]) == [8, 12]
    assert ours.has_attr("gain") and not ours.has_attr("no_such_thing")
    assert_same(ours.get_images(), theirs.get_images())
    assert_same(ours.render("rgb_array"), theirs.render("rgb_array"))
    assert wrapped.env_is_wrapped(TimeLimit) == [True, True] and wrapped.env_is_wrapped(Monitor, indices=1) == [False]
    with pytest.warns(UserWarning, match="rgb_array"):
        assert wrapped.get_images() == [None, None]


@pytest.mark.parametrize("backend", BACKENDS)
def test_ppo_learns_and_reports_episodes_without_a_monitor(backend: str, opened: list[Any]) -> None:
    from stable_baselines3 import PPO

    envs = as_sb3("CartPole-v1", 4, backend=backend)
    opened.append(envs)
    model = PPO("MlpPolicy", envs, n_steps=32, batch_size=64, n_epochs=1, seed=0, device="cpu").learn(256)
    assert model.num_timesteps == 256
    assert len(model.ep_info_buffer) > 3 and all(episode["r"] == episode["l"] for episode in model.ep_info_buffer)


def test_sb3_wrappers_fit_around_the_face(opened: list[Any]) -> None:
    from stable_baselines3.common.vec_env import DummyVecEnv, VecMonitor, VecNormalize

    ours, theirs = (
        VecNormalize(VecMonitor(envs))
        for envs in (as_sb3(short_cartpole, 3, backend="serial"), DummyVecEnv([short_cartpole] * 3))
    )
    opened += [ours, theirs]
    for face in (ours, theirs):
        face.seed(0)
    assert_same(ours.reset(), theirs.reset())
    for _ in range(60):
        result, expected = (face.step(np.ones(3, int)) for face in (ours, theirs))
        for info in (*result[3], *expected[3]):
            info.get("episode", {}).pop("t", None)
        assert_same(result, expected)


def test_a_monitor_inside_keeps_its_own_episode_info(opened: list[Any]) -> None:
    from stable_baselines3.common.monitor import Monitor
    from stable_baselines3.common.vec_env import DummyVecEnv

    ours, theirs = as_sb3(monitored, 2, backend="serial"), DummyVecEnv([monitored] * 2)
    opened += [ours, theirs]
    assert ours.env_is_wrapped(Monitor) == [True, True]
    for face in (ours, theirs):
        face.seed(0)
        face.reset()
    for _ in range(40):
        result, expected = (face.step(np.ones(2, int)) for face in (ours, theirs))
        for info in (*result[3], *expected[3]):
            info.get("episode", {}).pop("t", None)
        assert_same(result, expected)


def test_sb3_seed_setting_makes_the_first_reset_reproducible(opened: list[Any]) -> None:
    opened += [as_sb3("CartPole-v1", 2, backend="serial", seed=seed) for seed in (4, 4, 5)]
    first = [face.reset().tobytes() for face in opened]
    assert first[0] == first[1] != first[2]
    opened[0].seed(8)
    assert_same(opened[0].reset(), SyncVectorEnv([lambda: gym.make("CartPole-v1")] * 2).reset(seed=8)[0])


def test_sb3_observations_do_not_change_after_they_are_returned(opened: list[Any]) -> None:
    ours = as_sb3("CartPole-v1", 2, backend="serial")
    opened.append(ours)
    kept = [ours.reset()] + [ours.step(np.ones(2, int))[0] for _ in range(3)]
    assert len({obs.tobytes() for obs in kept}) == 4


def test_a_replaced_env_has_a_terminal_observation_in_sb3(opened: list[Any], monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(Fragile, "lives", 0)
    ours = as_sb3(Fragile, 1, backend="serial", on_error="restart")
    opened.append(ours)
    ours.reset()
    ours.step(np.zeros(1, int))
    _, _, done, infos = ours.step(np.zeros(1, int))
    assert done[0] and infos[0]["TimeLimit.truncated"] and infos[0]["terminal_observation"] == [1.0]
    assert ours.step(np.zeros(1, int))[0] == [0.0]


def test_without_sb3_the_error_says_what_to_install(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.delitem(sys.modules, "fugu.vector.adapters_sb3", raising=False)
    for name in [name for name in sys.modules if name.split(".")[0] == "stable_baselines3"]:
        monkeypatch.delitem(sys.modules, name)
    monkeypatch.setitem(sys.modules, "stable_baselines3", None)
    with pytest.raises(MissingExtra, match=r'the SB3 adapter needs an extra: pip install "fugu-rl\[sb3\]"'):
        as_sb3("CartPole-v1", 2)
