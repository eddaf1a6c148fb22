"""Learning from recorded episodes: what imitation does and does not, what values do, and what is asked of a Decision Transformer."""

from __future__ import annotations

import shutil
from collections import Counter
from pathlib import Path
from typing import Any

import gymnasium as gym
import numpy as np
import pytest
import torch
from gymnasium import spaces as gs

import fugu
from fugu.config import override
from fugu.data import open
from fugu.errors import ConfigError, FuguError
from fugu.presets import preset
from fugu.run.run import Run
from fugu.trainer import checkpoint
from fugu.trainer.build import make_trainer
from fugu.trainer.interrupt import Interrupt
from tests.algorithm.recorded import Fork, Stitch, anything, mostly_left, moved, record

HERE = "tests.algorithm.recorded"


@pytest.fixture(scope="module")
def fork(tmp_path_factory: pytest.TempPathFactory) -> Path:
    return record(Fork, tmp_path_factory.mktemp("fork") / "data", mostly_left, 300, name=f"{HERE}:Fork")


@pytest.fixture(scope="module")
def told(fork: Path, tmp_path_factory: pytest.TempPathFactory) -> Run:
    """A small Decision Transformer of ``Fork``, whose context of two steps is shorter than an episode."""
    small = {"policy.width": 32, "policy.layers": 2, "horizon": 2, "minibatch": 128, "dt.dropout": 0.0}
    return learned(fork, tmp_path_factory.mktemp("runs"), "dt", steps=300, **{"optimizer.learning_rate": 3e-3}, **small)


def learned(data: Path, runs: Path, algorithm: str, **changes: Any) -> Run:
    config = preset(str(data), algorithm=algorithm)
    env = f"{HERE}:{config.env}" if config.env in ("Fork", "Stitch") else config.env  # code has to be named
    return fugu.train(config=override(config, {"env": env, "log.board": "off", **changes}), runs=runs)


def mean(run: Run, target: float | None = None, episodes: int = 20, greedy: bool = True) -> float:
    from fugu.run.player import Player

    with Player(run, num_envs=episodes) as player:
        if target is not None:
            player.ask(target)
        return player.evaluate(episodes, greedy=greedy).mean


def test_imitation_does_what_most_did(fork, tmp_path):
    small = {"policy.hidden": (32,), "optimizer.learning_rate": 3e-3}
    assert mean(learned(fork, tmp_path, "bc", steps=96, **small)) == 0
    assert mean(learned(fork, tmp_path, "bc", steps=96, **small, **{"bc.top": 0.1})) == 1


def test_a_decision_transformer_gets_the_return_that_it_is_asked_for(told):
    assert (mean(told, 1), mean(told, 0)) == (1, 0)
    assert mean(told) == 1  # the best of the data, by default


def test_what_it_does_is_as_likely_as_in_the_episodes_with_that_return(fork, told):
    """P(action | observation, return) is that of counting."""
    data, counts = open(fork), Counter()
    for number in range(data.episodes):
        for step, action in enumerate(data.episode(number)["action"][: data.lengths[number]]):
            counts[step, data.returns[number], int(action)] += 1
    policy = told.policy()
    net, actions = policy.network, policy.algorithm.policy.distribution
    for target in (0.0, 1.0):
        logits = actions.logits(
            net(
                torch.full((1, 2), target),
                torch.eye(3)[None, :2],
                torch.full((1, 2, 1), int(target)),
                torch.arange(2)[None],
            ),
            None,
        )
        for step in range(2):
            total = counts[step, target, 0] + counts[step, target, 1]
            expected = counts[step, target, 1] / total
            assert abs(logits[0, step].softmax(-1)[1] - expected) < 0.1


class Scripted(gym.Env):
    """Four steps that bring 1, -2, 0.5 and 4, then one more episode."""

    REWARDS = (1.0, -2.0, 0.5, 4.0)

    def __init__(self) -> None:
        self.observation_space, self.action_space = gs.Box(0, 1, (3,), np.float32), gs.Discrete(2)

    def reset(self, *, seed=None, options=None):
        super().reset(seed=seed)
        self.count = 0
        return np.zeros(3, np.float32), {}

    def step(self, action):
        reward = self.REWARDS[self.count]
        self.count += 1
        return np.zeros(3, np.float32), reward, self.count == 4, False, {}


def test_rewards_are_taken_from_the_target_step_by_step_and_a_new_episode_begins_with_all_of_it(told, tmp_path):
    import fugu.vector as fv
    from fugu.rollout.batch import seen_of

    algorithm = told.policy().algorithm
    algorithm.ask(7.0)
    left, carry = [], None
    with fv.make(Scripted, num_envs=2) as vec:
        vec.reset(0)
        for _ in range(7):
            seen = seen_of(vec.rows, carry, torch.device("cpu"), training=False)
            done = algorithm.act(seen)
            carry = done.carry
            left.append(carry["left"][1].item())
            vec.step(done.env_action.numpy())
    expected = [7, 6, 8, 7.5, 3.5]  # the last one is the final observation, on which nothing is done
    assert left[:5] == expected and left[5:] == expected[:2]


def test_a_policy_as_an_object_is_told_its_rewards(told):
    policy = told.policy()
    policy.algorithm.ask(1.0)
    env = Fork()
    obs, _ = env.reset()
    action, total, reward = policy(obs), 0.0, 0.0
    for _ in range(3):
        obs, reward, over, _, _ = env.step(action)
        total += reward
        if not over:
            action = policy(obs, reward=reward)
    assert total == 1
    with pytest.raises(FuguError, match=r"reward=reward"):
        policy(obs)
    policy.reset()
    first = policy(obs)
    action, state = policy.predict(obs)
    assert action == first
    policy.predict(obs, state, reward=0.0)


@pytest.mark.slow
def test_values_put_pieces_together_that_no_episode_has_in_one(tmp_path):
    """Stitch: recorded are short walks from anywhere, to be found is the way from corner to corner."""
    size, gamma = 4, 0.9
    data = record(
        lambda: Stitch(size, limit=3, anywhere=True),
        tmp_path / "data",
        anything(gs.Discrete(4)),
        500,
        name=f"{HERE}:Stitch",
    )
    settings = {"env_kwargs": {"size": size}, "policy.hidden": (64,), "optimizer.learning_rate": 2e-3}
    asked = {"iql.gamma": gamma, "iql.expectile": 0.95, "iql.tau": 0.05, "iql.scale_reward": 1.0, "iql.beta": 30.0}
    run = learned(data, tmp_path / "runs", "iql", steps=1600, **settings, **asked)
    assert mean(run) >= 0.9
    assert mean(learned(data, tmp_path / "runs", "bc", steps=320, **settings), greedy=True) <= 0.2
    found, best = values_of(run, size), expected_values(open(data), size, gamma, 0.95)
    seen = np.isfinite(best)
    assert seen.sum() >= size * size - 2
    np.testing.assert_allclose(found[seen], best[seen], atol=0.05)


def values_of(run: Run, size: int) -> np.ndarray:
    algorithm = run.policy().algorithm
    with torch.no_grad():
        obs = algorithm.policy.structured(torch.eye(size * size))
        return algorithm.value([obs], torch.zeros(size * size, 0)).numpy()


def expected_values(data: Any, size: int, gamma: float, expectile: float) -> np.ndarray:
    """Iterate values over the moves that were recorded, as often as each was: nearly the best of them at an expectile near 1. -inf
    where nothing was recorded."""
    done: Counter[tuple[int, int]] = Counter()
    for number in range(data.episodes):
        rows = data.episode(number)
        for step in range(int(data.lengths[number])):
            done[int(rows["obs"][step].argmax()), int(rows["action"][step])] += 1
    goal, value = size * size - 1, np.zeros(size * size)
    for _ in range(300):
        for place in {place for place, _ in done}:
            moves = [(moved(place, action, size), count) for (at, action), count in done.items() if at == place]
            judged = np.array([float(to == goal) + gamma * (to != goal) * value[to] for to, _ in moves])
            weight = np.where(judged > value[place], expectile, 1 - expectile) * [count for _, count in moves]
            value[place] = (weight * judged).sum() / weight.sum()
    return np.where(np.isin(np.arange(size * size), [place for place, _ in done]), value, -np.inf)


# --- from offline to online ---


@pytest.fixture(scope="module")
def pendulum(tmp_path_factory: pytest.TempPathFactory) -> Path:
    return record(
        "pendulum", tmp_path_factory.mktemp("pendulum") / "data", anything(gs.Box(-2, 2, (1,), np.float32)), 3, name="pendulum"
    )


def test_a_run_begins_with_the_policy_and_the_network_of_another(fork, pendulum, tmp_path):
    """And does, as PPO after BC and as SAC after IQL, what that one did."""
    still = {"policy.normalize_observation": False}  # moments move with what is played
    for data, offline, online in ((fork, "bc", "ppo"), (pendulum, "iql", "sac")):
        before = learned(data, tmp_path / "runs", offline, steps=32, **{"policy.hidden": (12, 7), **still})
        config = override(
            preset(before.config.env, algorithm=online),
            {"steps": 1, "log.board": "off", "optimizer.learning_rate": 1e-12},
        )
        if online == "ppo":
            config = override(config, {"horizon": 1, "passes": 1, "minibatch": None, "vector.num_envs": 2})
        after = fugu.train(config=config, runs=tmp_path / "runs", **{"policy.start": before.folder.name})
        assert after.config.policy.hidden == (12, 7)
        obs = [before.policy().spec.observation_space.sample() for _ in range(5)]
        for each in obs:
            np.testing.assert_allclose(before.policy()(each), after.policy()(each), atol=1e-5)


def test_a_replay_begins_with_recorded_rows_and_goes_on_with_played_ones(pendulum, tmp_path):
    data = open(pendulum)
    config = override(
        preset("pendulum", algorithm="sac"),
        {"steps": 40, "replay.data": str(pendulum), "replay.start": 8, "log.board": "off", "policy.hidden": (8,)},
    )
    trainer = make_trainer(config, tmp_path)
    trainer.start()
    trainer.run(lambda metrics: None, Interrupt())
    again = make_trainer(config, tmp_path)
    again.load(checkpoint.find(tmp_path))
    ring = again.source._ring
    rows, kept = int((data.lengths + 1).sum()), ring.columns
    assert ring.end >= rows + 40
    assert torch.equal(kept["obs"][0, :rows], torch.from_numpy(np.array(data.column("obs"))))
    torch.testing.assert_close(kept["action"][0, :rows, 0] * 2, torch.from_numpy(np.array(data.column("action")).reshape(-1)))
    assert kept["first"][0, :rows].nonzero()[:, 0].tolist() == data.starts.tolist()
    assert not kept["mask"][0, rows - 1] and kept["first"][0, rows]
    assert all(torch.equal(column, trainer.source._ring.columns[name]) for name, column in kept.items())
    trainer.close()
    again.close()


def test_a_replay_takes_recorded_rows_only_where_they_say_enough(pendulum, fork, tmp_path):
    for algorithm, path, words in (("dreamer", pendulum, "keeps more of a row"), ("sac", fork, "was recorded with")):
        config = override(preset("pendulum", algorithm=algorithm), {"replay.data": str(path), "log.board": "off"})
        with pytest.raises(ConfigError, match=words):
            fugu.train(config=config, runs=tmp_path)


# --- what is said before anything starts ---


def test_what_does_not_fit_is_refused_before_training(fork, tmp_path):
    config = preset(str(fork), algorithm="bc")
    for changes, words in (
        ({"data.path": ""}, r"learns from recorded episodes; type fugu train FILE --algorithm bc"),
        ({"data.path": str(tmp_path / "nowhere")}, "does not exist"),
        ({"eval.every": 1, "env": "cartpole"}, r"recorded with observation_space .* but cartpole has"),
        ({"epochs": 2}, "drawn anew each time"),
    ):
        with pytest.raises(ConfigError, match=words):
            fugu.train(config=override(config, changes), runs=tmp_path)
    with pytest.raises(ConfigError, match="Boxes with bounds"):
        fugu.train(config=preset(str(fork), algorithm="td3bc"), runs=tmp_path)


def test_code_that_a_data_set_names_is_executed_only_if_it_is_named_again(fork, tmp_path):
    config = preset(str(fork), algorithm="bc")
    assert (config.env, config.env_kwargs) == ("Fork", {})
    with pytest.raises(ConfigError, match=rf"was recorded in {HERE}:Fork, which may execute code: name it yourself"):
        fugu.train(config=override(config, {"eval.every": 1}), runs=tmp_path)
    for number, settings in enumerate(({"path": "../x.so"}, {"deep": ["m:f"]}, {"plain": 3, "word": "easy-2"})):
        path = record("cartpole", tmp_path / str(number), anything(gs.Discrete(2)), 1, name="cartpole", settings=settings)
        assert preset(str(path), algorithm="bc").env_kwargs == (settings if number == 2 else {})


def test_a_number_that_is_none_is_named_with_its_episode_before_training(fork, tmp_path):
    shutil.copytree(fork, tmp_path / "data")
    reward = np.memmap(tmp_path / "data" / "reward.bin", np.float32, "r+")
    reward[4 * 7 + 1] = np.nan  # four rows to an episode
    reward.flush()
    with pytest.raises(ConfigError, match=r"episode 7, reward.*NaN"):
        learned(tmp_path / "data", tmp_path / "runs", "iql")
    assert not (tmp_path / "runs").exists()


def test_a_run_without_environments_says_what_it_does_not_know(fork, tmp_path, capsys):
    run = learned(fork, tmp_path, "bc", steps=32)
    assert "the return that this policy gets is not known" in capsys.readouterr().err
    assert not any("return" in name for name in run.metrics()[-1])
    watched = learned(fork, tmp_path, "bc", steps=32, **{"eval.every": 1, "eval.episodes": 4})
    assert "not known" not in capsys.readouterr().err and "eval/return" in watched.metrics()[-1]


def test_only_a_policy_that_can_be_asked_for_a_return_is(fork, tmp_path):
    with pytest.raises(ConfigError, match="cannot be asked"):
        mean(learned(fork, tmp_path, "bc", steps=16), target=1.0)


def test_a_run_goes_on_with_data_that_were_moved(fork, tmp_path):
    run = learned(fork, tmp_path / "runs", "bc", steps=32)
    moved_to = tmp_path / "elsewhere"
    shutil.copytree(fork, moved_to)
    on = run.resume(steps=64, **{"data.path": str(moved_to)})
    assert on.metrics()[-1]["steps"] == 64
