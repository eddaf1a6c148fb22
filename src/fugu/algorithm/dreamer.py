"""Dreamer: a model of the world is learned from replayed rows, and what to do from what the model imagines (Hafner et al. 2023,
arXiv:2301.04104, as its authors have it now).

In: segments with ``action`` and what ``act`` carried before their first row: the state (``deter``, ``stoch``) and what was done
(``before``). A replay adds the row after the last. New states go back to where the segments came from.
"""

from __future__ import annotations

import copy
from collections.abc import Iterator
from dataclasses import dataclass

import torch
from torch import Tensor

from fugu.algorithm.contract import Algorithm, Metrics
from fugu.algorithm.parts.imagined import ReturnScale, imagine, lambda_returns, value_loss
from fugu.algorithm.settings import DreamerSettings
from fugu.algorithm.setup import Setup, seeded
from fugu.policy.config_world import SIZES
from fugu.policy.rssm import Head, draw
from fugu.policy.world import BINS, LAYERS, Believed, World
from fugu.ranks import ALONE, Ranks
from fugu.rollout.acting import Act, Seen
from fugu.rollout.batch import Batch
from fugu.rollout.envs import Envs
from fugu.rollout.source import Source

WEIGHTS = {"representation": 0.1}
"""weights of the model's losses, where they are not 1: observed states are pulled towards expected ones less than the reverse"""
ARRIVING = ("reward", "continue")
"""losses of what came with a row"""
SLOW = 0.02
"""share of the critic that its slow copy takes on with each step"""


@dataclass(frozen=True, slots=True)
class Arrived:
    """Rows as the model sees them, ``[time, segments]``: each with what came with it."""

    obs: Tensor
    """[time, segments, *row]; zeros where ``valid`` is False"""
    first: Tensor
    valid: Tensor
    """row was seen by an agent"""
    known: Tensor
    """what came with it is known too"""
    reward: Tensor
    terminated: Tensor
    last: Tensor
    """row is the last of its episode"""
    acted: Tensor
    """[time - 1, segments]; something was done on the row"""
    action_mask: Tensor | None


class Dreamer(Algorithm):
    Config = DreamerSettings
    policy: World

    def __init__(self, world: World, settings: DreamerSettings, *, seed: int = 0, ranks: Ranks = ALONE) -> None:
        super().__init__(world, settings, seed=seed, ranks=ranks)
        self.config = settings.dreamer
        self.critic = Head(world.size.state, world.size.units, LAYERS, BINS, 0.0).to(self.device)
        self.slow = copy.deepcopy(self.critic).requires_grad_(False)
        self.scale = ReturnScale(ranks).to(self.device)

    @classmethod
    def build(cls, setup: Setup) -> Dreamer:
        c = setup.settings.dreamer
        spaces = setup.envs.observation_space, setup.envs.action_space
        world = setup.finished(seeded(setup.seeds.weights, lambda: World(*spaces, SIZES[c.size], setup.net, c.remember)))
        make = lambda: cls(world, setup.settings, seed=setup.seeds.act, ranks=setup.ranks)  # noqa: E731
        return seeded(setup.seeds.critic, make)

    def source(self, envs: Envs) -> Source:
        return envs.replay(self, self.settings.replay)

    # --- playing ---

    @torch.inference_mode()
    def act(self, seen: Seen) -> Act:
        world, actions = self.policy, self.policy.distribution
        generator = seen.generator or self.generator
        deter, stoch = self._believed(seen, generator)
        features = torch.cat([deter, stoch], -1)
        params = world.params(features, seen.action_mask)
        if seen.greedy:
            action = actions.mode(params, seen.action_mask)
        else:
            action = actions.sample(params, seen.action_mask, generator)
        before = world.action_input(action)
        if seen.mask is not None:
            before = before * seen.mask[:, None]
        classes = stoch.unflatten(-1, (-1, world.size.classes)).argmax(-1)
        after = {"deter": deter.half(), "stoch": classes.byte(), "before": before}
        columns = {"action": action}
        if not seen.training:
            columns["value"] = world.two_hot.mean(self.critic(features))
        return Act(actions.to_env(action), after, columns)

    @torch.inference_mode()
    def params(self, seen: Seen) -> Tensor:
        """Return the parameters of ``policy.distribution`` on these rows."""
        state = self._believed(seen, seen.generator or self.generator)
        return self.policy.params(torch.cat(state, -1), seen.action_mask)

    def _believed(self, seen: Seen, generator: torch.Generator) -> tuple[Tensor, Tensor]:
        """Return the state after these rows, ``deter`` and ``stoch``."""
        world, rows = self.policy, len(seen.first)
        keep = ~seen.first[:, None]
        carry = seen.carry or {
            "deter": torch.zeros(rows, world.size.deter, dtype=torch.float16, device=self.device),
            "stoch": torch.zeros(rows, world.size.stoch, dtype=torch.uint8, device=self.device),
            "before": torch.zeros(rows, world.action_input.size, device=self.device),
        }
        rssm = world.rssm
        features = world.encoded(world.encoder(world.leaves(seen.obs)))
        deter, stoch = world.state(carry)
        deter = rssm.step(deter * keep, stoch * keep, rssm.from_action(carry["before"] * keep))
        return deter, draw(rssm.posterior(deter, rssm.seen(features)), generator, greedy=seen.greedy)

    # --- learning ---

    @torch.no_grad()
    def prepare(self, batch: Batch, progress: float | Tensor) -> Batch:
        self.policy.take_in(batch["obs"], batch["mask"])
        return batch

    def losses(self, batch: Batch) -> Iterator[tuple[Tensor, Metrics]]:
        yield self.loss(batch)
        self._follow()

    def loss(self, batch: Batch) -> tuple[Tensor, Metrics]:
        world, c = self.policy, self.config
        rows = arrived(batch)
        count = self.ranks.sum(rows.valid.sum()).clamp(min=1)
        states, leaves = self._observe(batch, rows)
        batch.hand_back(**handed_back(batch, states))
        goes_on = c.gamma * (1 - rows.terminated.float())
        of_model = world.losses(states, leaves, rows.reward, goes_on, rows.action_mask, c.free_nats)
        losses = {
            name: torch.where(rows.known if name in ARRIVING else rows.valid, loss, 0.0).sum() / count
            for name, loss in of_model.items()
        }
        model = torch.stack([WEIGHTS.get(name, 1.0) * loss for name, loss in losses.items()]).sum()
        behaviour, found = self._behaviour(states, rows)
        replayed = self._replayed_value(states.features, rows, goes_on) / count
        metrics = {**{f"loss/{name}": loss.detach() for name, loss in losses.items()}, **found}
        return model + behaviour + c.replay_value * replayed, metrics

    def _observe(self, batch: Batch, rows: Arrived) -> tuple[Believed, list[Tensor]]:
        """Return the states of rows, and the leaves of their observations."""
        world = self.policy
        leaves = world.leaves(rows.obs.flatten(0, 1))
        done = world.action_input(by_time(batch["action"])[: len(rows.acted)]) * rows.acted.unsqueeze(-1)
        before = torch.cat([batch["before"][None], done])
        deter, stoch = world.state(batch.columns)
        if not self.config.stored_states:
            deter, stoch = torch.zeros_like(deter), torch.zeros_like(stoch)
        return world.observe(leaves, before, rows.first, deter, stoch, self.generator), leaves

    def _behaviour(self, states: Believed, rows: Arrived) -> tuple[Tensor, Metrics]:
        """Return the losses of actor and critic on imagined rows; no gradient goes into the model."""
        world, c = self.policy, self.config
        deter, stoch, valid, ended = (
            x.detach().flatten(0, 1) for x in (states.deter, states.stoch, rows.valid, rows.terminated)
        )
        if 0 < c.starts < len(deter):
            chance = torch.rand(len(deter), generator=self.generator, device=self.device)
            picked = torch.where(valid, chance, -1.0).topk(c.starts).indices
            deter, stoch, valid, ended = deter[picked], stoch[picked], valid[picked], ended[picked]
        dream = imagine(world, deter, stoch, c.ahead, self.generator, masked=rows.action_mask is not None)
        features, action = dream.features[:-1], dream.action[:-1]
        mask = None if dream.action_mask is None else dream.action_mask[:-1]
        logits, value, slow = self._judged(dream.features)
        with torch.no_grad():
            returns = lambda_returns(dream.reward, value, dream.goes_on, c.lam)
            goes_on = torch.cat([(valid & ~ended).float()[None], dream.goes_on[1:-1]])
            weight = goes_on.cumprod(0)
            self.scale.update(returns)
            advantage = (returns - value[:-1]) / self.scale()
        logprob, entropy = world.distribution.evaluate(world.params(features, mask), action, mask)
        share = 1 / self.ranks.size
        policy = -(weight * (logprob * advantage + c.entropy * entropy)).mean() * share
        critic = (weight * value_loss(world.two_hot, logits, slow, returns)).mean() * share
        found = {"policy": policy, "value": critic, "entropy": entropy.mean() * share, "return": returns.mean() * share}
        found["return_scale"] = self.scale() * share
        return policy + critic, {f"loss/{name}": number.detach() for name, number in found.items()}

    def _replayed_value(self, features: Tensor, rows: Arrived, goes_on: Tensor) -> Tensor:
        """Return the sum of the critic's losses on replayed rows; its gradient goes into the model."""
        logits, value, slow = self._judged(features)
        with torch.no_grad():
            returns = lambda_returns(rows.reward, value, goes_on, self.config.lam * (1 - rows.last.float()))
        loss = value_loss(self.policy.two_hot, logits, slow, returns)
        return torch.where(rows.acted, loss, 0.0).sum()

    def _judged(self, features: Tensor) -> tuple[Tensor, Tensor, Tensor]:
        """Return what the critic says of states: logits with gradient and the values of its slow copy of all but the last in time, and
        the values that it means of all."""
        mean, before = self.policy.two_hot.mean, features[:-1]
        logits = self.critic(before)
        with torch.no_grad():
            value = torch.cat([mean(logits), mean(self.critic(features[-1:]))])
            return logits, value, mean(self.slow(before))

    @torch.no_grad()
    def _follow(self) -> None:
        """Move the slow critic a little towards the other."""
        torch._foreach_lerp_(list(self.slow.parameters()), list(self.critic.parameters()), SLOW)


def arrived(batch: Batch) -> Arrived:
    """Return the rows of a batch, and the one after the last where it is there, with what came with each: the outcome of the row
    before, if that was acted on."""
    obs, first, mask, allowed = batch["obs"], batch["first"], batch["mask"], batch.get("action_mask")
    if "obs_after" in batch:
        nobody = torch.zeros_like(mask[:, :1])
        obs = torch.cat([obs, batch["obs_after"][:, None]], 1)
        first, mask = torch.cat([first, nobody], 1), torch.cat([mask, nobody], 1)
        if allowed is not None:
            after = batch.get("action_mask_after")
            after = torch.ones_like(allowed[:, 0]) if after is None else after
            allowed = torch.cat([allowed, after[:, None]], 1)
    acted = mask[:, :-1]
    unknown = torch.zeros_like(first[:, :1])

    def came(name: str) -> Tensor:
        column = batch[name][:, : acted.shape[1]]
        column = torch.where(acted, column, torch.zeros_like(column))
        return by_time(torch.cat([torch.zeros_like(column[:, :1]), column], 1))

    arrives = torch.cat([unknown, acted], 1) & ~first
    valid = mask | arrives
    obs = obs.masked_fill(~valid.view(*valid.shape, *(1,) * (obs.dim() - 2)), 0)
    terminated, truncated = came("terminated"), came("truncated")
    seen, known = by_time(valid), by_time(arrives | (first & mask))
    rows = by_time(obs), by_time(first), seen, known, came("reward"), terminated, terminated | truncated, by_time(acted)
    return Arrived(*rows, None if allowed is None else by_time(allowed))


def handed_back(batch: Batch, states: Believed) -> dict[str, Tensor]:
    """Return the states before all rows of a batch and, where it is there, the row after the last."""
    found = {"deter": states.deter.detach().half(), "stoch": states.classes().byte()}
    return {name: torch.cat([batch[name][:, None], by_time(column[:-1])], 1) for name, column in found.items()}


def by_time(x: Tensor) -> Tensor:
    """Swap the axes of segments and time."""
    return x.transpose(0, 1)
