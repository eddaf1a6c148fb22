"""``fugu build``: compile a native environment of the user's own; with ``--debug`` check it under the sanitizers."""

from __future__ import annotations

import os
import shlex
import subprocess
import sys
import time
from dataclasses import dataclass
from typing import Annotated

import tyro
from rich.text import Text

from fugu.cli.options import console, parse
from fugu.emulation.build import build, debug_environment, load
from fugu.emulation.native import native_spec


@dataclass(frozen=True, kw_only=True)
class Options:
    """Compile a native environment of your own into the cache, where every command finds it.

    Commands that are given my_env.h do this by themselves; this one shows whether it compiles, and how long that takes.
    """

    path: Annotated[tyro.conf.Positional[str], tyro.conf.arg(metavar="PATH.h")]
    """Header of the environment, such as fugu new env --native writes"""
    debug: bool = False
    """Compile with the address and undefined-behaviour sanitizers, and run fugu check with them"""


def main(argv: list[str]) -> int:
    options = parse(Options, "build", argv)
    start = time.perf_counter()
    library = build(options.path, debug=options.debug)
    out = console()
    out.print(Text(f"{library}  ({time.perf_counter() - start:.1f} s)"))
    if not options.debug:
        spec = native_spec(load(library), {})
        out.print(Text(f"{spec.name}: {spec.num_agents} x {spec.observation_space} -> {spec.action_space}. Next:"))
        path = shlex.quote(options.path)
        out.print(Text(f"  fugu check {path}"))
        out.print(Text(f"  fugu bench vector {path} --num-envs 4096"))
        return 0
    variables = debug_environment()
    settings = " ".join(f"{name}={shlex.quote(value)}" for name, value in variables.items())
    out.print(Text(f"{settings} fugu check {shlex.quote(str(library))}"), soft_wrap=True)
    sys.stdout.flush()
    command = [sys.executable, "-P", "-m", "fugu", "check", str(library)]
    code = subprocess.run(command, env={**os.environ, **variables}).returncode
    return 0 if code == 0 else 1
