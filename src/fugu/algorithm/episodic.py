"""What algorithms have in common that learn from whole episodes of what a ``Chooser`` chose, one of each environment: acting, and
the parts of the contract that they have no use for.
"""

from __future__ import annotations

from collections.abc import Mapping
from typing import TYPE_CHECKING

import torch
from torch import Tensor

from fugu.errors import ConfigError
from fugu.policy.choices import Chooser
from fugu.rollout.batch import Batch
from fugu.rollout.device import Whole
from fugu.rollout.onpolicy import Act
from fugu.vector.device import DeviceVec

if TYPE_CHECKING:
    from fugu.trainer.config import TrainConfig


def check_passes(config: TrainConfig) -> None:
    if config.passes > 1:
        raise ConfigError(
            f"passes={config.passes}: {config.algorithm} takes one episode of each environment; try --vector.num-envs "
            f"{config.passes * config.vector.num_envs} --passes 1"
        )


class Episodic:
    policy: Chooser
    generator: torch.Generator

    @property
    def columns(self) -> dict[str, tuple[tuple[int, ...], torch.dtype]]:
        distribution = self.policy.distribution
        return {
            "action": ((distribution.dims,), distribution.dtype),
            "logprob": ((self.policy.tokens,), torch.float32),
        }

    @property
    def state_size(self) -> int:
        return self.policy.state_size

    @torch.inference_mode()
    def act(
        self,
        obs: Tensor,
        state: Tensor | None,
        first: Tensor,
        action_mask: Tensor | None,
        *,
        greedy: bool = False,
        into: Mapping[str, Tensor] | None = None,
        generator: torch.Generator | None = None,
    ) -> Act:
        drawn = self.policy.draw(obs, state, first, action_mask, generator or self.generator, greedy=greedy)
        return Act(
            self.policy.distribution.to_env(drawn.action), drawn.state, {"action": drawn.action, "logprob": drawn.logprob}
        )

    def cut_off(self, batch: Batch) -> Tensor:
        """``[segments]``: episodes that were truncated, or in which a text was."""
        unfinished = self.policy.unfinished(batch["action"]).to(batch["mask"].device) & batch["mask"]
        return (batch["truncated"] | unfinished).any(1)

    def merit(self, score: float) -> float | None:
        return score

    def fuse(self, config: TrainConfig) -> None:
        """There are no kernels for it."""

    def whole(self, vec: DeviceVec) -> Whole | None:
        return None

    def restarted(self) -> None:
        """Nothing goes on from batch to batch."""

    def state(self) -> dict[str, Tensor]:
        return {"generator": self.generator.get_state()}

    def load_state(self, state: Mapping[str, Tensor]) -> None:
        self.generator.set_state(state["generator"])
