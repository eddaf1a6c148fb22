"""Pick episodes of a data set by words, and make several data sets one.

top=0.1             the tenth of the episodes with the highest returns
return>=100         or <=, of return and length; seed=7, source=2, agent=0
source=random       those whose source has this among its values, such as a policy's name or the step of a checkpoint
terminated          or truncated: those that ended so
sound               those in which ``check`` finds nothing
"""

from __future__ import annotations

import re
from collections.abc import Sequence
from pathlib import Path

import numpy as np

from fugu.data.dataset import DataSet
from fugu.data.format import fault, row_bytes
from fugu.data.writer import Writer
from fugu.errors import ConfigError, did_you_mean

NUMBERS = {"return": "returns", "length": "lengths", "seed": "seeds", "number": "numbers", "agent": "agents"}
NAMES = ("top", "source", "terminated", "truncated", "sound", *NUMBERS)
TOGETHER = 1 << 24
"""bytes of episodes that are copied together"""
_WORDS = re.compile(r"([a-z]+)\s*(>=|<=|=|>|<)?\s*(.*)")


def pick(data: DataSet, filters: Sequence[str]) -> DataSet:
    """Return the episodes that all of ``filters`` let through, one filter after the other."""
    for text in filters:
        data = data.select(np.flatnonzero(_fits(data, text)))
    return data


def _fits(data: DataSet, text: str) -> np.ndarray:
    match = _WORDS.fullmatch(text.strip())
    name, sign, value = match.groups() if match else (text, None, "")
    if name not in NAMES:
        raise ConfigError(f"there is no filter {text!r:.60}.{did_you_mean(name, NAMES)}")
    if name in ("terminated", "truncated", "sound"):
        if sign is not None or value:
            raise ConfigError(f"the filter {name} takes no value, got {text!r:.60}")
        return getattr(data, name) if name != "sound" else _sound(data)
    if sign is None or not value:
        raise ConfigError(f"the filter {text!r:.60} needs a value, such as {name}{'=' if name in ('top', 'source') else '>='}1")
    if name == "source":
        if sign != "=":
            raise ConfigError(f"source{sign}{value}: sources are named, as in source={value}")
        return _of_source(data, value)
    try:
        number = float(value)
    except ValueError:
        raise ConfigError(f"{text!r:.60}: {value!r:.40} is no number") from None
    if name == "top":
        if sign != "=" or not 0 < number <= 1:
            raise ConfigError(f"{text!r:.60}: the share must be above 0 and at most 1, as in top=0.1")
        count = max(1, round(number * data.episodes)) if data.episodes else 0
        chosen = np.zeros(data.episodes, bool)
        chosen[np.argsort(-data.returns, kind="stable")[:count]] = True
        return chosen
    column = getattr(data, NUMBERS[name])
    signs = {">=": np.greater_equal, "<=": np.less_equal, ">": np.greater, "<": np.less, "=": np.equal}
    return signs[sign](column, number)


def _of_source(data: DataSet, value: str) -> np.ndarray:
    sources = [k for k, source in enumerate(data.sources) if value in map(str, source.values())]
    if not sources and value.isdecimal() and int(value) < len(data.sources):
        sources = [int(value)]
    if not sources:
        known = [str(part) for source in data.sources for part in source.values()]
        raise ConfigError(f"no source has {value!r:.40} among its values.{did_you_mean(value, set(known))}")
    return np.isin(data.source, sources)


def _sound(data: DataSet) -> np.ndarray:
    found = data.check(most=1 << 62)
    fine = np.ones(data.episodes, bool)
    fine[[problem.episode for problem in found if problem.episode is not None]] = False
    return fine


def write(parts: Sequence[DataSet], path: Path) -> DataSet:
    """Write the episodes of ``parts``, which must be of the same spaces, into the new folder ``path``, in that order."""
    first = parts[0]
    for other in parts[1:]:
        if (name := first.spec.difference(other.spec)) is not None or first.spec.num_agents != other.spec.num_agents:
            mine, theirs = (getattr(each.spec, name or "num_agents") for each in (first, other))
            raise fault(other.path, f"is {theirs}, and {first.path} has {mine}", field=name or "num_agents")
    masks = any("action_mask" in part.forms for part in parts)
    wide = "float64" if any(part.forms["reward"].dtype == "float64" for part in parts) else "float32"
    recorded = (
        first.about["recorded"]
        if all(part.about["recorded"] == first.about["recorded"] for part in parts)
        else {"joined": [dict(part.about["recorded"]) for part in parts]}
    )
    with Writer(path, first.spec, recorded=recorded, action_mask=masks, reward=wide) as writer:
        for part in parts:
            _append(writer, part)
    return DataSet.at(path)


def _append(writer: Writer, data: DataSet) -> None:
    numbers = [writer.source(source) for source in data.sources] or [0]
    most, at = max(1, TOGETHER // max(1, row_bytes(data.forms))), 0
    rows = np.cumsum(data.lengths + 1)
    while at < data.episodes:
        stop = max(at + 1, int(np.searchsorted(rows, (rows[at - 1] if at else 0) + most, side="right")))
        part = data.select(np.arange(at, stop))
        where = np.concatenate(
            [np.arange(start, start + length + 1) for start, length in zip(part.starts, part.lengths, strict=True)]
        )
        columns = {
            name: data.column(name)[where].astype(form.dtype) for name, form in writer.forms.items() if name in data.forms
        }
        if "action_mask" in writer.forms and "action_mask" not in columns:
            columns["action_mask"] = np.ones((len(where), *writer.forms["action_mask"].shape), bool)
        writer.add_many(
            columns,
            part.lengths,
            terminated=part.terminated,
            truncated=part.truncated,
            source=np.array(numbers)[part.source],
            seed=part.seeds,
            number=part.numbers,
            agent=part.agents,
        )
        at = stop
