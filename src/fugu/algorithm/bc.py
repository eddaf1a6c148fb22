"""Behaviour cloning: do what was done, as supervised learning. With ``top``, only what was done in the best episodes (%BC).

It is what any other way to learn from recorded episodes has to be compared with: the best tenth of the episodes, imitated, is often as
good as more elaborate methods.
"""

from __future__ import annotations

from torch import Tensor

from fugu.algorithm.contract import Algorithm, Metrics, greedy_is_mode
from fugu.algorithm.parts.imitated import act_alone, imitation_loss
from fugu.algorithm.settings import BCSettings
from fugu.algorithm.setup import Setup
from fugu.rollout.acting import Act, Seen
from fugu.rollout.batch import Batch
from fugu.rollout.envs import Envs
from fugu.rollout.source import Source


class BC(Algorithm):
    Config = BCSettings

    @classmethod
    def build(cls, setup: Setup) -> BC:
        return cls(setup.policy(), setup.settings, seed=setup.seeds.act, ranks=setup.ranks)

    def source(self, envs: Envs) -> Source:
        return envs.recorded(self, self.settings.data, best=self.settings.bc.top)

    @greedy_is_mode
    def act(self, seen: Seen) -> Act:
        return act_alone(self, seen)

    def prepare(self, batch: Batch, progress: float | Tensor) -> Batch:
        self.policy.observe(batch["obs"], batch["mask"])
        return batch

    def loss(self, batch: Batch) -> tuple[Tensor, Metrics]:
        """A network with a memory sees each segment from its first row on, and knows nothing of the rows before."""
        params = self.policy(batch["obs"], None, batch["first"]).params
        return imitation_loss(self.policy.distribution, params, batch, self.ranks)
