"""Environments nobody here wrote: they pass the check, step 1,000 times, and come out of both backends byte for byte alike."""

from __future__ import annotations

import importlib
import warnings
from typing import Any

import numpy as np
import pytest

import fugu

STEPS = 1000
EVERYDAY = ["CartPole-v1", "Pendulum-v1", "Blackjack-v1", "FrozenLake-v1"]
HEAVY = [
    "MiniGrid-DoorKey-5x5-v0",
    "BabyAI-GoToRedBall-v0",
    "ALE/Pong-v5",
    "HalfCheetah-v5",
    "mpe2.simple_spread_v3:parallel_env",
    "pettingzoo.classic.connect_four_v3:env",
    "pettingzoo.butterfly.knights_archers_zombies_v11:parallel_env",
    "tests.thirdparty.nethack:score",  # these two in an environment of their own: make test-nethack
    "tests.thirdparty.nethack:room",
]
PACKAGES = {
    "MiniGrid-DoorKey-5x5-v0": "minigrid",
    "BabyAI-GoToRedBall-v0": "minigrid",
    "ALE/Pong-v5": "ale_py",
    "HalfCheetah-v5": "mujoco",
}
ALL = [*EVERYDAY, *(pytest.param(name, marks=pytest.mark.extras) for name in HEAVY)]


@pytest.fixture(autouse=True)
def quiet() -> Any:
    """The packages' own deprecation notices are not what is tested here."""
    with warnings.catch_warnings():
        warnings.simplefilter("ignore")
        yield


@pytest.fixture
def env(request: pytest.FixtureRequest) -> str:
    name = request.param
    pytest.importorskip(name.split(":")[0] if ":" in name else PACKAGES.get(name, "gymnasium"), exc_type=ImportError)
    return name


@pytest.mark.parametrize("env", ALL, indirect=True)
def test_passes_the_check(env):
    report = fugu.check_env(env, steps=200)
    theirs = "KeyError: 'wizkit_items'" if "nethack" in env else None  # NLE's reset(options={}) fails
    errors = [finding for finding in report.findings if finding.severity == "error" and finding.problem != theirs]
    assert not errors, str(report)


@pytest.mark.parametrize("env", ALL, indirect=True)
@pytest.mark.usefixtures("no_leaks")
def test_serial_and_process_give_the_same_bytes_over_1000_steps(env):
    num_envs = 2
    with (
        fugu.vector.make(env, num_envs, backend="serial", seed=3) as serial,
        fugu.vector.make(env, num_envs, backend="process", num_workers=2, seed=3) as process,
    ):
        rng = np.random.default_rng(0)
        for vec in (serial, process):
            vec.async_reset()
        ended = acted = 0
        for t in range(STEPS):
            one, two = serial.recv(), process.recv()
            for column in ("obs", "reward", "terminated", "truncated", "first", "mask", "action_mask"):
                a, b = getattr(one, column), getattr(two, column)
                assert (a is None and b is None) or a.tobytes() == b.tobytes(), f"step {t}: {column}"
            episodes = [
                {i: (x["episode"]["r"], x["episode"]["l"]) for i, x in r.infos.items() if "episode" in x} for r in (one, two)
            ]
            assert episodes[0] == episodes[1]
            ended += len(episodes[0])
            acted += int(one.mask.sum())
            action = random_action(serial, one, rng)
            serial.send(action)
            process.send(action)
        assert acted >= STEPS / 2
        if env not in ("HalfCheetah-v5", "ALE/Pong-v5"):  # whose episodes are longer than this
            assert ended > 0


def random_action(vec: fugu.vector.VecEnv, rows: fugu.Rows, rng: np.random.Generator) -> np.ndarray:
    """Random actions that respect the masks."""
    if vec.action_layout.dtype.kind == "f":
        space = vec.action_space
        return rng.uniform(space.low, space.high, (vec.num_agents, *space.shape)).astype(vec.action_layout.dtype)
    start = vec.action_space.start
    return np.array([start + rng.choice(np.flatnonzero(mask)) for mask in rows.action_mask])


@pytest.mark.extras
def test_the_check_finds_that_nethack_ignores_its_seed():
    pytest.importorskip("nle")
    report = fugu.check_env("NetHackScore-v0", steps=50)
    assert [finding.where for finding in report.findings if finding.severity == "error"] == ["determinism"]


@pytest.mark.extras
def test_every_mission_of_minigrid_survives_the_row():
    pytest.importorskip("minigrid")
    with fugu.vector.make("MiniGrid-DoorKey-5x5-v0", 1, backend="serial") as vec:
        obs, _ = vec.reset(seed=0)
        mission = fugu.spaces.Packer(vec.obs_layout).unpack(obs[0])["mission"]
        assert mission == vec.get_attr("mission")[0] == "use the key to open the door and then get to the goal"


@pytest.mark.extras
def test_atari_vector_env_is_taken_as_one_env():
    importlib.import_module("ale_py")
    import gymnasium

    with fugu.vector.make(lambda: gymnasium.make_vec("ALE/Pong-v5", num_envs=3), 2, backend="serial") as vec:
        assert vec.num_agents == 6
        vec.reset(seed=1)
        for _ in range(20):
            obs, *_ = vec.step(np.zeros(6, np.int64))
        assert obs.shape == (6, 4, 84, 84)


@pytest.mark.extras
def test_atari_games_are_what_gymnasiums_own_wrappers_make_of_them(capfd):
    pytest.importorskip("cv2")
    importlib.import_module("ale_py")
    import gymnasium
    from gymnasium import wrappers

    from fugu.envs import atari

    ours = atari.make("ALE/Breakout-v5")
    assert "Arcade" not in "".join(capfd.readouterr()), "a banner in the dashboard"
    theirs = gymnasium.make("ALE/Breakout-v5", frameskip=1)
    theirs = wrappers.FrameStackObservation(wrappers.AtariPreprocessing(theirs, noop_max=30, frame_skip=4, screen_size=84), 4)
    assert (ours.observation_space, ours.action_space) == (theirs.observation_space, theirs.action_space)
    for one, other in zip(ours.reset(seed=3), theirs.reset(seed=3), strict=True):
        np.testing.assert_equal(one, other)
    ends = 0
    for action in np.random.default_rng(0).integers(0, 4, 600):
        one, other = ours.step(action), theirs.step(action)
        np.testing.assert_equal(one[0], other[0])
        assert one[1:] == other[1:]
        if one[2] or one[3]:
            ends += 1
            np.testing.assert_equal(ours.reset(), theirs.reset())
    assert ends >= 1


@pytest.mark.extras
def test_every_atari_game_is_trained_as_one():
    importlib.import_module("ale_py")
    from fugu.envs import atari
    from fugu.presets import preset

    config = preset("ALE/Asterix-v5")
    assert (config.env, dict(config.env_kwargs)) == ("fugu.envs.atari:make", {"game": "ALE/Asterix-v5"})
    assert config.policy == preset("ALE/Pong-v5").policy
    assert atari.make(**config.env_kwargs).observation_space.shape == (4, 84, 84)
    with pytest.raises(fugu.FuguError, match="no Atari game 'ALE/Pnog-v5' is registered. Did you mean 'ALE/Pong-v5'"):
        atari.make("ALE/Pnog-v5")
