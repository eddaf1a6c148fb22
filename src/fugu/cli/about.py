"""Flags of ``fugu train`` that are about the run and not about what it does: name, tags, seeds, and the file of its settings."""

from __future__ import annotations

from dataclasses import dataclass
from typing import Any

from fugu.cli.options import literal, take_value
from fugu.errors import ConfigError
from fugu.run.label import checked_name, checked_seeds, checked_tags


@dataclass(frozen=True)
class About:
    name: str | None
    tags: tuple[str, ...]
    seeds: int | None
    config: str | None

    @property
    def given(self) -> dict[str, Any]:
        """Return those that ``fugu.train`` is to be told."""
        found = {"name": self.name, "tags": self.tags, "seeds": self.seeds}
        return {name: value for name, value in found.items() if value}

    def refuse_with_resume(self, run: str) -> None:
        """Raise a ConfigError about a flag that is only for a new run."""
        if self.name is not None:
            raise ConfigError(
                f"--name {self.name} --resume {run}: a run keeps its name; leave --name out, or rename its folder"
            )
        if self.tags:
            raise ConfigError(f"--tag {self.tags[0]} --resume {run}: a run keeps its tags; leave --tag out")
        if self.seeds is not None:
            raise ConfigError(f"--seeds {self.seeds} --resume {run}: a group keeps its seeds; leave --seeds out")
        if self.config is not None:
            raise ConfigError(
                f"--config {self.config} --resume {run}: a run goes on with its own settings; leave --config out and give what "
                f"changes as options, or begin a new run: fugu train --config {self.config}"
            )


def take_about(argv: list[str]) -> tuple[list[str], About]:
    """Take these flags out of ``argv``, checked: (the rest, the flags)."""
    argv, name = take_value(argv, "--name", "my-run")
    argv, config = take_value(argv, "--config", "runs/my-run/config.toml")
    argv, count = take_value(argv, "--seeds", "5")
    if any(argument.partition("=")[0] == "--tags" for argument in argv):
        raise ConfigError("--tags: give each with a --tag of its own, as in --tag a --tag b")
    tags: list[str] = []
    while any(argument.partition("=")[0] == "--tag" for argument in argv):
        at = next(place for place, argument in enumerate(argv) if argument.partition("=")[0] == "--tag")
        end = at + 1 + ("=" not in argv[at])
        tags.append(take_value(argv[at:end], "--tag", "baseline")[1] or "")
        argv = argv[:at] + argv[end:]
    seeds = None if count is None else literal(count)
    if seeds is not None and (isinstance(seeds, bool) or not isinstance(seeds, int)):
        raise ConfigError(f"--seeds {count} must be a whole number, how many; try --seeds 5, and --seed for the first")
    if seeds is not None:
        checked_seeds(seeds, 0)
    return argv, About(None if name is None else checked_name(name), checked_tags(tags), seeds, config)
