"""Config dataclasses as TOML files and back, and names of their fields as people type them.

A config is a frozen dataclass whose fields are values or further such dataclasses (sections). The string under a field is its help:
the command line shows it, and the TOML file carries it as a comment. None has no TOML form: such a field is left out.
"""

from __future__ import annotations

import ast
import dataclasses
import functools
import inspect
import itertools
import math
import os
import textwrap
import tomllib
import types
import typing
from collections.abc import Mapping
from pathlib import Path
from typing import Any, TypeVar

from fugu import files, foreign
from fugu.errors import ConfigError, did_you_mean

Config = TypeVar("Config")

END = "# end"
"""last line of a file: half a file would otherwise be read as a config of defaults"""

SEEDS = 2**63
"""bound of seeds, which every generator takes"""

LARGEST = 2.0**128 - 2.0**104
"""greatest finite number of float32"""


def fixed(default: Any = dataclasses.MISSING, *, default_factory: Any = dataclasses.MISSING) -> Any:
    """Declare a field that a run keeps for good, because its weights, statistics or environments would not fit another value."""
    if default_factory is not dataclasses.MISSING:
        return dataclasses.field(default_factory=default_factory, metadata={"fixed": True})
    return dataclasses.field(default=default, metadata={"fixed": True})


def fixed_paths(config: Any) -> list[tuple[str, ...]]:
    """Return the paths of all ``fixed`` fields of ``config`` and of its sections."""
    paths: list[tuple[str, ...]] = []
    for field in dataclasses.fields(config):
        value = getattr(config, field.name)
        if field.metadata.get("fixed"):
            paths.append((field.name,))
        elif dataclasses.is_dataclass(value):
            paths += [(field.name, *path) for path in fixed_paths(value)]
    return paths


def refuse_absurd(config: Any, section: str = "") -> None:
    """Raise a ConfigError if a number is beyond what the machine computes with: 64 bits, and float32 where it has a fraction."""
    for field in dataclasses.fields(config):
        name, value = f"{section}{field.name}", getattr(config, field.name)
        if dataclasses.is_dataclass(value):
            refuse_absurd(value, f"{name}.")
        elif (isinstance(value, int) and abs(value) > SEEDS) or (isinstance(value, float) and LARGEST < abs(value) < math.inf):
            raise ConfigError(f"{name}={value:.3g} is beyond what can be computed with")


def to_toml(config: Any) -> str:
    """Return the config as a commented TOML document."""
    import tomlkit

    document = tomlkit.document()
    _fill(document, config)
    text = tomlkit.dumps(document) + f"\n{END}\n"
    try:
        text.encode()
    except UnicodeEncodeError as error:
        raise ConfigError(
            f"{text[max(0, error.start - 20) : error.end + 20]!r} cannot be written to a run's config.toml: it is not Unicode"
        ) from None
    return text


def read_toml(path: Path) -> dict[str, Any]:
    """Return the tables of a file that ``to_toml`` wrote, after checking that it is whole."""
    try:
        text = files.read(path, files.SMALL).decode()
        data = tomllib.loads(text)
    except FileNotFoundError:
        raise ConfigError(f"there is no {path}") from None
    except (ValueError, RecursionError) as error:  # a ValueError: numbers of thousands of digits
        raise ConfigError(f"{path} is not TOML: {error}") from None
    if not data:
        raise ConfigError(f"{path} is empty")
    if not text.rstrip().endswith(END):
        raise ConfigError(
            f"{path} does not end with {END!r}, so a part of it may be missing; put it back as it was written, or start a new run"
        )
    return data


def structure(kind: type[Config], data: Mapping[str, Any], where: str) -> Config:
    """Return nested mappings as a ``kind``, strictly; ``where`` is named in errors."""
    import cattrs
    from cattrs.preconf.tomlkit import make_converter

    converter = make_converter(forbid_extra_keys=True)
    converter.register_structure_hook_func(lambda hint: typing.get_origin(hint) is not None, _fit)
    for plain in _MUST:
        converter.register_structure_hook(plain, _fit)
    try:
        return converter.structure(data, kind)
    except cattrs.ClassValidationError as error:
        raise ConfigError(f"{where}: " + "; ".join(_problems(error))) from None


def override(config: Config, changes: Mapping[str, Any]) -> Config:
    """Return ``config`` with some fields changed. A name is ``section.field``, a section with a mapping, or a field that is unique."""
    by_path: dict[tuple[str, ...], Any] = {}
    for name, value in changes.items():
        path = find_field(type(config), name)
        if isinstance(value, Mapping) and dataclasses.is_dataclass(field_type(type(config), path)):
            for inner, inner_value in value.items():
                by_path[(*path, *find_field(field_type(type(config), path), inner))] = inner_value
        else:
            by_path[path] = value
    return _replaced(config, {path: _checked(type(config), path, value) for path, value in by_path.items()})


def fitting(name: str, value: Any, hint: Any, least: float | None = None) -> Any:
    """Return ``value`` in the type of the annotation ``hint`` and not below ``least``, or raise a ConfigError that says what
    ``name`` must be."""
    try:
        value = _fit(value, hint)
    except _Unfit as error:
        raise ConfigError(f"{name}={error}") from None
    if least is not None and value is not None and not value >= least:
        raise ConfigError(f"{name}={value} must be at least {least}")
    return value


def find_field(kind: type, name: str) -> tuple[str, ...]:
    """Return the path of the field that ``name`` means: ``section.field``, or the field alone if no other has its name."""
    paths = field_paths(kind)
    wanted = tuple(name.replace("-", "_").split("."))
    if wanted in paths:
        return wanted
    if told := foreign.unclear(name, paths, str):
        raise ConfigError(told)
    ends = [path for path in paths if path[-1:] == wanted]
    if len(ends) == 1:
        return ends[0]
    if ends:
        raise ConfigError(f"{name!r} could be {' or '.join('.'.join(path) for path in ends)}")
    if told := foreign.ours(name, paths, lambda field: field):
        raise ConfigError(told)
    raise ConfigError(f"there is no setting {name!r}.{did_you_mean(name, ['.'.join(path) for path in paths])}")


@functools.cache
def field_paths(kind: type) -> tuple[tuple[str, ...], ...]:
    """Return every field of ``kind`` and of its sections, sections included."""
    paths: list[tuple[str, ...]] = []
    for name, hint in typing.get_type_hints(kind).items():
        if name not in {f.name for f in dataclasses.fields(kind)}:
            continue
        paths.append((name,))
        if isinstance(hint, type) and dataclasses.is_dataclass(hint):
            paths += [(name, *path) for path in field_paths(hint)]
    return tuple(paths)


@functools.cache
def field_help(kind: type) -> dict[str, str]:
    """Return the string under each field, those of the classes it inherits from included."""
    found: dict[str, str] = {}
    for base in reversed(kind.__mro__):
        if dataclasses.is_dataclass(base) and "__doc__" in vars(base) and not vars(base).get("_made"):
            found |= _own_help(base)
    return found


def _own_help(kind: type) -> dict[str, str]:
    try:
        body = ast.parse(textwrap.dedent(inspect.getsource(kind))).body[0].body  # type: ignore[attr-defined]
    except (OSError, TypeError, SyntaxError):  # typed at a prompt, or made by a function
        return {}
    found = {}
    for statement, after in itertools.pairwise(body):
        if isinstance(statement, ast.AnnAssign) and isinstance(after, ast.Expr) and isinstance(after.value, ast.Constant):
            found[statement.target.id] = " ".join(str(after.value.value).split())  # type: ignore[union-attr]
    return found


def _fill(table: Any, config: Any) -> None:
    import tomlkit

    kind: Any = type(config)
    helps = field_help(kind)
    values = [(f.name, getattr(config, f.name)) for f in dataclasses.fields(config)]
    for name, value in values:
        if value is None or dataclasses.is_dataclass(value):
            continue
        try:
            item = tomlkit.item(
                dict(value) if isinstance(value, Mapping) else list(value) if isinstance(value, tuple) else value
            )
        except (ValueError, TypeError):
            raise ConfigError(
                f"{name}={value!r} cannot be written to a run's config.toml: use numbers, text and lists"
            ) from None
        if isinstance(value, Mapping):
            if value:
                table.add(name, item)
            continue
        item.comment(helps.get(name, ""))
        table.add(name, item)
    for name, value in values:
        if dataclasses.is_dataclass(value):
            section = tomlkit.table()
            _fill(section, value)
            table.add(name, section)


class _Unfit(ConfigError):
    """``VALUE must be ...``, without the name of the field."""


_MUST = {int: "a whole number", float: "a number", str: "text", bool: "true or false"}


def _fit(value: Any, hint: Any) -> Any:
    """Return ``value`` as ``hint`` without silent conversion: ``"3"`` is not 3, 0.5 is not 0; but 1 is 1.0, 1e6 is a whole number,
    and a list is a tuple.

    For a Literal, any text passes: the class has the names, and suggests the nearest.
    """
    kind, parts = typing.get_origin(hint), typing.get_args(hint)
    if kind in (types.UnionType, typing.Union):  # with None: there is no other
        if value is None:
            return None
        try:
            return _fit(value, parts[0])
        except _Unfit as error:
            raise _Unfit(f"{error} or none") from None
    if getattr(value, "ndim", None) == 0:
        value = value.item()  # of numpy or torch
    if kind is tuple:
        value = value.tolist() if hasattr(value, "tolist") else value
        if not isinstance(value, list | tuple):
            raise _Unfit(f"{value!r:.60} must be a list, such as [{value!r:.60}]")
        return tuple(_fit(each, parts[0]) for each in value)
    if kind is Mapping:
        if not isinstance(value, Mapping) or not all(isinstance(key, str) for key in value):
            raise _Unfit(f"{value!r:.60} must be a mapping of names to values")
        return value
    if kind is typing.Literal:
        if not isinstance(value, str):
            raise _Unfit(f"{value!r:.60} must be one of {', '.join(parts)}")
        return value
    if hint is int and isinstance(value, float) and value.is_integer():
        return int(value)
    if hint is float and isinstance(value, int) and not isinstance(value, bool) and abs(value) < 2**1023:
        return float(value)
    if hint is str and isinstance(value, os.PathLike):
        return os.fspath(value)
    if not isinstance(value, hint) or (hint is int and isinstance(value, bool)):
        raise _Unfit(f"{value!r:.60} must be {_MUST[hint]}")
    return value


def _problems(error: Any, path: str = "") -> list[str]:
    import cattrs
    from cattrs.v import format_exception

    out: list[str] = []
    for inner in error.exceptions:
        notes = [note for note in getattr(inner, "__notes__", ()) if isinstance(note, cattrs.AttributeValidationNote)]
        here = f"{path}.{notes[0].name}".lstrip(".") if notes else path
        if isinstance(inner, cattrs.ClassValidationError):
            out += _problems(inner, here)
        elif isinstance(inner, cattrs.ForbiddenExtraKeysError):
            known = [f.name for f in dataclasses.fields(inner.cl)]
            for extra in sorted(inner.extra_fields):
                prefix = f"{here}." if here else ""
                out.append(f"there is no setting {prefix}{extra}.{did_you_mean(extra, known)}")
        elif isinstance(inner, _Unfit):
            out.append(f"{here}={inner}")
        elif isinstance(inner, ConfigError):
            out.append(str(inner))
        else:
            out.append(f"{here}: {format_exception(inner, None)}")
    return out


def field_type(kind: type, path: tuple[str, ...]) -> Any:
    """Return the annotation of the field at ``path``."""
    for name in path:
        kind = typing.get_type_hints(kind)[name]
    return kind


def _checked(kind: type, path: tuple[str, ...], value: Any) -> Any:
    name, hint = ".".join(path), field_type(kind, path)
    if not dataclasses.is_dataclass(hint):
        return fitting(name, value, hint)
    if not isinstance(value, typing.cast(type, hint)):
        raise ConfigError(f"{name} is a section; give a mapping of its settings, or {name}.SETTING; got {value!r:.60}")
    return value


def _replaced(config: Any, changes: Mapping[tuple[str, ...], Any]) -> Any:
    """Replace the fields all at once, as they are checked against each other."""
    values: dict[str, Any] = {}
    inner: dict[str, dict[tuple[str, ...], Any]] = {}
    for (name, *rest), value in changes.items():
        if rest:
            inner.setdefault(name, {})[tuple(rest)] = value
        else:
            values[name] = value
    for name, parts in inner.items():
        values[name] = _replaced(values.get(name, getattr(config, name)), parts)
    return dataclasses.replace(config, **values)
