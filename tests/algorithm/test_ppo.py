"""PPO against numbers nobody here computed: SB3's loss, hand-written V-trace, brute-force sampling."""

from __future__ import annotations

import math
from contextlib import nullcontext
from dataclasses import replace

import numpy as np
import pytest
import torch
from gymnasium import spaces as gs

from fugu.advantage import vtrace_reference
from fugu.algorithm.config import PPOConfig
from fugu.algorithm.parts.clipped import gae_of, priorities, without_open_turns
from fugu.algorithm.parts.scale import RewardScale, ValueScale
from fugu.algorithm.ppo import PPO
from fugu.errors import ConfigError
from fugu.gpu import emulation
from fugu.ops.ppo_loss import explained_variance, normalized, ppo_loss_of, row_weight
from fugu.policy.actor_critic import make_policy
from fugu.policy.config import PolicyConfig
from fugu.presets import preset
from fugu.rollout.acting import Seen
from fugu.rollout.batch import Batch
from fugu.trainer.build import make_trainer
from fugu.trainer.update import draw, minibatches
from fugu.vector.config import VectorConfig


def columns(rows: int, seed: int = 0) -> dict[str, torch.Tensor]:
    g = torch.Generator().manual_seed(seed)
    draws = {name: torch.randn(rows, generator=g) for name in ("old_value", "value_target", "advantage", "value")}
    draws["old_logprob"] = -torch.rand(rows, generator=g)
    draws["logprob"] = draws["old_logprob"] + 0.3 * torch.randn(rows, generator=g)
    draws["entropy"] = torch.rand(rows, generator=g)
    return draws


SETTINGS = {"clip": 0.2, "value_clip": 0.3, "value_coef": 0.7, "entropy_coef": 0.05}


def loss_of(c, mask, **changes):
    given = {name: c[name] for name in ("old_value", "value_target", "advantage", "old_logprob")}
    return ppo_loss_of(c["logprob"], c["entropy"], c["value"], weight=row_weight(mask), **{**SETTINGS, **given, **changes})


def test_loss_and_gradient_equal_stable_baselines():
    """The expressions of stable_baselines3/ppo/ppo.py, on its own tensors, with its value loss halved as ours is."""
    th, F = torch, torch.nn.functional
    c = {name: column.requires_grad_() for name, column in columns(500).items()}
    advantages, clip = c["advantage"], SETTINGS["clip"]
    ratio = th.exp(c["logprob"] - c["old_logprob"])
    policy_loss = -th.min(advantages * ratio, advantages * th.clamp(ratio, 1 - clip, 1 + clip)).mean()
    value_loss = F.mse_loss(c["value_target"], c["value"])
    entropy_loss = -th.mean(c["entropy"])
    expected = policy_loss + SETTINGS["entropy_coef"] * entropy_loss + SETTINGS["value_coef"] * 0.5 * value_loss
    kl = th.mean((ratio - 1) - (c["logprob"] - c["old_logprob"]))
    fraction = th.mean((th.abs(ratio - 1) > clip).float())
    inputs = [c["logprob"], c["entropy"], c["value"]]
    gradient = torch.autograd.grad(expected, inputs)
    loss = loss_of(c, torch.ones(500, dtype=torch.bool), value_clip=math.inf)
    torch.testing.assert_close(loss.total, expected)
    torch.testing.assert_close(loss.kl, kl)
    torch.testing.assert_close(loss.clip_fraction, fraction)
    for ours, theirs in zip(torch.autograd.grad(loss.total, inputs), gradient, strict=True):
        torch.testing.assert_close(ours, theirs)


def test_clipped_values_take_the_larger_error():
    c = columns(200)
    loss = loss_of(c, torch.ones(200, dtype=torch.bool))
    total = 0.0
    for value, old, target in zip(c["value"].tolist(), c["old_value"].tolist(), c["value_target"].tolist(), strict=True):
        near = min(max(value, old - 0.3), old + 0.3)
        total += 0.5 * max((value - target) ** 2, (near - target) ** 2)
    assert math.isclose(loss.value, total / 200, rel_tol=1e-5)


def test_masked_rows_reach_neither_loss_nor_gradient_be_they_nan():
    c = columns(100)
    mask = torch.rand(100, generator=torch.Generator().manual_seed(1)) < 0.6
    alone = loss_of({name: column[mask] for name, column in c.items()}, torch.ones(int(mask.sum()), dtype=torch.bool))
    spoiled = {name: torch.where(mask, column, math.nan).requires_grad_() for name, column in c.items()}
    loss = loss_of(spoiled, mask)
    for ours, expected in zip(loss, alone, strict=True):
        torch.testing.assert_close(ours, expected)
    for name in ("logprob", "entropy", "value"):
        gradient = torch.autograd.grad(loss.total, spoiled[name], retain_graph=True)[0]
        assert torch.isfinite(gradient).all() and (gradient[~mask] == 0).all()


def test_nothing_that_counts_gives_no_loss():
    loss = loss_of(columns(10), torch.zeros(10, dtype=torch.bool))
    assert loss.total == 0 and loss.kl == 0


def test_normalizing_looks_at_unmasked_rows_only():
    x = torch.tensor([1.0, 2.0, 3.0, 1e6])
    mask = torch.tensor([True, True, True, False])
    out = normalized(x, row_weight(mask))[:3]
    torch.testing.assert_close(out, torch.tensor([-1.0, 0.0, 1.0]) * math.sqrt(1.5))


@pytest.mark.parametrize("value", [1.0, 5.3, 100.3, -0.1])
@pytest.mark.parametrize("rows", [1, 4, 100, 1000])
def test_rows_that_do_not_vary_are_normalized_to_nothing(value, rows):
    out = normalized(torch.full((rows,), value), row_weight(torch.ones(rows, dtype=torch.bool)))
    assert out.dtype == torch.float32 and out.abs().max() < 1e-5


def test_explained_variance_is_that_of_the_definition():
    value, target = torch.randn(50), torch.randn(50)
    mask = torch.arange(50) < 40
    expected = 1 - (target - value)[:40].var(correction=0) / target[:40].var(correction=0)
    torch.testing.assert_close(explained_variance(value, target, mask), expected)
    assert explained_variance(value, torch.ones(50), mask) == 0


# --- the algorithm on batches ---


def make(config: PPOConfig | None = None, *, turns: bool = False, **policy) -> PPO:
    net = make_policy(gs.Box(-1, 1, (3,)), gs.Discrete(4), PolicyConfig(hidden=(16,), **policy), seed=0)
    return PPO(net, config or PPOConfig(), num_agents=8, seed=0, turns=turns)


def rollout(algorithm: PPO, seed: int = 0, segments: int = 8, horizon: int = 12) -> Batch:
    """A batch as a source would have filled it, with random endings."""
    g = torch.Generator().manual_seed(seed)
    terminated = torch.rand(segments, horizon, generator=g) < 0.1
    truncated = ~terminated & (torch.rand(segments, horizon, generator=g) < 0.1)
    ended = terminated | truncated
    mask = torch.ones_like(ended)
    mask[:, 1:] = ~ended[:, :-1]
    terminated, truncated = terminated & mask, truncated & mask
    first = torch.zeros_like(mask)
    first[:, 1:] = ~mask[:, :-1]
    obs = torch.rand(segments, horizon, 3, generator=g) * 2 - 1
    acts = [algorithm.act(Seen(obs[:, t], first[:, t])).columns for t in range(horizon)]
    stored = {name: torch.stack([act[name].clone() for act in acts], 1) for name in acts[0]}
    reward = torch.where(mask, torch.randn(segments, horizon, generator=g), 0.0)
    flags = {"terminated": terminated, "truncated": truncated, "first": first, "mask": mask}
    return Batch({"obs": obs, "reward": reward, "bootstrap": torch.randn(segments, generator=g), **flags, **stored})


def test_first_minibatch_has_ratio_one():
    algorithm = make()
    loss, metrics = algorithm.loss(algorithm.prepare(rollout(algorithm), 0.0))
    assert abs(metrics["loss/kl"]) < 1e-6 and metrics["loss/clip_fraction"] == 0
    assert torch.isfinite(loss)


def test_fresh_vtrace_is_gae_while_the_policy_has_not_moved():
    algorithm = make(PPOConfig(vtrace=True))
    batch = algorithm.prepare(rollout(algorithm), 0.0)
    out = algorithm.policy(batch["obs"], None, batch["first"])
    logprob = algorithm.policy.distribution.logprob(out.params, batch["action"])
    advantage, target = algorithm.surrogate._fresh_advantage(batch, logprob.detach(), out.value.detach())
    torch.testing.assert_close(advantage, batch["advantage"], atol=1e-5, rtol=1e-4)
    torch.testing.assert_close(target[batch["mask"]], batch["value_target"][batch["mask"]], atol=1e-5, rtol=1e-4)


def moved_on(**settings) -> tuple[PPO, Batch]:
    """Values have got other units by the batch, in which the network has not moved."""
    algorithm = make(PPOConfig(normalize_value=True, **settings))
    algorithm.value_scale.update(torch.linspace(-5, 5, 100), torch.ones(100, dtype=torch.bool))
    batch = rollout(algorithm)
    return algorithm, algorithm.prepare(batch.also(reward=50 + 100 * batch["reward"]), 0.0)


def test_values_that_are_compared_with_fresh_ones_are_in_the_same_units():
    algorithm, batch = moved_on(vtrace=True)
    out = algorithm.policy(batch["obs"], None, batch["first"])
    torch.testing.assert_close(batch["value_now"], algorithm.value_scale.real(out.value), rtol=1e-4, atol=1e-3)
    assert (batch["value_now"] - batch["value"]).abs().mean() > 1
    said = (batch["value"] - batch["value"].mean()) / batch["value"].std()
    torch.testing.assert_close(
        said, (batch["value_now"] - batch["value_now"].mean()) / batch["value_now"].std(), rtol=1e-3, atol=1e-3
    )
    seen = []
    fresh = algorithm.surrogate._fresh_advantage
    algorithm.surrogate._fresh_advantage = lambda batch, *rest: seen.append(batch) or fresh(batch, *rest)
    algorithm.loss(batch)
    assert torch.equal(seen[0]["bootstrap"], batch["bootstrap_now"])


def test_a_network_that_has_not_moved_has_no_value_clipped():
    losses = []
    for clip in (None, 0.01):
        algorithm, batch = moved_on(value_clip=clip)
        algorithm.loss(batch)[0].backward()
        losses.append(torch.cat([p.grad.flatten() for p in algorithm.policy.parameters()]))
    torch.testing.assert_close(losses[0], losses[1], rtol=1e-4, atol=1e-5)


@pytest.mark.parametrize("lam", [0.0, 0.5, 1.0])
@pytest.mark.parametrize("fresh", [False, True])
def test_waiting_rows_hand_on_what_is_paid_there_and_nothing_else(lam, fresh):
    """Against sums over the turns of one agent, which act on every third row or at the end of a game; what the network says of
    the rows between is NaN."""
    gamma, horizon = 0.9, 24
    algorithm = make(PPOConfig(gamma=gamma, lam=lam, vtrace=fresh), turns=True)
    batch = rollout(algorithm, horizon=horizon)
    alive = batch["mask"]
    acts = alive & (torch.arange(horizon) % 3 == 0)
    waits = alive & ~acts
    batch = batch.also(mask=acts, value=torch.where(waits, math.nan, batch["value"]), reward=torch.randn(8, horizon))
    if fresh:
        advantage, _ = algorithm.surrogate._fresh_advantage(batch, batch["logprob"], batch["value"])
    else:
        advantage = algorithm.prepare(batch, 0.0)["advantage"]
    c = {name: column.tolist() for name, column in batch.columns.items() if name != "obs"}
    for s in range(8):
        for t in reversed(range(horizon)):
            if not acts[s, t]:
                assert advantage[s, t] == 0
                continue
            paid, discount, u = 0.0, 1.0, t
            while True:  # to the row after which the agent acts again, or after which nothing comes
                paid += discount * c["reward"][s][u]
                discount *= gamma
                ended = c["terminated"][s][u] or c["truncated"][s][u]
                u += 1
                if ended or u == horizon or acts[s, u]:
                    break
            ahead = c["bootstrap"][s] if u == horizon else c["value"][s][u]
            later = 0.0 if ended or u == horizon else advantage[s, u].item()
            expected = paid + (0.0 if c["terminated"][s][u - 1] else discount * ahead) - c["value"][s][t]
            expected += discount * lam ** (u - t) * later
            assert advantage[s, t].item() == pytest.approx(expected, abs=1e-4)


def test_fresh_advantages_cannot_be_normalized_over_the_batch():
    with pytest.raises(ConfigError, match="try --ppo.normalize_advantage minibatch"):
        PPOConfig(vtrace=True, normalize_advantage="batch")


def test_fresh_vtrace_corrects_the_future_and_leaves_the_rows_own_ratio_to_the_surrogate():
    algorithm = make(PPOConfig(vtrace=True, gamma=0.9, lam=1.0))
    batch = algorithm.prepare(rollout(algorithm), 0.0)
    value, logprob = torch.randn(8, 12), batch["logprob"] + 0.5 * torch.randn(8, 12)
    advantage, target = algorithm.surrogate._fresh_advantage(batch, logprob, value)
    mask = batch["mask"].numpy()
    ratio = np.where(mask, (logprob - batch["logprob"]).exp().numpy(), 1).astype(np.float32)
    c = {name: batch[name].numpy() for name in ("reward", "terminated", "truncated", "bootstrap")}
    traced = vtrace_reference(value.numpy(), *c.values(), ratio, gamma=0.9, lam=1.0)
    np.testing.assert_allclose(target.numpy(), value.numpy() + traced, atol=1e-5)
    for s in range(8):  # the paper's weight, r + gamma v[t+1] - V[t], row by row
        for t in range(12):
            if not mask[s, t]:
                assert advantage[s, t] == 0
                continue
            if c["terminated"][s, t]:
                ahead = 0.0
            elif t == 11:
                ahead = c["bootstrap"][s]
            elif c["truncated"][s, t]:
                ahead = value[s, t + 1].item()
            else:
                ahead = value[s, t + 1].item() + traced[s, t + 1]
            assert math.isclose(advantage[s, t], c["reward"][s, t] + 0.9 * ahead - value[s, t], abs_tol=1e-4)


def test_target_kl_ends_the_use_of_a_batch():
    algorithm = make(PPOConfig(target_kl=0.01))
    assert algorithm.enough({"loss/kl": torch.tensor(0.02)})
    assert not algorithm.enough({"loss/kl": torch.tensor(0.001)})
    assert make().enough is None


def test_priorities_follow_the_mean_advantage_and_their_importance_undoes_them():
    advantage = torch.tensor([[1.0, 1.0], [3.0, 99.0], [0.0, 0.0], [5.0, 5.0]])
    mask = torch.tensor([[True, True], [True, False], [True, True], [False, False]])
    probability, importance = priorities(advantage, mask, 1.0, 1.0)
    torch.testing.assert_close(probability, torch.tensor([0.25, 0.75, 0.0, 0.0]), atol=1e-5, rtol=0)
    assert probability[3] == 0 and importance[3] == 0
    torch.testing.assert_close((probability * importance)[:3] / (probability * importance)[0], torch.ones(3), rtol=1e-4, atol=0)
    none, flat = priorities(torch.zeros(3, 2), torch.zeros(3, 2, dtype=torch.bool), 1.0, 1.0)
    assert torch.isfinite(none).all() and math.isclose(none.sum(), 1, rel_tol=1e-6) and torch.isfinite(flat[flat > 0]).all()


def test_drawing_by_priority_is_unbiased_after_correction():
    """Weighted means over drawn segments equal the plain mean, which is what full correction promises."""
    g = torch.Generator().manual_seed(0)
    advantage = torch.randn(64, 4, generator=g).exp()
    probability, importance = priorities(advantage, torch.ones(64, 4, dtype=torch.bool), 0.8, 1.0)
    x = torch.randn(64, generator=g)
    total, weight = 0.0, 0.0
    for _ in range(4000):
        index = draw(probability, 8, g)
        total += (x[index] * importance[index]).sum().item()
        weight += importance[index].sum().item()
    assert abs(total / weight - x.mean().item()) < 0.02


@pytest.mark.parametrize(("value_coef", "entropy_coef"), [(0.0, 0.0), (1.0, 0.0), (0.0, 1.0)])
@pytest.mark.parametrize("quiet", [False, True])
def test_no_part_of_the_loss_is_biased_by_drawing_once_it_is_corrected(value_coef, entropy_coef, quiet):
    """The mean gradient over many draws is that of the whole batch, also with a segment that is as good as never drawn."""
    algorithm = make(PPOConfig(priority=0.8, normalize_advantage="none", value_coef=value_coef, entropy_coef=entropy_coef))
    batch = rollout(algorithm, segments=16, seed=1)
    batch = algorithm.prepare(batch.also(reward=batch["reward"] * torch.linspace(0.1, 4, 16)[:, None]), progress=1.0)
    if quiet:
        advantage = batch["advantage"] * torch.where(torch.arange(16) == 0, 1e-5, 1.0)[:, None]
        probability, importance = priorities(advantage, batch["mask"], 0.8, 1.0)
        batch = batch.also(advantage=advantage, priority=probability, importance=importance)
    if value_coef or entropy_coef:
        batch = batch.also(advantage=torch.zeros_like(batch["advantage"]))

    def gradient(part):
        algorithm.policy.zero_grad()
        algorithm.loss(part)[0].backward()
        return torch.cat([p.grad.flatten() for p in algorithm.policy.parameters()])

    whole = gradient(Batch({name: column for name, column in batch.columns.items() if name not in ("priority", "importance")}))
    g = torch.Generator().manual_seed(0)
    drawn = sum(gradient(batch.rows(draw(batch["priority"], 12, g))) for _ in range(500)) / 500
    assert (drawn - whole).norm() < 0.15 * whole.norm()


def test_every_segment_is_seen_once_per_epoch():
    batch = Batch({"reward": torch.arange(12.0)[:, None].expand(12, 3).contiguous()})
    seen = [part["reward"][:, 0].tolist() for part in minibatches(batch, 4, 2, torch.Generator().manual_seed(0))]
    assert len(seen) == 8 and all(len(part) == 3 for part in seen)
    for epoch in (seen[:4], seen[4:]):
        assert sorted(x for part in epoch for x in part) == list(range(12))
    assert seen[:4] != seen[4:]


@pytest.mark.parametrize(("segments", "count"), [(13, 4), (100, 24), (3, 8)])
def test_minibatches_differ_by_no_more_than_a_segment(segments, count):
    batch = Batch({"reward": torch.arange(float(segments))[:, None]})
    sizes = [part.segments for part in minibatches(batch, count, 1, torch.Generator().manual_seed(0))]
    assert len(sizes) == min(count, segments) and sum(sizes) == segments and max(sizes) - min(sizes) <= 1


def test_reward_scale_is_the_deviation_of_discounted_returns():
    scale = RewardScale(4, gamma=0.9)
    g = torch.Generator().manual_seed(0)
    returns = []
    running = [0.0] * 4
    for _ in range(3):
        reward = torch.randn(8, 5, generator=g)  # two passes of four agents
        ended = torch.rand(8, 5, generator=g) < 0.2
        out = scale(reward, ended, torch.ones(8, 5, dtype=torch.bool))
        for start in (0, 4):
            for t in range(5):
                for agent in range(4):
                    running[agent] = 0.9 * running[agent] + reward[start + agent, t].item()
                    returns.append(running[agent])
                    running[agent] *= not ended[start + agent, t]
        torch.testing.assert_close(out, reward / float(np.std(returns)), rtol=1e-4, atol=1e-6)


@pytest.mark.parametrize("value", [0.0, 1.0, -0.1, 5.3])
def test_rewards_stay_as_they_are_while_returns_do_not_vary(value):
    scale = RewardScale(4, gamma=0.9)
    for _ in range(3):
        reward = torch.full((8, 5), value)
        torch.testing.assert_close(
            scale(reward, torch.ones(8, 5, dtype=torch.bool), torch.ones(8, 5, dtype=torch.bool)), reward
        )


def test_value_scale_goes_there_and_back():
    scale = ValueScale()
    target = torch.randn(1000) * 50 + 300
    scale.update(target, torch.ones(1000, dtype=torch.bool))
    scaled = scale.scaled(target)
    assert abs(scaled.mean()) < 1e-4 and abs(scaled.std() - 1) < 1e-2
    torch.testing.assert_close(scale.real(scaled), target, rtol=1e-4, atol=1e-3)


@pytest.mark.parametrize(
    "field, value", [("gamma", 1.5), ("clip", 0.0), ("entropy_coef", -1.0), ("target_kl", 0.0), ("lam", math.nan)]
)
def test_impossible_settings_are_refused_by_name(field, value):
    with pytest.raises(ConfigError, match=f"ppo.{field}="):
        PPOConfig(**{field: value})


def test_one_kernel_gives_the_advantages_of_the_formulas():
    algorithm = make(PPOConfig(vtrace=True, gamma=0.9, lam=0.8, rho_clip=1.2))
    batch = rollout(algorithm)
    value, logprob = torch.randn(8, 12), batch["logprob"] + 0.5 * torch.randn(8, 12)
    found = []
    for way in (nullcontext, emulation):
        with way():
            prepared = algorithm.prepare(batch, 0.0)
            fresh = algorithm.surrogate._fresh_advantage(prepared, logprob, value)
            found.append([column[batch["mask"]] for column in (prepared["advantage"], prepared["value_target"], *fresh)])
    for ours, theirs in zip(*found, strict=True):
        torch.testing.assert_close(ours, theirs, atol=1e-5, rtol=1e-5)


@pytest.mark.slow
@pytest.mark.parametrize("core", ["mingru", "lstm"])
def test_a_part_in_half_precision_teaches_what_its_copy_does(core):
    observations, policy = gs.Box(-1, 1, (5,)), PolicyConfig(hidden=(16,), core=core, core_size=16)
    algorithm = PPO(make_policy(observations, gs.Discrete(3), policy, seed=1), PPOConfig(), num_agents=8, seed=2)
    algorithm.policy.in_bf16 = True
    torch.manual_seed(0)
    by_time = {
        "obs": torch.randn(6, 8, 5),
        "first": torch.rand(6, 8) < 0.2,
        "mask": torch.rand(6, 8) < 0.8,
        "action": torch.randint(3, (6, 8, 1)),
        **{name: torch.randn(6, 8) for name in ("reward", "value", "logprob", "advantage", "value_target")},
    }
    whole = Batch(
        {
            **{n: c.transpose(0, 1) for n, c in by_time.items()},
            "state": torch.randn(8, policy.core_size * (1 + (core == "lstm"))),
        }
    )
    with emulation():
        part, copy = whole.part(2, 6), whole.rows(torch.arange(2, 6))
        parameters = list(algorithm.policy.parameters())
        ours, theirs = (torch.autograd.grad(algorithm.loss(batch)[0], parameters) for batch in (part, copy))
    assert not part["obs"].transpose(0, 1).is_contiguous() and copy["obs"].transpose(0, 1).is_contiguous()
    assert all(torch.equal(a, b) for a, b in zip(ours, theirs, strict=True))
    algorithm.policy.in_bf16 = False
    for half, full in zip(ours, torch.autograd.grad(algorithm.loss(copy)[0], parameters), strict=True):
        assert (half - full).abs().max() <= 0.05 * full.abs().max()


@pytest.mark.parametrize("by_time", [False, True])
def test_an_action_whose_outcome_a_segment_does_not_show_is_left_out(by_time):
    """Agents act on every other row. The network's word on rows of waiting, the row after the segment among them, counts nowhere."""
    own, wait = True, False
    mask = torch.tensor([[own, wait, own, wait], [wait, own, wait, own], [own, wait, own, wait], [own, wait, own, wait]])
    terminated = torch.zeros(4, 4, dtype=torch.bool)
    terminated[2, 3] = True
    acts_after = torch.tensor([wait, wait, wait, own])  # the first two are amid a wait, the third is over, the last is to act
    value = torch.where(mask, torch.tensor([3.0, 0, 5.0, 0]) + torch.tensor([0, 4.0, 0, 6.0]), 1e6)
    columns = {
        "reward": torch.full((4, 4), 0.5),
        "value": value,
        "terminated": terminated,
        "truncated": torch.zeros_like(terminated),
        "mask": mask,
    }
    if by_time:
        columns = {name: column.t().contiguous().t() for name, column in columns.items()}
    bootstrap = torch.tensor([1e6, 1e6, 1e6, 7.0])
    whole = Batch({**columns, "bootstrap": bootstrap, "acts_after": acts_after})
    batch = without_open_turns(whole)
    assert "acts_after" not in batch and whole["mask"].equal(mask) and not whole["truncated"].any()
    assert all(batch[name].stride() == whole[name].stride() for name in ("mask", "truncated"))
    assert batch["mask"].tolist() == [
        [own, wait, wait, wait],
        [wait, own, wait, wait],
        [own, wait, own, wait],
        [own, wait, own, wait],
    ]
    advantage, _ = gae_of(batch, 1.0, 1.0, turns=True)
    # reward of two rows, then the value of the next turn, or all that came
    assert advantage[batch["mask"]].tolist() == [1 + 5 - 3, 1 + 6 - 4, 2 - 3, 1 - 5, 2 + 7 - 3, 1 + 7 - 5]


def test_a_rollout_says_who_acts_after_its_last_row():
    for passes in (1, 2):
        config = replace(
            preset("connect4"), horizon=5, passes=passes, minibatch=None, vector=VectorConfig(num_envs=8, num_workers=1)
        )
        made = make_trainer(config)
        made.start()
        batches = [made.engine.collect(bool).batch for _ in range(3)]
        after = batches[-1]["acts_after"].clone()
        mask = made.engine.collect(bool).batch["mask"]
        made.close()
        assert torch.equal(after[-16:], mask[:16, 0]) and after.any() and not after.all()
