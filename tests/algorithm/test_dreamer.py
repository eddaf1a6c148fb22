"""Returns, their scale, and where the gradients of Dreamer's losses go."""

from __future__ import annotations

import dataclasses
from collections.abc import Iterator
from typing import Any

import numpy as np
import pytest
import torch
from gymnasium import spaces as gs

from fugu.algorithm.config_dreamer import DreamerConfig
from fugu.algorithm.dreamer import Dreamer, arrived
from fugu.algorithm.parts.imagined import ReturnScale, imagine, lambda_returns
from fugu.algorithm.settings import DreamerSettings
from fugu.errors import ConfigError
from fugu.ops import roll
from fugu.policy import rssm
from fugu.policy.config import PolicyConfig
from fugu.policy.config_world import SIZES
from fugu.policy.world import World
from fugu.rollout.acting import Seen
from fugu.rollout.batch import Batch, Origin

ROWS, HORIZON = 4, 7
KINDS = {
    "discrete": gs.Discrete(3),
    "several": gs.MultiDiscrete([2, 3]),
    "continuous": gs.Box(-2, 2, (2,)),
    "mixed": gs.Dict(a=gs.Discrete(2), b=gs.Box(-1, 1, (1,)), c=gs.MultiBinary(2)),
}


@pytest.fixture(autouse=True)
def one_thread() -> Iterator[None]:
    """For work this small threads only get in each other's way."""
    threads = torch.get_num_threads()
    torch.set_num_threads(1)
    yield
    torch.set_num_threads(threads)


def made(action: gs.Space | None = None, **settings: Any) -> Dreamer:
    torch.manual_seed(0)
    world = World(gs.Box(-1, 1, (3,)), action or gs.Discrete(2), SIZES["tiny"], PolicyConfig())
    dreamer = Dreamer(world, _settings(**settings), seed=3)
    for head in (dreamer.critic, dreamer.slow, world.reward_head, world.actor):  # some start at zero
        torch.nn.init.normal_(head.out.weight, std=0.3)
    return dreamer


def _settings(**settings: Any) -> DreamerSettings:
    return DreamerSettings(dreamer=DreamerConfig(**{"size": "tiny", "starts": 8, "ahead": 4, **settings}))


def batch_of(dreamer: Dreamer) -> Batch:
    """Return a batch that the policy played, of two episodes in some segments, with the row after the last."""
    generator = torch.Generator().manual_seed(1)
    flags = {name: torch.zeros(ROWS, HORIZON, dtype=torch.bool) for name in ("first", "terminated", "truncated")}
    mask = torch.ones(ROWS, HORIZON, dtype=torch.bool)
    flags["terminated"][0, 2] = flags["truncated"][1, 3] = flags["first"][0, 4] = flags["first"][1, 5] = True
    flags["first"][2:, 0] = True
    mask[0, 3] = mask[1, 4] = False
    obs = torch.rand(ROWS, HORIZON + 1, 3, generator=generator)
    carry = dreamer.act(Seen(obs[:, 0], torch.ones(ROWS, dtype=torch.bool))).carry  # of an earlier row
    once, rows, carries = dict(carry), [], []
    for t in range(HORIZON):
        carries.append(carry)
        acted = dreamer.act(Seen(obs[:, t], flags["first"][:, t], mask=mask[:, t], carry=carry, training=True))
        carry = acted.carry
        rows.append(acted.columns["action"].clone())
    batch = Batch(
        {
            "obs": obs[:, :-1],
            "mask": mask,
            "reward": torch.randn(ROWS, HORIZON, generator=generator),
            "action": torch.stack(rows, 1),
            **flags,
        }
    )
    batch = batch.also_once(obs_after=obs[:, -1], **{name: column.clone() for name, column in once.items()})
    dreamer.carries = [*carries, carry]
    return batch


def moved(dreamer: Dreamer, batch: Batch) -> dict[str, float]:
    """Return how large the gradient of each part is."""
    for p in dreamer.parameters():
        p.grad = None
    dreamer.loss(batch)[0].backward()
    world = dreamer.policy
    parts = {"model": world.rssm, "actor": world.actor, "critic": dreamer.critic, "slow": dreamer.slow}
    return {
        name: sum(0.0 if p.grad is None else p.grad.abs().sum().item() for p in part.parameters())
        for name, part in parts.items()
    }


@pytest.mark.parametrize("lam", [0.0, 0.9, 1.0])
def test_lambda_returns_are_mixtures_of_returns_over_n_steps(lam: float):
    generator = torch.Generator().manual_seed(0)
    reward, value, goes_on = (torch.rand(9, 5, generator=generator, dtype=torch.float64) for _ in range(3))
    goes_on[3, 1] = goes_on[6, 2] = 0.0  # episodes end

    def over(t: int, n: int) -> torch.Tensor:
        total, share = torch.zeros(5, dtype=torch.float64), torch.ones(5, dtype=torch.float64)
        for i in range(1, n + 1):
            total, share = total + share * reward[t + i], share * goes_on[t + i]
        return total + share * value[t + n]

    found = lambda_returns(reward, value, goes_on, lam)
    for t in range(8):
        most = 8 - t
        mixed = sum((1 - lam) * lam ** (n - 1) * over(t, n) for n in range(1, most)) + lam ** (most - 1) * over(t, most)
        torch.testing.assert_close(found[t], mixed)


def test_the_scale_follows_percentiles_and_never_enlarges():
    x = torch.randn(4001, generator=torch.Generator().manual_seed(0)) * 30
    scale = ReturnScale()
    assert scale() == 1
    low, high = np.percentile(x.numpy(), 5), np.percentile(x.numpy(), 95)
    for n in (1, 2, 3):
        scale.update(x)
        assert abs(scale.low.item() - low * (1 - 0.99**n)) < 1e-3 and abs(scale.high.item() - high * (1 - 0.99**n)) < 1e-3
    assert abs(scale().item() - max(1, (high - low) * (1 - 0.99**3))) < 1e-2


def test_rows_are_seen_with_what_came_with_them():
    batch = batch_of(made())
    rows = arrived(batch)
    assert rows.obs.shape == (HORIZON + 1, ROWS, 3) and torch.equal(rows.obs[-1], batch["obs_after"])
    assert torch.equal(rows.reward[1:, 2], batch["reward"][2])
    assert rows.known[0].tolist() == [
        False,
        False,
        True,
        True,
    ]  # what came before the segment is not known, unless there is nothing
    assert rows.terminated[3, 0] and rows.last[3, 0] and rows.reward[3, 0] == batch["reward"][0, 2] and not rows.acted[3, 0]
    assert rows.first[4, 0] and rows.reward[4, 0] == 0 and rows.known[4, 0] and not rows.last[4, 0]
    assert rows.last[4, 1] and not rows.terminated[4, 1]
    assert int(rows.last.sum()) == 2 and rows.valid.all()


def test_rows_that_nobody_saw_count_for_nothing():
    batch = batch_of(made())
    mask = batch["mask"].clone()
    mask[3, 4:] = False  # the agent left
    found = []
    for spoil in (0.0, torch.nan):
        obs, reward = batch["obs"].clone(), batch["reward"].clone()
        obs[3, 5:], reward[3, 4:] = spoil, spoil
        after = batch["obs_after"].clone()
        after[3] = spoil
        found.append(moved(made(), batch.also(mask=mask, obs=obs, reward=reward).also_once(obs_after=after)))
    rows = arrived(batch.also(mask=mask))
    assert rows.valid[:, 3].tolist() == [True] * 5 + [False] * 3
    assert found[0] == found[1] and all(np.isfinite(list(found[0].values())))


def test_without_the_row_after_the_last_the_others_are_learned_from():
    batch = batch_of(made())
    whole, cut = arrived(batch), arrived(batch.without("obs_after"))
    for field in dataclasses.fields(cut):
        if getattr(cut, field.name) is not None:
            mine, theirs = getattr(cut, field.name), getattr(whole, field.name)
            if field.name != "valid":
                assert torch.equal(mine, theirs[: len(mine)]), field.name
    assert cut.obs.shape[0] == HORIZON and made().loss(batch.without("obs_after"))[0].isfinite()


def test_the_rows_of_segments_are_judged_by_the_states_that_acting_had(monkeypatch: pytest.MonkeyPatch):
    monkeypatch.setattr(rssm, "uniform", lambda *shape, like, generator: torch.full(shape, 0.5))  # all draw the middle
    dreamer = made()
    batch = batch_of(dreamer)
    states, _ = dreamer._observe(batch, arrived(batch))
    for t, carry in enumerate(dreamer.carries[1:]):
        torch.testing.assert_close(states.deter[t], carry["deter"].float(), atol=3e-3, rtol=0)
        assert torch.equal(states.classes()[t], carry["stoch"].long())
    forgetful = made(stored_states=False)
    states, _ = forgetful._observe(batch, arrived(batch))
    same = (states.deter[0] - dreamer.carries[1]["deter"]).abs().amax(1) < 3e-3
    assert same.tolist() == [False, False, True, True]  # those that begin an episode begin with zeros anyway


def test_the_actor_moves_itself_alone_and_the_critic_moves_the_model_by_replayed_rows_only():
    dreamer = made(entropy=0.0)
    batch = batch_of(dreamer)
    silent = {"observation": 0.0, "reward": 0.0, "continue": 0.0, "dynamics": 0.0, "representation": 0.0}

    def without_model(*args: Any) -> dict[str, torch.Tensor]:
        return {name: torch.zeros(HORIZON + 1, ROWS) for name in silent}

    dreamer.policy.losses = without_model  # type: ignore[method-assign]
    found = moved(dreamer, batch)
    assert found["actor"] > 0 < found["critic"] and found["model"] > 0 == found["slow"]
    dreamer.config = dataclasses.replace(dreamer.config, replay_value=0.0)
    found = moved(dreamer, batch)
    assert found["actor"] > 0 < found["critic"] and found["model"] == 0


def test_states_go_back_to_where_the_segments_came_from():
    dreamer, kept = made(), {}
    batch = batch_of(dreamer)
    dreamer.loss(Batch(batch.columns, batch.once, Origin(lambda columns, segments: kept.update(columns))))
    states = dreamer.carries
    for name in ("deter", "stoch"):
        assert kept[name].shape == (ROWS, HORIZON + 1, *batch[name].shape[1:]) and kept[name].dtype == batch[name].dtype
        assert torch.equal(kept[name][:, 0], batch[name])  # the state before the first row is another segment's
        assert states[0][name].shape == kept[name][:, 0].shape
    assert (kept["deter"][:, 1] - states[1]["deter"]).abs().max() < 3e-3  # nothing is drawn before it


@pytest.mark.parametrize("action", KINDS.values(), ids=KINDS)
def test_actors_of_all_kinds_of_actions_learn_what_the_model_says_pays(action: gs.Space, monkeypatch: pytest.MonkeyPatch):
    """The model is replaced by one that pays for a column of the action; only the actor and the critic learn."""
    monkeypatch.setattr(roll, "takes", lambda model, deter: False)  # torch asks the model that is put in its place
    dreamer = made(action, starts=0)
    world = dreamer.policy
    for head in (world.actor, dreamer.critic, dreamer.slow):
        torch.nn.init.zeros_(head.out.weight)
    paid: list[torch.Tensor] = []

    def follow(deter: torch.Tensor, stoch: torch.Tensor, action: torch.Tensor, generator: Any) -> Any:
        paid.append(action[:, -1].float().clamp(-1, 1))
        return deter, stoch

    world.follow = follow  # type: ignore[method-assign]
    world.reward = lambda features: torch.stack([torch.zeros_like(paid[0]), *paid])  # type: ignore[method-assign]
    world.goes_on = lambda features: torch.full(features.shape[:2], 0.9)  # type: ignore[method-assign]
    states, rows = _states(dreamer)
    means = []
    for _ in range(40):
        paid.clear()
        loss, _ = dreamer._behaviour(states, rows)
        means.append(torch.stack(paid).mean().item())
        weights = list(world.actor.parameters())
        with torch.no_grad():
            for p, gradient in zip(weights, torch.autograd.grad(loss, weights), strict=True):
                p -= 0.5 * gradient
    assert np.mean(means[-10:]) > means[0] + 0.2


def _states(dreamer: Dreamer) -> Any:
    batch = batch_of(dreamer)
    rows = arrived(batch)
    with torch.no_grad():
        return dreamer._observe(batch, rows)[0], rows


def test_what_is_forbidden_is_not_done_in_imagination():
    dreamer = made(gs.Discrete(3))
    world = dreamer.policy
    with torch.no_grad():
        world.mask_head.out.weight.zero_()
        world.mask_head.out.bias.copy_(torch.tensor([2.0, -2.0, 2.0]))
    states = torch.zeros(50, world.size.deter), torch.zeros(50, world.size.random)
    dream = imagine(world, *states, 4, torch.Generator().manual_seed(0), masked=True)
    assert set(dream.action.unique().tolist()) == {0, 2} and dream.action_mask is not None
    free = imagine(world, *states, 4, torch.Generator().manual_seed(0))
    assert set(free.action.unique().tolist()) == {0, 1, 2} and free.action_mask is None
    again = imagine(world, *states, 4, torch.Generator().manual_seed(0))
    assert torch.equal(free.features, again.features)


@torch.no_grad()
@pytest.mark.parametrize("action", KINDS.values(), ids=KINDS)
def test_the_native_dream_follows_the_model_and_the_actor(action: gs.Space, monkeypatch: pytest.MonkeyPatch):
    """Each state follows from the one before as the modules have it; actions and classes have the probabilities they give."""
    dreamer = made(action)
    world, size, rows = dreamer.policy, dreamer.policy.size, 4000
    start = torch.rand(1, size.deter).expand(rows, -1), torch.eye(size.classes)[:1].repeat(rows, size.stoch)
    assert roll.takes(world.model(), start[0])
    monkeypatch.setattr(roll, "roll_reference", None)
    dream = imagine(world, *start, 3, torch.Generator().manual_seed(0))
    for t in range(3):
        deter, stoch = dream.features[t].split([size.deter, size.random], -1)
        after = world.rssm.step(deter, stoch, world.rssm.from_action(world.action_input(dream.action[t])))
        torch.testing.assert_close(dream.features[t + 1, :, : size.deter], after, rtol=1e-4, atol=1e-5)
        drawn = dream.features[t + 1, :, size.deter :].unflatten(-1, (size.stoch, size.classes))
        assert drawn.sum(-1).eq(1).all() and set(drawn.unique().tolist()) == {0.0, 1.0}
        torch.testing.assert_close(drawn.mean(0), world.rssm.prior(after).mean(0), atol=0.04, rtol=0)
    params = world.params(dream.features[0])
    again = world.distribution.sample(params, None, torch.Generator().manual_seed(1))
    assert dream.action.dtype == again.dtype and dream.action[0].shape == again.shape
    for mine, theirs in zip(dream.action[0].float().unbind(-1), again.float().unbind(-1), strict=True):
        assert abs(mine.mean() - theirs.mean()) < 0.05 and abs(mine.std() - theirs.std()) < 0.05
    torch.testing.assert_close(dream.reward, world.reward(dream.features))
    torch.testing.assert_close(dream.goes_on, world.goes_on(dream.features))


def test_native_kernels_give_the_loss_and_the_gradients_of_torch(monkeypatch: pytest.MonkeyPatch):
    dreamer = made()
    for head in (dreamer.critic, dreamer.slow, dreamer.policy.reward_head):  # no returns in which all digits cancel
        torch.nn.init.normal_(head.out.weight, std=0.01)
    batch, state = batch_of(dreamer), dreamer.generator.get_state()
    found: list[dict[str, torch.Tensor]] = []
    for core in ("native", "torch"):
        if core == "torch":
            monkeypatch.setattr("fugu.native.native", None)
            monkeypatch.setattr(roll, "takes", lambda model, deter: True)  # for roll_reference, which has the same draws
            monkeypatch.setattr(roll, "roll", roll.roll_reference)
        dreamer.generator.set_state(state)
        dreamer.scale = ReturnScale()
        for p in dreamer.parameters():
            p.grad = None
        loss, _ = dreamer.loss(batch)
        loss.backward()
        found.append({"loss": loss.detach(), **{name: p.grad for name, p in dreamer.named_parameters() if p.grad is not None}})
    assert found[0].keys() == found[1].keys() and len(found[0]) > 60
    for name, theirs in found[1].items():
        torch.testing.assert_close(found[0][name], theirs, rtol=1e-3, atol=1e-5, msg=lambda text, name=name: f"{name}: {text}")


@pytest.mark.parametrize(
    ("setting", "message"),
    [({"size": "smal"}, "small"), ({"gamma": 1.5}, "gamma"), ({"ahead": 0}, "ahead"), ({"free_nats": -1.0}, "free_nats")],
)
def test_settings_that_mean_nothing_are_refused(setting: dict[str, Any], message: str):
    with pytest.raises(ConfigError, match=message):
        DreamerConfig(**setting)
