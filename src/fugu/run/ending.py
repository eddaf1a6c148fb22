"""How a training ends: what is noted in its folder, and the error that says what was saved and how to go on."""

from __future__ import annotations

import os
import shlex
import signal
import sys
import traceback
from collections.abc import Iterator
from contextlib import contextmanager, suppress
from types import TracebackType
from typing import Any

from fugu import files
from fugu.algorithm.find import is_own
from fugu.errors import EnvError, FuguError, places, raised, whole
from fugu.run.given import arguments, flags
from fugu.run.run import Run
from fugu.trainer import checkpoint
from fugu.trainer.callbacks import CallbackError
from fugu.trainer.diverged import Diverged
from fugu.trainer.loop import Trainer


class Interrupted(KeyboardInterrupt):
    """A signal ended the training (Ctrl-C, SIGTERM, SIGHUP); everything was saved.

    No ``Exception``: a loop over trainings that goes on after errors ends at Ctrl-C like any other loop. A program that does not
    catch it ends with its text instead of a traceback, and with the exit code of the signal (130 for Ctrl-C).
    """

    def __init__(self, number: int, run: Run, steps: int) -> None:
        self.signal, self.run, self.steps = number, run, steps
        name = signal.Signals(number).name
        super().__init__(f"{name}: saved at step {steps:,}; {to_go_on(run)}")

    def __reduce__(self) -> tuple[Any, ...]:
        return type(self), (self.signal, self.run, self.steps)

    def _render_traceback_(self) -> list[str]:
        """Return the lines that a notebook shows."""
        return [f"Interrupted: {self}"]


def interrupted(number: int, run: Run, steps: int) -> Interrupted:
    """Return the error to raise, after seeing to it that the program ends in a few words if nobody catches it."""
    before = sys.excepthook

    def end(kind: type[BaseException], error: BaseException, trace: TracebackType | None) -> None:
        if not isinstance(error, Interrupted):
            before(kind, error, trace)
            return
        print(f"Interrupted: {error}", file=sys.stderr)
        if not hasattr(sys, "ps1") and not sys.flags.inspect:  # a prompt stays
            one: BaseException | None = error
            while one is not None:
                traceback.clear_frames(one.__traceback__)  # or what they hold is still there when the interpreter ends
                earlier, one.__cause__, one.__context__ = one.__cause__ or one.__context__, None, None
                one = earlier
            raise SystemExit(128 + error.signal)

    if not hasattr(before, "_of_interrupted"):
        end._of_interrupted = True  # type: ignore[attr-defined]
        sys.excepthook = end
    return Interrupted(number, run, steps)


def to_go_on(run: Run) -> str:
    """Return what to type to go on with a run."""
    return f"go on with: fugu train --resume {shlex.quote(str(run.path))}{flags(run.config)}"


@contextmanager
def noting_failure(run: Run) -> Iterator[None]:
    """Keep for ``fugu runs`` how the training ends: the error that ended it, or a marker that stays if the process is killed or
    left by ``os._exit``."""
    folder, owner = run.folder, os.getpid()
    folder.failed.unlink(missing_ok=True)
    folder.ended.unlink(missing_ok=True)
    with suppress(OSError):  # a disk that is full
        files.write(folder.running, f"{owner}\n")
    try:
        yield
    except KeyboardInterrupt:
        raise
    except BaseException as error:
        with suppress(OSError):  # the error itself is already reported
            files.write(folder.failed, f"{type(error).__name__}: {error}\n\n{whole(error)}")
        raise
    finally:
        if os.getpid() == owner:  # and no fork of it
            with suppress(OSError):
                folder.running.unlink(missing_ok=True)


@contextmanager
def explained(run: Run, trainer: Trainer) -> Iterator[None]:
    """Say of an error in the training what was saved, and name the user's own lines it came through."""
    try:
        yield
    except EnvError as error:  # names them itself
        if saved := _saved(run, trainer):
            error.add(saved)
        raise
    except CallbackError as error:
        error.add(_without_callbacks(run, trainer))
        raise
    except Diverged as error:
        error.save(run.folder.diverged)
        good = checkpoint.find(run.folder.checkpoints, "latest") if trainer.saved_step is not None else None
        raise FuguError(
            f"{error}\n  the minibatch is in {run.folder.diverged}"
            + (f"\n  the last good checkpoint is {good}" if good else "\n  there was no checkpoint yet")
        ) from error
    except (KeyboardInterrupt, SystemExit):
        raise
    except BaseException as error:  # a network of the user's own may raise anything
        own = [name for name in (run.config.algorithm, run.config.policy.net) if is_own(name)]
        ours = isinstance(error, FuguError) or not own or not places(error)
        if ours or run.config.device != "cpu":  # what a GPU has to say is explained elsewhere
            raise
        raise FuguError("\n".join(filter(None, [f"{own[0]} raised {raised(error)}", _saved(run, trainer)]))) from error


def _saved(run: Run, trainer: Trainer) -> str:
    """Return a line on what was saved and how to go on; nothing if that would be the beginning."""
    return f"  saved at step {trainer.saved_step:,}; {to_go_on(run)}" if trainer.saved_step else ""


def _without_callbacks(run: Run, trainer: Trainer) -> str:
    """Return lines on what was saved, and how to go on with other callbacks or with none."""
    if not trainer.saved_step:
        return "  nothing was learned yet"
    path, again = str(run.path), ", ".join(filter(None, [arguments(run.config), "callbacks=[...]"]))
    return (
        f"  saved at step {trainer.saved_step:,}; go on with: fugu.Run({path!r}).resume({again})"
        f"\n  or without callbacks: fugu train --resume {shlex.quote(path)}{flags(run.config)}"
    )
