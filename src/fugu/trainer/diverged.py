"""A loss or gradient that is not a number: the evidence that is kept, and the probable cause."""

from __future__ import annotations

from collections.abc import Mapping
from pathlib import Path

import torch
from torch import Tensor, nn

from fugu import files
from fugu.errors import FuguError
from fugu.rollout.batch import Batch

LARGE = 1e6


class Diverged(FuguError):
    """Training cannot go on: loss or gradient is NaN or infinite. No weight was changed by it."""

    def __init__(self, batch: Batch, metrics: Mapping[str, Tensor], policy: nn.Module) -> None:
        self.batch, self.metrics = batch, {name: float(value) for name, value in metrics.items()}
        self.cause = likely_cause(batch, policy)
        bad = ", ".join(f"{name} {value:g}" for name, value in self.metrics.items() if not torch.isfinite(torch.tensor(value)))
        super().__init__(f"training diverged ({bad}). Likely cause: {self.cause}")

    def save(self, path: Path) -> None:
        """Write the minibatch it happened on, with the losses and this message as metadata."""
        from safetensors.torch import save

        columns = {name: column.detach().cpu().contiguous() for name, column in self.batch.columns.items()}
        files.write(path, save(columns, {"message": str(self), **{name: f"{value:g}" for name, value in self.metrics.items()}}))


def likely_cause(batch: Batch, policy: nn.Module) -> str:
    """Return the first thing along the way of the data that is not as it should be."""
    for name, parameter in policy.named_parameters():
        if not torch.isfinite(parameter).all():
            return f"the weight {name} is not finite; lower --optimizer.learning-rate"
    ppo = "advantage" in batch
    for name, what in (("obs", "observations"), ("reward", "rewards")):
        column = batch[name]
        if not column.is_floating_point():
            continue
        worst = column[batch["mask"]].abs()
        if not torch.isfinite(worst).all():
            return f"{what} contain NaN or infinity; fugu check ENV finds out where from"
        if worst.numel() and worst.max() > LARGE:
            scaled = "--ppo.normalize-reward" if ppo else "rewards in another unit"
            option = "--policy.normalize-observation" if name == "obs" else scaled
            return f"{what} as large as {worst.max():.3g}; try {option}"
    if "value" in batch and batch["value"].abs().max() > LARGE:
        return f"values as large as {batch['value'].abs().max():.3g}; try --ppo.normalize-value or a lower learning rate"
    too_far = "the policy moved too far in one step; lower --optimizer.learning-rate"
    return f"{too_far} or set --ppo.target-kl 0.02" if ppo else too_far
