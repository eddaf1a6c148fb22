"""``fugu train ENV``: from an environment's name to a trained policy in a run's folder."""

from __future__ import annotations

import contextlib
import dataclasses
import os
import re
import shlex
import shutil
import sys
from collections.abc import Callable, Sequence
from pathlib import Path
from typing import TYPE_CHECKING, Any

import tyro
from rich.text import Text

from fugu.algorithm.settings import ALL, KNOWN
from fugu.cli.about import take_about
from fugu.cli.group import show_group
from fugu.cli.options import console, full_names, literal, read, take_env_kwargs, take_value, take_word
from fugu.emulation.place import from_anywhere, is_code
from fugu.errors import ConfigError, FuguError
from fugu.run.measure import MEASURES, costs, measure, values
from fugu.run.store import members
from fugu.run.trust import ASKED, FLAGS
from fugu.together import launched
from fugu.trainer.config import TrainConfig, learns_from_data, member, refuse_unread
from fugu.vector.config import VectorConfig

if TYPE_CHECKING:
    from fugu.run.ending import Interrupted
    from fugu.run.group import Group
    from fugu.run.run import Run

USAGE = """usage: fugu train ENV [options]
       fugu train --resume RUN [options]

ENV: a native environment (fugu list), my_env.h, a Gymnasium id, module:Class or file.py:Class. --env.NAME VALUE is passed to it.
RUN: latest, latest~1, a name or a path; training goes on from its newest checkpoint. A group of runs goes on as a whole.
Every option can be given by its last name if that is unique: --learning-rate for --optimizer.learning-rate.
--policy my_policy.py:Net trains a network of your own (fugu new policy my_policy.py writes one to start from).
--algorithm my_algo.py:MyAlgo learns with an algorithm of your own (fugu new algorithm my_algo.py writes one to start from).
--resume RUN --env my_env.py:MyEnv goes on with an environment that was moved, or that existed only in a session.
--resume RUN --trust-code executes the code that a run names which was not made here by you.
--runs FOLDER keeps runs elsewhere than in runs/.
--name NAME is the name of the run, and so of its folder. --tag TAG is a word to find it by; give it again for more.
--config FILE begins with the settings of a TOML file: a run's config.toml or a part of one. Options win over it.
--processes 2 lets two processes learn together, each with environments of its own.
--seeds 5 trains a group of runs, one after the other, with five seeds that begin with --seed.
fugu train FILE --algorithm dt learns from recorded episodes (bc, dt, iql, td3bc). --eval plays what was learned now and then, in the
environment that they were recorded in or in that of --env.
"""


def main(argv: list[str]) -> int:
    """Train a new run, or go on with one."""
    typed = list(argv)
    argv, resumed = take_value(argv, "--resume", "latest")
    argv, root = take_value(argv, "--runs", "elsewhere")
    argv, about = take_about(argv)
    argv, named = take_value(argv, "--env", "cartpole")
    argv, env_kwargs = take_env_kwargs(argv)
    argv, trusted = _take_switch(argv, "--trust-code")
    argv, played = _take_switch(argv, "--eval")
    help_asked = any(word in ("-h", "--help") for word in argv)
    if trusted and resumed is None and about.config is None:
        raise ConfigError("--trust-code is for the code that a run names: fugu train --resume RUN --trust-code")
    code = {} if resumed is None else _code(argv, named, trusted)
    algorithm = _algorithm(argv, resumed, root, code, about.config, trusted)
    kinds = [member(each) for each in (algorithm or "ppo", *KNOWN)]
    try:
        argv, name, other = _words(argv, kinds)
    except ConfigError:  # a flag that none of them has; those that are left import torch
        argv, name, other = _words(argv, [*kinds, *(member(each) for each in ALL if each not in KNOWN)])
    if resumed is not None and name is not None:
        raise ConfigError(f"fugu train {name} --resume {resumed}: a run knows its environment; leave {name} out")
    name = named if name is None else name
    offline = algorithm is not None and learns_from_data(algorithm)
    if named not in (None, name) and not (offline and name):
        raise ConfigError(f"fugu train {name} --env {named}: which of the two?")
    if other is not None:
        raise ConfigError(
            f"fugu train {name} {other}: a run has one environment; leave {other} out, or name the flag it is for"
        )
    if help_asked:
        print(USAGE)
    elif not name and resumed is None and about.config is None:
        raise ConfigError(
            "fugu train ENV: which environment? It comes first: fugu train cartpole. fugu list shows what there is"
        )
    runs = Path(root or "runs")
    if resumed is not None:
        about.refuse_with_resume(resumed)
    if resumed is not None and env_kwargs:
        raise ConfigError(f"--env.{next(iter(env_kwargs))}: a run keeps the environment it began with; start a new one")
    if resumed is not None and not help_asked:
        return _resume(resumed, argv, runs, code, typed)
    from fugu.presets import preset
    from fugu.run.config_file import from_file

    _, device = take_value(argv, "--device", "cuda")
    _, seconds = take_value(_timeout_flag(argv), "--vector.start-timeout", "120")
    timeout = None if seconds is None else literal(seconds)
    if about.config is not None:
        start = from_file(
            about.config,
            name,
            env_kwargs,
            device=device,
            algorithm=algorithm,
            start_timeout=timeout,
            given=_roles(argv),
            trust_code=trusted,
        )
    else:
        wait = VectorConfig.start_timeout if timeout is None else timeout
        start = preset(name or "cartpole", env_kwargs, device or "cpu", algorithm, start_timeout=wait)
        start = dataclasses.replace(start, env_kwargs={**start.env_kwargs, **env_kwargs})
    argv, start = _begun(argv, start, runs)
    if offline and named is not None:
        start = dataclasses.replace(start, env=named)
    config = _parse(argv, start)
    if config.ranks.processes > 1 and launched() is None:
        from fugu.cli.processes import launch

        return launch(typed, config.ranks.processes)
    if played:
        config = _evaluated(config)
    from fugu.run.ending import Interrupted
    from fugu.run.train import train

    try:
        return _show(lambda: train(config.env, config=config, runs=runs, **about.given))
    except Interrupted as end:
        return _interrupted(end)


def _begun(argv: list[str], start: TrainConfig, runs: Path) -> tuple[list[str], TrainConfig]:
    """Return arguments and config of a run that may begin with the policy of another: then its network is that of the other."""
    rest, text = take_value(argv, "--policy.start", "RUN")
    if text is None:
        return argv, start
    from fugu.run.begun import policy_of

    policy = policy_of(text, runs)
    return (argv, start) if policy is None else (rest, dataclasses.replace(start, policy=policy))


def _evaluated(config: TrainConfig) -> TrainConfig:
    """Return the config with ten evaluations, unless it says otherwise."""
    if not learns_from_data(config.algorithm):
        raise ConfigError(
            "--eval alone is for learning from recorded episodes; type --eval.every 20 to evaluate every 20 updates"
        )
    if config.eval.every is not None:
        return config
    every = max(1, config.steps // config.part("data").together // 10)
    return dataclasses.replace(config, eval=dataclasses.replace(config.eval, every=every))


def _take_switch(argv: list[str], flag: str) -> tuple[list[str], bool]:
    """Take a flag without a value out of ``argv``: (the rest, whether it was there)."""
    return [argument for argument in argv if argument != flag], flag in argv


def _code(argv: list[str], env: str | None, trusted: bool) -> dict[str, Any]:
    """Return what stands in the place of the code that a run names: its ``env``, and a network and an algorithm of the user's own."""
    policy = take_value(argv, "--policy", "my_policy.py:Net")[1] or take_value(argv, "--policy.net", "my_policy.py:Net")[1]
    found = {"env": env, "policy": policy, "algorithm": take_value(argv, "--algorithm", "ppo")[1]}
    own = {role: name for role, name in found.items() if name is not None and (role == "env" or is_code(name))}
    return {**own, "trust_code": trusted}


def _roles(argv: list[str]) -> list[str]:
    """Return what else options name of what has to be asked for: ``policy``, ``sink``, ``log.wandb``."""
    flags = {argument.partition("=")[0] for argument in argv}
    return [role for role, where in ASKED.items() if flags & {FLAGS[role], f"--{'.'.join(where)}", f"--{where[-1]}"}]


def _algorithm(
    argv: list[str], resumed: str | None, root: str | None, code: dict[str, Any], file: str | None, trusted: bool
) -> str | None:
    """Return the algorithm of this command line, from anywhere, or of the run that it resumes or of its file; None if it names
    none."""
    algorithm = take_value(argv, "--algorithm", "ppo")[1]
    if algorithm is None and resumed is not None:
        from fugu.run.run import Run

        with contextlib.suppress(FuguError):  # there is no such run: reported once everything else is known to be right
            found = _found(resumed, Path(root or "runs"), code)
            return (found.config if isinstance(found, Run) else found.runs[0].config).algorithm
    if algorithm is None and file is not None:
        from fugu.run.config_file import ConfigFile

        return ConfigFile(Path(file), given=frozenset(ASKED) - {"algorithm"}, trust_code=trusted).data.get("algorithm")
    return None if algorithm is None else from_anywhere(algorithm)


def _timeout_flag(argv: list[str]) -> list[str]:
    """Return the arguments with the one flag that is needed before there is a config under its whole name."""
    return [re.sub(r"^--start[-_]timeout(=|$)", r"--vector.start-timeout\1", argument) for argument in argv]


def _found(text: str, root: Path, code: dict[str, Any]) -> Run | Group:
    """Return the run or the group of runs that ``text`` means, with ``code`` in the place of what it names."""
    from fugu.run.group import Group
    from fugu.run.run import Run

    try:
        return Run(text, root, **code)
    except ConfigError:
        if not members(text, root):
            raise
    return Group(text, root, **code)


def _resume(text: str, argv: list[str], runs: Path, code: dict[str, Any], typed: list[str]) -> int:
    from fugu.run.group import Group
    from fugu.run.run import Run

    found = _found(text, runs, code)
    run = found if isinstance(found, Run) else found.runs[0]
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
    if config.ranks.processes > 1 and launched() is None:
        from fugu.cli.processes import launch

        return launch(typed, config.ranks.processes)
    from fugu.run.ending import Interrupted
    from fugu.run.train import go_on
    from fugu.trainer.callbacks import Callbacks

    try:
        if isinstance(found, Group):
            return _show(lambda: found.resume(**changes))
        done = go_on(run, changes, Callbacks())
    except Interrupted as end:
        return _interrupted(end)
    if _is_other_rank():
        return 0
    if done is not None:
        console().print(Text(done.replace("fugu train", f"{_program()} train")), soft_wrap=True)
        return 0
    return _next_commands(run)


def _words(argv: list[str], kinds: Sequence[type]) -> tuple[list[str], str | None, str | None]:
    """Take the environment out of ``argv``: (the rest, the environment or None, a further word or None)."""
    argv, name = take_word(argv, *kinds)
    return argv, name, None if name is None else take_word(argv, *kinds)[1]


def _show(training: Callable[[], Run | Group]) -> int:
    """Train, and show what has come of it; the first of several processes does."""
    from fugu.run.group import Group
    from fugu.run.seeds import SeedsFailed

    try:
        done = training()
    except SeedsFailed as error:
        if error.group is not None:
            show_group(error.group, _program())
        raise
    if isinstance(done, Group):
        return show_group(done, _program())
    return 0 if _is_other_rank() else _next_commands(done)


def _is_other_rank() -> bool:
    """Return whether this is one of several processes and not the first."""
    return launched() is not None and os.environ["RANK"] != "0"


def _parse(argv: list[str], start: TrainConfig) -> TrainConfig:
    """Return the config on the command line; what is not given is as in ``start``."""
    kind = type(start)
    argv = [re.sub(r"^--policy(=|$)", r"--policy.net\1", argument) for argument in argv]
    flags = {argument[2:].partition("=")[0]: None for argument in argv if argument.startswith("--") and len(argument) > 2}
    flags.pop("help", None)
    refuse_unread(start, flags)
    args = full_names(_from_anywhere(argv), kind)
    return read(kind, prog="fugu train", args=args, default=start, config=(tyro.conf.AvoidSubcommands,))


def _from_anywhere(argv: list[str]) -> list[str]:
    """Return the arguments with the whole path of the algorithm's file, as the config has it."""
    rest, algorithm = take_value(argv, "--algorithm", "ppo")
    return rest if algorithm is None else [*rest, "--algorithm", from_anywhere(algorithm)]


def _interrupted(end: Interrupted) -> int:
    if _is_other_rank():
        return 128 + end.signal
    console().print(Text(str(end).replace("fugu train", f"{_program()} train")), soft_wrap=True)
    return 128 + end.signal


def _next_commands(run: Run) -> int:
    """Show what can be done with a run that has ended."""
    metrics = run.metrics()
    out = console()
    out.print(Text(f"\ndone: {run.path}, {_result(run, metrics)}. Next:"), soft_wrap=True)
    program, path = _program(), shlex.quote(str(run.path))
    steps = metrics[-1]["steps"] if metrics else 0
    more = 2 * max(run.config.steps, steps)
    reached = run.config.target is not None and steps < run.config.steps and not run.folder.ended.exists()
    no_target = " --target None" if reached else ""
    commands = [
        *_to_judge(program, path, run),
        _to_watch(program, path, run),
        (f"{program} plot {path}", "the curves of the training"),
        (f"{program} train --resume {path} --steps {more}{no_target}", "train on"),
    ]
    if run.folder.output.exists():
        commands.append((f"tail {shlex.quote(str(run.path / run.folder.output.name))}", "what was printed meanwhile"))
    width = max(len(command) for command, _ in commands)
    for command, what in commands:
        out.print(Text(f"  {command:{width}}  # {what}"), soft_wrap=True)
    return 0


def _result(run: Run, metrics: list[dict[str, float]]) -> str:
    """Return how far a run got and what it came to."""
    steps, asked = int(metrics[-1]["steps"]) if metrics else 0, run.config.steps
    unit = "gradient steps" if learns_from_data(run.config.algorithm) else "steps"
    parts = [f"{steps:,} {unit}" + (f" (whole batches; {asked:,} asked)" if steps > asked else "")]
    target, reached = run.config.target, False
    name = measure(metrics, evaluated=run.config.eval.every is not None)
    if name is not None:
        short, meaning = MEASURES[name]
        last = values(metrics, name)[-1]
        parts.append(f"{short} {last:.1f} ({meaning})")
        reached = target is not None and name != "episode/return" and last >= target
    if target is not None and steps >= asked and not reached:
        parts.append(f"target {target:g} not reached")
    for kind, (paid, limit) in costs(metrics).items():
        parts.append(f"{kind.removeprefix('/') or 'cost'} {paid:.1f}" + ("" if limit is None else f" (limit {limit:g})"))
    return ", ".join(parts)


def _to_judge(program: str, path: str, run: Run) -> list[tuple[str, str]]:
    if not learns_from_data(run.config.algorithm):
        return [(f"{program} eval {path}", "mean return over 100 new episodes, sampled actions")]
    found = [(f"{program} eval {path} --greedy", f"mean return over 100 episodes of {run.config.env}")]
    if run.config.algorithm == "dt":
        found.append((f"{program} eval {path} --greedy --target 50 100", "the same, asked for these returns"))
    return found


def _to_watch(program: str, path: str, run: Run) -> tuple[str, str]:
    if run.config.policy.net == "transformer":
        return f"{program} play {path}", "read what it writes"
    return f"{program} video {path}", "see it play"


def _program() -> str:
    """Return how this program can be called from here: ``fugu``, or by its path if that would not be found (``make train``)."""
    path = sys.argv[0]
    return "fugu" if shutil.which("fugu") or not path.endswith("fugu") else shlex.quote(os.path.relpath(path))
