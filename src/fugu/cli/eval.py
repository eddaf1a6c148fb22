"""``fugu eval RUN``: estimate how good a run's policy is, and how sure that number is."""

from __future__ import annotations

import json
import warnings
from dataclasses import dataclass
from pathlib import Path
from typing import TYPE_CHECKING, Annotated, Any

import tyro
from rich.text import Text

from fugu import files
from fugu.cli.options import PolicyOptions, console, json_alone, parse, take_env_kwargs
from fugu.emulation.env import cost_metric
from fugu.emulation.place import title
from fugu.errors import ConfigError, FuguError

if TYPE_CHECKING:
    from fugu.trainer.evaluate import Evaluation


@dataclass(frozen=True, kw_only=True)
class Options(PolicyOptions):
    """Play whole episodes with a run's policy, and show the mean return with its 95% interval, the lowest, the highest and the
    length.

    The figures and every episode's return are written as JSON into the run's folder. --env.NAME VALUE changes a setting of the
    environment.
    """

    run: Annotated[tyro.conf.Positional[str], tyro.conf.arg(metavar="RUN")] = "latest"
    """Run: latest, latest~1, a name or a path"""
    episodes: int = 100
    """Episodes to play; with several agents, each agent's episode counts"""
    num_envs: int | None = None
    """Environments that play at once; none: one per episode, up to 64"""
    device: str = "cpu"
    """Device that computes the policy: cpu, or cuda, which pays off for a large network"""
    target: tuple[float, ...] = ()
    """Returns to ask a Decision Transformer for, one evaluation for each; nothing: the run's own target"""
    json: str = ""
    """File to write the JSON to as well; - or nothing: print it instead of anything else; empty: no such file"""


def main(argv: list[str]) -> int:
    argv, env_kwargs = take_env_kwargs(argv)
    options = parse(Options, "eval", json_alone(argv))
    for name in ("episodes", "num_envs"):
        value = getattr(options, name)
        if value is not None and value < 1:
            raise ConfigError(f"--{name.replace('_', '-')} {value} must be at least 1")
    which = options.which  # or its error, before torch is imported
    from fugu.run.player import Player
    from fugu.run.run import Run

    run = Run(options.run, options.runs, **options.code)
    num_envs = options.num_envs or min(options.episodes, 64)
    asked: dict[float, Evaluation] = {}
    with Player(run, which, num_envs=num_envs, seed=options.seed, device=options.device, env_kwargs=env_kwargs) as player:
        for target in options.target:
            player.ask(target)  # or its error, before anything is played
            asked[target] = player.evaluate(options.episodes, greedy=options.greedy)
        result = asked[options.target[-1]] if asked else player.evaluate(options.episodes, greedy=options.greedy)
        step = player.step
    report: dict[str, Any] = {
        "run": run.folder.name,
        "env": run.config.env,
        "env_kwargs": {**run.config.env_kwargs, **env_kwargs},
        "checkpoint_step": step,
        "greedy": options.greedy,
        "seed": options.seed,
        "num_envs": num_envs,
        **({} if len(asked) > 1 else result.summary()),
    }
    if asked:
        report["targets"] = [{"target": target, **found.summary()} for target, found in asked.items()]
    text = json.dumps(report, indent=1)
    name = f"eval-{step}{'-greedy' if options.greedy else ''}.json"
    kept: Path | None = run.path / name
    try:
        files.write(run.folder.at / name, text + "\n")
    except OSError as error:  # what the episodes came to is shown all the same
        warnings.warn(f"{kept} cannot be written: {error.strerror}", RuntimeWarning, stacklevel=1)
        kept = None
    actions = "most likely actions" if options.greedy else "actions drawn"
    env = title(run.config.env, run.config.env_kwargs)
    if options.json == "-":
        print(text)
    else:
        heading = f"{run.path}: {env}, checkpoint of step {step:,}, {actions}, seed {options.seed}"
        if len(asked) > 1:
            _print_targets(heading, asked, kept)
        else:
            _print(heading + "".join(f", asked for {target:g}" for target in asked), result, kept)
    if options.json not in ("", "-"):
        _write(Path(options.json), text)
    return 0


def _print(heading: str, result: Evaluation, kept: Path | None) -> None:
    out = console()
    out.print(Text(heading))
    out.print(f"  episodes      {result.episodes}")
    out.print(f"  mean return   {result.mean:.2f}   {result.certainty}")
    out.print(f"  lowest        {min(result.returns):.2f}")
    out.print(f"  highest       {max(result.returns):.2f}")
    out.print(f"  mean length   {sum(result.lengths) / result.episodes:.1f} steps")
    for name, mean in result.mean_costs.items():
        out.print(Text(f"  {'mean ' + cost_metric('cost', name, result.costs):<13} {mean:.2f}"))
    for name, mean in result.mean_infos.items():
        out.print(Text(f"  {name:<13} {mean:.4g}"))
    for name, its in result.agents.items():
        out.print(Text(f"  {name:<13} return {its['mean_return']:.2f}, length {its['mean_length']:.1f} steps"))
    if kept is not None:
        out.print(Text(f"  written to    {kept}"), soft_wrap=True)
    if result.cut:
        out.print(f"  cut           {_episodes(result.cut)} did not end in time, missing above", style="yellow")
    if result.unscored:
        out.print(f"  unscored      {_episodes(result.unscored)} without a return, missing above", style="yellow")


def _print_targets(heading: str, asked: dict[float, Evaluation], kept: Path | None) -> None:
    """Show which return was asked for and which was achieved."""
    out = console()
    out.print(Text(heading))
    out.print(f"  {'asked for':>12}  {'achieved':>12}   {'episodes':<10}")
    for target, found in asked.items():
        out.print(f"  {target:>12.6g}  {found.mean:>12.2f}   {found.episodes:<10} {found.certainty}")
    if kept is not None:
        out.print(Text(f"  written to    {kept}"), soft_wrap=True)


def _episodes(count: int) -> str:
    return f"{count} episode{'s' * (count > 1)}"


def _write(path: Path, text: str) -> None:
    try:
        path.write_text(text + "\n", encoding="utf-8")
    except OSError as error:
        raise FuguError(f"{path} cannot be written: {error.strerror}") from None
