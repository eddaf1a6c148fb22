"""Environments, networks and algorithms that are given as objects: to ``fugu.train``, which names them in its config, and to a run, in
the place of what its config names."""

from __future__ import annotations

import copy
import shlex
import sys
from collections.abc import Mapping
from dataclasses import replace
from pathlib import Path
from typing import Any

from fugu.emulation.factory import factories
from fugu.emulation.place import Name, from_anywhere, is_code, meaning, split_file
from fugu.emulation.session import SESSION, importable, is_session, named
from fugu.errors import ConfigError
from fugu.run.store import RunFolder
from fugu.run.trust import FLAGS, ROLES, Gate, text_of, typed
from fugu.trainer.config import TrainConfig
from fugu.vector.config import nearest_divisor

Given = dict[str, Any]
"""role -> what takes the place of the run's own: a name, a class or a function"""


def by_name(env: Any, settings: Mapping[str, Any]) -> tuple[str, dict[str, Any]]:
    """Return what ``train`` was called with, with names in the place of objects; each carries its object with it."""
    settings = dict(settings)
    policy = settings.get("policy")
    if policy is not None and not isinstance(policy, Mapping) and not _is_section(policy):
        settings["policy.net"] = settings.pop("policy")
    elif isinstance(policy, Mapping) and "net" in policy:
        settings["policy"] = {**policy, "net": _class(policy["net"], "policy")}
    for setting, role in (("policy.net", "policy"), ("algorithm", "algorithm")):
        if setting in settings:
            settings[setting] = _class(settings[setting], role)
    return _environment(env), settings


def look(env: str) -> Any:
    """Return what a preset is chosen by: one environment of a list."""
    found = meaning(env)
    return found[0] if isinstance(found, list | tuple) else found


def fitted(config: TrainConfig, env: str) -> TrainConfig:
    """Return a preset for ``env``, which it may not know by that name, and with an environment for each entry of a list."""
    found = meaning(env)
    if not isinstance(found, list | tuple):
        return replace(config, env=env) if isinstance(env, Name) else config
    count = len(found)
    minibatch = config.minibatch
    if minibatch is not None:
        segments = nearest_divisor(count, minibatch / config.horizon * count / config.vector.num_envs)
        minibatch = segments * config.horizon
    return replace(config, env=env, minibatch=minibatch, vector=replace(config.vector, num_envs=count))


def refuse_other_count(config: TrainConfig) -> None:
    """Raise a ConfigError if a list of environments has other than the number there are to be."""
    found, count = meaning(config.env), config.vector.num_envs
    if isinstance(found, list | tuple) and len(found) != count:
        raise ConfigError(f"a list of {len(found)} environments needs num_envs={len(found)}, got num_envs={count}")


def refuse_other_env(gate: Gate, config: TrainConfig) -> None:
    """Raise a ConfigError if a run is to go on in another environment: only code can have been moved."""
    before = text_of(gate.data, "env")
    if config.env != before and not is_code(before) and not is_code(config.env):
        raise ConfigError(f"a run that goes on cannot change env from {before} to {config.env}; start a new one for that")


def put(data: dict[str, Any], given: Given, gate: Gate) -> None:
    """Put what was given into a run's config, and guard every other name in it that means code."""
    data.clear()
    data.update(copy.deepcopy(dict(gate.data)))
    for role, where in ROLES.items():
        name = text_of(data, role)
        if role in given:
            found = _instead(role, name, given[role], gate.folder)
            if role == "env":
                gate.check_settings(found)
        elif name:
            found = gate.kept(role, name)
        else:
            continue
        table = data
        for part in where[:-1]:
            table = table.setdefault(part, {})
        if isinstance(table.get(where[-1], ""), str):
            table[where[-1]] = found


def codes(config: TrainConfig) -> Given:
    """Return the code that a config names, as it can be given to a run."""
    names = {"env": config.env, "policy": config.policy.net, "algorithm": config.algorithm}
    return {role: name for role, name in names.items() if is_code(name)}


def by_text(value: Any) -> str | None:
    """Return the name that code is given by, as a config has it; None for what exists only in this session."""
    name = from_anywhere(value) if isinstance(value, str) else importable(value)
    return None if name is None else str(name)


def announce(config: TrainConfig, folder: RunFolder, note: str | None = None) -> None:
    """Say of a run what its source has to say, what exists only in this session, and how it goes on in another."""
    if note is not None:
        print(f"note: {note}", file=sys.stderr)
    names, label = _of_session(config), folder.label
    if names and (label.group is None or label.seeds[0] == config.seed):  # once of a group
        what = " and ".join(name.removeprefix(SESSION) for name in names.values())
        kind, path = ("Run", folder.path) if label.group is None else ("Group", folder.path.parent / label.group)
        print(
            f"note: {what} exist{'s' * (len(names) == 1)} only in this session. In another, go on with "
            f"fugu.{kind}({str(path)!r}).resume({arguments(config)}) or fugu train --resume {shlex.quote(str(path))}{flags(config)}",
            file=sys.stderr,
        )


def flags(config: TrainConfig) -> str:
    """Return what has to be typed after ``fugu train --resume RUN``: files for what exists only in this session."""
    return "".join(f" {FLAGS[role]} my_file.py:{typed(name)}" for role, name in _of_session(config).items())


def arguments(config: TrainConfig) -> str:
    """Return what has to be given to ``resume`` in another session: what exists only in this one."""
    return ", ".join(f"{role}={typed(name)}" for role, name in _of_session(config).items())


def _of_session(config: TrainConfig) -> dict[str, str]:
    return {role: name for role, name in codes(config).items() if is_session(name)}


def _environment(env: Any) -> str:
    if not isinstance(env, str):
        factories(env, len(env) if isinstance(env, list | tuple) else 1)  # refuses instances, and what is no environment
        if isinstance(env, list | tuple) and not env:
            raise ConfigError("a list of environments must have at least one")
    return named(env)


def _class(value: Any, role: str) -> Any:
    """Return a class, or a function that makes a network, as a name; None and other values as they are."""
    if value is None or isinstance(value, str | list | tuple | Mapping | int | float):
        return value  # a wrong one is refused with the other settings
    if not callable(value) or (hasattr(value, "state_dict") and not isinstance(value, type)):
        kind = type(value).__name__
        raise ConfigError(f"{role}={kind}(...): got an instance, and a run makes its own; pass the class: {role}={kind}")
    return named(value)


def _is_section(value: Any) -> bool:
    from fugu.policy.config import PolicyConfig

    return isinstance(value, PolicyConfig)


def _instead(role: str, name: str, value: Any, folder: RunFolder) -> str:
    """Return what stands in the config for a value that was given in the place of ``name``."""
    new = from_anywhere(value) if isinstance(value, str) else _environment(value) if role == "env" else _class(value, role)
    if role != "env" and not is_code(name) and new != name:
        raise ConfigError(f"a run that goes on cannot change {role}; start a new one for that")
    if isinstance(new, Name):
        return Name(name, new.object) if is_session(new) and is_code(name) else new
    file = split_file(new)[0]
    if file and Path(file).is_relative_to(folder.code.resolve()):
        return Name(name, new)  # its own copy, which moves with it
    return str(new)
