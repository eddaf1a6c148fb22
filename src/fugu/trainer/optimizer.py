"""From a loss to new weights: backward, a bound on the gradient, Adam, Muon or LaProp, and the learning rate over the run."""

from __future__ import annotations

import math
import numbers
import warnings
from collections.abc import Mapping
from types import MappingProxyType
from typing import Any

import torch
from torch import Tensor, nn

from fugu.errors import ConfigError
from fugu.ops.adam import Adam, DeviceAdam, make_adam
from fugu.ops.laprop import LaProp
from fugu.ops.laprop_device import DeviceLaProp, make_laprop
from fugu.ranks import ALONE, Ranks
from fugu.trainer.config_parts import OptimizerConfig
from fugu.trainer.sound import check_optimizer

ON_DEVICE = (DeviceAdam, DeviceLaProp)
"""optimizers that bound the gradient themselves and wait for nothing"""


class Optimizer:
    """Steps over the parameters of named modules, each with its own bound on the gradient; only if all gradients are finite. Modules
    that a loss does not reach stay as they are."""

    def __init__(
        self,
        modules: Mapping[str, nn.Module],
        config: OptimizerConfig,
        ranks: Ranks = ALONE,
        *,
        rates: Mapping[str, float] = MappingProxyType({}),
    ) -> None:
        """``rates``: factor on the learning rate by module, where it is not 1."""
        self.config, self.ranks = config, ranks
        self.parts = {
            name: Part(module, config, rates.get(name, 1.0))
            for name, module in modules.items()
            if any(map(_learns, module.parameters()))
        }
        if unknown := sorted(rates.keys() - self.parts.keys()):
            raise ConfigError(f"rates names {unknown[0]!r}, which is no part that learns; there are {', '.join(self.parts)}")
        self.parameters = [p for part in self.parts.values() for p in part.parameters]
        self.own_rate: float | None = None
        """learning rate in place of the schedule's; None: the schedule decides"""
        self._own_on_device: Tensor | None = None
        """the same where updates are recorded, which read it from there; NaN for None"""

    def step(self, loss: Tensor) -> Tensor:
        """Minimise ``loss`` by one step. Returns the length of the gradient; if that is not finite, nothing was changed.

        If all parts are on a device, nothing waits for the device, and a CUDA graph can capture all of it.
        """
        for p in self.parameters:
            p.grad = None
        loss.backward()
        if self.ranks.size > 1:
            self._add_up()
        parts = [part for part in self.parts.values() if part.reached]
        if not parts:
            return torch.zeros((), device=loss.device)
        waiting = [part for part in parts if not isinstance(part.adam, ON_DEVICE)]
        norms = [part.norm() for part in waiting]
        lengths = [norm.item() for norm in norms]
        if all(map(math.isfinite, lengths)):
            for part, norm, length in zip(waiting, norms, lengths, strict=True):
                part.step(norm, length)
        norms += [part.adam.step(self.config.max_grad_norm) for part in parts if isinstance(part.adam, ON_DEVICE)]
        return norms[0] if len(norms) == 1 else torch.stack(norms).square().sum().sqrt()

    def _add_up(self) -> None:
        """Add the gradients of all ranks, as one flat vector: the loss is the sum of their losses."""
        reached = [p for part in self.parts.values() if part.reached for p in part.parameters]  # the same on all ranks
        if not reached:
            return
        grads = [torch.zeros_like(p) if p.grad is None else p.grad for p in reached]
        flat = self.ranks.sum(torch.cat([grad.reshape(-1) for grad in grads]))
        for p, part in zip(reached, flat.split([p.numel() for p in reached]), strict=True):
            p.grad = part.view(p.shape)

    def set_progress(self, progress: float | Tensor) -> Any:
        """Set the learning rate for this point of the run, 0 to 1, and return it."""
        rate = self.config.learning_rate * schedule(self.config, progress)
        if self._own_on_device is not None:
            rate = torch.where(self._own_on_device.isnan(), rate, self._own_on_device)
        elif self.own_rate is not None:
            rate = self.own_rate
        for part in self.parts.values():
            part.set_rate(rate)
        return rate

    def set_own_rate(self, rate: float | None) -> None:
        """Let steps have this learning rate from now on, or with None that of the schedule."""
        if rate is not None and not (isinstance(rate, numbers.Real) and 0 <= rate < math.inf):
            raise ConfigError(f"learning_rate={rate!r:.60} must be a finite number that is not negative, or None")
        self.own_rate = None if rate is None else float(rate)
        if self._own_on_device is not None:
            self._own_on_device.fill_(math.nan if rate is None else self.own_rate)

    def load_own_rate(self, rate: float | None, *, wanted: bool) -> None:
        """Go on at the rate that was set when the run was saved; ``wanted`` if there is again who sets the next one."""
        if wanted:
            self.set_own_rate(rate)
        elif rate is not None:
            warnings.warn(
                f"a callback had set the learning rate to {rate:g}; without callbacks it is that of optimizer.schedule again",
                RuntimeWarning,
                stacklevel=3,
            )

    def keep_own_rate_on(self, device: torch.device) -> None:
        """Keep the learning rate that is set where recorded updates can read it. To be called before they are recorded."""
        self._own_on_device = torch.full((), math.nan, device=device)
        self.set_own_rate(self.own_rate)

    def state(self) -> dict[str, Tensor]:
        """Return the state: ``adam.name`` and ``muon.parameter.name`` -> tensor for the policy, the same after ``module/`` for
        others."""
        return {_prefix(name) + key: value for name, part in self.parts.items() for key, value in part.state().items()}

    def load_state(self, state: Mapping[str, Tensor]) -> None:
        check_optimizer(state)
        for name, part in self.parts.items():
            mine = {
                key.rpartition("/")[2]: value for key, value in state.items() if key.rpartition("/")[0] == _prefix(name)[:-1]
            }
            part.load_state(mine)


def _prefix(module: str) -> str:
    return "" if module == "policy" else f"{module}/"


def _learns(parameter: nn.Parameter) -> bool:
    return parameter.requires_grad


def hidden_matrices(module: nn.Module) -> set[str]:
    """Return the matrices that Muon is for: neither tables of embeddings nor the last layer, whose name is or ends with ``head``."""
    tables = {id(part.weight) for part in module.modules() if isinstance(part, nn.Embedding)}

    def last(name: str) -> bool:
        return any(part in ("head", "heads") or part.endswith("_head") for part in name.split("."))

    return {name for name, p in module.named_parameters() if p.ndim == 2 and id(p) not in tables and not last(name)}


class Part:
    """One module: Adam or LaProp for it, or Muon for its hidden matrices and Adam for the rest."""

    def __init__(self, module: nn.Module, config: OptimizerConfig, factor: float = 1.0) -> None:
        """``factor``: of the learning rate."""
        self.config, self.factor = config, factor
        named = [(name, p) for name, p in module.named_parameters() if _learns(p)]
        self.parameters = [p for _, p in named]
        hidden = [p for name, p in named if name in hidden_matrices(module)] if config.name == "muon" else []
        chosen = set(map(id, hidden))
        rest = [p for p in self.parameters if id(p) not in chosen]
        self.adam: Adam | DeviceAdam | LaProp | DeviceLaProp | None = None
        self.muon: torch.optim.Optimizer | None = None
        if config.name == "laprop":
            betas = (config.beta1, config.beta2)
            self.adam = make_laprop(
                rest, learning_rate=config.learning_rate, betas=betas, eps=config.eps, clip=config.adaptive_clip
            )
        elif rest:
            self.adam = make_adam(
                rest,
                alone=not hidden,
                learning_rate=config.learning_rate,
                betas=(config.beta1, config.beta2),
                eps=config.eps,
                weight_decay=config.weight_decay,
            )
        if hidden:
            if not hasattr(torch.optim, "Muon"):
                raise ConfigError(f"optimizer.name=muon needs torch 2.9 or newer, this is {torch.__version__}; use adam")
            self.muon = torch.optim.Muon(
                hidden,
                lr=config.learning_rate,
                momentum=config.beta1,
                weight_decay=config.weight_decay,
                adjust_lr_fn="match_rms_adamw",
            )

    @property
    def reached(self) -> bool:
        """True if the last loss has a gradient here."""
        return any(p.grad is not None for p in self.parameters)

    def norm(self) -> Tensor:
        grads = [p.grad for p in self.parameters if p.grad is not None]
        if len({(grad.device, grad.dtype) for grad in grads}) > 1:
            return nn.utils.get_total_norm(grads)
        return torch.linalg.vector_norm(torch.stack(torch._foreach_norm(grads)))  # the same, without sorting them by device

    def step(self, norm: Tensor, length: float) -> None:
        """Follow the gradient, whose length is given as a tensor and as a number."""
        if length > self.config.max_grad_norm:
            nn.utils.clip_grads_with_norm_(self.parameters, self.config.max_grad_norm, norm)
        for part in (self.adam, self.muon):
            if part is not None:
                part.step()

    def set_rate(self, rate: Any) -> None:
        rate = rate if self.factor == 1 else rate * self.factor
        if self.adam is not None:
            self.adam.learning_rate = rate
        if self.muon is not None:
            for group in self.muon.param_groups:
                group["lr"] = rate

    def state(self) -> dict[str, Tensor]:
        state = {} if self.adam is None else {f"adam.{name}": value for name, value in self.adam.state().items()}
        if self.muon is not None:
            for index, values in self.muon.state_dict()["state"].items():
                state.update({f"muon.{index}.{name}": value for name, value in values.items()})
        return state

    def load_state(self, state: Mapping[str, Tensor]) -> None:
        if self.adam is not None:
            self.adam.load_state({name: state[f"adam.{name}"] for name in ("steps", "mean", "square")})
        if self.muon is not None:
            values: dict[int, dict[str, Tensor]] = {}
            for key, value in state.items():
                owner, _, rest = key.partition(".")
                if owner == "muon":
                    index, name = rest.split(".", 1)
                    values.setdefault(int(index), {})[name] = value.clone()
            self.muon.load_state_dict({"state": values, "param_groups": self.muon.state_dict()["param_groups"]})


def schedule(config: OptimizerConfig, progress: float | Tensor) -> Any:
    """Return the share of the learning rate at this point of the run; a tensor on the device of ``progress``, if that is one."""
    if isinstance(progress, Tensor):
        return _schedule_on_device(config, progress)
    if progress < config.warmup:
        return progress / config.warmup
    left = (progress - config.warmup) / (1 - config.warmup)
    shape = {"constant": 1.0, "linear": 1 - left, "cosine": 0.5 * (1 + math.cos(math.pi * left))}[config.schedule]
    return shape if config.schedule == "constant" else config.final_rate + (1 - config.final_rate) * shape


def _schedule_on_device(config: OptimizerConfig, progress: Tensor) -> Tensor:
    left = ((progress - config.warmup) / (1 - config.warmup)).clamp(0.0, 1.0)
    if config.schedule == "constant":
        share = torch.ones_like(left)
    else:
        shape = 1 - left if config.schedule == "linear" else 0.5 * (1 + torch.cos(math.pi * left))
        share = config.final_rate + (1 - config.final_rate) * shape
    return torch.where(progress < config.warmup, progress / config.warmup, share) if config.warmup else share
