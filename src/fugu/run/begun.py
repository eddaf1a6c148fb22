"""A run that begins with the policy of another run: its weights, and the settings of the network that they belong to."""

from __future__ import annotations

from dataclasses import replace
from pathlib import Path

from fugu.emulation.place import is_code
from fugu.errors import ConfigError
from fugu.policy.config import PolicyConfig
from fugu.run.run import Run
from fugu.trainer import checkpoint

WEIGHTS = "policy.safetensors"


def policy_of(text: str, runs: str | Path = "runs") -> PolicyConfig | None:
    """Return the settings of the network of the run that ``text`` means, with the file of its newest weights as ``start``; None if
    ``text`` is a file, or means no run."""
    if Path(text).is_file():
        return None
    try:
        run = Run(text, runs)
    except ConfigError:  # that there is no such file is said where it would be read
        return None
    policy = run.config.policy
    if is_code(policy.net):
        raise ConfigError(
            f"policy.start={text}: that run has a network of its own, {policy.net}; name it as well, with a file of weights: "
            f"--policy my_policy.py:Net --policy.start {text}/checkpoints/STEP/{WEIGHTS}"
        )
    file = checkpoint.find(run.folder.checkpoints, "latest") / WEIGHTS
    return replace(policy, start=str(file.resolve()))
