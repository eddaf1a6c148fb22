"""Shards in the calling process, under a time limit: an environment that hangs there raises ``EnvTimeout``.

Uses the interval timer of the process, so it works in the main thread only, and steps aside where somebody else has a
handler for it. It interrupts Python code and system calls; native code that never returns to the interpreter cannot be
interrupted from inside its own process (``isolate=True`` puts such environments elsewhere).

Arming and disarming a timer costs two system calls per step, so the timer is left running and looks, when it goes off,
whether a step has really been running for too long: normally once per timeout it finds that none has. A process that was stopped
(Ctrl-Z) and goes on gets its time anew.
"""

from __future__ import annotations

import signal
import threading
import time
import warnings
from collections.abc import Sequence
from types import FrameType, TracebackType

from fugu.emulation.env import Infos
from fugu.emulation.factory import Factory
from fugu.errors import EnvTimeout
from fugu.vector.config import VectorConfig
from fugu.vector.runner import RESET, Options
from fugu.vector.shard import Expired, Shard

_MAIN = threading.main_thread().ident

_running: Deadline | None = None
"""whose time it is; the signal handler has no other way to know"""
_expires = 0.0
"""when the timer goes off; past: it is not running"""
_doubted: Deadline | None = None
"""whose time seemed to be over when the signal came late"""
CLOSE_S = 3.0
"""seconds for closing the environments of the calling process"""
LATE_S = 0.1
"""a signal that comes later than this waited for native code to return, or for a stopped process to go on"""


class Deadline:
    """``with deadline(seconds, shard, phase): ...``"""

    def __call__(self, seconds: float, shard: Shard, phase: str) -> Deadline:
        self._seconds, self._shard, self._phase = seconds, shard, phase
        return self

    def __enter__(self) -> None:
        global _running
        now = time.monotonic()
        self.until = now + self._seconds
        if threading.get_ident() == _MAIN and (now <= _expires <= self.until or _arm(self._seconds)):
            _running = self

    def __exit__(self, kind: type[BaseException] | None, error: BaseException | None, trace: TracebackType | None) -> None:
        global _running, _doubted
        if _running is self:
            _running = None
        too_late = kind is Expired
        if _doubted is self:
            _doubted = None
            too_late = too_late or (kind is None and time.monotonic() > self.until)
        if too_late:
            raise self.error() from None

    def error(self) -> EnvTimeout:
        shard, k = self._shard, self._shard.running
        setting = {"make": " (start_timeout)", "close": ""}.get(self._phase, f" ({self._phase}_timeout)")
        message = f"no answer within {self._seconds:g} s{setting}"
        seeds = () if self._phase == "make" else (shard.seeds[k],)
        return EnvTimeout(message, envs=(shard.first_env + k,), seeds=seeds, phase=self._phase)


def build_here(factories: Sequence[Factory], first_env: int, deadline: Deadline, config: VectorConfig) -> Shard:
    """Build a shard in the calling process, within the timeout where that can be enforced."""
    shard = Shard(
        factories,
        first_env,
        infos=config.infos or "all",
        episode_infos=config.episode_infos,
        on_error=config.on_error,
        build=False,
    )
    with deadline(config.start_timeout, shard, "make"):
        shard.build()
    return shard


def run_here(shard: Shard, command: int, slot: int, options: Options, deadline: Deadline, config: VectorConfig) -> Infos:
    """Run a shard in the calling process, within the timeout where that can be enforced."""
    phase, seconds = ("reset", config.reset_timeout) if command == RESET else ("step", config.step_timeout)
    with deadline(seconds, shard, phase):
        return shard.reset(slot, options) if command == RESET else shard.step(slot)


def close_here(shard: Shard, deadline: Deadline) -> None:
    """Close a shard in the calling process; an env that does not come to an end is left where it is."""
    try:
        with deadline(CLOSE_S, shard, "close"):
            shard.close()
    except EnvTimeout as error:
        warnings.warn(str(error), RuntimeWarning, stacklevel=2)


def release() -> None:
    """Give signal and timer back; called when a vector env closes."""
    global _expires
    if threading.get_ident() == _MAIN and signal.getsignal(signal.SIGALRM) is _expired:
        signal.setitimer(signal.ITIMER_REAL, 0)
        signal.signal(signal.SIGALRM, signal.SIG_DFL)
        if signal.getsignal(signal.SIGCONT) is _continued:
            signal.signal(signal.SIGCONT, signal.SIG_DFL)
        _expires = 0.0


def _arm(seconds: float) -> bool:
    """Start the timer; False where it is not ours to use."""
    global _expires
    handler = signal.getsignal(signal.SIGALRM)
    if handler is signal.SIG_DFL and signal.getitimer(signal.ITIMER_REAL)[0] == 0:
        signal.signal(signal.SIGALRM, _expired)
        if signal.getsignal(signal.SIGCONT) is signal.SIG_DFL:
            signal.signal(signal.SIGCONT, _continued)
    elif handler is not _expired:
        return False
    signal.setitimer(signal.ITIMER_REAL, seconds)
    _expires = time.monotonic() + seconds
    return True


def _expired(signum: int, frame: FrameType | None) -> None:
    global _doubted
    running = _running
    if running is None:
        return
    now = time.monotonic()
    left = running.until - now
    if left > 0:
        _arm(max(left, 1e-3))  # the timer counts whole microseconds, and none of them would mean off
    elif now - _expires > LATE_S:
        _doubted = running  # if it was stopped, SIGCONT is heard right after this, and moves the limit
        _arm(LATE_S / 2)
    else:
        _arm(0.5)  # the env may catch even this; it hears it again
        raise Expired


def _continued(signum: int, frame: FrameType | None) -> None:
    if _running is not None:
        _running.until = time.monotonic() + _running._seconds
