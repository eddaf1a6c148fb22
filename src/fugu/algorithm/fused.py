"""PPO of a small network in a few kernels: a horizon in one launch, a minibatch's loss and gradient in three.

What they compute is what ``PPO`` does with torch; ``cuda/mlp.py`` and ``cuda/mlp_rollout.py`` say which networks and environments
they take. Rollout and loss have the same arithmetic, to the bit.
"""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

import torch
from torch import Tensor

from fugu.algorithm.scale import ValueScale
from fugu.ops.mlp_plan import MlpShape, card_of, moments_of, parameters_of, plan_rollout, plan_update, shape_of
from fugu.ops.mlp_ppo import mlp_ppo
from fugu.ops.mlp_rollout import RolloutSlabs, mlp_rollout, why_not
from fugu.policy.actor_critic import ActorCritic
from fugu.policy.normalize import RunningMoments
from fugu.rollout.batch import Batch
from fugu.rollout.device import Slab
from fugu.vector.device import DeviceVec
from fugu.vector.device_native import NativeDevice


class Fused:
    """``passes``: 1, products in tf32; 3, nearly float32. A ConfigError says why a policy does not fit."""

    def __init__(self, policy: ActorCritic, value_scale: ValueScale | None, passes: int) -> None:
        self.policy = policy
        self.shape: MlpShape = shape_of(policy, passes, normalized=True)
        self.card = card_of(next(policy.parameters()).device)
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
        """Fills a slab; a ConfigError says why the environments do not fit."""
        worlds = vec.worlds
        if not isinstance(worlds, NativeDevice):
            raise TypeError("only C++ environments can be compiled into the kernel")
        why_not(self.shape, worlds)
        plan_rollout(self.shape, vec.num_agents, self.card)
        uniform: dict[torch.Size, Tensor] = {}

        def fill(slab: Slab) -> None:
            shape = slab.reward.shape
            if shape not in uniform:
                uniform[shape] = torch.empty(shape, device=vec.device)
            uniform[shape].uniform_(generator=generator)
            columns = {name: getattr(slab, name) for name in ("obs", "first", "mask", "reward", "terminated", "truncated")}
            slabs = RolloutSlabs(**columns, **slab.acted, uniform=uniform[shape], bootstrap=slab.bootstrap)
            weights, biases = parameters_of(self.policy)
            moments = {"moments": self.moments, "value_moments": self.value_moments}
            mlp_rollout(self.shape, worlds, slabs, weights, biases, **moments, carry=False)

        return fill
