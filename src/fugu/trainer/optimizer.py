"""From a loss to new weights: backward, a bound on the gradient, Adam or Muon, and the learning rate over the run."""

from __future__ import annotations

import math
from collections.abc import Iterable, Mapping

import torch
from torch import Tensor, nn

from fugu.errors import ConfigError
from fugu.trainer.config import OptimizerConfig


class Optimizer:
    """Over named parameters; steps only if loss and gradient are finite."""

    def __init__(self, parameters: Iterable[tuple[str, nn.Parameter]], config: OptimizerConfig) -> None:
        self.config = config
        named = [(name, p) for name, p in parameters if p.requires_grad]
        self.parameters = [p for _, p in named]
        hidden = [p for name, p in named if config.name == "muon" and p.ndim == 2 and "head" not in name]
        chosen = set(map(id, hidden))
        rest = [p for p in self.parameters if id(p) not in chosen]
        self.parts: dict[str, torch.optim.Optimizer] = {}
        if rest:
            self.parts["adam"] = torch.optim.AdamW(
                rest,
                lr=config.learning_rate,
                betas=(config.beta1, config.beta2),
                eps=config.eps,
                weight_decay=config.weight_decay,
                fused=True,
            )
        if hidden:
            if not hasattr(torch.optim, "Muon"):
                raise ConfigError(f"optimizer.name=muon needs torch 2.9 or newer, this is {torch.__version__}; use adam")
            self.parts["muon"] = torch.optim.Muon(
                hidden,
                lr=config.learning_rate,
                momentum=config.beta1,
                weight_decay=config.weight_decay,
                adjust_lr_fn="match_rms_adamw",
            )

    def step(self, loss: Tensor) -> Tensor:
        """Minimise ``loss`` by one step. Returns the length of the gradient; if that is not finite, nothing was changed."""
        for p in self.parameters:
            p.grad = None
        loss.backward()
        norm = nn.utils.clip_grad_norm_(self.parameters, self.config.max_grad_norm, foreach=True)
        if torch.isfinite(norm):
            for part in self.parts.values():
                part.step()
        return norm

    def set_progress(self, progress: float) -> float:
        """Set the learning rate for this point of the run, 0 to 1, and return it."""
        rate = self.config.learning_rate * schedule(self.config, progress)
        for part in self.parts.values():
            for group in part.param_groups:
                group["lr"] = rate
        return rate

    def state(self) -> dict[str, Tensor]:
        """``part.parameter.name`` -> tensor, for a checkpoint."""
        return {
            f"{part}.{index}.{name}": value
            for part, optimizer in self.parts.items()
            for index, values in optimizer.state_dict()["state"].items()
            for name, value in values.items()
        }

    def load_state(self, state: Mapping[str, Tensor]) -> None:
        for part, optimizer in self.parts.items():
            values: dict[int, dict[str, Tensor]] = {}
            for key, value in state.items():
                owner, index, name = key.split(".", 2)
                if owner == part:
                    values.setdefault(int(index), {})[name] = value.clone()
            optimizer.load_state_dict({"state": values, "param_groups": optimizer.state_dict()["param_groups"]})


def schedule(config: OptimizerConfig, progress: float) -> float:
    """The share of the learning rate at this point of the run."""
    if progress < config.warmup:
        return progress / config.warmup
    left = (progress - config.warmup) / (1 - config.warmup)
    shape = {"constant": 1.0, "linear": 1 - left, "cosine": 0.5 * (1 + math.cos(math.pi * left))}[config.schedule]
    return shape if config.schedule == "constant" else config.final_rate + (1 - config.final_rate) * shape
