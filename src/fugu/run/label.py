"""What people call a run: its name, its tags, the group of seeds it belongs to, and when it started; ``run.json`` in its folder.

None of it changes what a run does, so it stands beside the config. A run without the file, or with something else in it, has no tags
and no group.
"""

from __future__ import annotations

import contextlib
import json
import re
from collections.abc import Iterable
from dataclasses import dataclass, replace
from pathlib import Path
from typing import Any

from fugu import files
from fugu.config import SEEDS, fitting
from fugu.errors import ConfigError

FILE = "run.json"
LONGEST = 80
"""characters of a name or a tag"""
MOST_TAGS = 20
MOST_SEEDS = 1000
"""seeds of a group"""

_PLAIN = re.compile(r"[\w+][\w.+-]*")
_LARGEST = 1 << 16
"""bytes of a file that is read"""
_LAST_START = 2.0**34
"""start in seconds since 1970 that is believed; the year 2514"""


@dataclass(frozen=True, kw_only=True)
class Label:
    tags: tuple[str, ...] = ()
    group: str | None = None
    """group of runs that differ in their seed"""
    seeds: tuple[int, ...] = ()
    """seeds of the whole group"""
    started: float | None = None
    """start in seconds since 1970"""


def checked_name(name: Any) -> str:
    """Return ``name`` if a run or a group can be called that, or raise a ConfigError that suggests another."""
    name = fitting("name", name, str)
    if name.startswith("latest"):
        raise ConfigError(f"--name {name}: names that begin with latest mean runs by their age; try --name my-{plain(name)}")
    if not _is_plain(name):
        raise ConfigError(
            f"--name {name!r:.100} must be the name of a folder: letters, digits and _ . + -, beginning with a letter or a digit, "
            f"{LONGEST} at most; try --name {plain(name)}"
        )
    return name


def checked_tags(tags: Any) -> tuple[str, ...]:
    """Return ``tags``, each once, or raise a ConfigError about the first that cannot be one."""
    if isinstance(tags, str):
        raise ConfigError(f"tags={tags!r:.60} must be a list of texts; try tags=({tags!r:.60},)")
    tags = tuple(dict.fromkeys(fitting("tags", tags, tuple[str, ...])))
    for tag in tags:
        if not _is_plain(tag):
            raise ConfigError(
                f"--tag {tag!r:.100} must be letters, digits and _ . + -, {LONGEST} at most; try --tag {plain(tag, 'my-tag')}"
            )
    if len(tags) > MOST_TAGS:
        raise ConfigError(f"{len(tags)} tags are more than the {MOST_TAGS} that a run can have; leave some out")
    return tags


def checked_seeds(seeds: Any, first: int) -> tuple[int, ...]:
    """Return the seeds of a group: those that are listed, or as many as ``seeds`` says, beginning with ``first``."""
    if isinstance(seeds, Iterable) and not isinstance(seeds, str):
        found = tuple(fitting("seeds", [*seeds], tuple[int, ...]))
    else:
        count = fitting("seeds", seeds, int, 1)
        found = tuple(range(first, first + min(count, MOST_SEEDS + 1)))
    if not found or len(found) > MOST_SEEDS:
        raise ConfigError(f"seeds={seeds!r:.60} must be 1 to {MOST_SEEDS} seeds; try seeds=5")
    if len(set(found)) < len(found):
        twice = next(seed for seed in found if found.count(seed) > 1)
        raise ConfigError(f"seeds={seeds!r:.60} has {twice} more than once: two runs would be the same; leave one out")
    for seed in found:
        if not 0 <= seed < SEEDS:
            raise ConfigError(f"seeds={seeds!r:.60}: {seed} must not be negative, and below 2**63")
    return found


def plain(text: str, otherwise: str = "my-run") -> str:
    """Return ``text`` as a folder may be called: ``ALE-Pong-v5`` for ``ALE/Pong-v5``."""
    return re.sub(r"[^\w.+-]+", "-", text).strip("-.")[:LONGEST] or otherwise


def read_label(folder: Path) -> Label:
    """Return the label of the run in ``folder``. What is not as ``write_label`` writes it is passed over."""
    data: Any = None
    with contextlib.suppress(OSError, ValueError, RecursionError):
        data = json.loads(files.read(folder / FILE, _LARGEST))
    if not isinstance(data, dict):
        return Label()
    tags, group, seeds, started = (data.get(name) for name in ("tags", "group", "seeds", "started"))
    label = Label()
    with contextlib.suppress(ConfigError):
        label = Label(tags=checked_tags(tags))
    if isinstance(group, str) and _is_plain(group, 2 * LONGEST):  # of an environment's name and a time
        with contextlib.suppress(ConfigError):
            label = replace(label, group=group, seeds=checked_seeds(seeds if isinstance(seeds, list) else (), 0))
    known = isinstance(started, int | float) and not isinstance(started, bool) and 0 <= started < _LAST_START
    return replace(label, started=started if known else None)


def write_label(folder: Path, label: Label) -> None:
    """Write ``run.json`` at once or not at all."""
    data: dict[str, Any] = {"started": label.started, "tags": list(label.tags)}
    if label.group is not None:
        data |= {"group": label.group, "seeds": list(label.seeds)}
    files.write(folder / FILE, json.dumps(data) + "\n")


def _is_plain(text: str, longest: int = LONGEST) -> bool:
    return len(text) <= longest and _PLAIN.fullmatch(text) is not None
