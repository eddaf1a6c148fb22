"""From command-line arguments to the options of a command."""

from __future__ import annotations

import ast
import sys
from typing import Any, TypeVar

import tyro
from rich.console import Console

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


def console() -> Console:
    """Where reports go. Without a terminal there are no colours and lines are not wrapped."""
    if sys.stdout.isatty():
        return Console(highlight=False)
    return Console(highlight=False, width=200, soft_wrap=True)


def _value(text: str) -> Any:
    try:
        return ast.literal_eval({"true": "True", "false": "False", "none": "None"}.get(text, text))
    except (ValueError, SyntaxError):
        return text
