"""``fugu train ENV``: from an environment's name to a trained policy in a run's folder."""

from __future__ import annotations

import dataclasses
import os
import re
import shlex
import shutil
import sys
from pathlib import Path
from typing import TYPE_CHECKING

import tyro
from rich.text import Text

from fugu.cli.options import console, full_names, literal, read, take_env_kwargs, take_value, take_word
from fugu.errors import ConfigError
from fugu.trainer.config import TrainConfig, refuse_unread
from fugu.vector.config import VectorConfig

if TYPE_CHECKING:
    from fugu.run.run import Run
    from fugu.run.train import Interrupted

USAGE = """usage: fugu train ENV [options]
       fugu train --resume RUN [options]

ENV: a native environment (fugu list), my_env.h, a Gymnasium id, module:Class or file.py:Class. --env.NAME VALUE goes to it.
RUN: latest, latest~1, a name or a path; it goes on from its newest checkpoint.
Every option can be given by its last name where that is unique: --learning-rate for --optimizer.learning-rate.
--policy my_policy.py:Net trains a network of your own (fugu new policy my_policy.py writes one to start from).
--runs FOLDER keeps runs elsewhere than in runs/.
"""


def main(argv: list[str]) -> int:
    """Train a new run, or go on with one."""
    argv, resumed = take_value(argv, "--resume", "latest")
    argv, root = take_value(argv, "--runs", "elsewhere")
    argv, named = take_value(argv, "--env", "cartpole")
    argv, env_kwargs = take_env_kwargs(argv)
    help_asked = any(word in ("-h", "--help") for word in argv)
    argv, name = take_word(argv, TrainConfig)
    name = named if name is None else name
    if named not in (None, name):
        raise ConfigError(f"fugu train {name} --env {named}: which of the two?")
    if name is not None and (other := take_word(argv, TrainConfig)[1]) is not None:
        raise ConfigError(
            f"fugu train {name} {other}: a run has one environment; leave {other} out, or name the flag it is for"
        )
    if help_asked:
        print(USAGE)
    elif not name and resumed is None:
        raise ConfigError(
            "fugu train ENV: which environment? It comes first: fugu train cartpole. fugu list shows what there is"
        )
    if name is not None and resumed is not None:
        raise ConfigError(f"fugu train {name} --resume {resumed}: a run knows its environment; leave {name} out")
    runs = Path(root or "runs")
    if resumed is not None and env_kwargs:
        raise ConfigError(f"--env.{next(iter(env_kwargs))}: a run keeps the environment it began with; start a new one")
    if resumed is not None and not help_asked:
        return _resume(resumed, argv, runs)
    from fugu.presets import preset

    argv = _full_names(argv)
    _, device = take_value(argv, "--device", "cuda")
    _, algorithm = take_value(argv, "--algorithm", "ppo")
    _, seconds = take_value(argv, "--vector.start-timeout", "120")
    timeout = VectorConfig.start_timeout if seconds is None else literal(seconds)
    start = preset(name or "cartpole", env_kwargs, device or "cpu", algorithm, start_timeout=timeout)
    config = _parse(argv, dataclasses.replace(start, env_kwargs={**start.env_kwargs, **env_kwargs}))
    refuse_unread(start, config)
    from fugu.run.train import Interrupted, train

    try:
        return _next_commands(train(config.env, config=config, runs=runs))
    except Interrupted as end:
        return _interrupted(end)


def _resume(text: str, argv: list[str], runs: Path) -> int:
    from fugu.run.run import Run

    run = Run(text, runs)
    config = _parse(argv, run.config)
    changes = {
        f.name: getattr(config, f.name)
        for f in dataclasses.fields(config)
        if getattr(config, f.name) != getattr(run.config, f.name)
    }
    from fugu.run.train import Interrupted

    try:
        return _next_commands(run.resume(**changes))
    except Interrupted as end:
        return _interrupted(end)


def _parse(argv: list[str], start: TrainConfig) -> TrainConfig:
    """The config on the command line; what is not given is as in ``start``."""
    return read(
        TrainConfig,
        prog="fugu train",
        args=_full_names(argv),
        default=start,
        config=(tyro.conf.AvoidSubcommands,),
    )


def _full_names(argv: list[str]) -> list[str]:
    argv = [re.sub(r"^--policy(=|$)", r"--policy.net\1", argument) for argument in argv]
    return full_names(argv, TrainConfig)


def _interrupted(end: Interrupted) -> int:
    console().print(Text(str(end).replace("fugu train", f"{_program()} train")), soft_wrap=True)
    return 128 + end.signal


def _next_commands(run: Run) -> int:
    """What can be done with a run that is done."""
    metrics = run.metrics()
    last = next((row["episode/return"] for row in reversed(metrics) if "episode/return" in row), None)
    out = console()
    out.print(Text(f"\ndone: {run.path}" + (f", mean return {last:.1f}" if last is not None else "") + ". Next:"))
    program, path = _program(), shlex.quote(str(run.path))
    more = 2 * max(run.config.steps, metrics[-1]["steps"] if metrics else 0)
    no_target = "" if run.config.target is None else " --target None"
    commands = (
        (f"{program} eval {path}", "how good is it, over 100 episodes"),
        _to_watch(program, path, run),
        (f"{program} plot {path}", "the curves of the training"),
        (f"{program} train --resume {path} --steps {more}{no_target}", "train on"),
    )
    width = max(len(command) for command, _ in commands)
    for command, what in commands:
        out.print(Text(f"  {command:{width}}  # {what}"), soft_wrap=True)
    return 0


def _to_watch(program: str, path: str, run: Run) -> tuple[str, str]:
    if run.config.policy.net == "transformer":
        return f"{program} play {path}", "read what it writes"
    return f"{program} video {path}", "see it play"


def _program() -> str:
    """How this program can be called from here: ``fugu``, or by its path where that would not be found (``make train``)."""
    path = sys.argv[0]
    return "fugu" if shutil.which("fugu") or not path.endswith("fugu") else shlex.quote(os.path.relpath(path))
