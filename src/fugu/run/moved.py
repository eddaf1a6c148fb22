"""A run's folder may be moved or deleted while it trains. Then it goes on in its new place, or ends with an error."""

from __future__ import annotations

import os
import warnings
from pathlib import Path

from fugu.run.run import Run
from fugu.run.store import RunError, RunFolder
from fugu.trainer.loop import Trainer


class Followed:
    """Keeps an eye on the folder of ``run``, which ``trainer`` trains; close it."""

    def __init__(self, run: Run, trainer: Trainer) -> None:
        self._run, self._trainer = run, trainer
        self._descriptor = os.open(run.folder.at, os.O_RDONLY | os.O_DIRECTORY | os.O_CLOEXEC)

    def look(self) -> None:
        """Go after the folder if it was moved. RunError if it is gone."""
        if self._is_at(self._run.folder.at):
            return
        before, now = self._run.path, self._found()
        if now is None:
            raise RunError(f"{before} was deleted, or moved to another disk, while it trained; what it learned is lost")
        warnings.warn(f"{before} was moved while it trained; it goes on in {now}", RuntimeWarning, stacklevel=4)
        self._run.folder = RunFolder(now)
        if self._trainer.folder is not None:
            self._trainer.folder = self._run.folder.checkpoints

    def close(self) -> None:
        os.close(self._descriptor)

    def _found(self) -> Path | None:
        try:
            path = Path(os.readlink(f"/proc/self/fd/{self._descriptor}"))
        except OSError:  # another system, which does not say
            return None
        return path if self._is_at(path) else None

    def _is_at(self, path: Path) -> bool:
        try:
            return os.path.samestat(os.stat(path), os.fstat(self._descriptor))
        except OSError:
            return False
