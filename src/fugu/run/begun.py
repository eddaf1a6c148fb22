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
    if Path(text).is_file() or not any((folder / "config.toml").is_file() for folder in (Path(text), Path(runs) / text)):
        return None
    run = Run(text, runs)
    policy = run.config.policy
    if is_code(policy.net):
        raise ConfigError(
            f"policy.start={text}: that run has a network of its own, {policy.net}; name it as well, with a file of weights: "
            f"--policy my_policy.py:Net --policy.start {text}/checkpoints/STEP/{WEIGHTS}"
        )
    file = checkpoint.find(run.folder.checkpoints, "latest") / WEIGHTS
    return replace(policy, start=str(file.resolve()))
