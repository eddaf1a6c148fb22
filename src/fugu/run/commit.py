"""The git commit that a run was started from, and what was changed since: asked of git in the background, never waited for long."""

from __future__ import annotations

import contextlib
import os
import shutil
import subprocess
import time
from pathlib import Path
from typing import Any

from fugu import files

PATIENCE_S = 1.0
"""seconds for all answers; a large work tree on a slow disk may take longer, and then goes without"""
MOST = 1 << 20
"""bytes of changes that are kept"""
GIT = ("git", "--no-pager", "--no-optional-locks", "-c", "core.fsmonitor=false", "-c", "core.hooksPath=/dev/null")
DIFF = ("--no-color", "--no-ext-diff", "--no-textconv", "--no-renames", "--ignore-submodules=dirty")


class Commit:
    """Asks git about the current folder at once; ``found`` waits for its answers. A context, which leaves no process behind."""

    def __init__(self) -> None:
        self._until = time.monotonic() + PATIENCE_S
        self._asked: dict[str, subprocess.Popen[bytes]] = {}
        with contextlib.suppress(OSError):
            here = Path.cwd()
            if shutil.which("git") and any((folder / ".git").exists() for folder in (here, *here.parents)):
                self._asked["commit"] = _ask("rev-parse", "HEAD")
                if not _names_programs():
                    self._asked["diff"] = _ask("diff", *DIFF, "HEAD", "--")

    def found(self, file: Path) -> dict[str, Any] | None:
        """Return the commit and whether there were changes, which go to ``file`` unless they are large; None without git."""
        answers = {name: self._answer(process) for name, process in self._asked.items()}
        commit, diff = answers.get("commit"), answers.get("diff")
        if commit is None:
            return None
        found: dict[str, Any] = {"commit": commit.decode(errors="replace").strip()}
        if diff is not None:
            found["changed"] = bool(diff)
            found["diff_kept"] = bool(diff) and len(diff) <= MOST
            if found["diff_kept"]:
                files.write(file, diff)
        return found

    def __enter__(self) -> Commit:
        return self

    def __exit__(self, *_: object) -> None:
        for process in self._asked.values():
            if process.returncode is None:
                process.kill()
                process.communicate()

    def _answer(self, process: subprocess.Popen[bytes]) -> bytes | None:
        try:
            text, _ = process.communicate(timeout=max(0.0, self._until - time.monotonic()))
        except subprocess.TimeoutExpired:
            return None
        return text if process.returncode == 0 else None


def _names_programs() -> bool:
    """Return whether the work tree itself names programs for its files, which a diff would execute."""
    process = _ask("config", "--local", "--includes", "--get-regexp", r"^filter\..*\.(clean|process)$")
    try:
        return bool(process.communicate(timeout=PATIENCE_S)[0])
    except subprocess.TimeoutExpired:
        process.kill()
        process.communicate()
        return True


def _ask(*words: str) -> subprocess.Popen[bytes]:
    environment = {**os.environ, "GIT_TERMINAL_PROMPT": "0", "LC_ALL": "C"}
    return subprocess.Popen(
        [*GIT, *words], stdin=subprocess.DEVNULL, stdout=subprocess.PIPE, stderr=subprocess.DEVNULL, env=environment
    )
