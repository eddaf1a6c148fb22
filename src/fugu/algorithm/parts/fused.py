"""PPO of a small network in a few kernels: a horizon in one launch, a minibatch's loss and gradient in three.

They compute the same as ``PPO`` does with torch; ``ops/mlp_ppo.py`` and ``ops/mlp_rollout.py`` say which networks and environments
they take. Rollout and loss have the same arithmetic, to the bit.
"""

from __future__ import annotations

from collections.abc import Callable, Sequence
from typing import Any, cast

import torch
from torch import Tensor

from fugu.algorithm.parts.clipped import LossAndMetrics, Surrogate, in_units_of_now, loss_settings
from fugu.algorithm.parts.scale import ValueScale
from fugu.errors import ConfigError
from fugu.gpu import use
from fugu.ops.mlp_plan import MlpShape, card_of, plan_rollout, plan_update
from fugu.ops.mlp_ppo import mlp_ppo
from fugu.ops.mlp_rollout import RolloutSlabs, mlp_rollout, why_not
from fugu.policy.actor_critic import ActorCritic
from fugu.policy.encoder import Reals
from fugu.policy.net import DefaultNet
from fugu.policy.normalize import RunningMoments
from fugu.rollout.batch import Batch
from fugu.rollout.device import Slab
from fugu.vector.device import DeviceVec
from fugu.vector.device_native import NativeDevice


class FusedSurrogate:
    """Computes the same as a ``Surrogate`` in a few kernels. They do not know forbidden actions; with those, torch computes it."""

    def __init__(self, plain: Surrogate, fused: Fused) -> None:
        self.plain, self.fused = plain, fused

    def __call__(self, batch: Batch, entropy_coef: float | Tensor) -> LossAndMetrics:
        if "action_mask" in batch:
            return self.plain(batch, entropy_coef)
        c, batch = self.plain.config, in_units_of_now(batch)
        in_minibatch = c.normalize_advantage == "minibatch"
        settings = {**loss_settings(c), "entropy_coef": entropy_coef}
        total, sums = self.fused.loss(batch, normalize_advantage=in_minibatch, **settings)
        names = ("policy", "value", "entropy", "kl", "clip_fraction")
        return total, {"loss/total": total.detach(), **{f"loss/{name}": sums[name] for name in names}}


class Fused:
    """The kernels of one policy. ``passes``: 1, products in tf32; 3, nearly float32. A ConfigError says why a policy does not fit."""

    def __init__(self, policy: ActorCritic, value_scale: ValueScale | None, passes: int) -> None:
        self.policy = policy
        device = next(policy.parameters()).device
        if not use.ready(*policy.parameters()) or not use.has_tensor_cores(device):
            raise ConfigError(f"the fused network cannot be used: {device} has no kernels or no tensor cores for it")
        self.shape: MlpShape = shape_of(policy, passes, normalized=True)
        self.card = card_of(device)
        plan_update(self.shape, 1, self.card)  # refuses what does not fit
        self.moments: RunningMoments | None = moments_of(policy)
        self.value_moments = None if value_scale is None else value_scale.moments

    def loss(self, batch: Batch, **settings: Any) -> tuple[Tensor, dict[str, Tensor]]:
        return mlp_ppo(
            self.shape,
            batch["obs"],
            *parameters_of(self.policy),
            action=batch["action"],
            old_logprob=batch["logprob"],
            advantage=batch["advantage"],
            old_value=batch["value"],
            value_target=batch["value_target"],
            mask=batch["mask"],
            moments=self.moments,
            value_moments=self.value_moments,
            **settings,
        )

    def rollout(self, vec: DeviceVec, generator: torch.Generator) -> Callable[[Slab], None]:
        """Return a function that fills a slab; a ConfigError says why the environments do not fit."""
        worlds = vec.worlds
        if not isinstance(worlds, NativeDevice):
            raise TypeError("only C++ environments can be compiled into the kernel")
        why_not(self.shape, worlds)
        plan_rollout(self.shape, vec.num_agents, self.card)
        uniform: dict[torch.Size, Tensor] = {}

        def fill(slab: Slab) -> None:
            shape = slab["reward"].shape
            if shape not in uniform:
                uniform[shape] = torch.empty(shape, device=vec.device)
            uniform[shape].uniform_(generator=generator)
            columns = {name: slab[name] for name in ("obs", "first", "mask", "reward", "terminated", "truncated")}
            slabs = RolloutSlabs(**columns, **slab.acted, uniform=uniform[shape], bootstrap=slab["bootstrap"])
            weights, biases = parameters_of(self.policy)
            moments = {"moments": self.moments, "value_moments": self.value_moments}
            mlp_rollout(self.shape, worlds, slabs, weights, biases, **moments, carry=False)

        return fill


def shape_of(policy: ActorCritic, passes: int = 1, *, normalized: bool = False) -> MlpShape:
    """Return the shape of ``policy``; a ConfigError says why the fused network cannot compute it.

    ``normalized``: the caller gives ``moments_of(policy)`` to the kernels, so observations may be normalised.
    """
    net, distribution = policy.net, policy.distribution
    faults = {
        "the policy has a network of its own": not isinstance(net, DefaultNet),
        f"the policy has a memory ({policy.config.core})": policy.core is not None,
        "observations are normalised": len(policy.moments) > 0 and not normalized,
        "actions are not one choice": not (distribution.heads == distribution.dims == 1),
    }
    for reason, applies in faults.items():
        if applies:
            raise ConfigError(f"the fused network cannot be used: {reason}")
    if net.value_trunk is not None:
        raise ConfigError("the fused network cannot be used: policy and value do not share layers (share=False)")
    leaf = policy.obs_layout.leaves[0]
    if len(policy.obs_layout.row_shape) != 1:
        raise ConfigError(f"the fused network cannot be used: an observation has the axes {leaf.shape}, not one")
    if len(net.encoder.parts) != 1 or not isinstance(net.encoder.parts[0], Reals) or leaf.dtype != "float32":
        raise ConfigError("the fused network cannot be used: an observation is not one Box of float32")
    hidden = tuple(layer.out_features for layer in net.trunk.layers)
    return MlpShape(net.encoder.size, hidden, distribution.choices, net.trunk.activation, passes)


def parameters_of(policy: ActorCritic) -> tuple[Sequence[Tensor], Sequence[Tensor]]:
    """Return weights and biases, from the first layer to the head: the order of ``policy.parameters()``, each layer's weight first."""
    layers = [*policy.net.trunk.layers, policy.net.heads[0]]
    return [layer.weight for layer in layers], [layer.bias for layer in layers]


def moments_of(policy: ActorCritic) -> RunningMoments | None:
    """Return the moments that observations are normalised by."""
    return cast("RunningMoments", policy.moments["0"]) if len(policy.moments) else None
