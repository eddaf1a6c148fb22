"""How a training ends: what is noted in its folder, and the error that says what was saved and how to go on."""

from __future__ import annotations

import os
import shlex
import signal
from collections.abc import Iterator
from contextlib import contextmanager, suppress

from fugu.algorithm.find import is_own
from fugu.errors import FuguError, places, raised
from fugu.run.given import flags
from fugu.run.run import Run
from fugu.trainer import checkpoint
from fugu.trainer.diverged import Diverged
from fugu.trainer.loop import Trainer


class Interrupted(FuguError):
    """A signal ended the training; everything was saved."""

    def __init__(self, number: int, run: Run, steps: int) -> None:
        self.signal, self.run = number, run
        name = signal.Signals(number).name
        path = shlex.quote(str(run.path)) + flags(run.config)
        super().__init__(f"{name}: saved at step {steps:,}; go on with: fugu train --resume {path}")


@contextmanager
def noting_failure(run: Run) -> Iterator[None]:
    """Keep for ``fugu runs`` how the training ends: the error that ended it, or a marker that stays if the process is killed or
    left by ``os._exit``."""
    folder, owner = run.folder, os.getpid()
    folder.failed.unlink(missing_ok=True)
    with suppress(OSError):  # a disk that is full
        folder.running.write_text(f"{owner}\n")
    try:
        yield
    except Interrupted:
        raise
    except Exception as error:
        with suppress(OSError):  # the error itself is already reported
            folder.failed.write_text(f"{type(error).__name__}: {error}\n")
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
    except Diverged as error:
        error.save(run.folder.diverged)
        good = checkpoint.find(run.folder.checkpoints, "latest") if trainer.saved_step is not None else None
        raise FuguError(
            f"{error}\n  the minibatch is in {run.folder.diverged}"
            + (f"\n  the last good checkpoint is {good}" if good else "\n  there was no checkpoint yet")
        ) from error
    except Exception as error:  # a network of the user's own may raise anything
        own = [name for name in (run.config.algorithm, run.config.policy.net) if is_own(name)]
        ours = isinstance(error, FuguError) or not own or not places(error)
        if ours or run.config.device != "cpu":  # what a GPU has to say is explained elsewhere
            raise
        step, path = trainer.saved_step, shlex.quote(str(run.path)) + flags(run.config)
        saved = f"\n  saved at step {step:,}; go on with: fugu train --resume {path}" if step else ""
        raise FuguError(f"{own[0]} raised {raised(error)}{saved}") from error
