"""Files to start from: checked, written once, and followed by the commands to try next."""

from __future__ import annotations

import keyword
from collections.abc import Sequence
from pathlib import Path

from rich.text import Text

from fugu.cli.options import console
from fugu.errors import ConfigError, FuguError


def class_name(path: Path) -> str:
    """Return ``MyAlgo`` for ``my_algo.py``."""
    return "".join(word.capitalize() for word in path.stem.replace("-", "_").split("_"))


def check_file(text: str, suffix: str, example: str, kind: str) -> Path:
    """Return the path ``text``; raise a ConfigError if it does not end with ``suffix``."""
    path = Path(text)
    if path.suffix != suffix:
        instead = path.with_suffix(suffix) if path.name.strip(".") else path / example
        raise ConfigError(f"{text!r} must be the name of a {kind}; try {instead}")
    return path


def check_class(name: str, example: str) -> None:
    """Raise a ConfigError if no class can be called ``name``."""
    if not name.isidentifier() or keyword.iskeyword(name):
        raise ConfigError(f"{name!r} cannot be the name of a class; choose one with --name {example}")


def write_new(path: Path, text: str) -> None:
    """Write a file that does not exist yet."""
    try:
        path.parent.mkdir(parents=True, exist_ok=True)
        with open(path, "x", encoding="utf-8") as file:
            file.write(text)
    except FileExistsError:
        raise FuguError(f"{path} exists and is left alone; choose another name") from None
    except OSError as error:
        raise FuguError(f"{path} cannot be written: {error.strerror}") from None


def show_next(what: str, commands: Sequence[tuple[str, str]]) -> None:
    """Print what was written, and commands with the purpose of each."""
    out, width = console(), max(len(command) for command, _ in commands)
    out.print(Text(f"wrote {what}. Next:"))
    for command, purpose in commands:
        out.print(Text(f"  {command:{width}}  # {purpose}"), soft_wrap=True)
