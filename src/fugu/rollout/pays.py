"""Find out whether overlap pays: a few updates are timed one after the other, a few side by side.

Where rollout and learning compete for the same cores, both together take as long as one after the other, or longer. Then a warning
says so, once, with the times. Which updates these are depends on their number alone, and it changes no result.
"""

from __future__ import annotations

import statistics
import time
import warnings

WARM_UP = 2
"""updates that are not timed"""
ALONE = 3
"""updates timed one after the other"""
TOGETHER = 5
"""updates timed side by side"""
GAIN = 0.97
"""share of the time of one after the other from which on it does not pay"""


class Pays:
    def __init__(self) -> None:
        self._number = 0
        """batches that were handed over"""
        self._since: float | None = None
        self._rollouts: list[float] = []
        self._learning: list[float] = []
        self._cycles: list[float] = []

    @property
    def alone(self) -> bool:
        """Return whether the batch that was just begun is to be waited for, to be timed alone."""
        return WARM_UP <= self._number < WARM_UP + ALONE

    def played(self, seconds: float) -> None:
        """Note how long a batch took to play."""
        if self.alone:
            self._rollouts.append(seconds)

    def learned(self) -> None:
        """Note that the learner asks for the next batch."""
        if self._since is None or self._number > WARM_UP + ALONE + TOGETHER:
            return
        if WARM_UP < self._number <= WARM_UP + ALONE:
            self._learning.append(time.perf_counter() - self._since)

    def handed_over(self) -> None:
        """Note that a batch was handed over, and say what came of it once all times are known."""
        now, before = time.perf_counter(), self._since
        self._number, self._since = self._number + 1, now
        if WARM_UP + ALONE + 1 < self._number <= WARM_UP + ALONE + 1 + TOGETHER and before is not None:
            self._cycles.append(now - before)
            if len(self._cycles) == TOGETHER:
                self._say()

    def _say(self) -> None:
        play, learn, both = (statistics.median(times) for times in (self._rollouts, self._learning, self._cycles))
        if both < GAIN * (play + learn):
            return
        warnings.warn(
            f"--overlap does not pay here: a batch takes {_shown(play)} to play and {_shown(learn)} to learn from, and both side by "
            f"side {_shown(both)}, because they share the cores of this machine; it is for environments that wait and for learning "
            "on a GPU",
            RuntimeWarning,
            stacklevel=4,
        )


def _shown(seconds: float) -> str:
    return f"{seconds:.1f} s" if seconds >= 1 else f"{1000 * seconds:.1f} ms"
