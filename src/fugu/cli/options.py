"""From command-line arguments to the options of a command."""

from __future__ import annotations

import ast
import re
import sys
from typing import Any, TypeVar

import tyro
from rich.console import Console

from fugu.config import field_paths
from fugu.errors import ConfigError, did_you_mean

Options = TypeVar("Options")


def parse(kind: type[Options], command: str, argv: list[str]) -> Options:
    """``argv`` as a ``kind``, a dataclass with a help text under each field. A wrong flag ends in exit code 2."""
    return tyro.cli(kind, prog=f"fugu {command}", args=argv, config=(tyro.conf.FlagCreatePairsOff,))


def take_env_kwargs(argv: list[str]) -> tuple[list[str], dict[str, Any]]:
    """Take ``--env.NAME VALUE`` out of ``argv``: (the rest, what goes to the environment's constructor).

    A value is read as Python if it can be (``16``, ``0.5``, ``[1, 2]``, ``True``), else as text; without one it is True.
    """
    rest: list[str] = []
    kwargs: dict[str, Any] = {}
    todo = list(argv)
    while todo:
        argument = todo.pop(0)
        if not argument.startswith("--env."):
            rest.append(argument)
            continue
        name, equals, value = argument.removeprefix("--env.").partition("=")
        if not equals:
            value = todo.pop(0) if todo and not todo[0].startswith("--") else "True"
        kwargs[name.replace("-", "_")] = _value(value)
    return rest, kwargs


def take_value(argv: list[str], flag: str) -> tuple[list[str], str | None]:
    """Take ``flag VALUE`` or ``flag=VALUE`` out of ``argv``: (the rest, the value or None)."""
    rest, value = [], None
    todo = list(argv)
    while todo:
        argument = todo.pop(0)
        name, equals, given = argument.partition("=")
        if name != flag:
            rest.append(argument)
        elif not equals and (not todo or todo[0].startswith("--")):
            raise ConfigError(f"{flag} needs a value")
        else:
            value = given if equals else todo.pop(0)
    return rest, value


def which_checkpoint(text: str) -> str | int:
    """``latest``, ``best`` or a step, as ``--checkpoint`` takes it."""
    if text.replace("_", "").isdecimal():
        return int(text)
    if text not in ("latest", "best"):
        raise ConfigError(f"--checkpoint {text} must be latest, best or a step.{did_you_mean(text, ('latest', 'best'))}")
    return text


def full_names(argv: list[str], kind: type) -> list[str]:
    """Flags by their whole name: ``--learning-rate`` becomes ``--optimizer.learning-rate`` where no other field is called that.

    ``1e6`` becomes ``1000000``, which is also a whole number. A flag nobody knows is left for the parser to complain about.
    """
    paths = field_paths(kind)
    out = []
    for argument in argv:
        if not argument.startswith("--"):
            out.append(_whole(argument))
            continue
        name, equals, value = argument[2:].partition("=")
        wanted = name.replace("-", "_")
        ends = [path for path in paths if path[-1] == wanted and path != (wanted,)]
        if "." not in wanted and (wanted,) not in paths and len(ends) > 1:
            raise ConfigError(f"--{name} could be {' or '.join('--' + _flag(path) for path in ends)}")
        if "." not in wanted and (wanted,) not in paths and ends:
            name = _flag(ends[0])
        out.append(f"--{name}{equals}{_whole(value)}")
    return out


def console() -> Console:
    """Where reports go. Without a terminal there are no colours and lines are not wrapped."""
    if sys.stdout.isatty():
        return Console(highlight=False)
    return Console(highlight=False, width=200, soft_wrap=True)


def _flag(path: tuple[str, ...]) -> str:
    return ".".join(path).replace("_", "-")


def _whole(text: str) -> str:
    if not re.fullmatch(r"\d+(\.\d*)?[eE]\+?\d+", text):
        return text
    number = float(text)
    return str(int(number)) if number.is_integer() else text


def _value(text: str) -> Any:
    try:
        return ast.literal_eval({"true": "True", "false": "False", "none": "None"}.get(text, text))
    except (ValueError, SyntaxError):
        return text
