"""Policies as objects: how they are found and loaded, what they say of their distribution, and what they refuse."""

from __future__ import annotations

import math
import shutil
from pathlib import Path
from typing import Any

import gymnasium
import numpy as np
import pytest
import torch
from gymnasium import spaces as gs

import fugu
from fugu import vector
from fugu.cli import new_algorithm, new_policy
from fugu.errors import CallOrderError, ConfigError, SpaceError
from fugu.policy.config import PolicyConfig
from fugu.run.policy import Policy
from fugu.trainer import checkpoint
from fugu.trainer.checkpoint import CheckpointError
from fugu.trainer.config import TrainConfig
from tests.run.test_policy_play import BASE, FILE, SMALL, trained

OLD = Path(__file__).parent.parent / "trainer" / "old_run"
OBS = np.array([0.1, -0.2, 0.3, -0.4], np.float32)


@pytest.fixture(scope="module")
def run(tmp_path_factory):
    changes = {**BASE, "env": "cartpole", "policy": SMALL, "steps": 8 * 8 * 4}
    return fugu.train(config=TrainConfig(**changes), runs=tmp_path_factory.mktemp("runs"))


@pytest.fixture(scope="module")
def policy(run):
    return run.policy()


@pytest.fixture(scope="module")
def recurrent(tmp_path_factory):
    net = PolicyConfig(hidden=(8,), core="lstm", core_size=4)
    return trained(tmp_path_factory.mktemp("lstm"), env="cartpole", policy=net)


# Loading ----------------------------------------------------------------------------------------------------------------------------


def test_a_policy_is_found_by_every_name_of_its_run(run, monkeypatch):
    monkeypatch.chdir(run.path.parent.parent)
    runs, step = run.path.parent, run.policy().step
    saved = checkpoint.find(run.folder.checkpoints)
    for text in ("latest", "latest~0", run.folder.name, run.path, saved, str(saved)):
        found = fugu.load(text, runs=runs)
        assert found.step == step and found(OBS) == run.policy()(OBS)
    assert fugu.load(run.path, step).step == step


def test_the_best_checkpoint_is_found(run, tmp_path):
    copy = fugu.Run(shutil.copytree(run.path, tmp_path / "run"))
    saved = checkpoint.load(checkpoint.find(copy.folder.checkpoints))
    checkpoint.save(copy.folder.checkpoints, 1, saved.tensors, saved.state, best=True)
    assert copy.policy("best").step == fugu.load("run", "best", runs=tmp_path).step == 1 < copy.policy().step


def test_a_checkpoint_is_not_asked_for_another(run):
    with pytest.raises(ConfigError, match="leave out which='best'"):
        fugu.load(checkpoint.find(run.folder.checkpoints), "best")


def test_a_checkpoint_without_its_run_is_refused(run, tmp_path):
    lonely = shutil.copytree(checkpoint.find(run.folder.checkpoints), tmp_path / "a" / "b" / "c" / "d")
    with pytest.raises(ConfigError, match="without its run"):
        fugu.load(lonely)


def test_no_environment_is_started(run, monkeypatch):
    monkeypatch.setattr(vector, "make", lambda *args, **kwargs: pytest.fail("an environment was made"))
    assert fugu.load(run.path)(OBS) in (0, 1)


def test_a_run_of_an_earlier_version_builds_its_environment_once(run, tmp_path):
    shutil.copytree(OLD, tmp_path / "old")
    with pytest.warns(RuntimeWarning, match="does not say which spaces its policy has: .* is built once"):
        old = fugu.load(tmp_path / "old")
    assert old.action_space.contains(old(old.observation_space.sample()))


def test_bad_content_of_a_checkpoint_is_one_error(run, tmp_path):
    saved = checkpoint.load(checkpoint.find(run.folder.checkpoints))
    shutil.copy(run.folder.config, tmp_path / "config.toml")
    for env in ({**saved.state["env"], "observation_space": {"type": "Box"}}, 3):
        checkpoint.save(tmp_path / "checkpoints", 1, saved.tensors, {**saved.state, "env": env})
        with pytest.raises(CheckpointError, match="what it says of its environments"):
            fugu.load(tmp_path)


def test_a_policy_that_does_not_fit_its_spaces_is_refused(run, tmp_path):
    saved = checkpoint.load(checkpoint.find(run.folder.checkpoints))
    shutil.copy(run.folder.config, tmp_path / "config.toml")
    wider = {
        **saved.state["env"],
        "observation_space": {"type": "Box", "dtype": "float32", "shape": [5], "low": -1.0, "high": 1.0},
    }
    checkpoint.save(tmp_path / "checkpoints", 1, saved.tensors, {**saved.state, "env": wider})
    with pytest.raises(CheckpointError, match="does not fit the network"):
        fugu.load(tmp_path)


# Forms ------------------------------------------------------------------------------------------------------------------------------


def test_actions_come_as_they_are_given(policy):
    assert type(policy(OBS)) is int and type(policy.predict(OBS)[0]) is int
    batch = policy(np.stack([OBS] * 3))
    assert batch.shape == (3,) and batch.dtype == np.int64
    assert policy(OBS.tolist()) == policy(OBS.astype(np.float64)) == policy(OBS)
    assert policy([OBS, OBS]).shape == (2,)
    assert policy(np.zeros((0, 4), np.float32)).shape == (0,)


@pytest.mark.parametrize(
    ("obs", "says"),
    [
        (np.zeros(3, np.float32), r"observation: the space says shape \[4\], got \[3\]"),
        (np.zeros((2, 3), np.float32), r"observation of number 0: the space says shape \[4\], got \[3\]"),
        (np.array(["a"] * 4), "observation: expected float32"),
        (np.array([0, np.nan, 0, 0], np.float32), r"nan at index \[1\]"),
        ({"obs": OBS}, "observation: expected float32"),
        (None, "observation: expected float32"),
    ],
    ids=str,
)
def test_an_observation_that_does_not_fit_is_one_error_that_says_what_to_do(policy, obs, says):
    with pytest.raises(SpaceError, match=rf"(?s){says}.*This policy is for cartpole: give it observations of Box"):
        policy(obs)


def test_a_mask_that_does_not_fit_is_refused(policy):
    with pytest.raises(SpaceError, match=r"action_mask: expected \[2\] flags"):
        policy(OBS, action_mask=[1, 1, 1])


def test_a_mask_forbids(policy):
    assert policy(OBS, action_mask=[False, True]) == 1 and policy(OBS, action_mask=[1, 0]) == 0
    assert policy(np.stack([OBS] * 2), action_mask=[[0, 1], [1, 0]]).tolist() == [1, 0]
    assert policy.distribution(OBS, action_mask=[0, 1]).probabilities.tolist() == [0, 1]


def test_a_mask_may_have_an_array_for_each_part_as_environments_give_it(tmp_path):
    space = gs.Dict([("turn", gs.MultiDiscrete([2, 3])), ("push", gs.Box(-1, 1, (1,))), ("gear", gs.Discrete(4))])
    policy = fugu.train(lambda: Parted(space), runs=tmp_path, **{**BASE, "steps": 64}).policy()
    parts = {"gear": np.array([0, 0, 1, 0]), "turn": (np.array([0, 1]), np.array([1, 0, 0])), "push": None}
    flat = np.array([0, 1, 1, 0, 0, 0, 0, 1, 0])
    seen = np.zeros(2, np.float32)
    for mask in (parts, flat, flat.tolist()):
        action = policy(seen, action_mask=mask)
        assert action["turn"].tolist() == [1, 0] and action["gear"] == 2
    assert policy([seen] * 2, action_mask=[parts] * 2)["gear"].tolist() == [2, 2]
    with pytest.raises(SpaceError, match=r"expected \[9\] flags, one per choice"):
        policy(seen, action_mask=(np.array([0, 1]), np.array([1])))


class Parted(gymnasium.Env):
    observation_space = gs.Box(-1, 1, (2,))

    def __init__(self, action_space):
        self.action_space = action_space

    def reset(self, *, seed=None, options=None):
        super().reset(seed=seed)
        return np.zeros(2, np.float32), {}

    def step(self, action):
        return np.zeros(2, np.float32), 0.0, self.np_random.random() < 0.3, False, {}


def test_algorithms_of_fugu_act_on_one_observation_by_the_short_way(policy, recurrent):
    assert policy._quick is not None and recurrent._quick is not None


# Memory -----------------------------------------------------------------------------------------------------------------------------


def test_the_memory_is_kept_until_reset(recurrent):
    recurrent.reset()
    begins = recurrent.value(OBS)
    recurrent(OBS)
    later = recurrent.value(OBS)
    assert later != begins and recurrent.value(OBS) == later  # looking does not move it
    recurrent(OBS, deterministic=False)
    assert recurrent.value(OBS) != later
    recurrent.reset()
    assert recurrent.value(OBS) == begins


def test_rows_of_a_batch_are_reset_one_by_one(recurrent):
    recurrent.reset()
    batch = np.stack([OBS, 2 * OBS])
    begins = recurrent.value(batch)
    recurrent(batch)
    later = recurrent.value(batch)
    recurrent.reset([True, False])
    np.testing.assert_allclose(recurrent.value(batch), [begins[0], later[1]], rtol=1e-5)
    recurrent(batch)
    np.testing.assert_allclose(recurrent.value(batch)[0], later[0], rtol=1e-5)
    with pytest.raises(CallOrderError, match="the memory is that of 2 observations, got 1"):
        recurrent(OBS[None])
    with pytest.raises(SpaceError, match="expected 2 flags, got 3"):
        recurrent.reset([True] * 3)
    recurrent.reset()


def test_predict_keeps_nothing(recurrent):
    _, state = recurrent.predict(OBS)
    assert [part.shape for part in state] == [(1, 8)]
    _, after = recurrent.predict(OBS, state)
    assert not np.array_equal(after[0], state[0])
    _, restarted = recurrent.predict(OBS, state, episode_start=True)
    np.testing.assert_array_equal(restarted[0], state[0])
    with pytest.raises(SpaceError, match=r"state: expected arrays of the shapes \[\(2, 8\)\]"):
        recurrent.predict(np.stack([OBS] * 2), state)
    with pytest.raises(SpaceError, match="episode_start: expected 1 flags"):
        recurrent.predict(OBS, state, [True, False])


# Values and distributions -----------------------------------------------------------------------------------------------------------


def test_values_are_those_of_the_network(policy):
    batch = np.stack([OBS, -OBS])
    with torch.no_grad():
        out = policy.network(torch.from_numpy(batch), None, torch.ones(2, dtype=torch.bool))
    expected = out.value if policy.algorithm.value_scale is None else policy.algorithm.value_scale.real(out.value)
    np.testing.assert_array_equal(policy.value(batch), expected.numpy())
    assert policy.value(OBS) == pytest.approx(float(expected[0]), rel=1e-5)


def test_probabilities_of_choices_are_those_of_torch(policy):
    shown, batch = policy.distribution(OBS), policy.distribution(np.stack([OBS, -OBS]))
    with torch.no_grad():
        out = policy.network(torch.from_numpy(OBS[None]), None, torch.ones(1, dtype=torch.bool))
    expected = torch.distributions.Categorical(logits=out.params[0])
    np.testing.assert_allclose(shown.probabilities, expected.probs, rtol=1e-5)
    assert batch.probabilities.shape == (2, 2) and batch.entropy().shape == batch.sample().shape == (2,)
    for action in (0, 1):
        assert shown.log_prob(action) == pytest.approx(float(expected.log_prob(torch.tensor(action))), rel=1e-5)
    assert shown.entropy() == pytest.approx(float(expected.entropy()), rel=1e-5)
    assert shown.mode() == policy(OBS) and shown.mean is None
    assert "probabilities=[" in repr(shown)


def test_a_mixed_distribution_is_shown_in_the_form_of_the_action_space(tmp_path):
    policy = trained(tmp_path, env=f"{FILE}:Echo", env_kwargs={"kind": "structured"}, policy=SMALL)
    obs = np.ones(3, np.float32)
    shown = policy.distribution(obs)
    with torch.no_grad():
        params = policy.network(torch.from_numpy(obs[None]), None, torch.ones(1, dtype=torch.bool)).params[0].double()
    turn, keys = torch.distributions.Categorical(logits=params[:3]), torch.distributions.Bernoulli(logits=params[3:6])
    gas = torch.distributions.Normal(0.5 + params[6:8] / 2, params[8:10].exp() / 2)  # a Box from 0 to 1
    np.testing.assert_allclose(shown.probabilities["turn"], turn.probs, rtol=1e-5)
    np.testing.assert_allclose(shown.probabilities["keys"], keys.probs, rtol=1e-5)
    np.testing.assert_allclose(shown.mean["gas"], gas.mean, rtol=1e-5)
    np.testing.assert_allclose(shown.std["gas"], gas.stddev, rtol=1e-5)
    assert shown.probabilities["gas"] is shown.mean["turn"] is None
    action = {"gas": np.array([0.25, 0.5], np.float32), "keys": np.array([1, 0, 1], np.int8), "turn": 2}
    logprob = (
        turn.log_prob(torch.tensor(2))
        + keys.log_prob(torch.tensor([1.0, 0, 1])).sum()
        + gas.log_prob(torch.tensor([0.25, 0.5])).sum()
    )
    assert shown.log_prob(action) == pytest.approx(float(logprob), rel=1e-5)
    entropy = turn.entropy() + keys.entropy().sum() + gas.entropy().sum()
    assert shown.entropy() == pytest.approx(float(entropy), rel=1e-5)
    assert policy.action_space.contains(shown.sample())


def test_drawn_actions_have_the_frequencies_of_the_distribution(policy):
    obs, count = np.stack([2 * OBS] * 4000), 4000
    expected = count * policy.distribution(2 * OBS).probabilities
    for draw in (lambda: policy(obs, deterministic=False), lambda: policy.distribution(obs).sample()):
        policy.seed(1)
        found = np.bincount(draw(), minlength=2)
        policy.seed(1)
        assert np.array_equal(found, np.bincount(draw(), minlength=2))
        assert ((found - expected) ** 2 / expected).sum() < 10.8  # chi-square with one degree of freedom, 0.1%


# Algorithms -------------------------------------------------------------------------------------------------------------------------


def test_values_do_not_draw_from_the_policys_generator(policy):
    batch = np.stack([OBS] * 64)
    policy.seed(5)
    expected = policy(batch, deterministic=False)
    policy.seed(5)
    policy.value(batch)
    assert np.array_equal(policy(batch, deterministic=False), expected)


def test_an_algorithm_of_ones_own_acts(tmp_path):
    file = tmp_path / "my_algo.py"
    file.write_text(new_algorithm.text(file.name, "MyAlgo"))
    policy = trained(tmp_path, env="cartpole", policy=SMALL, algorithm=f"{file}:MyAlgo")
    assert policy._quick is None  # it may do anything in its act
    assert policy(OBS) == policy.distribution(OBS).mode() and math.isfinite(policy.value(OBS))


def test_a_network_of_ones_own_acts(tmp_path):
    file = tmp_path / "my_net.py"
    file.write_text(new_policy.TEXT)
    policy = trained(tmp_path, env="cartpole", policy=PolicyConfig(net=f"{file}:Net", core="lstm", core_size=4))
    assert policy(OBS) == policy.distribution(OBS, episode_start=True).mode() and policy.predict(OBS)[1][0].shape == (1, 8)


def test_what_a_run_names_can_be_given_when_its_policy_is_loaded(tmp_path):
    (tmp_path / "my_net.py").write_text(new_policy.TEXT)
    made = trained(tmp_path, env="cartpole", policy=PolicyConfig(net=f"{tmp_path}/my_net.py:Net", hidden=(8,)))
    moved = (tmp_path / "my_net.py").rename(tmp_path / "moved.py")
    shutil.rmtree(made.run.path / "code")
    with pytest.raises(ConfigError):
        fugu.load(made.run.path, trust_code=True)
    for given in (made.run.path, made.path):
        assert fugu.load(given, policy=f"{moved}:Net").value(OBS) == made.value(OBS)


def test_an_algorithm_without_values_says_so(tmp_path):
    settings: dict[str, Any] = {"algorithm": "grpo", "steps": 8 * 32, "horizon": 32, "minibatch": 256}
    policy = trained(tmp_path, env="cartpole", policy=SMALL, **settings)
    assert policy(OBS) == policy.distribution(OBS).mode()
    with pytest.raises(ConfigError, match="grpo learns no values"):
        policy.value(OBS)


def test_a_transformer_writes(tmp_path):
    net = PolicyConfig(net="transformer", width=16, layers=1)
    settings: dict[str, Any] = {
        "algorithm": "token_ppo",
        "env_kwargs": {"longest": 4},
        "steps": 64,
        "horizon": 1,
        "minibatch": 8,
    }
    policy = trained(tmp_path, env="reverse", policy=net, **settings)
    prompt = policy.observation_space.sample()
    assert policy.action_space.contains(policy(prompt)) and policy.action_space.contains(policy(prompt, deterministic=False))
    for ask in (policy.value, policy.distribution):
        with pytest.raises(ConfigError, match="learns no values|no distribution to show"):
            ask(prompt)


def test_agents_of_mappo_act_together_or_by_name(tmp_path):
    policy = trained(tmp_path, env=f"{FILE}:Team", policy=SMALL, algorithm="mappo")
    assert policy(np.zeros((6, 4), np.float32)).shape == (6,) and policy({}) == {}
    with pytest.raises(SpaceError, match=r"acts for the 3 agents of an environment together, got 1 rows.*\{'big': obs"):
        policy(np.zeros(4, np.float32))
    with pytest.raises(SpaceError, match="no agent 'bigger'. Did you mean 'big'"):
        policy({"bigger": np.zeros(4, np.float32)})
    with pytest.raises(SpaceError, match=r"agent 'small': .*expected \(2,\)"):
        policy({"small": np.zeros(4, np.float32)})
    assert policy({"big": np.zeros(4, np.float32)}, {"big": [0, 0, 0, 1, 0]}) == {"big": 3}
    with pytest.raises(SpaceError, match="action_mask: expected a dict by the names of the agents"):
        policy({"small": np.zeros(2, np.float32)}, [1, 1, 1])
    with pytest.raises(SpaceError, match=r"action_mask of 'small': expected \[3\] flags"):
        policy({"small": np.zeros(2, np.float32)}, {"small": [1, 1]})


# Stable-Baselines3 ------------------------------------------------------------------------------------------------------------------


def played(policy: Policy, env: gymnasium.Env, episodes: int) -> list[float]:
    """Returns of episodes, by the stateful way."""
    returns = []
    obs, _ = env.reset(seed=7)
    for _ in range(episodes):
        policy.reset()
        total, over = 0.0, False
        while not over:
            obs, reward, terminated, truncated, _ = env.step(policy(obs))
            total, over = total + float(reward), terminated or truncated
        returns.append(total)
        obs, _ = env.reset()
    return returns


@pytest.mark.parametrize(
    ("kind", "core"),
    [
        *((kind, "none") for kind in ("vector", "flat_dict", "image", "continuous")),
        ("vector", "lstm"),
        ("masked_in_obs", "lstm"),
    ],
)
def test_evaluate_policy_of_stable_baselines3_takes_it_unchanged(kind, core, tmp_path):
    from stable_baselines3.common.env_util import make_vec_env
    from stable_baselines3.common.evaluation import evaluate_policy

    from tests.run.policy_envs import Echo

    policy = trained(
        tmp_path, env=f"{FILE}:Echo", env_kwargs={"kind": kind}, policy=PolicyConfig(hidden=(8,), core=core, core_size=4)
    )
    env = make_vec_env(lambda: Echo(kind), n_envs=1, seed=7)
    returns, _ = evaluate_policy(policy, env, n_eval_episodes=3, return_episode_rewards=True)
    policy.reset()
    assert returns == pytest.approx(played(policy, Echo(kind), 3), abs=1e-5)
    assert evaluate_policy(policy, make_vec_env(lambda: Echo(kind), n_envs=3), n_eval_episodes=6, deterministic=False)[0] >= 0
    with pytest.warns(UserWarning, match="Monitor"):
        evaluate_policy(policy, Echo(kind), n_eval_episodes=1)


def test_a_policy_for_other_spaces_is_refused_by_name(policy):
    from stable_baselines3.common.evaluation import evaluate_policy

    with pytest.raises(SpaceError, match=r"shape \[4\], got \[3\]"):
        evaluate_policy(policy, gymnasium.make("Pendulum-v1"), n_eval_episodes=1, warn=False)


def test_discrete_observations_are_read_one_or_many(tmp_path):
    policy = trained(tmp_path, env="FrozenLake-v1", policy=SMALL)
    assert isinstance(policy.observation_space, gs.Discrete)
    assert policy([3, 4]).shape == (2,) and type(policy(3)) is int and policy(3) == policy(np.int64(3)) == policy([3, 4])[0]
    with pytest.raises(SpaceError, match="16 is outside"):
        policy(16)
