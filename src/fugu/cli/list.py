"""``fugu list``: list the environments that can be made by name here, with a line on each."""

from __future__ import annotations

import importlib
import importlib.util
import json
import warnings
from dataclasses import dataclass
from typing import Annotated, Any

import tyro

from fugu.cli.options import parse
from fugu.errors import FuguError, did_you_mean, nearest

# other packages that register ids when they are imported; their ids are given as package:Id
PACKAGES = ("gymnasium_robotics", "highway_env", "miniworld", "mo_gymnasium", "minihack", "nle", "procgen", "craftium")

NATIVE = "fugu (native)"

# part of Gymnasium, or ours -> (modules it needs, what to install)
PARTS = {
    "mujoco": (("mujoco", "imageio"), "fugu-rl[mujoco]"),
    "fugu velocity": (("mujoco", "imageio"), "fugu-rl[mujoco]"),
    "box2d": (("Box2D",), "gymnasium[box2d]"),
    "phys2d": (("jax",), "gymnasium[jax]"),
    "tabular": (("jax",), "gymnasium[jax]"),
}


@dataclass(frozen=True, kw_only=True)
class Options:
    """List the environments that can be made by name here.

    Besides these, every command takes module:Class, file.py:Class and my_env.h.
    """

    pattern: Annotated[tyro.conf.Positional[str], tyro.conf.arg(metavar="PATTERN")] = ""
    """Text that a name must contain to be listed, in upper or lower case"""
    json: bool = False
    """Print a JSON object {group: [names]}"""


def main(argv: list[str]) -> int:
    options = parse(Options, "list", argv)
    from fugu.cli.list_lines import line

    groups, missing = environments()
    wanted = options.pattern.lower()
    found = {group: [name for name in names if wanted in name.lower()] for group, names in groups.items()}
    found = {group: names for group, names in found.items() if names}
    if not found:
        known = [name for names in groups.values() for name in names]
        near = nearest(options.pattern, known)
        hint = did_you_mean(options.pattern, near) if near else " `fugu list` shows all."
        raise FuguError(f"no environment with {options.pattern!r} in its name.{hint}")
    if options.json:
        print(json.dumps(found, indent=2))
        return 0
    for group, names in found.items():
        print(group)
        width = max(map(len, names))
        for name in names:
            print(f"  {name:{width}}  {line(name)}".rstrip())
    if not wanted:
        for group, install in missing.items():
            print(f'{group}: not installed; pip install "{install}"')
    return 0


def environments() -> tuple[dict[str, list[str]], dict[str, str]]:
    """Return the names that can be made, by group, and for the other groups what to install."""
    import gymnasium

    from fugu.cli.list_lines import pettingzoo
    from fugu.emulation.factory import NAMED, REGISTERING
    from fugu.emulation.native import names

    with warnings.catch_warnings():
        warnings.simplefilter("ignore")
        for package in dict.fromkeys((*REGISTERING.values(), *PACKAGES)):
            if importlib.util.find_spec(package) is not None:
                _register(gymnasium, package)
    groups: dict[str, list[str]] = {NATIVE: list(names())} if names() else {}
    groups["fugu"] = list(NAMED)
    missing: dict[str, str] = {}
    for name, spec in gymnasium.registry.items():
        group = _group(spec)
        if group is None or group == "fugu":  # our own ids are other names of these
            continue
        modules, install = PARTS.get(group.removeprefix("gymnasium "), ((), ""))
        if any(importlib.util.find_spec(module) is None for module in modules):
            missing[group] = install
            continue
        prefix = f"{group}:" if group in PACKAGES else ""
        groups.setdefault(group, []).append(prefix + name)
    several, lacking = pettingzoo()
    groups |= several
    missing |= lacking
    return {group: sorted(groups[group]) for group in sorted(groups, key=_order)}, missing


def _register(gymnasium: Any, package: str) -> None:
    try:
        gymnasium.register_envs(importlib.import_module(package))
    except Exception:  # a broken package must not hide the others
        return


def _group(spec: Any) -> str | None:
    """Return ``gymnasium classic_control``, or the package's name; None for entries that can only raise."""
    if isinstance(spec.entry_point, str):
        parts = spec.entry_point.partition(":")[0].split(".")
    elif spec.entry_point is not None and spec.entry_point.__module__ != "gymnasium.envs":
        parts = spec.entry_point.__module__.split(".")
    else:
        return None
    if parts[:3] == ["fugu", "envs", "velocity"]:
        return "fugu velocity"
    return f"gymnasium {parts[2]}" if parts[:2] == ["gymnasium", "envs"] and len(parts) > 2 else parts[0]


def _order(group: str) -> tuple[bool, bool, bool, str]:
    return group != NATIVE, not group.startswith("gymnasium "), not group.startswith(("pettingzoo ", "mpe2")), group
