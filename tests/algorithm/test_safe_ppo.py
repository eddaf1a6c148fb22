"""Safe PPO: without a price it is PPO to the bit, its costs go through the same estimates, and it knows when to refuse."""

from __future__ import annotations

import dataclasses
from contextlib import nullcontext
from typing import Any

import pytest
import torch
from gymnasium import spaces as gs

from fugu.algorithm.config import PPOConfig, SafeConfig
from fugu.algorithm.parts.clipped import gae_of
from fugu.algorithm.safe_ppo import SafePPO
from fugu.algorithm.setup import seeded
from fugu.errors import ConfigError
from fugu.gpu import emulation
from fugu.policy.actor_critic import make_policy
from fugu.policy.config import PolicyConfig
from fugu.policy.critic import Critic
from fugu.rollout.batch import Batch
from fugu.trainer.build import make_trainer
from fugu.trainer.config import TrainConfig, with_algorithm
from fugu.trainer.interrupt import Interrupt
from fugu.vector.config import VectorConfig

SPACES = gs.Box(-1, 1, (3,)), gs.Discrete(2)
CONFIG = TrainConfig(
    env="knapsack_cmdp",
    algorithm="safe_ppo",
    steps=10 * 16 * 12,
    horizon=12,
    minibatch=96,
    epochs=2,
    threads=1,
    vector=VectorConfig(num_envs=16, num_workers=1),
    policy=PolicyConfig(hidden=(16,), normalize_observation=True),
    safe=SafeConfig(limit=(5.0,)),
)


def algorithm(costs: int = 1, ppo: PPOConfig | None = None, **safe: Any) -> SafePPO:
    policy = make_policy(*SPACES, PolicyConfig(hidden=(8,)), seed=0)
    critic = seeded(0, lambda: Critic(SPACES[0], PolicyConfig(hidden=(8,)), costs))
    settings = SafeConfig(limit=(1.0,), **safe)
    names = tuple(f"cost {k}" for k in range(costs))
    return SafePPO(policy, critic, ppo or PPOConfig(), settings, costs=names, num_agents=6, seed=0)


def batch(costs: int = 1, horizon: int = 9, *, ends: bool = True) -> Batch:
    """Six segments of noise, with both kinds of ending and the masked row after each."""
    g = torch.Generator().manual_seed(0)
    draw = torch.rand((6, horizon), generator=g)
    terminated, truncated = draw < 0.1 * ends, draw > 1 - 0.1 * ends
    mask = torch.ones_like(terminated)
    mask[:, 1:] = ~(terminated | truncated)[:, :-1]
    return Batch(
        {
            "obs": torch.randn((6, horizon, 3), generator=g),
            "action": torch.randint(0, 2, (6, horizon, 1), generator=g),
            "logprob": torch.full((6, horizon), -0.7),
            "value": torch.randn((6, horizon), generator=g),
            "cost_value": torch.randn((6, horizon, costs), generator=g),
            "reward": torch.randn((6, horizon), generator=g),
            "cost": torch.rand((6, horizon, costs), generator=g),
            "bootstrap": torch.randn(6, generator=g),
            "cost_bootstrap": torch.randn((6, costs), generator=g),
            "terminated": terminated,
            "truncated": truncated,
            "first": torch.zeros_like(mask),
            "mask": mask,
        }
    )


def like_rewards(given: Batch) -> Batch:
    columns = {"cost": "reward", "cost_value": "value", "cost_bootstrap": "bootstrap"}
    return given.also(**{cost: given[reward][..., None] for cost, reward in columns.items()})


def estimates(safe: SafePPO, given: Batch) -> dict[str, torch.Tensor]:
    """Those of a batch, at prices that stay as they are."""
    advantage, target = gae_of(given, safe.config.gamma, safe.config.lam, turns=False)
    advantage, cost_target = safe._less_costs(given, advantage)
    return {"advantage": advantage, "value_target": target, "cost_target": cost_target}


def trained(config: TrainConfig) -> tuple[list[dict[str, float]], dict[str, torch.Tensor]]:
    trainer = make_trainer(config)
    try:
        trainer.start()
        seen: list[dict[str, float]] = []
        trainer.run(seen.append, Interrupt())
        return seen, trainer.algorithm.policy.state_dict()
    finally:
        trainer.close()


def test_segments_drawn_by_priority_count_for_the_costs_too():
    ours = algorithm(ppo=PPOConfig(priority=0.8))
    prepared = ours.prepare(batch(ends=False), 1.0)
    alone = [ours.loss(prepared.rows(torch.tensor([k])))[1]["loss/cost_value"] for k in range(6)]
    share = prepared["importance"] / prepared["importance"].sum()
    together = ours.loss(prepared)[1]["loss/cost_value"]
    torch.testing.assert_close(together, (share * torch.stack(alone)).sum())
    assert abs(together - torch.stack(alone).mean()) > 1e-3


@pytest.mark.parametrize(
    "changes",
    [
        {},
        {"ppo": PPOConfig(normalize_reward=True, normalize_value=True, priority=0.6, normalize_advantage="batch")},
        {"policy": PolicyConfig(hidden=(16,), core="lstm", core_size=8), "passes": 2},
    ],
    ids=["plain", "scaled", "lstm"],
)
def test_without_a_price_it_is_ppo_to_the_bit(changes):
    free = dataclasses.replace(CONFIG, safe=SafeConfig(limit=(5.0,), multiplier_max=0.0), **changes)
    seen, weights = trained(free)
    expected, same = trained(with_algorithm(free, "ppo"))
    assert len(seen) == len(expected) >= 5
    for ours, theirs in zip(seen, expected, strict=True):
        exact = {name for name in theirs if not name.startswith("loss/")}
        assert {name: ours[name] for name in exact} == {name: theirs[name] for name in exact}
        for name in theirs.keys() - exact - {"loss/grad_norm"}:  # which is that of all networks
            assert ours[name] == pytest.approx(theirs[name], rel=1e-5, abs=1e-7)  # means over a table with more columns
        assert ours["safe/lambda"] == 0
    assert all(torch.equal(weights[name], same[name]) for name in same)
    priced, other = trained(dataclasses.replace(free, safe=SafeConfig(limit=(5.0,))))
    assert priced[-1]["safe/lambda"] > 0 and not all(torch.equal(weights[name], other[name]) for name in same)


def test_costs_that_are_rewards_have_their_advantage_and_target_to_the_bit():
    safe = algorithm(ppo=PPOConfig(gamma=0.93, lam=0.8), cost_gamma=0.93, cost_lam=0.8, multiplier_start=1.0)
    added = estimates(safe, like_rewards(batch()))
    assert torch.equal(added["cost_target"][..., 0], added["value_target"])
    assert torch.equal(added["advantage"], torch.zeros_like(added["advantage"]))  # (A - 1 A) / 2
    other = algorithm(ppo=PPOConfig(gamma=0.93, lam=0.8), cost_gamma=0.5, cost_lam=0.8, multiplier_start=1.0)
    assert not torch.equal(estimates(other, like_rewards(batch()))["advantage"], added["advantage"])


def test_advantages_are_put_together_in_real_units():
    """Two rows, no future: the advantage of a row is reward - value, that of its costs cost - foretold cost."""
    safe = algorithm(costs=2, ppo=PPOConfig(gamma=0.0), cost_gamma=0.0)
    safe.multiplier.value.copy_(torch.tensor([0.5, 2.0]))
    given = batch(costs=2, ends=False)
    added = estimates(safe, given)
    gain = given["reward"] - given["value"]
    price = given["cost"] - given["cost_value"]
    torch.testing.assert_close(added["advantage"], (gain - 0.5 * price[..., 0] - 2.0 * price[..., 1]) / 3.5)
    torch.testing.assert_close(added["cost_target"], given["cost"])


def test_truncated_episodes_go_on_costing_and_terminated_ones_do_not():
    g, none = 0.9, torch.zeros(1, 2, dtype=torch.bool)
    here = torch.tensor([[True, False]])
    rows = {
        "reward": torch.zeros(1, 2),
        "value": torch.zeros(1, 2),
        "bootstrap": torch.zeros(1),
        "cost": torch.tensor([[[1.0], [0.0]]]),
        "cost_value": torch.tensor([[[0.0], [5.0]]]),  # 5 in the row of the final observation
        "cost_bootstrap": torch.tensor([[7.0]]),
        "mask": here,
    }
    safe = algorithm(cost_gamma=g)
    cut = estimates(safe, Batch({**rows, "terminated": none, "truncated": here}))
    over = estimates(safe, Batch({**rows, "terminated": here, "truncated": none}))
    assert cut["cost_target"][0, 0, 0] == pytest.approx(1 + g * 5) and over["cost_target"][0, 0, 0] == 1
    last = Batch(
        {name: column[:, :1] if name not in ("bootstrap", "cost_bootstrap") else column for name, column in rows.items()}
    )
    cut = estimates(safe, last.also(terminated=none[:, :1], truncated=here[:, :1]))
    assert cut["cost_target"][0, 0, 0] == pytest.approx(1 + g * 7)


def test_masked_rows_reach_neither_the_cost_loss_nor_its_gradient():
    safe = algorithm()
    ready = safe.prepare(batch(), 0.0)
    masked = ~ready["mask"]
    assert masked.any()

    def gradient(column: torch.Tensor) -> torch.Tensor:
        loss, metrics = safe.loss(ready.also(cost_target=column))
        safe.cost_critic.zero_grad()
        loss.backward()
        assert metrics["loss/cost_value"] > 0
        return torch.cat([p.grad.flatten() for p in safe.cost_critic.parameters()])

    clean = gradient(ready["cost_target"])
    dirty = gradient(torch.where(masked[..., None], torch.nan, ready["cost_target"]))
    assert torch.equal(clean, dirty) and clean.abs().sum() > 0


def test_the_price_follows_the_episodes_that_finished():
    safe = algorithm(multiplier="sgd", multiplier_rate=0.1)
    given = batch(horizon=4, ends=False)
    cost = torch.zeros(6, 4, 1)
    cost[0, :2] = 0.75  # an episode of 1.5, half over its limit of 1
    cost[1, 3] = 100  # of one that goes on
    ended = torch.zeros(6, 4, dtype=torch.bool)
    ended[0, 1] = True
    said = safe.finish(safe.prepare(given.also(cost=cost, truncated=ended), 0.0))
    assert said["safe/lambda"] == pytest.approx(0.05) and said["safe/over_limit"] == 1 and said["safe/limit"] == 1
    said = safe.finish(safe.prepare(given.also(cost=cost), 0.0))  # nothing finishes: all stays
    assert said["safe/lambda"] == pytest.approx(0.05) and said["safe/over_limit"] == 1
    safe.restarted()
    ended[0, 1] = False
    ended[:, 3] = True
    said = safe.finish(safe.prepare(given.also(cost=torch.zeros(6, 4, 1), terminated=ended), 0.0))
    assert said["safe/lambda"] == 0 and said["safe/over_limit"] == 0  # what was paid before the restart is forgotten


def test_an_episode_whose_environment_was_lost_moves_no_price():
    safe = algorithm(multiplier="sgd", multiplier_rate=0.1)
    given = batch(horizon=4, ends=False)
    cost = torch.zeros(6, 4, 1)
    cost[0, 0], cost[0, 2], cost[1, 0] = 1.5, 2.0, 50.0  # two episodes of agent 0; agent 1's is lost
    ended, lost = torch.zeros(6, 4, dtype=torch.bool), torch.zeros(6, 4, dtype=torch.bool)
    ended[0, 1] = ended[0, 3] = ended[1, 1] = lost[1, 1] = True
    said = safe.finish(safe.prepare(given.also(cost=cost, truncated=ended, lost=lost), 0.0))
    assert said["safe/lambda"] == pytest.approx(0.1 * (1.75 - 1)) and said["safe/over_limit"] == 1
    ended[:] = False
    ended[1, 1] = True
    cost[:] = 0.0
    said = safe.finish(safe.prepare(given.also(cost=cost, truncated=ended), 0.0))
    assert said["safe/over_limit"] == 0  # what the lost one cost is forgotten


@pytest.mark.parametrize(
    "changes, problem",
    [
        ({"env": "cartpole"}, "cartpole has none"),
        ({"safe": SafeConfig()}, "try --limit 10"),
        ({"safe": SafeConfig(limit=(1.0, 2.0))}, "2 numbers, but the environment has 1 costs"),
        ({"ppo": PPOConfig(vtrace=True)}, "--no-vtrace"),
    ],
)
def test_what_cannot_work_is_refused_before_training(changes, problem):
    with pytest.raises(ConfigError, match=problem):
        make_trainer(dataclasses.replace(CONFIG, **changes))


@pytest.mark.parametrize(
    "settings, problem",
    [
        ({"limit": (-1.0,)}, "--limit 10"),
        ({"limit": (float("nan"),)}, "--limit 10"),
        ({"multiplier": "newton"}, "pid, sgd or adam"),
        ({"cost_gamma": 1.5}, "between 0 and 1"),
        ({"ki": -0.1}, "0 or above"),
        ({"delay": 0}, "at least 1"),
    ],
)
def test_impossible_settings_are_named(settings, problem):
    with pytest.raises(ConfigError, match=problem):
        SafeConfig(**settings)


@pytest.mark.parametrize("how", ["pid", "sgd", "adam"])
def test_a_policy_that_breaks_its_limit_is_not_the_best(how):
    safe = algorithm(multiplier=how, smoothing=0.5)
    assert safe.merit(7.0, {}) == 7.0
    safe.multiplier.update(torch.tensor([1.5]), torch.tensor(3))  # limit 1: missed by half, a quarter when smoothed
    assert safe.merit(7.0, {}) is None
    for _ in range(2):
        safe.multiplier.update(torch.tensor([1.0]), torch.tensor(3))
    assert safe.merit(7.0, {}) == 7.0
    (cost,) = safe.costs  # in an evaluation its own costs count, whatever those of training were
    assert safe.merit(7.0, {cost: 1.05}) == 7.0 and safe.merit(7.0, {cost: 1.2}) is None


def test_one_limit_may_stand_for_all_costs():
    assert SafeConfig(limit=10).limit == (10.0,)
    assert SafeConfig(limit=(10,)).limits(("a", "b")) == (10.0, 10.0)
    assert SafeConfig(limit=(10, 2)).limits(("a", "b")) == (10.0, 2.0)


def test_kernels_of_a_gpu_give_the_same_estimates_and_loss():
    """On rows of the same time side by side, as a rollout on a GPU lays them, with two costs between each other in memory."""

    def by_time(column: torch.Tensor) -> torch.Tensor:
        return column.transpose(0, 1).contiguous().transpose(0, 1) if column.dim() > 1 and column.shape[1] == 9 else column

    given = batch(costs=2)
    lying = Batch({name: by_time(column) for name, column in given.columns.items()})
    results = []
    for rows, where in ((given, nullcontext()), (lying, emulation())):
        safe = algorithm(costs=2, multiplier_start=0.7)
        with where:
            ready = safe.prepare(rows, 0.0)
            part = ready.rows(torch.tensor([4, 1, 5]))
            loss, metrics = safe.loss(part)
            loss.backward()
        gradient = torch.cat([p.grad.flatten() for p in safe.cost_critic.parameters()])
        results.append((ready["advantage"], ready["cost_target"], part["cost_bootstrap"], metrics["loss/cost_value"], gradient))
    for one, other in zip(*results, strict=True):
        torch.testing.assert_close(one, other, rtol=1e-4, atol=1e-5)
