"""Native environments against Gymnasium's own, and the engine against its promises."""

from __future__ import annotations

import signal
import subprocess
import sys

import gymnasium
import numpy as np
import pytest

import fugu
import fugu.envs  # registers fugu/Tetris-v0
from fugu.emulation.env import Rows
from fugu.emulation.native import RESET, STEP, columns, names, native_spec
from fugu.errors import CallOrderError, ConfigError, SpaceError
from fugu.native import native
from fugu.spaces import Layout

STEPS = 10_000
STEP_NARROW = 3
"""the engine's command for a step without the machine's widest vectors"""


def set_cartpole(env, obs):
    env.state = tuple(float(x) for x in obs)
    env.steps_beyond_terminated = None


def set_mountain_car(env, obs):
    env.state = tuple(float(x) for x in obs)


def set_pendulum(env, obs):
    env.state = np.array([np.arctan2(obs[1], obs[0]), obs[2]], np.float64)


def set_acrobot(env, obs):
    env.state = np.array([np.arctan2(obs[1], obs[0]), np.arctan2(obs[3], obs[2]), obs[4], obs[5]], np.float64)


TWINS = {
    "cartpole": ("CartPole-v1", set_cartpole),
    "mountain_car": ("MountainCar-v0", set_mountain_car),
    "pendulum": ("Pendulum-v1", set_pendulum),
    "acrobot": ("Acrobot-v1", set_acrobot),
}


def random_actions(vec: fugu.vector.VecEnv, rng: np.random.Generator) -> np.ndarray:
    rows = vec.action_layout.zeros(vec.num_agents)
    for leaf, view in zip(vec.action_layout.leaves, vec.action_layout.leaf_views(rows), strict=True):
        choices = leaf.choice_range()
        if choices is None:
            view[...] = rng.uniform(leaf.space.low, leaf.space.high, view.shape)
        else:
            view[...] = rng.integers(choices[0], choices[1] + 1, view.shape)
    return rows


@pytest.mark.slow
@pytest.mark.parametrize("name", TWINS)
def test_steps_equal_gymnasiums_from_the_same_states_and_actions(name):
    their_id, set_state = TWINS[name]
    theirs = gymnasium.make(their_id).unwrapped
    theirs.reset(seed=0)
    rng = np.random.default_rng(0)
    with fugu.vector.make(name, 20, num_workers=1) as vec:
        assert vec.observation_space == theirs.observation_space
        assert vec.action_space == theirs.action_space
        vec.async_reset(seed=1)
        rows = vec.recv()
        compared = endings = 0
        while compared < STEPS:
            before, acts, action = rows.obs.copy(), rows.mask.copy(), random_actions(vec, rng)
            vec.send(action)
            rows = vec.recv()
            for i in np.flatnonzero(acts):
                set_state(theirs, before[i])
                obs, reward, terminated, _, _ = theirs.step(action[i])
                np.testing.assert_allclose(rows.obs[i], obs, rtol=2e-4, atol=2e-5)
                np.testing.assert_allclose(rows.reward[i], reward, rtol=1e-4, atol=1e-5)
                if terminated != rows.terminated[i]:  # only where float32 and float64 fall on either side of the bound
                    assert name == "cartpole" and min(abs(abs(obs[0]) - 2.4), abs(abs(obs[2]) - 0.20943951)) < 1e-6
                endings += bool(terminated)
                compared += 1
        if name in ("cartpole",):
            assert endings > 100


@pytest.mark.parametrize("name", TWINS)
def test_time_limit_is_gymnasiums(name):
    limit = gymnasium.spec(TWINS[name][0]).max_episode_steps
    with fugu.vector.make(name, 1, env_kwargs={"max_steps": 7}) as vec:
        vec.reset(seed=0)
        flags = [vec.step(vec.action_layout.zeros(1))[3][0] for _ in range(8)]
        assert flags == [False] * 6 + [True, False]
    with fugu.vector.make("mountain_car", 1) as vec:
        vec.reset(seed=0)
        for _ in range(199):
            assert not vec.step(np.ones(1, np.int64))[3][0]
        assert vec.step(np.ones(1, np.int64))[3][0]
    assert limit in (200, 500)


@pytest.mark.parametrize("name", TWINS)
def test_first_states_are_spread_as_gymnasiums(name):
    their_id, _ = TWINS[name]
    theirs = gymnasium.make(their_id)
    sample = np.array([theirs.reset(seed=i)[0] for i in range(2000)])
    with fugu.vector.make(name, 2000) as vec:
        ours, _ = vec.reset(seed=3)
        np.testing.assert_allclose(ours.mean(0), sample.mean(0), atol=0.08)
        np.testing.assert_allclose(ours.std(0), sample.std(0), atol=0.05)
        assert len(np.unique(ours[:, 0])) > 1900


@pytest.mark.parametrize("name", names())
def test_any_number_of_threads_gives_the_same_bytes(name):
    results = []
    for threads in (1, 2, 4):
        rng = np.random.default_rng(0)
        with fugu.vector.make(name, 777, num_workers=threads) as vec:
            vec.async_reset(seed=5)
            seen = []
            for _ in range(60):
                rows = vec.recv()
                seen += [getattr(rows, c).tobytes() for c in ("obs", "reward", "terminated", "truncated", "first", "mask")]
                vec.send(random_actions(vec, rng))
            vec.recv()
            results.append((seen, vec.drain_log()))
    assert results[0] == results[1] == results[2]


@pytest.mark.parametrize("name", TWINS)
def test_vector_instructions_of_this_machine_change_no_byte(name):
    spec = native_spec(name, {})
    choices = Layout(spec.action_space)
    seen = []
    for command in (STEP, STEP_NARROW):
        worlds = native.Worlds(name, 777, {"max_steps": 30}, [0, 100, 777], 2)  # groups that end amid a block of lanes
        rows = [Rows.zeros(spec, 777) for _ in range(2)]
        action, seeds = choices.zeros(777), np.arange(777)
        parts = [slice(0, 100), slice(100, 777)]
        worlds.bind(seeds, action, [[columns(slot[part]) for slot in rows] for part in parts])
        rng, bytes_ = np.random.default_rng(0), []
        for t in range(100):
            action[...] = rng.integers(0, 2, 777) if spec.action_space.shape == () else rng.uniform(-2, 2, action.shape)
            for group in (0, 1):
                worlds.start(group, RESET if t == 0 else command, t % 2)
            for group in (0, 1):
                worlds.finish(group)
            bytes_ += [column.tobytes() for column in columns(rows[t % 2]) if column is not None]
        seen.append((bytes_, worlds.state, worlds.drain()))
    assert seen[0] == seen[1]
    assert seen[0][2][0] > 777


def test_log_is_the_same_however_often_it_is_drained_while_groups_run():
    def play(num_workers, every):
        with fugu.vector.make("cartpole", 400, backend="native", batch_size=100, num_workers=num_workers) as vec:
            vec.async_reset(seed=0)
            rng, logs = np.random.default_rng(0), []
            for t in range(2000):
                vec.recv()
                vec.send(rng.integers(0, 2, 100))
                if t % every == every - 1:  # all four groups are running
                    logs.append(vec.drain_log())
            return sum(log.episodes for log in logs), round(sum(log.episodes * log.mean_length for log in logs))

    once = play(1, 2000)
    assert once == play(2, 1) == play(2, 500)
    assert once[0] > 5000


@pytest.mark.parametrize("name", names())
@pytest.mark.parametrize("settings", [{"backend": "serial"}, {"backend": "native", "batch_size": 3}])
def test_backends_agree_byte_for_byte(name, settings):
    def play(**chosen):
        with fugu.vector.make(name, 6, seed=9, infos="all", **chosen) as vec:
            rng = np.random.default_rng(1)
            actions = [random_actions(vec, rng) for _ in range(250)]
            vec.async_reset()
            seen = {agent: [] for agent in range(vec.num_agents)}
            for turn in range(250 * vec.config.num_batches):
                rows = vec.recv()
                for i, agent in enumerate(range(rows.agents.start, rows.agents.stop)):
                    episode = rows.infos.get(agent, {}).get("episode", {})
                    columns = (rows.obs, rows.reward, rows.terminated, rows.truncated, rows.first, rows.mask)
                    seen[agent].append((*(c[i].tobytes() for c in columns), episode.get("r"), episode.get("l")))
                vec.send(actions[turn // vec.config.num_batches][rows.agents])
            return seen

    assert play(backend="native", num_workers=2) == play(**settings)


@pytest.mark.parametrize("name", names())
def test_passes_the_check(name):
    report = fugu.check_env(name, steps=300)
    assert report.ok, str(report)


def test_log_sums_up_what_infos_say():
    with fugu.vector.make("cartpole", 64, infos="episode") as vec:
        vec.reset(seed=0)
        rng, returns = np.random.default_rng(0), []
        for _ in range(300):
            infos = vec.step(rng.integers(0, 2, 64))[4]
            returns += [info["episode"]["r"] for info in infos.values()]
        log = vec.drain_log()
        assert log.episodes == len(returns) > 500
        assert log.mean_return == pytest.approx(np.mean(returns)) == log.mean_length
        assert vec.drain_log()[:3] == (0, 0.0, 0.0) and not any(vec.drain_log()[3:])


def test_settings_reach_the_environment_and_wrong_ones_are_refused():
    with fugu.vector.make("cartpole", 1, env_kwargs={"max_theta": 10.0, "max_x": 100.0, "max_steps": 50}) as vec:
        vec.reset(seed=0)
        for _ in range(49):
            _, _, terminated, truncated, _ = vec.step(np.ones(1, np.int64))
            assert not terminated[0] and not truncated[0]
    with pytest.raises(ConfigError, match="no setting 'max_tehta'. Did you mean 'max_theta'"):
        fugu.vector.make("cartpole", 1, env_kwargs={"max_tehta": 1.0})
    with pytest.raises(ConfigError, match="must be a number"):
        fugu.vector.make("cartpole", 1, env_kwargs={"gravity": "high"})
    with pytest.raises(ConfigError, match="max_steps=2.5 must be a whole number"):
        fugu.vector.make("cartpole", 1, env_kwargs={"max_steps": 2.5})
    for size in (4, 22, 2**40, float("inf"), float("nan")):
        with pytest.raises(ConfigError, match="size=.* must lie in .5, 21."):
            fugu.vector.make("maze", 1, env_kwargs={"size": size})


def test_wrong_use_is_an_error_and_changes_nothing():
    with fugu.vector.make("cartpole", 64) as vec:
        obs, _ = vec.reset(seed=0)
        before = obs.copy()
        good = np.zeros(64, np.int64)
        for bad, text in [
            (np.full(64, 2), "2 at agent 0 is outside"),
            (np.where(np.arange(64) == 9, -1, 0), "-1 at agent 9 is outside"),
            (np.zeros(64, np.float32), "expected int64, got float32"),
            (np.zeros(63, np.int64), "expected shape"),
            (np.zeros((64, 1), np.int64), "expected shape"),
        ]:
            with pytest.raises(SpaceError, match=text):
                vec.step(bad)
        np.testing.assert_array_equal(before, obs)
        vec.step(good)
        vec.send(good)
        with pytest.raises(CallOrderError):
            vec.send(good)
    with fugu.vector.make("pendulum", 3) as vec:
        vec.reset(seed=0)
        with pytest.raises(SpaceError, match="nan.* at agent 1"):
            vec.step(np.array([[0.0], [np.nan], [0.0]], np.float32))
    for settings in ({"num_envs": 0}, {"num_envs": 4, "num_workers": 5}, {"num_envs": 4, "num_workers": 0}):
        with pytest.raises(ConfigError):
            fugu.vector.make("cartpole", **settings)
    with pytest.raises(ConfigError, match="native environments only"):
        fugu.vector.make("CartPole-v1", 4, backend="native")


@pytest.mark.parametrize("infos", [None, "episode"])
def test_step_is_send_and_recv(infos):
    rng = np.random.default_rng(0)
    settings = {"num_workers": 2, "infos": infos, "env_kwargs": {"max_steps": 20}}
    with fugu.vector.make("cartpole", 300, **settings) as vec, fugu.vector.make("cartpole", 300, **settings) as twin:
        vec.reset(seed=0)
        twin.reset(seed=0)
        for t in range(60):
            action = rng.integers(0, 2, 300) if t % 7 else rng.integers(0, 2, 300).astype(np.int32)
            before = vec.rows
            seen = vec.step(action)[4]
            twin.send(action)
            rows = twin.recv()
            for name in ("obs", "reward", "terminated", "truncated", "first", "mask"):
                np.testing.assert_array_equal(getattr(vec.rows, name), getattr(rows, name), err_msg=f"{name} of step {t}")
            assert vec.rows is not before
            ended = [
                {i: (info["episode"]["r"], info["episode"]["l"]) for i, info in each.items()} for each in (seen, rows.infos)
            ]
            assert ended[0] == ended[1]
        assert vec.drain_log() == twin.drain_log()
        vec.park()
        with pytest.raises(CallOrderError):
            vec.step(action)
    with pytest.raises(CallOrderError, match="closed"):
        vec.step(action)


FORKED = """
import os, signal, sys
import numpy as np
import fugu

action = np.zeros(512, np.int64)
vec = fugu.vector.make("cartpole", 512, num_workers=4)
vec.reset(seed=0)
vec.step(action)
child = os.fork()
if child == 0:
    signal.alarm(20)  # ends it, should it hang
    {what}
    sys.exit(0)
state = os.waitpid(child, 0)[1]
vec.step(action)
sys.exit(state != 0)
"""


@pytest.mark.parametrize(
    "what",
    [
        "pass",
        "vec.step(action)",
        "vec.close(); del vec",
        "own = fugu.vector.make('cartpole', 512, num_workers=4); own.reset(seed=0); own.step(action); vec.close(); del vec",
    ],
)
def test_a_fork_can_leave_what_it_inherited(what):
    """Its threads are the parent's."""
    subprocess.run([sys.executable, "-c", FORKED.format(what=what)], check=True, timeout=60)


def test_a_step_that_a_signal_hides_is_not_forgotten():
    def rise(*_):
        raise TimeoutError

    with fugu.vector.make("tetris", 4096) as vec:
        vec.reset(seed=0)
        action = np.zeros(4096, np.int64)
        before = signal.signal(signal.SIGALRM, rise)
        try:
            step = vec._at_once
            vec._at_once = lambda *a: step(*a) and signal.raise_signal(signal.SIGALRM)
            with pytest.raises(TimeoutError):
                vec.step(action)
            vec._at_once = step
        finally:
            signal.signal(signal.SIGALRM, before)
        with pytest.raises(CallOrderError, match="an earlier call did not finish"):
            vec.step(action)
        vec.reset(seed=0)
        vec.step(action)


@pytest.mark.parametrize("name", ["connect4", "foraging"])
def test_a_length_counts_the_rows_an_agent_acted_on_by_every_backend(name):
    logs = []
    for backend in ("native", "serial"):
        with fugu.vector.make(name, 16, backend=backend, infos="episode") as vec:
            vec.reset(seed=0)
            rng, lengths = np.random.default_rng(0), []
            for _ in range(300):
                options = vec.rows.action_mask
                action = random_actions(vec, rng) if options is None else (options * rng.random(options.shape)).argmax(1)
                lengths += [info["episode"]["l"] for info in vec.step(action)[4].values()]
            logs.append(vec.drain_log())
            assert logs[-1].episodes == len(lengths) > 10
            assert logs[-1].mean_length == pytest.approx(np.mean(lengths))
    assert logs[0].mean_length == pytest.approx(logs[1].mean_length)


def test_a_restored_vector_env_goes_on_with_its_running_returns():
    with fugu.vector.make("cartpole", 8, infos="episode", env_kwargs={"max_steps": 8}) as vec:
        vec.async_reset(seed=0)
        action, seen = np.zeros(8, np.int64), []
        for t in range(30):
            rows = vec.recv()
            seen += [info["episode"]["l"] for info in rows.infos.values()]
            if t in (5, 12):
                vec.park()
                if t == 5:
                    saved = vec.snapshot()
                vec.restore(saved)
                vec.unpark()
            vec.send(action)
        vec.recv()
        assert set(seen) == {8}


def test_a_restored_vector_env_shows_the_rewards_it_was_saved_with():
    with fugu.vector.make("cartpole", 8) as vec:
        vec.reset(seed=0)
        vec.step(np.zeros(8, np.int64))
        vec.park()
        saved = vec.snapshot()
    for had, without in ((1.0, ()), (0.0, ("reward",))):
        with fugu.vector.make("cartpole", 8) as vec:
            vec.restore({name: column for name, column in saved.items() if name not in without})
            assert (vec.unpark().reward == had).all(), without


def test_what_cannot_be_saved_says_so():
    with fugu.vector.make("CartPole-v1", 2, backend="serial") as vec:
        vec.reset(seed=0)
        vec.park()
        for attempt in (vec.snapshot, lambda: vec.restore({})):
            with pytest.raises(ConfigError, match="backend='serial' cannot"):
                attempt()


@pytest.mark.parametrize("name", TWINS)
def test_no_setting_in_its_range_makes_nonsense(name):
    bounds = native.environments()[name]["bounds"]
    for corner in range(40):
        pick = np.random.default_rng(corner)
        settings = {key: float(pick.choice([low, high])) for key, (low, high) in bounds.items()}
        with fugu.vector.make(name, 16, env_kwargs=settings) as vec:
            vec.reset(seed=corner)
            for _ in range(200):
                obs, reward, *_ = vec.step(random_actions(vec, pick))
                assert np.isfinite(obs).all() and np.isfinite(reward).all(), settings
    for key, (low, high) in bounds.items():
        assert np.isfinite([low, high]).all(), f"{key} has no bounds"


def test_a_world_that_was_never_reset_is_not_stepped():
    with pytest.raises(CallOrderError, match="call reset"):
        gymnasium.make("fugu/Tetris-v0").unwrapped.step(5)


def test_whole_numbers_are_taken_for_reals_and_reals_for_whole_numbers():
    with fugu.vector.make("pendulum", 4, env_kwargs={"max_steps": 5.0}) as vec:
        vec.reset(seed=0)
        for action in ([[0], [1], [0], [0]], np.zeros((4, 1), np.int64)):
            vec.step(action)
        for _ in range(3):
            truncated = vec.step(np.zeros((4, 1), np.float32))[3]
        assert truncated.all()


def test_logs_are_the_same_by_every_backend():
    logs = []
    for backend in ("native", "serial"):
        with fugu.vector.make("tetris", 4, backend=backend, env_kwargs={"max_steps": 60}) as vec:
            vec.reset(seed=0)
            rng = np.random.default_rng(0)
            for _ in range(400):
                vec.step(random_actions(vec, rng))
            logs.append(vec.drain_log())
    assert logs[0].mean_values == pytest.approx(logs[1].mean_values) and logs[0].mean_values


def test_the_bad_part_of_an_action_is_named():
    with fugu.vector.make("spaces", 4) as vec:
        vec.reset(seed=0)
        action = {name: np.zeros((4, *space.shape), space.dtype) for name, space in vec.action_space.items()}
        for _ in range(2):  # the second begins the next episode: after an ending actions are not looked at
            vec.step(action)
        name = next(name for name, space in vec.action_space.items() if isinstance(space, gymnasium.spaces.Discrete))
        with pytest.raises(SpaceError, match=f"'{name}': 99 at agent 2 is outside Discrete"):
            vec.step({**action, name: np.array([0, 0, 99, 0])})
        with pytest.raises(SpaceError, match="expected the parts"):
            vec.step(tuple(action.values()))
        with pytest.raises(SpaceError, match="actions"):
            vec.step(None)


@pytest.mark.parametrize("seed", [[1.9, 2.0], [2**63, 1], [True, 1], ["a", 1], [-1, 1]])
def test_what_is_no_seed_is_said(seed):
    with fugu.vector.make("cartpole", 2) as vec, pytest.raises(ConfigError, match="is no seed"):
        vec.reset(seed=seed)


@pytest.mark.parametrize("threads", [1, 2, 5])
def test_the_first_bad_action_is_named_and_no_world_moves_whichever_thread_meets_it(threads):
    good = np.random.default_rng(0).integers(0, 2, (200, 1000))
    with fugu.vector.make("cartpole", 1000, num_workers=threads) as vec, fugu.vector.make("cartpole", 1000) as twin:
        vec.reset(seed=0)
        twin.reset(seed=0)
        for t, action in enumerate(good):
            obs, state = vec.rows.obs.copy(), vec._runner.state
            for agents in ([999], [3, 999], [517, 600, 601]):
                bad = action.copy()
                bad[agents] = 2
                acting = [agent for agent in agents if vec.rows.mask[agent]]  # the others have ended: nobody looks at theirs
                if not acting:
                    continue
                with pytest.raises(SpaceError, match=f"2 at agent {acting[0]} is outside"):
                    vec.step(bad)
                assert vec._runner.state == state
                np.testing.assert_array_equal(vec.rows.obs, obs)
            np.testing.assert_array_equal(vec.step(action)[0], twin.step(action)[0], err_msg=f"step {t}")


def test_threads_are_for_all_batches_but_processes_are_not():
    with fugu.vector.make("cartpole", 512, batch_size=64, num_workers=2) as vec:
        vec.async_reset(seed=0)
        for _ in range(16):
            vec.recv()
            vec.send(np.zeros(64, np.int64))
    for settings in ({}, {"backend": "process"}):
        with pytest.raises(ConfigError, match="num_workers=2 must be a multiple of the 8 batches.*try num_workers=8"):
            fugu.vector.make("CartPole-v1", 16, batch_size=2, num_workers=2, **settings)


def test_actions_belong_to_the_caller_again_after_send():
    actions = np.random.default_rng(0).integers(0, 2, (30, 2000))
    with (
        fugu.vector.make("cartpole", 4000, batch_size=2000, num_workers=2) as vec,
        fugu.vector.make("cartpole", 4000, batch_size=2000, num_workers=2) as twin,
    ):
        vec.async_reset(seed=0)
        twin.async_reset(seed=0)
        given = np.empty_like(actions[0])
        for action in actions:
            np.testing.assert_array_equal(vec.recv().obs, twin.recv().obs)
            given[...] = action
            vec.send(given)
            given[...] = 77
            twin.send(action)


def test_actions_of_any_layout_in_memory_are_taken():
    with fugu.vector.make("cartpole", 64) as one, fugu.vector.make("cartpole", 64) as two:
        one.reset(seed=0)
        two.reset(seed=0)
        wide = np.random.default_rng(0).integers(0, 2, (64, 2))
        a = one.step(wide[:, 0])[0]  # not contiguous
        b = two.step(wide[:, 0].astype(np.int32))[0]  # another width
        assert a.tobytes() == b.tobytes()


def test_a_state_can_be_kept_and_gone_back_to():
    with fugu.vector.make("cartpole", 100, num_workers=2) as vec:
        vec.reset(seed=0)
        rng = np.random.default_rng(0)
        actions = rng.integers(0, 2, (80, 100))
        for t in range(40):
            vec.step(actions[t])
        kept = vec._runner._worlds.state
        first = [vec.step(a)[0].copy() for a in actions[40:]]
        assert vec._runner._worlds.restore(kept) == -1
        again = [vec.step(a)[0].copy() for a in actions[40:]]
        assert all(np.array_equal(x, y) for x, y in zip(first, again, strict=True))


def test_a_world_takes_less_than_256_bytes():
    with fugu.vector.make("cartpole", 4096) as vec:
        assert (vec.memory_bytes + vec._runner.state_bytes) / 4096 < 256


def test_idle_threads_use_no_cpu():
    import time

    import psutil

    with fugu.vector.make("cartpole", 4096, num_workers=2) as vec:
        vec.reset(seed=0)
        vec.step(np.zeros(4096, np.int64))
        time.sleep(0.2)
        before = sum(psutil.Process().cpu_times()[:2])
        time.sleep(1)
        assert sum(psutil.Process().cpu_times()[:2]) - before <= 0.02


@pytest.mark.parametrize("name", names())
def test_action_masks_are_open_where_the_environment_forbids_nothing(name):
    with fugu.vector.make(name, 3, seed=1) as vec:
        vec.reset()
        for _ in range(3):
            mask = vec.action_mask
            if mask is not None:
                assert mask.any(axis=1).all(), "a row without any choice has no distribution"
                assert mask.all() or name == "connect4"
            vec.step(np.stack([vec.action_layout.zeros(vec.num_agents)])[0])
