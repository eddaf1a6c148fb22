"""``fugu train ENV``: from an environment's name to a trained policy in a run's folder."""

from __future__ import annotations

import contextlib
import dataclasses
import os
import re
import shlex
import shutil
import sys
from pathlib import Path
from typing import TYPE_CHECKING, Any

import tyro
from rich.text import Text

from fugu.algorithm.settings import KNOWN
from fugu.cli.options import console, full_names, literal, read, take_env_kwargs, take_value, take_word
from fugu.emulation.place import from_anywhere, is_code
from fugu.errors import ConfigError, FuguError
from fugu.run.trust import FLAGS
from fugu.trainer.config import TrainConfig, member, refuse_unread
from fugu.vector.config import VectorConfig

if TYPE_CHECKING:
    from fugu.run.ending import Interrupted
    from fugu.run.run import Run

USAGE = """usage: fugu train ENV [options]
       fugu train --resume RUN [options]

ENV: a native environment (fugu list), my_env.h, a Gymnasium id, module:Class or file.py:Class. --env.NAME VALUE is passed to it.
RUN: latest, latest~1, a name or a path; training goes on from its newest checkpoint.
Every option can be given by its last name if that is unique: --learning-rate for --optimizer.learning-rate.
--policy my_policy.py:Net trains a network of your own (fugu new policy my_policy.py writes one to start from).
--algorithm my_algo.py:MyAlgo learns with an algorithm of your own (fugu new algorithm my_algo.py writes one to start from).
--resume RUN --env my_env.py:MyEnv goes on with an environment that was moved, or that existed only in a session.
--resume RUN --trust-code executes the code that a run names which was not made here by you.
--runs FOLDER keeps runs elsewhere than in runs/.
"""


def main(argv: list[str]) -> int:
    """Train a new run, or go on with one."""
    argv, resumed = take_value(argv, "--resume", "latest")
    argv, root = take_value(argv, "--runs", "elsewhere")
    argv, named = take_value(argv, "--env", "cartpole")
    argv, env_kwargs = take_env_kwargs(argv)
    argv, trusted = _take_switch(argv, "--trust-code")
    help_asked = any(word in ("-h", "--help") for word in argv)
    if trusted and resumed is None:
        raise ConfigError("--trust-code is for the code that a run names: fugu train --resume RUN --trust-code")
    code = {} if resumed is None else _code(argv, named, trusted)
    algorithm = _algorithm(argv, resumed, root, code)
    kinds = [member(each) for each in (algorithm or "ppo", *KNOWN)]
    argv, name = take_word(argv, *kinds)
    if resumed is not None and name is not None:
        raise ConfigError(f"fugu train {name} --resume {resumed}: a run knows its environment; leave {name} out")
    name = named if name is None else name
    if named not in (None, name):
        raise ConfigError(f"fugu train {name} --env {named}: which of the two?")
    if name is not None and (other := take_word(argv, *kinds)[1]) is not None:
        raise ConfigError(
            f"fugu train {name} {other}: a run has one environment; leave {other} out, or name the flag it is for"
        )
    if help_asked:
        print(USAGE)
    elif not name and resumed is None:
        raise ConfigError(
            "fugu train ENV: which environment? It comes first: fugu train cartpole. fugu list shows what there is"
        )
    runs = Path(root or "runs")
    if resumed is not None and env_kwargs:
        raise ConfigError(f"--env.{next(iter(env_kwargs))}: a run keeps the environment it began with; start a new one")
    if resumed is not None and not help_asked:
        return _resume(resumed, argv, runs, code)
    from fugu.presets import preset

    _, device = take_value(argv, "--device", "cuda")
    _, seconds = take_value(_timeout_flag(argv), "--vector.start-timeout", "120")
    timeout = VectorConfig.start_timeout if seconds is None else literal(seconds)
    start = preset(name or "cartpole", env_kwargs, device or "cpu", algorithm, start_timeout=timeout)
    config = _parse(argv, dataclasses.replace(start, env_kwargs={**start.env_kwargs, **env_kwargs}))
    from fugu.run.ending import Interrupted
    from fugu.run.train import train

    try:
        return _next_commands(train(config.env, config=config, runs=runs))
    except Interrupted as end:
        return _interrupted(end)


def _take_switch(argv: list[str], flag: str) -> tuple[list[str], bool]:
    """Take a flag without a value out of ``argv``: (the rest, whether it was there)."""
    return [argument for argument in argv if argument != flag], flag in argv


def _code(argv: list[str], env: str | None, trusted: bool) -> dict[str, Any]:
    """Return what stands in the place of the code that a run names: its ``env``, and a network and an algorithm of the user's own."""
    policy = take_value(argv, "--policy", "my_policy.py:Net")[1] or take_value(argv, "--policy.net", "my_policy.py:Net")[1]
    found = {"env": env, "policy": policy, "algorithm": take_value(argv, "--algorithm", "ppo")[1]}
    own = {role: name for role, name in found.items() if name is not None and (role == "env" or is_code(name))}
    return {**own, "trust_code": trusted}


def _algorithm(argv: list[str], resumed: str | None, root: str | None, code: dict[str, Any]) -> str | None:
    """Return the algorithm of this command line, from anywhere, or of the run that it resumes; None if it names none."""
    algorithm = take_value(argv, "--algorithm", "ppo")[1]
    if algorithm is None and resumed is not None:
        from fugu.run.run import Run

        with contextlib.suppress(FuguError):  # there is no such run: reported once everything else is known to be right
            return Run(resumed, Path(root or "runs"), **code).config.algorithm
    return None if algorithm is None else from_anywhere(algorithm)


def _timeout_flag(argv: list[str]) -> list[str]:
    """Return the arguments with the one flag that is needed before there is a config under its whole name."""
    return [re.sub(r"^--start[-_]timeout(=|$)", r"--vector.start-timeout\1", argument) for argument in argv]


def _resume(text: str, argv: list[str], runs: Path, code: dict[str, Any]) -> int:
    from fugu.run.run import Run

    run = Run(text, runs, **code)
    for flag in [FLAGS[role] for role in code if role in FLAGS] + ["--policy.net"] * ("policy" in code):
        argv, _ = take_value(argv, flag)
    algorithm = take_value(argv, "--algorithm", "ppo")[1]
    if algorithm is not None and from_anywhere(algorithm) != run.config.algorithm:
        raise ConfigError("a run that goes on cannot change algorithm; start a new one for that")
    config = _parse(argv, run.config)
    changes = {
        f.name: getattr(config, f.name)
        for f in dataclasses.fields(config)
        if getattr(config, f.name) != getattr(run.config, f.name)
    }
    from fugu.run.ending import Interrupted

    try:
        return _next_commands(run.resume(**changes))
    except Interrupted as end:
        return _interrupted(end)


def _parse(argv: list[str], start: TrainConfig) -> TrainConfig:
    """Return the config on the command line; what is not given is as in ``start``."""
    kind = type(start)
    argv = [re.sub(r"^--policy(=|$)", r"--policy.net\1", argument) for argument in argv]
    flags = {argument[2:].partition("=")[0]: None for argument in argv if argument.startswith("--") and len(argument) > 2}
    refuse_unread(start, flags)
    args = full_names(_from_anywhere(argv), kind)
    return read(kind, prog="fugu train", args=args, default=start, config=(tyro.conf.AvoidSubcommands,))


def _from_anywhere(argv: list[str]) -> list[str]:
    """Return the arguments with the whole path of the algorithm's file, as the config has it."""
    rest, algorithm = take_value(argv, "--algorithm", "ppo")
    return rest if algorithm is None else [*rest, "--algorithm", from_anywhere(algorithm)]


def _interrupted(end: Interrupted) -> int:
    console().print(Text(str(end).replace("fugu train", f"{_program()} train")), soft_wrap=True)
    return 128 + end.signal


def _next_commands(run: Run) -> int:
    """Show what can be done with a run that has ended."""
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
    """Return how this program can be called from here: ``fugu``, or by its path if that would not be found (``make train``)."""
    path = sys.argv[0]
    return "fugu" if shutil.which("fugu") or not path.endswith("fugu") else shlex.quote(os.path.relpath(path))
