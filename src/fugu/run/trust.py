"""What a run would execute, and whether it may: code of a run is executed only if this user made the run in this place, asked for it,
or named that very code.

Comes in: the names in a run's ``config.toml``. Those that mean code are wrapped (``Kept``), so that whoever is about to find out what
they mean, for whatever purpose, asks the ``Gate`` first. Reading a run's figures asks nobody.
"""

from __future__ import annotations

import functools
import json
import keyword
import os
import shlex
import sys
from collections.abc import Iterable, Mapping
from functools import cached_property
from pathlib import Path
from typing import Any

from fugu import files
from fugu.emulation.place import Name, is_code, split_file
from fugu.emulation.session import SESSION, is_session
from fugu.errors import ConfigError, shown_line
from fugu.run import code, seal
from fugu.run.store import RunFolder

ROLES: Mapping[str, tuple[str, ...]] = {
    "env": ("env",),
    "policy": ("policy", "net"),
    "algorithm": ("algorithm",),
    "sink": ("log", "sink"),
}
"""what may name code in a config -> where"""

SERVICE = "log.wandb"
CORE_LOG = "wandb/*run-*/logs/debug-core.log"
"""where W&B leaves a link to a log in the user's cache, and never writes again"""
"""role of what a run that goes on would tell others"""

ASKED = {**ROLES, SERVICE: ("log", "wandb")}
"""what a run may do only if it was asked for -> where a config says so"""

FLAGS = {SERVICE: "--log.wandb", "env": "--env", "policy": "--policy", "algorithm": "--algorithm", "sink": "--log.sink"}

OURS_BY_SETTINGS = ("coding", "fugu.coding.env:Coding", "fugu.envs:fugu/Coding-v0", "fugu/Coding-v0")
"""environments of fugu that only read the files that their settings name, and execute nothing in them outside of the sandbox"""

WITH_STATE = "fugu.envs.teams:with_state"
"""environment of fugu that makes the one that its setting ``of`` names"""

UNPROTECTED = ("backend", "min_level", "allow")
"""settings of the coding environment that decide how well the programs a policy writes are shut in"""


SHOWN, MOST_TEXT = 20, 1000
"""copies and characters of settings that are listed"""


class Untrusted(ConfigError):
    """A run would execute code that nobody has asked for."""


class Kept(Name):
    """A name from a run's folder. What it means is found out by the run's gate, and only if that code may be executed."""

    gate: Gate
    role: str

    def __new__(cls, text: str, gate: Gate | None = None, role: str = "") -> Kept:
        kept = str.__new__(cls, text)
        if gate is not None:  # None: while it is unpickled
            kept.gate, kept.role = gate, role
        return kept

    def means(self) -> str:
        return self.gate.means(self.role)


class Gate:
    """Decides what one run may execute. ``data``: its ``config.toml``. ``given``: roles whose code the user has named. ``trust``: the
    user has asked for all of it."""

    def __init__(
        self, folder: RunFolder, data: Mapping[str, Any], given: frozenset[str] = frozenset(), trust: bool = False
    ) -> None:
        self.folder, self.data, self.given, self.trust = folder, data, given, trust
        self._found: dict[str, str] = {}

    def kept(self, role: str, name: str) -> str:
        """Return ``name`` wrapped if it means code."""
        return Kept(name, self, role) if role in self.executes or is_session(name) else name

    def means(self, role: str) -> str:
        """Return where the code of ``role`` is found, if it may be executed."""
        if role not in self._found:
            name = text_of(self.data, role)
            if is_session(name):
                raise ConfigError(_only_in_session(self.folder, role, name))
            self.check_code()
            self._check_libraries([name, *_texts(self.settings)] if role == "env" else [name])
            self._found[role] = self._located(role, name)
        return self._found[role]

    def check(self) -> None:
        """Raise ``Untrusted`` if the run would execute anything that nobody has asked for."""
        self._check([role for role in self.executes if role not in self.given])

    def check_code(self) -> None:
        """Do so without what only a run that goes on would do."""
        self._check([role for role in self.executes if role not in (*self.given, SERVICE)])

    def _check(self, asked: list[str]) -> None:
        if asked and not self.trusted:
            raise Untrusted(self._refusal(asked))

    def check_settings(self, env: str) -> None:
        """Raise ``Untrusted`` if the run's settings make an environment that was given execute anything more."""
        if (what := _from_settings(env, self.settings)) and not self.trusted:
            self.executes["env"] = what
            raise Untrusted(self._refusal(["env"]))
        if env == WITH_STATE:  # the only one of ours that makes another by a name; what others make of a text is theirs
            self._check_libraries(_texts(self.settings))

    def check_links(self) -> None:
        """Raise a ConfigError if writing to the run's files would write elsewhere."""
        files.refuse_links(self.folder.at, besides="wandb", unwritten=CORE_LOG)

    @cached_property
    def trusted(self) -> bool:
        """Return whether all code that the run names may be executed."""
        return self.trust or self.made_here

    @cached_property
    def executes(self) -> dict[str, str]:
        """Return role -> what the run executes for it that is not fugu's."""
        found = {role: name for role in ROLES if (name := text_of(self.data, role)) and _means_code(name)}
        if "env" not in found and (inner := _from_settings(text_of(self.data, "env"), self.settings)):
            found["env"] = inner
        log = self.data.get("log")
        if isinstance(log, Mapping) and log.get("wandb", "off") != "off":  # whose settings may lie in the run's folder
            found[SERVICE] = "sends what it logs to Weights & Biases with your key, perhaps to a server of its own"
        return found

    @property
    def settings(self) -> Mapping[str, Any]:
        """Return the settings of the environment."""
        settings = self.data.get("env_kwargs", {})
        return settings if isinstance(settings, dict) else {}

    @cached_property
    def copies(self) -> dict[str, bytes]:
        return code.read(self.folder.code)

    @cached_property
    def made_here(self) -> bool:
        """Return whether this user made the run in this place, and nothing that it executes was changed since."""
        self._why = "it has no seal"
        try:
            text = files.read(self.folder.seal, files.SMALL).decode("ascii").strip()
            self._why = "it was moved, copied or changed since, or somebody else made it"
            return seal.fits(text, self.message())
        except seal.NoKey as error:
            self._why = str(error)
        except (OSError, UnicodeDecodeError, files.NotPlain):
            pass
        return False

    def message(self) -> bytes:
        """Return everything the seal covers."""
        place = str(self.folder.at.resolve())
        covered = ["fugu run 1", place, self.executes, self.settings, code.digest(self.copies)]
        return json.dumps(covered, sort_keys=True, default=repr).encode()

    def _check_libraries(self, names: Iterable[str]) -> None:
        """Raise a ConfigError if one of ``names`` is a compiled library, unless this user made the run."""
        if (found := [name for name in names if name.endswith(".so")]) and not self.made_here:
            raise ConfigError(
                f"{self.folder.path} names the compiled library {found[0]}, and what is in one cannot be looked at; build it from its "
                "source: --env my_env.h"
            )

    def _located(self, role: str, name: str) -> str:
        """Return the name with the file to use: the user's own where it is still there, else the run's copy."""
        file, rest = split_file(name)
        copies = code.of_role(self.copies, role) if file else {}
        if Path(file).name not in copies:
            if file and not Path(file).is_file():
                what = f"{self.folder.path} names {_from_here(file)}, which is not there, and has no copy of it"
                raise ConfigError(what, fix=f"Say where it is now: {FLAGS[role]} file.py{rest}, in Python {role}=")
            return name
        try:
            now: Mapping[str, bytes] = code.gathered(name)
        except (OSError, code.TooMuch):
            now = {}
        if now == copies:
            return name
        copy, path = self.folder.path / "code" / role / Path(file).name, _from_here(file)
        if Path(file).is_file() and self.made_here:
            was = shlex.quote(str(copy) + rest)
            _say(f"{path} has changed since the run began and is used as it is now; as it was: {FLAGS[role]} {was}")
            return name
        why = "is not what the run began with" if Path(file).is_file() else "is not there"
        _say(f"{path} {why}; using the run's own copy, {copy}")
        return str(code.unpacked(copies) / Path(file).name) + rest

    def _refusal(self, asked: list[str]) -> str:
        lines = [f"{self.folder.path} would execute what did not come with fugu, and was not made here by you ({self._why}):"]
        for role in asked:
            copies = [f"code/{role}/{path}" for path in sorted(code.of_role(self.copies, role))]
            more = f" and {len(copies) - SHOWN} more" if len(copies) > SHOWN else ""
            shown = f"  (copied: {', '.join(copies[:SHOWN])}{more})" if copies else ""
            lines.append(f"  {role}: {self.executes[role]}{shown}")
        if "env" in asked and self.settings:
            text = repr(dict(self.settings))
            more = f" ... ({len(text)} characters, in config.toml)" if len(text) > MOST_TEXT else ""
            lines.append(f"  with the settings {text[:MOST_TEXT]}{more}")
        lines.append("if you have looked at it and trust it, add --trust-code (in Python: trust_code=True)")
        return "\n".join(map(shown_line, lines))  # no line may hide another


def text_of(data: Mapping[str, Any], role: str) -> str:
    """Return the name that a config has for ``role``, or nothing."""
    value: Any = data
    for part in ROLES[role]:
        value = value.get(part) if isinstance(value, Mapping) else None
    if isinstance(value, list):
        value = ", ".join(map(str, value))
    return value if isinstance(value, str) else ""


def stamp(folder: RunFolder, data: Mapping[str, Any]) -> None:
    """Seal a run whose code this user has asked for. Without a key it stays as it is, and has to be asked for again."""
    gate = Gate(folder, data)
    if not gate.executes:
        return
    try:
        files.write(folder.seal, seal.seal(gate.message()) + "\n")
    except (seal.NoKey, OSError, ConfigError):
        return


def _means_code(name: str) -> bool:
    from fugu.presets import BY_ALGORITHM, PRESETS

    if is_session(name):  # nothing of the run: it has to be given
        return False
    return is_code(name) and name not in PRESETS and not any(name in table for table in BY_ALGORITHM.values())


def _from_settings(env: str, settings: Mapping[str, Any]) -> str:
    """Return what an environment of fugu executes because its settings say so, or nothing."""
    inner = settings.get({WITH_STATE: "of", "fugu.envs.atari:make": "game"}.get(env, ""))
    names = [name for name in (inner if isinstance(inner, list | tuple) else [inner]) if isinstance(name, str)]
    if code_of := [name for name in names if _means_code(name)]:
        return ", ".join(code_of)
    if env == WITH_STATE:  # which gives the rest to the environment in it
        rest = {name: value for name, value in settings.items() if name != "of"}
        return ", ".join(what for name in names or [""] if (what := _from_settings(name, rest)))
    game = settings.get("game", "")
    if env == "fugu.envs.atari:make" and not str(game).startswith("ALE/"):
        return f"{game} with the settings of an Atari game"
    if env not in OURS_BY_SETTINGS and (paths := sorted(_paths(settings, besides=("of", "game")))):
        return f"{env}, whose settings name files or code ({', '.join(paths)})"
    weaker = [name for name in UNPROTECTED if name in settings]
    if "coding" in env.lower() and weaker:
        return f"programs that its policy writes, shut in less than usual ({', '.join(weaker)})"
    return ""


def _paths(settings: Mapping[str, Any], besides: Iterable[str] = ()) -> set[str]:
    """Return the texts in settings that may be paths or names of code: what an installed environment makes of them is not known."""

    def may_be(text: str) -> bool:
        return text in (".", "..") or any(c in text for c in "/\\:~") or any(map(str.isalpha, Path(text).suffix))

    return set(filter(may_be, _texts({name: value for name, value in settings.items() if name not in besides})))


def _texts(value: Any) -> set[str]:
    """Return all texts in settings, wherever they are."""
    if isinstance(value, str):
        return {value}
    inner = [each for item in value.items() for each in item] if isinstance(value, Mapping) else value
    return set().union(*map(_texts, inner)) if isinstance(inner, list | tuple) else set()


def typed(name: str) -> str:
    """Return what stands for ``session:Class`` in a command to type."""
    own = name.removeprefix(SESSION)
    return own if own.isidentifier() and not keyword.iskeyword(own) else "NAME"


def _only_in_session(folder: RunFolder, role: str, name: str) -> str:
    what = {"env": "environment", "policy": "network", "sink": "sink"}.get(role, role)
    return (
        f"{folder.path}: its {what} {name.removeprefix(SESSION)} existed only in the session that trained it; give it again: "
        f"{FLAGS[role]} my_file.py:{typed(name)}, in Python {role}={typed(name)}"
    )


def _from_here(file: str) -> str:
    return min(file, os.path.relpath(file), key=len)


@functools.cache
def _say(line: str) -> None:
    """Say something once."""
    print(shown_line(f"note: {line}"), file=sys.stderr)
