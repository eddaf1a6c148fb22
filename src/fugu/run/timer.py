"""The split of time: one clock that is always in exactly one phase.

``with timer("env"):`` is in that phase until the end of the block and then back in the one around it; ``timer.start("env")`` simply
switches. Time that belongs to no phase is ``other``, so the seconds of ``take`` add up to the wall time since the last take. It is
the host's time: work that a GPU still has to do counts when the host waits for it. For one thread.
"""

from __future__ import annotations

from time import perf_counter
from types import TracebackType


class Timer:
    __slots__ = ("_around", "_phase", "_seconds", "_since", "_spans")

    def __init__(self) -> None:
        self._seconds: dict[str, float] = {"other": 0.0}
        self._spans: dict[str, _Span] = {}
        self._around: list[str] = []
        self._phase = "other"
        self._since = perf_counter()

    def __call__(self, phase: str) -> _Span:
        try:
            return self._spans[phase]
        except KeyError:
            self._seconds.setdefault(phase, 0.0)
            span = self._spans[phase] = _Span(self, phase)
            return span

    def start(self, phase: str) -> None:
        """Be in ``phase`` from now on."""
        now = perf_counter()
        seconds = self._seconds
        seconds[self._phase] += now - self._since
        self._since = now
        self._phase = phase
        if phase not in seconds:
            seconds[phase] = 0.0

    def take(self) -> dict[str, float]:
        """Return the seconds in each phase since the last take; every phase seen so far is named."""
        self.start(self._phase)
        taken = self._seconds
        self._seconds = dict.fromkeys(taken, 0.0)
        return taken


class _Span:
    """One per phase, used again and again: the phase around it is on the timer's stack, so spans nest, even in themselves.

    Both methods are ``start`` written out, without which a block would cost half as much again.
    """

    __slots__ = ("_phase", "_timer")

    def __init__(self, timer: Timer, phase: str) -> None:
        self._timer = timer
        self._phase = phase

    def __enter__(self) -> None:
        timer = self._timer
        now = perf_counter()
        phase = timer._phase
        timer._around.append(phase)
        timer._seconds[phase] += now - timer._since
        timer._since = now
        timer._phase = self._phase

    def __exit__(self, kind: type[BaseException] | None, error: BaseException | None, trace: TracebackType | None) -> None:
        timer = self._timer
        now = perf_counter()
        timer._seconds[timer._phase] += now - timer._since
        timer._since = now
        timer._phase = timer._around.pop()


def shares(seconds: dict[str, float]) -> dict[str, float]:
    """Return ``time/<phase>`` -> share of the whole: the metrics of what ``take`` returned."""
    whole = sum(seconds.values())
    return {f"time/{phase}": part / whole if whole > 0 else 0.0 for phase, part in seconds.items()}
