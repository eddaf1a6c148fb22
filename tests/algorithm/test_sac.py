"""SAC against the papers written out in plain torch, known optima, and its rows: ends, masks, spaces."""

from __future__ import annotations

import contextlib
import copy
import dataclasses
import math
from pathlib import Path
from typing import Any

import gymnasium
import numpy as np
import pytest
import torch
from gymnasium import spaces as gs
from torch import nn
from torch.distributions import Normal, TanhTransform, TransformedDistribution

import fugu
import fugu.gpu
import fugu.native
from fugu.algorithm.parts.soft import rows_of, soft_losses
from fugu.algorithm.sac import SAC, Judge, Judges, SACConfig, SACSettings
from fugu.errors import ConfigError
from fugu.policy.actor_critic import make_policy
from fugu.policy.config import PolicyConfig
from fugu.policy.squashed import LARGEST_LOG_STD, Squashed
from fugu.ranks import ALONE
from fugu.rollout.acting import Seen
from fugu.rollout.batch import Batch
from fugu.rollout.config import ReplayConfig
from fugu.rollout.device import DeviceRollout
from fugu.trainer import checkpoint
from fugu.trainer.build import make_trainer
from fugu.trainer.config import CheckpointConfig, TrainConfig
from fugu.trainer.config_parts import OptimizerConfig
from fugu.trainer.diverged import Diverged
from fugu.trainer.evaluate import evaluate
from fugu.trainer.interrupt import Interrupt
from fugu.trainer.loop import Trainer
from fugu.trainer.optimizer import Optimizer
from fugu.trainer.state import parts
from fugu.vector.config import VectorConfig

BOX = gs.Box(np.array([-2.0, 0.0], np.float32), np.array([2.0, 5.0], np.float32))
OBS = gs.Box(-1, 1, (3,), np.float32)
ADAM = OptimizerConfig(learning_rate=0.01, schedule="constant", max_grad_norm=math.inf, eps=1e-8)


# --- the squashed distribution ---


def params_of(rows: int, spread: float = 1.0) -> torch.Tensor:
    return torch.randn(rows, 4, generator=torch.Generator().manual_seed(0)).double() * spread


def test_log_probs_are_those_of_torch_distributions():
    params, squashed = params_of(200, 0.5), Squashed(BOX)
    own = TransformedDistribution(Normal(params[:, :2], params[:, 2:].exp()), [TanhTransform()])
    action, logprob = squashed.sample_with_logprob(params, None, torch.Generator().manual_seed(1))
    assert (action.abs() < 1).all() and len(action.unique()) == 400
    torch.testing.assert_close(logprob, own.log_prob(action).sum(-1), rtol=1e-6, atol=1e-6)
    torch.testing.assert_close(squashed.logprob(params, action), own.log_prob(action).sum(-1), rtol=1e-6, atol=1e-6)
    torch.testing.assert_close(squashed.mode(params), params[:, :2].tanh())


def test_log_probs_stay_finite_where_tanh_rounds_to_one():
    params = torch.tensor([[50.0, -50.0, 0.0, 0.0]], requires_grad=True)
    action, logprob = Squashed(BOX).sample_with_logprob(params, None, torch.Generator().manual_seed(1))
    logprob.sum().backward()
    assert action.abs().max() == 1 and logprob.isfinite().all() and params.grad is not None and params.grad.isfinite().all()


def test_moments_and_entropy_are_those_of_many_draws():
    params, squashed = params_of(1, 0.7), Squashed(BOX)
    draws, logprob = squashed.sample_with_logprob(params.expand(400_000, -1), None, torch.Generator().manual_seed(2))
    mean, std = squashed.moments(params)
    torch.testing.assert_close(mean[0], draws.mean(0), rtol=0, atol=0.005)
    torch.testing.assert_close(std[0], draws.std(0), rtol=0, atol=0.005)
    torch.testing.assert_close(squashed.entropy(params)[0], -logprob.mean(), rtol=0, atol=0.01)
    assert squashed.gaussian(torch.full((1, 4), 9.0))[1].max() == LARGEST_LOG_STD


def test_actions_fill_the_bounds_of_the_box():
    found = Squashed(BOX).to_env(torch.tensor([[-1.0, -1.0], [1.0, 1.0], [0.0, 0.0], [0.5, -0.5]]))
    assert found.tolist() == [[-2.0, 0.0], [2.0, 5.0], [0.0, 2.5], [1.0, 1.25]]


# --- one update, written out ---


def made(space: gs.Space, **settings: Any) -> SAC:
    torch.manual_seed(0)
    config = PolicyConfig(hidden=(8, 8), activation="tanh", std="state")
    policy = make_policy(OBS, space, config)
    if isinstance(space, gs.Box):
        policy.distribution = Squashed(space)
    critic = Judges(Judge(policy, config) for _ in range(2))
    return SAC(policy, SACSettings(sac=SACConfig(**settings)), critic=critic, seed=3)


def batch_of(space: gs.Space, segments: int = 10, horizon: int = 2) -> Batch:
    random = torch.Generator().manual_seed(5)

    def flags(share: float, *shape: int) -> torch.Tensor:
        return torch.rand(*(shape or (segments, horizon)), generator=random) < share

    columns = {
        "obs": torch.randn(segments, horizon, 3, generator=random),
        "obs_after": torch.randn(segments, 3, generator=random),
        "reward": torch.randn(segments, horizon, generator=random),
        "first": flags(0.1),
        "mask": flags(0.8),
        "terminated": flags(0.3),
        "acts_after": flags(0.8, segments),
    }
    columns["truncated"] = flags(0.3) & ~columns["terminated"]
    if isinstance(space, gs.Box):
        columns["action"] = torch.rand(segments, horizon, 2, generator=random) * 2 - 1
    else:
        columns["action"] = torch.randint(3, (segments, horizon, 1), generator=random)
        columns["action_mask"] = flags(0.6, segments, horizon, 3) | nn.functional.one_hot(columns["action"][..., 0], 3).bool()
        columns["action_mask_after"] = flags(0.6, segments, 3) | torch.tensor([True, False, False])
    return Batch(columns)


def learned(algorithm: SAC, batch: Batch) -> list[tuple[float, dict[str, float]]]:
    """One update by ``losses``, as the loop does it. Returns losses and metrics."""
    optimizer, found = Optimizer(parts(algorithm), ADAM, rates=algorithm.rates), []
    optimizer.set_progress(0.0)
    for loss, metrics in algorithm.losses(batch):
        optimizer.step(loss)
        found.append((loss.item(), {name: value.item() for name, value in metrics.items()}))
    return found


def by_the_paper(algorithm: SAC, batch: Batch) -> list[float]:
    """The same update with loops over rows, torch.distributions and torch.optim.Adam; changes ``algorithm``. Returns the losses."""
    policy, (one, two), slow, c = algorithm.policy, algorithm.critic, algorithm.slow, algorithm.config
    discrete, random = policy.distribution.choices > 0, torch.Generator()
    random.set_state(algorithm.generator.get_state())
    flat = [(s, t) for s in range(batch.segments) for t in range(batch.horizon)]
    obs = torch.stack([batch["obs"][s, t] for s, t in flat])
    nexts = torch.stack([batch["obs"][s, t + 1] if t + 1 < batch.horizon else batch["obs_after"][s] for s, t in flat])
    acts = [bool(batch["mask"][s, t + 1] if t + 1 < batch.horizon else batch["acts_after"][s]) for s, t in flat]
    over = [bool(batch["terminated"][s, t] | batch["truncated"][s, t]) for s, t in flat]
    use = [i for i, (s, t) in enumerate(flat) if batch["mask"][s, t] and (over[i] or acts[i])]
    assert (
        2 < len(use) < len(flat)
        and any(batch["truncated"][flat[i]] for i in use)
        and any(batch["terminated"][flat[i]] for i in use)
    )
    alpha = algorithm.log_temperature.detach().exp()

    def pi(rows: torch.Tensor) -> torch.Tensor:
        return policy(rows, None, torch.zeros(len(rows), dtype=torch.bool)).params

    def q(critic: Any, state: torch.Tensor, action: torch.Tensor | None) -> torch.Tensor:
        x = state if action is None else torch.cat([state, action])
        for layer in critic.trunk.layers:
            x = torch.tanh(layer(x))
        return critic.head(x) if action is None else critic.head(x)[0]

    def drawn(params: torch.Tensor, noise: torch.Tensor) -> tuple[torch.Tensor, torch.Tensor]:
        mean, std = params[:2].double(), params[2:].double().exp()  # atanh of what is close to 1 loses digits
        action = torch.tanh(mean + std * noise)
        logprob = TransformedDistribution(Normal(mean, std), [TanhTransform(cache_size=0)]).log_prob(action).sum()
        return action.float(), logprob.float()

    def choice(params: torch.Tensor, name: str, i: int) -> torch.Tensor:
        s, t = flat[i]
        later = name == "after"
        mask = batch["action_mask"][s, t] if not later else None
        if later:
            mask = batch["action_mask"][s, t + 1] if t + 1 < batch.horizon else batch["action_mask_after"][s]
        weights = torch.where(mask, params.exp(), 0.0)
        return weights / weights.sum()

    def entropy_of(p: torch.Tensor) -> torch.Tensor:
        return -sum((x * x.log() for x in p if x > 0), torch.tensor(0.0))

    noise = None if discrete else torch.empty(len(flat), 2).normal_(generator=random)
    with torch.no_grad():
        after, targets = pi(nexts), {}
        for i in use:
            s, t = flat[i]
            if discrete:
                p = choice(after[i], "after", i)
                lower = torch.minimum(q(slow[0], nexts[i], None), q(slow[1], nexts[i], None))
                value = (p * lower).sum() + alpha * entropy_of(p)
            else:
                action, logprob = drawn(after[i], noise[i])
                value = torch.minimum(q(slow[0], nexts[i], action), q(slow[1], nexts[i], action)) - alpha * logprob
            targets[i] = batch["reward"][s, t] + c.gamma * (0.0 if batch["terminated"][s, t] else value)
    steps = {
        name: torch.optim.Adam([p for p in part if p.requires_grad], lr=rate)
        for name, part, rate in (
            ("critic", [*one.parameters(), *two.parameters()], 0.01 * c.critic_rate),
            ("policy", [*policy.parameters()], 0.01),
            ("temperature", [algorithm.log_temperature], 0.01),
        )
    }

    def step(name: str, loss: torch.Tensor) -> float:
        for p in algorithm.parameters():
            p.grad = None
        loss.backward()
        for group in steps[name].param_groups:
            for p in group["params"]:
                p.grad = torch.zeros_like(p) if p.grad is None else p.grad
        steps[name].step()
        return loss.item()

    total = torch.tensor(0.0)
    for i in use:
        s, t = flat[i]
        for critic in (one, two):
            said = q(critic, obs[i], None)[batch["action"][s, t, 0]] if discrete else q(critic, obs[i], batch["action"][s, t])
            total = total + 0.5 * (said - targets[i]) ** 2 / len(use)
    found = [step("critic", total)]
    noise = None if discrete else torch.empty(len(flat), 2).normal_(generator=random)
    now, total, entropies = pi(obs), torch.tensor(0.0), []
    for i in use:
        if discrete:
            p = choice(now[i], "now", i)
            with torch.no_grad():
                lower = torch.minimum(q(one, obs[i], None), q(two, obs[i], None))
            entropies.append(entropy_of(p))
            total = total - ((p * lower).sum() + alpha * entropies[-1]) / len(use)
        else:
            action, logprob = drawn(now[i], noise[i])
            lower = torch.minimum(q(one, obs[i], action), q(two, obs[i], action))
            entropies.append(-logprob)
            total = total + (alpha * logprob - lower) / len(use)
    found.append(step("policy", total))
    entropy = torch.stack(entropies).mean().detach()
    found.append(step("temperature", algorithm.log_temperature * (entropy - algorithm.target_entropy)))
    with torch.no_grad():
        for kept, new in zip(slow.parameters(), algorithm.critic.parameters(), strict=True):
            kept.copy_((1 - c.tau) * kept + c.tau * new)
    return found


@pytest.mark.parametrize(
    "space, natively", [(BOX, False), (BOX, True), (gs.Discrete(3), False)], ids=["numbers", "numbers natively", "choice"]
)
def test_an_update_is_that_of_the_paper(space, natively):
    algorithm = made(space, gamma=0.9, tau=0.1, temperature=0.4, critic_rate=0.5)
    if natively:
        algorithm.native = soft_losses(algorithm.policy, algorithm.critic, algorithm.slow)
        assert algorithm.native is not None
    for p in (*algorithm.critic.parameters(), *algorithm.policy.parameters()):
        p.data += 0.3 * torch.randn(p.shape, generator=torch.Generator().manual_seed(p.numel()))
    twin = copy.deepcopy(algorithm)
    twin.generator = torch.Generator()
    twin.generator.set_state(algorithm.generator.get_state())
    batch = batch_of(space)
    found, expected = learned(algorithm, batch), by_the_paper(twin, batch)
    assert [loss for loss, _ in found] == pytest.approx(expected, rel=1e-4, abs=1e-5)
    for (name, mine), theirs in zip(algorithm.named_parameters(), twin.parameters(), strict=True):
        torch.testing.assert_close(mine, theirs, rtol=1e-4, atol=1e-5, msg=lambda text, name=name: f"{name}: {text}")
    assert found[2][1]["loss/temperature"] == pytest.approx(0.4)


def test_rows_count_by_their_importance_and_errors_go_back_as_priorities():
    algorithm, batch, taken = made(gs.Discrete(3)), batch_of(gs.Discrete(3)), {}
    from fugu.rollout.batch import Origin

    whole = Batch(
        {**batch.columns, "importance": torch.linspace(0, 1, 10)},
        batch.once,
        Origin(lambda columns, which: taken.update(columns)),
    )
    loss = next(algorithm.losses(whole))[0].item()
    rows = rows_of(whole, ALONE)
    error = algorithm.critic(algorithm._seen(rows.obs), None).gather(-1, rows.action.expand(2, -1, -1)).squeeze(-1)
    error = (error - algorithm._target(rows)) * rows.valid
    weight = torch.linspace(0, 1, 10).repeat_interleave(2) / rows.valid.sum()
    assert loss == pytest.approx((0.5 * weight * error.square()).sum().item(), rel=1e-5)
    torch.testing.assert_close(taken["priority"], error.detach().abs().mean(0).view(10, 2).mean(1))


# --- known optima ---


class Bandit(gymnasium.Env):
    """Episodes of one step, with the reward of the choice, or of how near a number is to 0.4."""

    observation_space = gs.Box(-1, 1, (1,), np.float32)

    def __init__(self, numbers: bool = False) -> None:
        self.action_space = gs.Box(-1, 1, (1,), np.float32) if numbers else gs.Discrete(3)

    def reset(self, *, seed: int | None = None, options: Any = None) -> tuple[Any, dict[str, Any]]:
        super().reset(seed=seed)
        return np.ones(1, np.float32), {}

    def step(self, action: Any) -> tuple[Any, float, bool, bool, dict[str, Any]]:
        reward = -float((action[0] - 0.4) ** 2) if isinstance(self.action_space, gs.Box) else (0.0, 0.5, 1.0)[int(action)]
        return np.ones(1, np.float32), reward, True, False, {}


def config_of(env: str, *, steps: int, **changes: Any) -> TrainConfig:
    plain = TrainConfig(
        env=env,
        algorithm="sac",
        steps=steps,
        horizon=1,
        minibatch=64,
        threads=1,
        vector=VectorConfig(num_envs=8, backend="serial"),
        policy=PolicyConfig(hidden=(16,), activation="relu", std="state"),
        optimizer=dataclasses.replace(ADAM, learning_rate=3e-3),
        replay=ReplayConfig(size=2000, start=64, ratio=32, every=2),
    )
    return fugu.config.override(plain, changes)


@contextlib.contextmanager
def trained(config: TrainConfig) -> Any:
    trainer = make_trainer(config)
    try:
        trainer.start()
        trainer.run(lambda metrics: None, Interrupt())
        yield trainer.algorithm
    finally:
        trainer.close()


@pytest.mark.slow
def test_a_choice_is_made_in_proportion_to_the_exponential_of_its_reward():
    changes = {"sac.temperature": 0.5, "sac.learn_temperature": False}
    with trained(config_of("tests.algorithm.test_sac:Bandit", steps=1200, **changes)) as algorithm:
        params = algorithm._params(torch.ones(1, 1))
        expected = torch.tensor([[0.0, 0.5, 1.0]]).div(0.5).softmax(-1)
        torch.testing.assert_close(params.softmax(-1), expected, rtol=0, atol=0.04)
        values = algorithm.critic([torch.ones(1, 1)], None)
        torch.testing.assert_close(values, torch.tensor([0.0, 0.5, 1.0]).expand(2, 1, 3), rtol=0, atol=0.05)


@pytest.mark.slow
def test_a_number_is_drawn_around_the_best_one_as_widely_as_the_temperature_says():
    changes = {"env_kwargs": {"numbers": True}, "sac.temperature": 0.02, "sac.learn_temperature": False}
    with trained(config_of("tests.algorithm.test_sac:Bandit", steps=2400, **changes)) as algorithm:
        mean, std = algorithm.policy.distribution.moments(algorithm._params(torch.ones(1, 1)))
        # exp(reward / temperature) is a normal density with variance temperature / 2
        assert mean.item() == pytest.approx(0.4, abs=0.05) and std.item() == pytest.approx(0.1, abs=0.04)


class Ring3(gymnasium.Env):
    """Three states in a ring: stay or go on, with a reward for staying in the last. Truncated now and then, at any place."""

    observation_space, action_space = gs.Box(0, 1, (3,), np.float32), gs.Discrete(2)

    def reset(self, *, seed: int | None = None, options: Any = None) -> tuple[Any, dict[str, Any]]:
        super().reset(seed=seed)
        self.at, self.t = int(self.np_random.integers(3)), 0
        return np.eye(3, dtype=np.float32)[self.at], {}

    def step(self, action: Any) -> tuple[Any, float, bool, bool, dict[str, Any]]:
        reward = float(action == 0 and self.at == 2)
        self.at, self.t = (self.at + int(action)) % 3, self.t + 1
        return np.eye(3, dtype=np.float32)[self.at], reward, False, self.t == 4, {}


@pytest.mark.slow
def test_values_are_those_of_soft_value_iteration_also_where_episodes_are_truncated():
    gamma, temperature = 0.8, 0.2
    reward, follows = np.zeros((3, 2)), np.array([[0, 1], [1, 2], [2, 0]])
    reward[2, 0] = 1.0
    q = np.zeros((3, 2))
    for _ in range(200):
        value = temperature * np.log(np.exp(q / temperature).sum(1))
        q = reward + gamma * value[follows]
    changes = {"sac.temperature": temperature, "sac.learn_temperature": False, "sac.gamma": gamma, "sac.tau": 0.05}
    with trained(config_of("tests.algorithm.test_sac:Ring3", steps=6000, **changes)) as algorithm:
        found = algorithm.critic([torch.eye(3)], None).mean(0).detach().numpy()
        np.testing.assert_allclose(found, q, atol=0.1)  # a truncation taken for an end would be off by 2 and more
        expected = np.exp(q / temperature) / np.exp(q / temperature).sum(1, keepdims=True)
        np.testing.assert_allclose(algorithm._params(torch.eye(3)).softmax(-1).detach().numpy(), expected, atol=0.06)


# --- runs ---


def run(config: TrainConfig, folder: Path, resume: Path | None = None, updates: int = 10**9) -> tuple[list[Any], Trainer]:
    trainer = make_trainer(config, folder)
    try:
        trainer.load(resume) if resume else trainer.start()
        seen: list[dict[str, float]] = []

        def report(metrics: dict[str, float]) -> None:
            seen.append(metrics)
            if len(seen) == updates:
                raise KeyboardInterrupt

        with contextlib.suppress(KeyboardInterrupt):
            trainer.run(report, Interrupt())
        return seen, trainer
    finally:
        trainer.close()


@pytest.mark.parametrize(
    ("env", "priority"),
    [
        ("Pendulum-v1", 0.6),
        *(pytest.param(*each, marks=pytest.mark.slow) for each in [("Pendulum-v1", 0.0), ("pendulum", 0.6)]),
    ],
)
def test_a_killed_run_goes_on_bit_for_bit_also_where_environments_begin_anew(env, priority, tmp_path):
    every = CheckpointConfig(every=4, keep=2)
    config = config_of(
        env,
        steps=600,
        checkpoint=every,
        **{"replay.priority": priority, "replay.size": 300, "replay.ratio": 8, "vector.backend": "auto"},
    )
    whole, ended = run(config, tmp_path / "whole")
    cut, _ = run(config, tmp_path / "cut", updates=23)
    again, resumed = run(config, tmp_path / "cut", resume=checkpoint.find(tmp_path / "cut", whole=True))
    at = again[0]["updates"] - 1
    assert cut == whole[:23] and again == whole[at:] and 10 < at < 23 < len(whole)
    for (name, mine), theirs in zip(resumed.algorithm.named_parameters(), ended.algorithm.parameters(), strict=True):
        assert torch.equal(mine, theirs), name


class Pictures(gymnasium.Env):
    """A picture and a few numbers."""

    observation_space = gs.Dict({"picture": gs.Box(0, 255, (16, 16, 3), np.uint8), "speed": gs.Box(-1, 1, (2,), np.float32)})
    action_space = gs.Dict({"steer": gs.Box(-1, 1, (2,), np.float32), "gas": gs.Box(0, 5, (1,), np.float32)})

    def reset(self, *, seed: int | None = None, options: Any = None) -> tuple[Any, dict[str, Any]]:
        super().reset(seed=seed)
        self.observation_space.seed(seed)
        self.t = 0
        return self.observation_space.sample(), {}

    def step(self, action: Any) -> tuple[Any, float, bool, bool, dict[str, Any]]:
        assert self.action_space.contains(action)
        self.t += 1
        return self.observation_space.sample(), float(action["gas"][0]), self.t == 5, False, {}


@pytest.mark.parametrize("normalize", [False, True])
def test_structured_observations_and_actions_are_learned_from(normalize, tmp_path):
    changes = {"minibatch": 8, "replay.ratio": 1, "policy.normalize_observation": normalize}
    seen, trainer = run(config_of("tests.algorithm.test_sac:Pictures", steps=160, **changes), tmp_path)
    assert all(math.isfinite(value) for row in seen for value in row.values()) and len(seen) >= 6
    assert trainer.algorithm.policy.distribution.reals == 3


def test_a_training_on_a_cpu_computes_losses_natively_and_comes_to_what_torch_does(tmp_path, monkeypatch):
    if fugu.native.native is None:
        pytest.skip("the native core is not built")
    config = config_of("Pendulum-v1", steps=300, **{"replay.ratio": 8, "policy.normalize_observation": True})
    found, fast = run(config, tmp_path / "native")
    monkeypatch.setattr("fugu.trainer.fuse.soft_losses", lambda *networks: None)
    expected, plain = run(config, tmp_path / "torch")
    assert fast.algorithm.native is not None and plain.algorithm.native is None and len(found) == len(expected) > 10
    for mine, theirs in zip(found[:5], expected[:5], strict=True):
        assert mine == pytest.approx(theirs, rel=2e-3, abs=1e-5)


class Forbidding(Bandit):
    """The best choice is forbidden."""

    def action_masks(self) -> Any:
        return np.array([True, True, False])


def test_what_is_forbidden_is_never_chosen_and_never_counted():
    algorithm = made(gs.Discrete(3), temperature=0.1)
    allowed = torch.tensor([[True, True, False]])
    for _ in range(50):
        done = algorithm.act(Seen(torch.zeros(1, 3), torch.ones(1, dtype=torch.bool), action_mask=allowed))
        assert done.env_action.item() < 2
    obs = torch.randn(4, 3)
    mask = allowed.expand(4, -1)
    plain = algorithm._value(algorithm.critic, obs, mask)
    with torch.no_grad():
        for critic in algorithm.critic:
            critic.head.bias[2] += 100.0
    torch.testing.assert_close(algorithm._value(algorithm.critic, obs, mask), plain)


@pytest.mark.parametrize(
    ("env", "changes", "message"),
    [
        ("tests.algorithm.test_sac:Boundless", {}, "has no bounds on both sides to squash actions into"),
        ("tests.algorithm.test_sac:Several", {}, "chooses one of several actions, not in MultiDiscrete"),
        ("cartpole", {"policy.core": "lstm"}, "sac has no memory, so policy.core=lstm is of no use; type --policy.core none"),
        ("cartpole", {"replay.size": 100_000_000_000_000, "replay.start": 10}, "are free; try --replay.size"),
    ],
)
def test_what_sac_cannot_do_is_one_line(env, changes, message):
    with pytest.raises(ConfigError, match=message):
        make_trainer(config_of(env, steps=100, **changes)).close()


class Boundless(Bandit):
    def __init__(self) -> None:
        self.action_space = gs.Box(-np.inf, np.inf, (1,), np.float32)


class Several(Bandit):
    def __init__(self) -> None:
        self.action_space = gs.MultiDiscrete([2, 3])


@pytest.mark.parametrize(
    "name, value", [("gamma", 1.5), ("tau", 0), ("temperature", 0), ("critic_rate", -1), ("target_entropy", math.nan)]
)
def test_settings_are_checked(name, value):
    with pytest.raises(ConfigError, match=f"sac.{name}="):
        SACConfig(**{name: value})


def test_a_loaded_policy_acts_in_the_bounds_and_shows_the_squashed_distribution(tmp_path):
    settings = {"steps": 80, "hidden": (8,), "minibatch": 32, "replay.ratio": 8, "replay.start": 20, "board": "off"}
    run = fugu.train("pendulum", algorithm="sac", runs=tmp_path, **settings)
    policy, obs = run.policy(), np.array([0.3, -0.9, 2.0], np.float32)
    with torch.no_grad():
        policy.network.net.heads[0].bias[0] = 1.5  # beyond the bound before it is squashed
    shown = policy.distribution(obs)
    assert policy(obs) == pytest.approx(shown.mode(), abs=1e-6) and 1.5 < policy(obs)[0] < 2
    assert policy(np.stack([obs, obs]))[1] == pytest.approx(policy(obs), abs=1e-6)
    assert -2 < shown.mean[0] < 2 and 0 < shown.std[0] < 2 and math.isfinite(shown.log_prob(np.array([1.0], np.float32)))
    points = np.linspace(-1.9999, 1.9999, 20_001, dtype=np.float32)[:, None]
    density = np.exp(policy.distribution(np.repeat(obs[None], len(points), 0)).log_prob(points))
    assert np.trapezoid(density, points[:, 0]) == pytest.approx(1, abs=0.02)


@pytest.mark.learning
@pytest.mark.timeout(1800)
@pytest.mark.parametrize("seed", range(3))
def test_pendulum_is_swung_up_within_six_thousand_steps(seed):
    from fugu.presets import preset

    config = fugu.config.override(preset("Pendulum-v1", algorithm="sac"), {"steps": 6000, "seed": seed, "threads": 1})
    with trained(config) as algorithm, fugu.vector.make("Pendulum-v1", 10, backend="serial") as vec:
        found = evaluate(vec, algorithm.act, episodes=20, seed=1000 + seed, greedy=True, device=torch.device("cpu"))
    assert found.mean > -250


@pytest.mark.slow
@pytest.mark.parametrize("env", ["pendulum", "cartpole"])
def test_environments_on_a_gpu_are_learned_from(env, tmp_path):
    changes = {"vector.num_envs": 4, "replay.start": 20, "replay.ratio": 4, "minibatch": 16, "replay.priority": 0.5}
    with fugu.gpu.emulation():
        seen, trainer = run(
            config_of(env, steps=120, **{"vector.backend": "device", "vector.device": "cpu", **changes}), tmp_path
        )
    assert isinstance(trainer.source.inner, DeviceRollout) and all(
        math.isfinite(value) for row in seen for value in row.values()
    )
    assert len(seen) == (seen[-1]["steps"] - 20) * 4 // 32


def test_a_training_that_diverges_ends_with_advice_for_sac(tmp_path):
    changes = {"optimizer.learning_rate": 1e30, "replay.ratio": 8, "replay.start": 50, "minibatch": 32}
    with pytest.raises(Diverged, match="lower --optimizer.learning-rate") as caught:
        run(config_of("pendulum", steps=300, **changes), tmp_path)
    assert "ppo" not in str(caught.value)
    caught.value.save(tmp_path / "diverged.safetensors")
