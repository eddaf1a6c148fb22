"""``--config file.toml``: a run's whole ``config.toml``, or a part of one that changes an environment's preset.

A whole config ends with the line ``# end``, which ``to_toml`` writes. What it does not name is at its default, as in a run that goes
on: None has no TOML form. In any other file, what is not named is as in the preset. Files that it names are looked for from its folder.
"""

from __future__ import annotations

import dataclasses
import re
import tomllib
from collections.abc import Iterable, Iterator, Mapping
from pathlib import Path
from typing import Any, get_args

from fugu import files
from fugu.algorithm.settings import KNOWN, means_nothing, sections
from fugu.config import END, field_help, field_paths, field_type, find_field, fitting, override, structure
from fugu.emulation.place import from_anywhere, is_code
from fugu.emulation.session import is_session
from fugu.errors import ConfigError, did_you_mean
from fugu.presets import preset
from fugu.run import store
from fugu.run.given import fitted, look
from fugu.run.trust import ROLES, Gate, text_of
from fugu.trainer.config import TrainConfig, member, own_settings, refuse_unread, with_algorithm
from fugu.vector.config import VectorConfig

Data = dict[str, Any]


def from_file(
    path: str | Path,
    env: str | None = None,
    env_kwargs: Mapping[str, Any] | None = None,
    *,
    device: str | None = None,
    algorithm: str | None = None,
    start_timeout: float | None = None,
    given: Iterable[str] = (),
    trust_code: bool = False,
) -> TrainConfig:
    """Return the config that ``path`` describes. ``env`` and the others win over what the file says of them; with another ``env``, the
    file's ``env_kwargs`` are passed over, as they belong to its own. ``given``: what else options
    name of what has to be asked for (``policy``, ``sink``, ``log.wandb``).

    Sizes of a part of a config are not yet checked against each other: options may change them, and making the final config does."""
    named = (role for role, value in (("env", env), ("algorithm", algorithm)) if value is not None)
    file = ConfigFile(Path(path), given=frozenset([*given, *named]), algorithm=algorithm, trust_code=trust_code)
    data, kwargs = file.data, dict(env_kwargs or {})
    algorithm = algorithm or data.get("algorithm")
    other = env if env is not None and from_anywhere(env) != data.get("env") else None
    if file.whole:
        config = file.config()
        if other is not None:
            start = fitted(preset(look(other), kwargs, device or config.device, config.algorithm), other)
            config = override(config, {"env": start.env, "env_kwargs": start.env_kwargs})
        config = config if algorithm is None else with_algorithm(config, algorithm)
        return override(config, {"env_kwargs": {**config.env_kwargs, **kwargs}})
    env = env or data.get("env")
    if env is None:
        raise ConfigError(
            f'{path} names no environment: give one, as in fugu train cartpole --config {path}, or add env = "cartpole"'
        )
    if other is None:
        kwargs = {**data.get("env_kwargs", {}), **kwargs}
    timeout = start_timeout or data.get("vector", {}).get("start_timeout") or VectorConfig.start_timeout
    start = fitted(preset(look(env), kwargs, device or data.get("device") or "cpu", algorithm, start_timeout=timeout), env)
    return file.applied_to(override(start, {"env_kwargs": {**start.env_kwargs, **kwargs}}))


class ConfigFile:
    """A file of settings, read and checked for itself; errors name its lines."""

    def __init__(
        self, path: Path, *, given: frozenset[str] = frozenset(), algorithm: str | None = None, trust_code: bool = False
    ) -> None:
        """``given`` and ``trust_code`` are as for a run's ``Gate``, which the config in a run's folder has to pass. ``algorithm``: the
        one that is given."""
        self.path = path
        self.text = _read(path)
        try:
            self.data: Data = tomllib.loads(self.text)
        except (ValueError, RecursionError) as error:  # a ValueError: numbers of thousands of digits
            raise ConfigError(f"{path} is not TOML: {error}") from None
        self.whole = self.text.rstrip().endswith(END)
        if not self.data:
            raise ConfigError(f"{path} is empty; it may be a run's config.toml or some lines of one, such as steps = 100_000")
        if not self.whole and self.text.split("\n", 1)[0].endswith("# " + field_help(TrainConfig)["env"]):
            raise ConfigError(
                f"{path} begins like the config of a run but does not end with {END!r}, so a part of it may be missing. Copy the "
                "run's config.toml again, or, if this is all you want of it, delete the comment in its first line"
            )
        for name, flag in (("name", "--name my-run"), ("tags", "--tag my-tag"), ("seeds", "--seeds 5")):
            if name in self.data:
                raise self.error((name,), f"{name} is no setting but about one run; leave it out, and give {flag}")
        for name in ("env", "algorithm", "device"):
            if name in self.data:
                self.data[name] = self._fitting((name,), self.data[name], str)
        if store.is_run(path.parent) and (self.whole or store.RunFolder(path.parent).checkpoints.exists()):
            _with_its_code(
                self.data, Gate(store.RunFolder(path.parent), tomllib.loads(self.text), given, trust_code), algorithm
            )
        _from_its_folder(self.data, path.parent)
        for name, hint in (("env_kwargs", Mapping[str, Any]), ("vector", Mapping[str, Any])):
            self._fitting((name,), self.data.get(name, {}), hint)
        if "start_timeout" in self.data.get("vector", {}):
            self._fitting(("vector", "start_timeout"), self.data["vector"]["start_timeout"], float)
        try:
            self.kind = member(self.data.get("algorithm", "ppo"))
        except ConfigError as error:
            raise self.error(("algorithm",), error) from None

    def config(self) -> TrainConfig:
        """Return the file as the whole config that it is."""
        own = own_settings(self.data)
        for path, value in _leaves(self.data, self.kind):
            section = own.get(path[0], {})
            if path[0] not in own or (len(path) > 1 and path[1] not in section):
                self._refuse_of_another(path, value)
                continue
            self._known(path, self.kind)
            self._fitting(path, value, field_type(self.kind, path))
        return structure(self.kind, own, str(self.path))

    def applied_to(self, start: TrainConfig) -> TrainConfig:
        """Return ``start`` with the settings of the file, but for its environment."""
        changes: dict[tuple[str, ...], Any] = {}
        for path, value in _leaves(self.data, type(start)):
            if path[0] in ("env", "env_kwargs", "algorithm"):
                continue
            name = ".".join(path)
            try:
                refuse_unread(start, {name: value})
                found = find_field(type(start), name) if len(path) == 1 else self._known(path, type(start))
            except ConfigError as error:
                raise self.error(path, error) from None
            hint = field_type(type(start), found)
            if value == "none" and type(None) in get_args(hint) and set(get_args(hint)) <= {int, float, type(None)}:
                value = None
            changes[found] = self._fitting(found, value, hint, path)
        try:
            return _unchecked(start, changes)
        except ConfigError as error:
            raise ConfigError(f"{self.path}: {error}") from None

    def error(self, path: tuple[str, ...], error: object) -> ConfigError:
        """Return an error about the setting at ``path``, with its line."""
        line = _line(self.text, path)
        text = str(error)
        return ConfigError(text if text.startswith(str(self.path)) else f"{self.path}{line and f', line {line}'}: {text}")

    def _known(self, path: tuple[str, ...], kind: type) -> tuple[str, ...]:
        """Return ``path`` if ``kind`` has a setting there; the error names the nearest."""
        if path in field_paths(kind):
            return path
        known = [".".join(each) for each in field_paths(kind)]
        raise self.error(path, f"there is no setting {'.'.join(path)!r:.80}.{did_you_mean('.'.join(path), known)}")

    def _fitting(self, path: tuple[str, ...], value: Any, hint: Any, at: tuple[str, ...] | None = None) -> Any:
        if dataclasses.is_dataclass(hint):
            raise self.error(
                at or path, f"{path[0]} is a section: write [{path[0]}], and its settings below it; got {value!r:.60}"
            )
        try:
            return fitting(".".join(path), value, hint)
        except ConfigError as error:
            raise self.error(at or path, error) from None

    def _refuse_of_another(self, path: tuple[str, ...], value: Any) -> None:
        """Raise an error about a setting of another algorithm. Earlier versions wrote those as well, at their defaults."""
        defaults = [
            getattr(section(), path[1])
            for other in KNOWN
            if (section := sections(other).get(path[0])) is not None and len(path) == 2 and hasattr(section, path[1])
        ]
        value = tuple(value) if isinstance(value, list) else value
        if value not in defaults:
            algorithm, name = self.data.get("algorithm", "ppo"), ".".join(path)
            raise self.error(path, means_nothing(algorithm, name) or f"there is no setting {name!r:.80}")


def _unchecked(config: TrainConfig, changes: Mapping[tuple[str, ...], Any]) -> TrainConfig:
    """Return ``config`` with ``changes``; each section is checked, but not the whole."""
    values = {each.name: getattr(config, each.name) for each in dataclasses.fields(config)}
    values |= {path[0]: value for path, value in changes.items() if len(path) == 1}
    for section in {path[0] for path in changes if len(path) > 1}:
        inner = {".".join(path[1:]): value for path, value in changes.items() if path[0] == section}
        values[section] = override(values[section], inner)
    made: TrainConfig = object.__new__(type(config))
    for name, value in values.items():
        object.__setattr__(made, name, value)
    return made


def _read(path: Path) -> str:
    try:
        if path.is_relative_to("/dev") or path.is_relative_to("/proc"):  # --config <(...)
            return path.read_text(encoding="utf-8-sig")
        return files.read(path, files.SMALL).decode("utf-8-sig")
    except FileNotFoundError:
        near = sorted(each.name for each in path.parent.glob("*.toml"))
        raise ConfigError(f"there is no file {path}.{did_you_mean(path.name, near) if near else ''}") from None
    except IsADirectoryError:
        raise ConfigError(f"{path} is a folder; try --config {path / 'config.toml'}") from None
    except UnicodeDecodeError as error:
        raise ConfigError(f"{path} is not TOML: {error}") from None
    except OSError as error:
        raise ConfigError(f"{path} cannot be read: {error.strerror}") from None


def _with_its_code(data: Data, gate: Gate, algorithm: str | None) -> None:
    """Let ``data``, the config of a run, name its code where it is found now: a file that is gone is the run's own copy."""
    gate.check()
    if algorithm is not None and is_code(text_of(data, "algorithm")):  # the class that reads the settings
        data["algorithm"] = gate.means("algorithm") if gate.trusted else algorithm
    for role, where in ROLES.items():
        name = text_of(data, role)
        if role not in gate.given and (is_code(name) or is_session(name)):
            table = data
            for part in where[:-1]:
                table = table[part]
            table[where[-1]] = gate.means(role)


def _from_its_folder(data: Data, folder: Path) -> None:
    """Give the files that ``data`` names their whole paths: those without one are looked for from ``folder``."""
    for name in ("env", "algorithm"):
        if isinstance(data.get(name), str):
            data[name] = from_anywhere(data[name], folder)
    policy, self_play = data.get("policy"), data.get("self_play")
    if isinstance(policy, dict):
        if isinstance(policy.get("net"), str):
            policy["net"] = from_anywhere(policy["net"], folder)
        if isinstance(policy.get("start"), str):
            policy["start"] = str(Path(folder, policy["start"]).resolve())
    if isinstance(self_play, dict) and isinstance(self_play.get("opponents"), list):
        self_play["opponents"] = [_there(each, folder) for each in self_play["opponents"]]


def _there(run: Any, folder: Path) -> Any:
    """Return the path of a run from ``folder``, or as it is if there is none: a run keeps it as it was typed."""
    return str(folder / run) if isinstance(run, str) and (folder / run).exists() else run


def _leaves(data: Data, kind: type, above: tuple[str, ...] = ()) -> Iterator[tuple[tuple[str, ...], Any]]:
    """Yield the path and the value of every setting; a setting that is a mapping is not gone into."""
    for name, value in data.items():
        path = (*above, name)
        known = field_type(kind, path) if path in field_paths(kind) else None
        if isinstance(value, dict) and (known is None or dataclasses.is_dataclass(known)):
            yield from _leaves(value, kind, path)
        else:
            yield path, value


def _line(text: str, path: tuple[str, ...]) -> int | str:
    """Return the number of the line that sets ``path``, or ""; read as people write TOML, one setting a line."""
    section = ""
    for number, line in enumerate(text.split("\n"), 1):
        if header := re.match(r"\s*\[([^\[\]]+)\]", line):
            section = header[1].strip() + "."
            continue
        key = re.match(r"\s*([\w.\"'-]+)\s*=", line)
        if key and re.sub("[\"']", "", section + key[1]) == ".".join(path):
            return number
    return ""
