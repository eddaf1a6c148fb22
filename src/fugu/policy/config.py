"""Settings of a policy, checked before anything is built."""

from __future__ import annotations

import math
import operator
from dataclasses import dataclass
from typing import Any, Literal

from fugu.errors import ConfigError, did_you_mean
from fugu.ops import LOG_STD_RANGE

Activation = Literal["tanh", "relu", "gelu", "silu"]
Core = Literal["none", "lstm", "mingru"]
Std = Literal["free", "state"]

_CHOICES = {
    "activation": ("tanh", "relu", "gelu", "silu"),
    "core": ("none", "lstm", "mingru"),
    "std": ("free", "state"),
}


@dataclass(frozen=True, kw_only=True)
class PolicyConfig:
    """Settings of the network that maps observations to actions and values."""

    net: str = "default"
    """Network: default (built from the spaces), transformer (writes texts; for grpo and token_ppo), or a module of your own with
    encode and decode: file.py:Net or package.module:Net"""
    start: str | None = None
    """Weights to begin with: a run, whose newest policy and network's settings are taken, policy.safetensors of a checkpoint, or a file
    written by fugu.trainer.imitation.save_weights"""
    hidden: tuple[int, ...] = (64, 64)
    """Widths of the layers that follow the encoded observation; empty: the heads read it directly"""
    activation: Activation = "tanh"
    """Activation after each of the hidden layers: tanh, relu, gelu or silu"""
    share: bool = True
    """Let policy and value share the hidden layers; otherwise each has its own (images and embeddings are shared even then)"""
    core: Core = "none"
    """Memory between encoder and heads: none, lstm or mingru"""
    core_size: int = 128
    """Width of the memory"""
    core_layers: int = 1
    """Layers of the memory; more than 1 only for mingru"""
    std: Std = "free"
    """Deviation of continuous actions: free (one learned number per action) or state (an output of the network)"""
    initial_std: float = 1.0
    """Standard deviation of continuous actions at the start; 1 is half the range of a bounded action"""
    embedding: int = 16
    """Width of the embedding of a choice in a large discrete part of the observation, a cell of a small grid or a character"""
    kinds: int = 0
    """Integer observations with at most this many values (cells of a board, say) are one-hot encoded or embedded; 0: none, they are
    read as numbers"""
    width: int = 64
    """Width of the transformer, in numbers per token"""
    layers: int = 2
    """Layers of the transformer"""
    attention_heads: int = 4
    """Attention heads of the transformer; must divide its width"""
    normalize_observation: bool = False
    """Shift and scale real-valued observations to mean 0 and deviation 1, as seen so far; the moments are saved with the policy"""

    def __post_init__(self) -> None:
        for name, choices in _CHOICES.items():
            value = getattr(self, name)
            if value not in choices:
                hint = did_you_mean(str(value), choices)
                raise ConfigError(
                    f"{name}={value!r} must be one of {', '.join(choices)}.{hint} Type --policy.{name} {choices[0]}"
                )
        known = self.net in ("default", "transformer")
        if not isinstance(self.net, str) or (not known and not all(self.net.rpartition(":"))):
            raise ConfigError(
                f"net={self.net!r} must be default, transformer, file.py:Net or module:Net; type --policy.net my_policy.py:Net"
            )
        try:
            hidden = tuple(_whole("hidden", width) for width in self.hidden)
        except TypeError:
            raise ConfigError(f"hidden={self.hidden!r} must be a list of widths; type --policy.hidden 64 64") from None
        object.__setattr__(self, "hidden", hidden)
        for name in ("core_size", "core_layers", "embedding", "width", "layers", "attention_heads"):
            object.__setattr__(self, name, _whole(name, getattr(self, name)))
        if self.width % self.attention_heads:
            raise ConfigError(
                f"width={self.width} must be a multiple of attention_heads={self.attention_heads}; type --policy.width "
                f"{-(-self.width // self.attention_heads) * self.attention_heads}"
            )
        low, high = (math.exp(bound) for bound in LOG_STD_RANGE)
        std = self.initial_std
        if isinstance(std, bool) or not isinstance(std, int | float) or not low <= std <= high:
            raise ConfigError(f"initial_std={std!r} must be a number from {low:.1g} to {high:.1f}; type --policy.initial_std 1")
        if self.core != "mingru" and self.core_layers != 1:
            raise ConfigError(
                f"core_layers={self.core_layers} needs core=mingru, got core={self.core}; type --policy.core mingru "
                "or --policy.core_layers 1"
            )
        if self.core != "none" and not self.share:
            raise ConfigError(
                f"share=False keeps policy and value apart, but core={self.core} stands between them and their layers; "
                "type --policy.share true or --policy.core none"
            )


def _whole(name: str, value: Any) -> int:
    if isinstance(value, bool) or not hasattr(value, "__index__") or operator.index(value) < 1:
        raise ConfigError(f"{name}={value!r} must be a whole number of at least 1; type --policy.{name} 64")
    return operator.index(value)
