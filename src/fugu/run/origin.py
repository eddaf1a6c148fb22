"""Where a run came from: ``origin.json`` with the command, versions, machine, commit and spaces, and copies of the user's own files.

Written once, when a run begins. Nothing of it is needed to train, so nothing that goes wrong here ends a training. What it holds
about a person is what they typed: no name of a user or of a machine.
"""

from __future__ import annotations

import contextlib
import hashlib
import importlib.metadata
import json
import os
import platform
import sys
import time
from collections.abc import Mapping
from pathlib import Path
from typing import Any

from fugu import __version__
from fugu.config import read_toml
from fugu.emulation.place import split_file
from fugu.errors import ConfigError, FuguError
from fugu.run import code
from fugu.run.commit import Commit
from fugu.run.given import Given
from fugu.run.store import RunFolder
from fugu.run.trust import ROLES, stamp, text_of
from fugu.trainer.config import TrainConfig


def note_origin(folder: RunFolder, config: TrainConfig, vec: Any = None) -> None:
    """Write down where a new run comes from, and copy and seal the code it names. ``vec``: its environments."""
    with contextlib.suppress(OSError, ValueError, FuguError):
        commit = Commit()  # git works while the rest is looked up
        data = read_toml(folder.config)
        found: dict[str, Any] = {
            "time": time.strftime("%Y-%m-%dT%H:%M:%S%z"),
            "command": [*sys.orig_argv[:1], *sys.argv],
            "folder": os.getcwd(),
            "versions": _versions(),
            "machine": _machine(config.device),
            "spaces": _spaces(vec),
            "code": _copied(folder, data, ROLES),
        }
        found["git"] = commit.found(folder.at / "origin.diff")
        _write(folder.origin, json.dumps(found, indent=1, default=str) + "\n")
        stamp(folder, data)


def renew_origin(folder: RunFolder, config: TrainConfig, given: Given) -> None:
    """Copy what was given when the run was resumed, and seal the run: whoever trains on has asked for its code."""
    with contextlib.suppress(OSError, ValueError, FuguError):
        data = read_toml(folder.config)
        named = [role for role in given if not _from_copy(folder, given[role])]
        copied = _copied(folder, data, named)
        if copied:
            found = {**_read(folder.origin)}
            found["code"] = {**found.get("code", {}), **copied}
            _write(folder.origin, json.dumps(found, indent=1) + "\n")
        stamp(folder, data)


def refuse_other_spaces(folder: RunFolder, vec: Any) -> None:
    """Raise a ConfigError if the environments of now have other spaces than those the run began with."""
    before, now = _read(folder.origin).get("spaces") or {}, _spaces(vec)
    for name in ("observation_space", "action_space"):
        if now.get(name) and before.get(name) and now[name] != before[name]:
            raise ConfigError(
                f"{folder.path}: the environment of now does not fit, its {name} is {now[name]} and the run's {before[name]}; "
                "add --env with the environment it was trained in"
            )


def _spaces(vec: Any) -> dict[str, str]:
    if vec is None:
        return {}
    return {name: repr(getattr(vec.spec, name)) for name in ("observation_space", "action_space")}


def _copied(folder: RunFolder, data: Mapping[str, Any], roles: Any) -> dict[str, Any]:
    """Copy the files that a config names into the run; role -> what was copied, or why not."""
    found: dict[str, Any] = {}
    for role in roles:
        name = text_of(data, role)
        if not split_file(name)[0]:
            continue
        try:
            files = code.gathered(name)
            code.keep(folder.code, role, files)
            each = {path: hashlib.sha256(content).hexdigest() for path, content in files.items()}
            found[role] = {"name": name, "sha256": each}
        except (OSError, code.TooMuch) as error:
            found[role] = {"name": name, "not_copied": str(error)}
    return found


def _from_copy(folder: RunFolder, value: Any) -> bool:
    file = split_file(value)[0] if isinstance(value, str) else ""
    return bool(file) and Path(file).resolve().is_relative_to(folder.code.resolve())


def _versions() -> dict[str, str]:
    found = {"fugu": __version__, "python": platform.python_version()}
    for name in ("torch", "numpy", "gymnasium"):
        module = sys.modules.get(name)
        found[name] = str(getattr(module, "__version__", None) or importlib.metadata.version(name))
    return found


def _machine(device: str) -> dict[str, Any]:
    found: dict[str, Any] = {"system": platform.platform(), "cpu": _processor(), "cores": len(os.sched_getaffinity(0))}
    if device.startswith("cuda"):
        import torch

        found["gpu"] = torch.cuda.get_device_name(torch.device(device))
        found["cuda"] = torch.version.cuda
    return found


def _processor() -> str:
    with contextlib.suppress(OSError):
        for line in Path("/proc/cpuinfo").read_text().splitlines():
            if line.startswith("model name"):
                return line.partition(":")[2].strip()
    return platform.machine()


def _read(path: Path) -> dict[str, Any]:
    """Return what an ``origin.json`` holds; nothing if it is missing or was damaged."""
    with contextlib.suppress(OSError, ValueError):
        found = json.loads(path.read_bytes())
        return found if isinstance(found, dict) else {}
    return {}


def _write(path: Path, text: str) -> None:
    draft = path.with_suffix(".tmp")
    draft.write_text(text, encoding="utf-8")
    draft.replace(path)
