"""Refuse a backend that keeps programs apart less well than the settings ask for. Fails closed: less is an error, unless it
was allowed by name. (``fork`` asks ``probe``, which knows what the machine lacks and how to get it.)
"""

from __future__ import annotations

from fugu.coding.sandbox.config import FEATURES, SandboxConfig
from fugu.coding.sandbox.contract import Isolation
from fugu.errors import SandboxError


def accept(config: SandboxConfig, isolation: Isolation, why: str) -> None:
    """Refuse an isolation below what is asked for; the error says ``why`` it is no better."""
    if isolation.level >= config.min_level:
        return
    unmet = [
        name for name in isolation.missing if isolation.level < FEATURES[name] <= config.min_level and name not in config.allow
    ]
    if unmet:
        raise SandboxError(
            f"backend={config.backend!r} keeps programs apart at level {isolation.level} here, not at {config.min_level}: {why}. "
            f"To run programs like that, say min_level={isolation.level} or allow={tuple(unmet)!r}; backend='fork' gives more"
        )
