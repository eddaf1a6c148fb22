"""A policy as an object acts as ``Player`` does on the same environment and seed, action by action, over whole episodes."""

from __future__ import annotations

import dataclasses
from collections.abc import Iterator
from itertools import islice
from pathlib import Path
from typing import Any

import numpy as np
import pytest
import torch

import fugu
from fugu.policy.config import PolicyConfig
from fugu.run.player import Player
from fugu.run.policy import Policy
from fugu.spaces.values import Values
from fugu.trainer import checkpoint
from fugu.trainer.config import OptimizerConfig, TrainConfig
from fugu.trainer.config_parts import LogConfig
from fugu.vector.config import VectorConfig
from fugu.vector.seeds import env_seeds
from tests.algorithm.recorded import recording
from tests.contract import test_algorithms
from tests.run.policy_envs import Echo, Team
from tests.spaces.strategies import same

SEED, STEPS = 3, 40
FILE = Path(__file__).with_name("policy_envs.py")
SMALL = PolicyConfig(hidden=(16,))
CASES: dict[str, tuple[str, PolicyConfig]] = {
    "discrete": ("vector", SMALL),
    "lstm": ("vector", dataclasses.replace(SMALL, core="lstm", core_size=8)),
    "mingru": ("vector", dataclasses.replace(SMALL, core="mingru", core_size=8, core_layers=2)),
    "two networks": ("vector", dataclasses.replace(SMALL, share=False)),
    "normalised": ("vector", dataclasses.replace(SMALL, normalize_observation=True)),
    "dict, normalised": ("dict", dataclasses.replace(SMALL, normalize_observation=True)),
    "dict, lstm": ("dict", dataclasses.replace(SMALL, core="lstm", core_size=8)),
    **{
        kind: (kind, SMALL)
        for kind in ("continuous", "unit", "multi_discrete", "structured", "masked", "masked_in_obs", "image")
    },
    "masked, lstm": ("masked", dataclasses.replace(SMALL, core="lstm", core_size=8)),
}
BASE: dict[str, Any] = {
    "steps": 8 * 8 * 2,
    "horizon": 8,
    "minibatch": 32,
    "threads": 1,
    "vector": VectorConfig(num_envs=8, backend="serial"),
    "optimizer": OptimizerConfig(learning_rate=1e-3),
    "log": LogConfig(board="off"),
}


def trained(folder: Path, **settings: Any) -> Policy:
    """The policy of a short training, with noise on its weights: otherwise it may do the same all the time."""
    run = fugu.train(config=TrainConfig(**{**BASE, **settings}), runs=folder)
    saved = checkpoint.load(checkpoint.find(run.folder.checkpoints))
    generator = torch.Generator().manual_seed(1)
    for _, weight in sorted(saved.tensors["policy"].items()):  # a file gives them in any order
        if weight.dtype == torch.float32:
            weight += torch.empty(weight.shape).normal_(0, 0.3, generator=generator)
    checkpoint.save(run.folder.checkpoints, saved.step + 1, saved.tensors, saved.state)
    return fugu.load(run.path)


def moments(policy: Policy, *, greedy: bool) -> Iterator[Any]:
    """Actions of the player, in the form of the action space."""
    values = Values(policy.action_space)
    with Player(policy.run, seed=SEED) as player:
        for scene in islice(player.play(greedy=greedy), STEPS):
            if scene.moment.action is not None:
                yield [values.value(scene.moment.action[i : i + 1], single=True) for i in range(player.vec.num_agents)]


SLOW = ("discrete", "lstm", "continuous", "image")
RARE = ("two networks", "dict, lstm", "masked, lstm", "unit", "normalised")
"""cases whose parts others have too"""


@pytest.mark.parametrize("case", [pytest.param(case, marks=[pytest.mark.slow] * (case in RARE)) for case in CASES])
def test_a_policy_acts_as_the_player_does(case, tmp_path):
    kind, net = CASES[case]
    policy = trained(tmp_path, env=f"{FILE}:Echo", env_kwargs={"kind": kind}, policy=net)
    env, state, chosen = Echo(kind), None, []
    obs, _ = env.reset(seed=int(env_seeds(SEED, 1)[0]))
    first = True
    for expected in moments(policy, greedy=True):
        mask = env.allowed if kind == "masked" else None
        action, state = policy.predict(obs, state, first, mask)
        assert same(action, expected[0]) and same(policy(obs, mask), action)
        chosen.append(repr(action))
        obs, _, terminated, truncated, _ = env.step(action)
        first = terminated or truncated
        if first:
            obs, _ = env.reset()
            policy.reset()
    assert len(chosen) > STEPS // 2 and len(set(chosen)) > 1
    assert (state is not None) == (net.core != "none")


@pytest.mark.parametrize("case", ["lstm", *(pytest.param(case, marks=pytest.mark.slow) for case in ("discrete", "continuous"))])
def test_drawn_actions_are_those_of_the_player_with_the_same_seed(case, tmp_path):
    kind, net = CASES[case]
    policy = trained(tmp_path, env=f"{FILE}:Echo", env_kwargs={"kind": kind}, policy=net)
    policy.seed(SEED)
    env = Echo(kind)
    obs, _ = env.reset(seed=int(env_seeds(SEED, 1)[0]))
    for expected in islice(moments(policy, greedy=False), 3):  # the player also draws on the row after an ending
        action = policy(obs, deterministic=False)
        assert same(action, expected[0])
        obs, *_ = env.step(action)


@pytest.mark.parametrize(
    ("algorithm", "core"),
    [
        ("ppo", "none"),
        ("mappo", "lstm"),
        *(pytest.param(*case, marks=pytest.mark.slow) for case in [("ppo", "lstm"), ("mappo", "none")]),
    ],
)
def test_a_team_acts_by_name_as_in_the_player(algorithm, core, tmp_path):
    net = dataclasses.replace(SMALL, core=core, core_size=8)
    policy = trained(tmp_path, env=f"{FILE}:Team", policy=net, algorithm=algorithm)
    assert policy.agents == ("big", "small", "late")
    env, state, seen = Team(), None, set()
    obs, _ = env.reset(seed=int(env_seeds(SEED, 1)[0]))
    for expected in moments(policy, greedy=True):
        here = {agent: obs[agent] for agent in env.agents}
        new = {agent: agent not in seen for agent in here}
        seen |= set(here)
        action, state = policy.predict(here, state, new)
        assert action == {agent: expected[policy.agents.index(agent)] for agent in here}
        assert policy(here) == action
        assert set(policy.value(here)) == set(here) == set(policy.distribution(here))
        obs, *_ = env.step(action)
        if not env.agents:
            obs, _ = env.reset()
            policy.reset()
            seen.clear()


@pytest.mark.parametrize(
    "case", ["dict, normalised", "mingru", "masked_in_obs", *(pytest.param(case, marks=pytest.mark.slow) for case in SLOW)]
)
def test_a_batch_is_as_many_single_calls(case, tmp_path):
    kind, net = CASES[case]
    policy = trained(tmp_path, env=f"{FILE}:Echo", env_kwargs={"kind": kind}, policy=net)
    space = policy.observation_space
    space.seed(1)
    items = [space.sample() for _ in range(5)]
    if kind == "masked_in_obs":
        items = [{**item, "action_mask": np.array([i > 0, 1, 0, 1, 0], np.int8)} for i, item in enumerate(items)]
    together, after = policy.predict(items)
    alone = [policy.predict(item) for item in items]
    for i, (action, state) in enumerate(alone):
        np.testing.assert_allclose(together[i], action, rtol=1e-5, atol=1e-6)
        if state is not None:
            np.testing.assert_allclose(after[0][i], state[0][0], rtol=1e-4, atol=1e-5)
    np.testing.assert_allclose(policy.value(items), [policy.value(item) for item in items], rtol=1e-4, atol=1e-5)


@pytest.mark.slow
@pytest.mark.parametrize("algorithm", [name for name in test_algorithms.CASES if name != "own"])
def test_a_policy_of_every_algorithm_acts_on_rows_as_the_player_does(algorithm, tmp_path):
    settings = {**test_algorithms.BASE, **test_algorithms.CASES[algorithm], "log": LogConfig(board="off")}
    plain = TrainConfig(algorithm=algorithm)
    if "data" in settings:
        settings["data"] = {**settings["data"], "path": recording(settings["env"])}
    for name, value in settings.items():
        if isinstance(value, dict) and name != "env_kwargs":
            settings[name] = dataclasses.replace(getattr(plain, name), **value)
    policy = trained(tmp_path, algorithm=algorithm, **settings)
    with Player(policy.run, num_envs=2, seed=SEED) as player:
        act, acted = player.algorithm.act, []
        player.algorithm.act = lambda seen: acted.append(act(seen)) or acted[-1]
        state, mine = None, []
        for _ in islice(player.play(greedy=True), STEPS):
            rows = player.vec.rows
            action, state = policy.predict(
                player.vec.views(rows.obs.copy()), state, rows.first, rows.action_mask, reward=rows.reward
            )
            mine.append(action)
    values = Values(policy.action_space)
    assert len(acted) == STEPS - 1
    for action, done in zip(mine, acted, strict=False):
        assert same(action, values.value(done.env_action.numpy(), single=False))
