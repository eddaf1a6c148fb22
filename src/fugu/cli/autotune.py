"""``fugu autotune``: measure here which vector settings are fastest for an environment."""

from __future__ import annotations

import json
from collections.abc import Sequence
from dataclasses import dataclass
from typing import Annotated, Any

import tyro
from rich.table import Table
from rich.text import Text

from fugu.cli.apart import apart
from fugu.cli.options import console, parse, take_env_kwargs
from fugu.vector.autotune import Trial, autotune, chosen


@dataclass(frozen=True, kw_only=True)
class Options:
    """Measure which vector settings are fastest for an environment on this machine. The answer may be "serial".

    --env.NAME VALUE goes to the environment's constructor.
    """

    env: Annotated[tyro.conf.Positional[str], tyro.conf.arg(metavar="ENV")]
    """Environment: a native one by name, a Gymnasium id, module:Class, file.py:Class or my_env.h"""
    num_envs: int = 64
    """Number of environments to step"""
    seconds: float = 0.5
    """Seconds to measure each setting"""
    json: bool = False
    """Print the measurements as JSON"""


def main(argv: list[str]) -> int:
    argv, env_kwargs = take_env_kwargs(argv)
    options = parse(Options, "autotune", argv)
    tuning = apart(autotune, options.env, options.num_envs, fresh=True, seconds=options.seconds, env_kwargs=env_kwargs)
    if options.json:
        trials = [as_json(trial) for trial in tuning.trials]
        best = {"num_envs": tuning.best.num_envs, **chosen(tuning.best)}
        print(json.dumps({"env": options.env, "best": best, "python": tuning.python, "trials": trials}, indent=2))
        return 0
    best_name = next(trial.name for trial in tuning.trials if trial.config is tuning.best)
    show(tuning.trials, f"{options.env}, {options.num_envs} environments", best_name)
    out = console()
    out.print(f"\nuse  [bold]{best_name}[/]:")
    constructor = "".join(f" --env.{name} {value}" for name, value in env_kwargs.items())
    out.print(Text(f"  python   {tuning.python}"))
    # where isolate may be None, and a batch size be of rows
    train = tuning.flags.replace("--isolate", "--isolate True").replace("--batch-size", "--vector.batch-size")
    out.print(Text(f"  train    fugu train {options.env} {train}{constructor}"))
    out.print(Text(f"  measure  fugu bench vector {options.env} {tuning.flags}{constructor}"))
    return 0


def show(trials: Sequence[Trial], title: str, best: str = "") -> None:
    """Print the trials as a table, with ``best`` marked; ratios are to the first one that ran."""
    table = Table(title=title, title_justify="left", box=None, padding=(0, 2, 0, 0))
    table.add_column("setting")
    for name in ("steps/s", "ratio", "start s", "MiB"):
        table.add_column(name, justify="right")
    base = next((trial.steps_per_second for trial in trials if not trial.error), 1.0)
    for trial in trials:
        if trial.error:
            table.add_row(trial.name, Text("failed", style="red"), "", "", "")
            continue
        numbers = (
            f"{trial.steps_per_second:,.0f}",
            f"{trial.steps_per_second / base:.2f}",
            f"{trial.startup_seconds:.2f}",
            f"{trial.memory_bytes / 2**20:,.1f}" if trial.memory_bytes else "",
        )
        table.add_row(trial.name, *numbers, style="bold green" if trial.name == best else "")
    out = console()
    out.print(table)
    for trial in trials:
        if trial.error:
            out.print(Text(f"{trial.name}: {trial.error}", style="red"))


def as_json(trial: Trial) -> dict[str, Any]:
    return {
        "name": trial.name,
        "steps_per_second": trial.steps_per_second,
        "startup_seconds": trial.startup_seconds,
        "memory_bytes": trial.memory_bytes,
        "error": trial.error or None,
    }
