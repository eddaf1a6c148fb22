"""``fugu new algorithm FILE``: write an algorithm to start from."""

from __future__ import annotations

from dataclasses import dataclass
from pathlib import Path
from typing import Annotated

import tyro

import fugu.algorithm
from fugu.cli.options import parse
from fugu.cli.starter import check_class, check_file, class_name, show_next, write_new


@dataclass(frozen=True, kw_only=True)
class Options:
    """Write a short actor-critic algorithm to start from, for fugu train ENV --algorithm FILE:CLASS."""

    path: Annotated[tyro.conf.Positional[str], tyro.conf.arg(metavar="PATH")]
    """File to write; an existing one is never touched"""
    name: str = ""
    """Name of the class; empty: from the file name, my_algo.py -> MyAlgo"""


def main(argv: list[str]) -> int:
    """Write the file and show what to do with it."""
    options = parse(Options, "new algorithm", argv)
    path = check_file(options.path, ".py", "my_algo.py", "Python file")
    name = options.name or class_name(path)
    check_class(name, "MyAlgo")
    write_new(path, text(path.name, name))
    own = f"fugu train cartpole --algorithm {path}:{name}"
    show_next(
        f"{path} with the class {name}",
        [(own, "train by it"), (f"{own} --entropy 0.02", "with a setting of its own"), (f"{own} --help", "all settings")],
    )
    return 0


START = '''"""Advantage actor-critic, to start from: fugu train cartpole --algorithm my_algo.py:MyAlgo. Make it your own.

Before the training starts it is tried on a few rows; what is wrong is named then. Checkpoints, exact resume, evaluation and the
dashboard come by themselves: weights, statistics and random generators are found in the attributes of the algorithm.
"""'''


def text(file: str, name: str) -> str:
    """Return the source of fugu's own actor-critic as a file of the user's."""
    source = (Path(fugu.algorithm.__file__).parent / "a2c.py").read_text(encoding="utf-8")
    code = source[source.index('"""', 3) + 3 :].replace("A2C", name)
    return START.replace("my_algo.py", file).replace("MyAlgo", name) + code
