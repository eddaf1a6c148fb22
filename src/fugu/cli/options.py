"""From command-line arguments to the options of a command."""

from __future__ import annotations

import ast
import contextlib
import dataclasses
import difflib
import io
import math
import re
import sys
from collections.abc import Iterable, Mapping, Sequence
from dataclasses import dataclass
from typing import Any, TypeVar, get_args, get_origin

import tyro
from rich.console import Console, ConsoleOptions, RenderableType
from rich.segment import Segment

from fugu import foreign
from fugu.config import SEEDS, field_paths, field_type
from fugu.errors import ConfigError, did_you_mean, shown, shown_line

Options = TypeVar("Options")


def parse(kind: type[Options], command: str, argv: list[str]) -> Options:
    """Return ``argv`` as a ``kind``, a dataclass with a help text under each field. A wrong flag ends in exit code 2."""
    return read(kind, prog=f"fugu {command}", args=argv, config=(tyro.conf.FlagCreatePairsOff,))


def read(kind: type[Options], **settings: Any) -> Options:
    """Call ``tyro.cli``, but raise a ConfigError of the dataclass itself; tyro would draw it in a box and exit."""
    try:
        with contextlib.redirect_stderr(io.StringIO()), contextlib.redirect_stdout(io.StringIO()):
            return tyro.cli(kind, **settings)
    except SystemExit as end:
        error = end.__context__
        while error is not None:
            if isinstance(error, ConfigError):
                raise error from None
            error = error.__context__
    settings["args"] = [shown(shown_line(argument), most=300) for argument in settings["args"]]
    return tyro.cli(kind, **settings)  # help, or what it has to say about flags, now on the terminal


@dataclass(frozen=True, kw_only=True)
class PolicyOptions:
    """Options that ``eval``, ``video`` and ``play`` share."""

    checkpoint: str = "latest"
    """Checkpoint of the run: latest, best or its step"""
    greedy: bool = False
    """Take the most likely action of a run's policy instead of drawing one"""
    seed: int = 1
    """Seed of the environment and of the actions drawn; the same seed gives the same episodes"""
    runs: str = "runs"
    """Folder in which runs are looked for"""
    env: str = ""
    """Environment in the place of the run's own: file.py:Class, for one that was moved or existed only in a session"""
    policy: str = ""
    """Network in the place of the run's own: file.py:Net"""
    algorithm: str = ""
    """Algorithm in the place of the run's own: file.py:MyAlgo"""
    trust_code: bool = False
    """Execute the code that a run names, though it was not made here by you; the message without this lists it"""

    def __post_init__(self) -> None:
        if not 0 <= self.seed < SEEDS:
            raise ConfigError(f"--seed {self.seed} must not be negative, and below 2**63")

    @property
    def code(self) -> dict[str, Any]:
        """Return what ``Run`` takes in the place of the run's own code."""
        found = {"env": self.env, "policy": self.policy, "algorithm": self.algorithm}
        return {**{role: name for role, name in found.items() if name}, "trust_code": self.trust_code}

    @property
    def which(self) -> str | int:
        """Return the checkpoint as ``Player`` takes it."""
        if self.checkpoint.replace("_", "").isdecimal():
            return int(self.checkpoint)
        if self.checkpoint not in ("latest", "best"):
            raise ConfigError(
                f"--checkpoint {self.checkpoint} must be latest, best or a step."
                f"{did_you_mean(self.checkpoint, ('latest', 'best'))}"
            )
        return self.checkpoint


def take_env_kwargs(argv: list[str]) -> tuple[list[str], dict[str, Any]]:
    """Take ``--env.NAME VALUE`` out of ``argv``: (the rest, the arguments for the environment's constructor).

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
        kwargs[name.replace("-", "_")] = literal(value)
    return rest, kwargs


def take_value(argv: list[str], flag: str, example: str = "") -> tuple[list[str], str | None]:
    """Take ``flag VALUE`` or ``flag=VALUE`` out of ``argv``: (the rest, the value or None)."""
    rest, value = [], None
    todo = list(argv)
    while todo:
        argument = todo.pop(0)
        name, equals, given = argument.partition("=")
        if name != flag:
            rest.append(argument)
        elif not equals and (not todo or todo[0].startswith("--")):
            raise ConfigError(f"{flag} needs a value" + (f", for example {flag} {example}" if example else ""))
        else:
            value = given if equals else todo.pop(0)
    return rest, value


def json_alone(argv: list[str]) -> list[str]:
    """Let ``--json`` without a file mean ``--json -``: print it, as all commands do."""
    out: list[str] = []
    for word, after in zip(argv, [*argv[1:], "--"], strict=True):
        out += [word, "-"] if word == "--json" and after.startswith("--") else [word]
    return out


def take_word(argv: list[str], *kinds: type) -> tuple[list[str], str | None]:
    """Take the first word that is no value of a flag of one of ``kinds`` out of ``argv``: (the rest, the word or None)."""
    values = 0.0  # that the flag before may still have
    for at, word in enumerate(argv):
        if word.startswith("--") and word not in ("--", "--help"):
            name, equals, _ = word[2:].partition("=")
            hint = _hint(name, kinds)
            values = 0 if equals or hint is bool else math.inf if get_origin(hint) in (tuple, Mapping) else 1
        elif values:
            values -= 1
        elif not word.startswith("-") and word.lower() not in SWITCH:
            return argv[:at] + argv[at + 1 :], word
    return argv, None


def _hint(name: str, kinds: Sequence[type]) -> Any:
    """Return the annotation of the field that ``--name`` means in the first of ``kinds`` that has it."""
    for kind in kinds:
        with contextlib.suppress(ConfigError):
            return field_type(kind, _find_flag(name, kind)[0])
    return field_type(kinds[0], _find_flag(name, kinds[0])[0])  # says what is wrong with it


SWITCH = {"true": True, "false": False, "yes": True, "no": False, "on": True, "off": False, "1": True, "0": False}


def full_names(argv: list[str], kind: type) -> list[str]:
    """Return the flags by their whole names: ``--learning-rate`` becomes ``--optimizer.learning-rate`` if no other field is called
    that.

    ``--no-share`` and ``--share false`` become ``--policy.no-share``, ``1e6`` becomes ``1000000``, which is also a whole number,
    and ``none`` becomes ``None`` where it means that there is no number. An unknown flag is a ConfigError with the nearest ones.
    """
    out: list[str] = []
    todo = list(argv)
    while todo:
        argument = todo.pop(0)
        if not argument.startswith("--") or argument in ("--", "--help"):
            out.append(_whole(argument))
            continue
        name, equals, value = argument[2:].partition("=")
        path, negated = _find_flag(name, kind)
        hint = field_type(kind, path)
        if hint is bool:
            if not equals and todo and todo[0].lower() in SWITCH:
                value = todo.pop(0)
            if (equals or value) and value.lower() not in SWITCH:
                raise ConfigError(f"--{name}={value} must be true or false")
            off = negated != (not SWITCH.get(value.lower(), True))
            out.append("--" + _flag((*path[:-1], f"no_{path[-1]}" if off else path[-1])))
        else:
            out.append(f"--{_flag(path)}{equals}{_value(value, hint)}")
            if todo and not equals:
                todo[0] = _value(todo[0], hint)
    return out


def _find_flag(name: str, kind: type) -> tuple[tuple[str, ...], bool]:
    """Return the field that ``--name`` means, and whether the flag negates it."""
    paths = field_paths(kind)
    wanted = tuple(name.replace("-", "_").split("."))
    if told := foreign.unclear(name, paths, lambda field: "--" + _flag((field,))):
        raise ConfigError(told)
    positive = (*wanted[:-1], wanted[-1].removeprefix("no_"))
    for path, negated in ((wanted, False), (positive, True)):
        ends = [path] if path in paths else [p for p in paths if len(path) == 1 and p[-1:] == path]
        if len(ends) > 1:
            raise ConfigError(f"--{name} could be {' or '.join('--' + _flag(p) for p in ends)}")
        if ends and (not negated or field_type(kind, ends[0]) is bool):
            return ends[0], negated
    if told := foreign.ours(name, paths, lambda field: "--" + _flag((field,))):
        raise ConfigError(told)
    settings = [path for path in paths if not dataclasses.is_dataclass(field_type(kind, path))]
    by_name = {_flag(path[-1:]): path for path in settings} | {_flag(path): path for path in settings}
    near = difflib.get_close_matches(name.replace("_", "-"), by_name, n=3, cutoff=0.6)
    meant = " or ".join(dict.fromkeys("--" + _flag(by_name[flag]) for flag in near))
    raise ConfigError(f"there is no option --{name}." + (f" Did you mean {meant}?" if meant else " --help lists them all"))


def console() -> Console:
    """Return the console that reports go to. Without a terminal there are no colours and lines are not wrapped."""
    if sys.stdout.isatty():
        return Plain(highlight=False)
    return Plain(highlight=False, width=200, soft_wrap=True)


class Plain(Console):
    """A console that steers the terminal itself; nothing in what it is given does."""

    def render(self, renderable: RenderableType, options: ConsoleOptions | None = None) -> Iterable[Segment]:
        for segment in super().render(renderable, options):
            yield segment if segment.control else segment._replace(text=shown(segment.text))


def _flag(path: tuple[str, ...]) -> str:
    return ".".join(path).replace("_", "-")


def _value(text: str, hint: Any) -> str:
    optional = type(None) in get_args(hint) and set(get_args(hint)) <= {int, float, bool, type(None)}
    return "None" if optional and text.lower() == "none" else _whole(text)


def _whole(text: str) -> str:
    if text.isdecimal() and len(text) > 100:
        raise ConfigError(f"{text[:20]}... is a number of {len(text)} digits")
    if not re.fullmatch(r"\d+(\.\d*)?[eE]\+?\d+", text):
        return text
    number = float(text)
    return str(int(number)) if number.is_integer() else text


def literal(text: str) -> Any:
    """Return the Python value of ``text``, or the text itself if it is none."""
    try:
        return ast.literal_eval({"true": "True", "false": "False", "none": "None"}.get(text, text))
    except (ValueError, SyntaxError):
        return text
