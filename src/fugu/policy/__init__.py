"""Observations to actions: networks, memory, distributions.

``config`` (the settings), ``encoder`` and ``net`` (the default network), ``load`` (a network of your own), ``recurrent`` (LSTM and
MinGRU), ``normalize`` (running moments), ``actor_critic`` (all of it put together), ``distribution`` and ``env_action`` (parameters to
actions to rows). torch is imported by the first name that computes.
"""

from __future__ import annotations

import importlib
from typing import TYPE_CHECKING, Any

from fugu.policy.config import PolicyConfig

if TYPE_CHECKING:
    from fugu.policy.actor_critic import ActorCritic, Output, make_policy
    from fugu.policy.distribution import Distribution
    from fugu.policy.normalize import RunningMoments
    from fugu.policy.recurrent import LSTM, MinGRU

_LAZY = {
    "ActorCritic": "actor_critic",
    "Distribution": "distribution",
    "LSTM": "recurrent",
    "MinGRU": "recurrent",
    "Output": "actor_critic",
    "RunningMoments": "normalize",
    "make_policy": "actor_critic",
}

__all__ = ["LSTM", "ActorCritic", "Distribution", "MinGRU", "Output", "PolicyConfig", "RunningMoments", "make_policy"]


def __getattr__(name: str) -> Any:
    if name not in _LAZY:
        raise AttributeError(f"module 'fugu.policy' has no attribute {name!r}")
    value = getattr(importlib.import_module(f"fugu.policy.{_LAZY[name]}"), name)
    globals()[name] = value
    return value
