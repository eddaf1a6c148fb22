"""Functions shared by algorithms that learn from whole episodes of a ``Chooser``'s choices."""

from __future__ import annotations

import torch
from torch import Tensor

from fugu.algorithm.parts.clipped import carry_of, state_of
from fugu.policy.choices import Chooser
from fugu.rollout.acting import Act, Seen
from fugu.rollout.batch import Batch


def draw(policy: Chooser, seen: Seen, generator: torch.Generator) -> Act:
    """Choose with ``policy``, and keep ``action`` and the ``logprob`` of each of its choices."""
    drawn = policy.draw(seen.obs, state_of(policy, seen), seen.first, seen.action_mask, generator, greedy=seen.greedy)
    columns = {"action": drawn.action, "logprob": drawn.logprob}
    return Act(policy.distribution.to_env(drawn.action), carry_of(drawn.state), columns)


def cut_off(policy: Chooser, batch: Batch) -> Tensor:
    """Return ``[segments]``: which episodes were truncated, or contain a text that was."""
    unfinished = policy.unfinished(batch["action"]).to(batch["mask"].device) & batch["mask"]
    return (batch["truncated"] | unfinished).any(1)
