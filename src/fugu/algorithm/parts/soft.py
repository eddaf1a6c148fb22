"""What SAC learns from, and its losses in one native call each where its networks are plain MLPs on a CPU.

``SAC`` computes the same with torch for all other networks and for choices. Both draw the same noise from the same generator.
"""

from __future__ import annotations

from dataclasses import dataclass

import torch
from torch import Generator, Tensor, nn

from fugu.gpu import use
from fugu.ops import LOG_STD_RANGE
from fugu.ops.soft import Drawn, SoftNetworks, takes
from fugu.policy.actor_critic import ActorCritic
from fugu.policy.net import MLP, DefaultNet, leaves
from fugu.policy.squashed import LARGEST_LOG_STD, Squashed
from fugu.ranks import Ranks
from fugu.rollout.batch import Batch


@dataclass(frozen=True, slots=True)
class Rows:
    """The rows of a minibatch, one after the other, each with what the row after it shows."""

    obs: Tensor
    next_obs: Tensor
    action: Tensor
    action_mask: Tensor | None
    next_mask: Tensor | None
    reward: Tensor
    terminated: Tensor
    share: Tensor
    """[rows] share in a mean over all rows of all ranks; 0 where there is nothing to learn"""
    weight: Tensor
    """[rows] the same times the importance of a row, for the critics"""
    valid: Tensor


def rows_of(batch: Batch, ranks: Ranks) -> Rows:
    """Flatten a minibatch. An agent that waits after its action has no row yet from which its value could be told."""
    ended = batch["terminated"] | batch["truncated"]
    valid = (batch["mask"] & (ended | _next(batch, "mask", "acts_after"))).flatten()
    weight = share = valid / ranks.sum(valid.sum()).clamp(min=1)
    if "importance" in batch:
        weight = weight * batch["importance"].repeat_interleave(batch.horizon)
    masks = "action_mask" in batch
    return Rows(
        batch["obs"].flatten(0, 1),
        _next(batch, "obs", "obs_after").flatten(0, 1),
        batch["action"].flatten(0, 1),
        batch["action_mask"].flatten(0, 1) if masks else None,
        _next(batch, "action_mask", "action_mask_after").flatten(0, 1) if masks else None,
        batch["reward"].flatten(),
        batch["terminated"].flatten(),
        share,
        weight,
        valid,
    )


def _next(batch: Batch, name: str, after: str) -> Tensor:
    """Return a column of the rows after those of a batch, ``[segments, horizon, ...]``."""
    last = batch[after][:, None]
    return last if batch.horizon == 1 else torch.cat([batch[name][:, 1:], last], 1)


class SoftLosses:
    """The losses of these networks. Critics and policy are called as ``SAC`` computes the losses, one after the other."""

    bounds = (LOG_STD_RANGE[0], LARGEST_LOG_STD)

    def __init__(self, policy: ActorCritic, encoder: nn.Module, networks: SoftNetworks) -> None:
        self.policy, self.encoder, self.networks = policy, encoder, networks
        self._rows_are_features = policy.net.reads_rows and not policy.moments

    def critics(self, rows: Rows, temperature: float, gamma: float, generator: Generator) -> tuple[Tensor, Tensor, Tensor]:
        """Return the loss, what the critics say, and what that is off by, ``[critics, rows]``."""
        return self.networks.critic_loss(
            self._drawn(rows, rows.weight, temperature, generator),
            next_obs=self._features(rows.next_obs),
            action=rows.action,
            reward=rows.reward,
            terminated=rows.terminated,
            gamma=gamma,
        )

    def actor(self, rows: Rows, temperature: float, generator: Generator) -> tuple[Tensor, Tensor]:
        """Return the loss of the policy and its mean entropy."""
        return self.networks.policy_loss(self._drawn(rows, rows.share, temperature, generator))

    def _drawn(self, rows: Rows, weight: Tensor, temperature: float, generator: Generator) -> Drawn:
        noise = torch.empty_like(rows.action).normal_(generator=generator)
        return Drawn(self._features(rows.obs), noise, weight, rows.valid, temperature, self.bounds)

    def _features(self, obs: Tensor) -> Tensor:
        if self._rows_are_features:
            return obs
        return self.encoder(leaves(self.policy.structured(obs)))


def soft_losses(policy: ActorCritic, critics: nn.ModuleList, slow: nn.ModuleList) -> SoftLosses | None:
    """Return the losses of these networks; None: they are not of the kind that the kernels take."""
    net, d = policy.net, policy.distribution
    if use.emulated or policy.in_bf16 or policy.core is not None or not isinstance(net, DefaultNet):
        return None
    if not isinstance(d, Squashed) or net.log_std is not None or any(True for _ in net.encoder.parameters()):
        return None
    layers = [_layers(net.trunk, net.heads[0]), *(_layers(judge.trunk, judge.head) for judge in (*critics, *slow))]
    if not all(takes(each, net.trunk.activation) for each in layers):
        return None
    count, (first, *rest) = len(critics), layers
    judges, copies = ([p for each in half for p in each] for half in (rest[:count], rest[count:]))
    networks = SoftNetworks(first, judges, copies, count=count, activation=net.trunk.activation)
    return SoftLosses(policy, net.encoder, networks)


def _layers(trunk: MLP, head: nn.Module) -> list[Tensor]:
    """Return weight and bias of each layer in turn."""
    return [p for layer in (*trunk.layers, head) for p in layer.parameters()]  # weight and bias
