"""Numbers that an environment says of an episode in the info of its last step, such as ``is_success``.

They are picked out where the environment runs, so that other infos need not travel, and added up where the statistics are kept. A
name's mean is over the episodes that had it as a finite number; a name that only some episodes had is told of once, and so is one that
none had, though it was asked for.
"""

from __future__ import annotations

import math
import warnings
from collections.abc import Mapping, Sequence
from typing import Any

import numpy as np

ALWAYS = ("is_success",)
"""names that are looked for without being asked for"""

PATIENCE = 100
"""episodes without a name that was asked for, after which that is told of"""


def numbers(info: Mapping[str, Any], names: Sequence[str]) -> dict[str, float]:
    """Return the values of ``names`` that are finite numbers in the info of an episode's last step."""
    final = info.get("final_info", info)  # of a vector env that has reset it since
    found = {}
    for name in names:
        number = _number(final.get(name)) if isinstance(final, Mapping) else None
        if number is not None:
            found[name] = number
    return found


def _number(value: Any) -> float | None:
    """Return ``value`` as a number, bools and the scalars of numpy and torch included; None if it is none, or not finite."""
    if not isinstance(value, bool | int | float):
        if getattr(value, "ndim", None) != 0 or not hasattr(value, "item"):
            return None
        value = value.item()
        if not isinstance(value, bool | int | float):
            return None
    try:
        number = float(value)
    except OverflowError:
        return None
    return number if math.isfinite(number) else None


class EpisodeInfos:
    """The sums of ``names`` over episodes that ended."""

    def __init__(self, names: Sequence[str] = ()) -> None:
        self.names = tuple(dict.fromkeys((*ALWAYS, *names)))
        self._asked = set(names)
        self._counts = np.zeros(len(self.names), np.int64)
        self._sums = np.zeros(len(self.names))
        self._episodes = 0
        """episodes so far that could have them"""
        self._had = np.zeros(len(self.names), np.int64)
        """how many of those had each"""
        self._told: set[str] = set()

    def add(self, info: Mapping[str, Any], *, cut_off: bool) -> None:
        """Add an episode whose last step said ``info``. ``cut_off``: its environment failed, and has said nothing."""
        found = numbers(info, self.names)
        for name, number in found.items():
            k = self.names.index(name)
            self._counts[k] += 1
            self._sums[k] += number
            self._had[k] += 1
        self._episodes += not cut_off

    def drain(self) -> dict[str, tuple[int, float]]:
        """Return, by name, how many episodes since the last call had it, and its mean over them."""
        self._tell()
        means = self._sums / np.maximum(self._counts, 1)
        found = {name: (int(self._counts[k]), float(means[k])) for k, name in enumerate(self.names)}
        self._counts[...] = 0
        self._sums[...] = 0
        return found

    def close(self) -> None:
        """Tell of the names that no episode had."""
        self._tell(patience=1)

    def _tell(self, patience: int = PATIENCE) -> None:
        """Warn, once each, of names that only some episodes have, and of those asked for that none has."""
        for name, had in zip(self.names, self._had.tolist(), strict=True):
            missing = self._episodes - had
            if name in self._told or missing <= 0:
                continue
            if had:
                why = "is a number in some episodes only; its mean is over those that have it"
            elif name in self._asked and self._episodes >= patience:
                why = "is a number in no episode; set it in the last step's info, or do not ask for it"
            else:
                continue
            self._told.add(name)
            # from this line and in the same words, so that the environments of evaluations do not say it once more
            warnings.warn(f"info[{name!r}] {why}", RuntimeWarning, stacklevel=1)
