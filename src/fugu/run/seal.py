"""A seal on a run: proof that this user made it in this place, which nothing inside the run's folder can forge.

The key is random and lies in the user's state folder (``$XDG_STATE_HOME/fugu/key`` or ``~/.local/state/fugu/key``), readable by that
user only. A seal is the HMAC of what a run would execute, of its code and of the folder it lies in.
"""

from __future__ import annotations

import contextlib
import hashlib
import hmac
import os
import secrets
import stat
from pathlib import Path

LENGTH = 32
"""bytes of the key"""


class NoKey(Exception):
    """There is no key that can be relied on; the text says why."""


def state_folder() -> Path:
    """Return the folder of what fugu remembers for this user."""
    asked = Path(os.environ.get("XDG_STATE_HOME", ""))
    return (
        asked if asked.is_absolute() else Path.home() / ".local" / "state"
    ) / "fugu"  # the standard says to ignore relative ones


def seal(message: bytes) -> str:
    """Return the seal of ``message``; make the key if there is none."""
    return hmac.new(_key(make=True), message, hashlib.sha256).hexdigest()


def fits(sealed: str, message: bytes) -> bool:
    """Return whether ``sealed`` is the seal of ``message`` by this user's key."""
    return hmac.compare_digest(hmac.new(_key(make=False), message, hashlib.sha256).hexdigest().encode(), sealed.encode())


def _key(make: bool) -> bytes:
    try:
        path = state_folder() / "key"
        if make and not path.exists():
            _make(path)
        descriptor = os.open(path, os.O_RDONLY | os.O_NOFOLLOW | os.O_CLOEXEC)
    except (OSError, RuntimeError) as error:  # RuntimeError: there is no home
        raise NoKey(f"there is no key of yours: {getattr(error, 'strerror', None) or error}") from None
    try:
        found = os.fstat(descriptor)
        if not stat.S_ISREG(found.st_mode) or found.st_uid != os.geteuid() or found.st_mode & 0o077:
            raise NoKey(f"{path} must be a file that belongs to you and that nobody else can read; delete it")
        key = os.read(descriptor, LENGTH + 1)
    finally:
        os.close(descriptor)
    if len(key) != LENGTH:
        raise NoKey(f"{path} is damaged; delete it")
    return key


def _make(path: Path) -> None:
    """Write a new key, whole or not at all; of several processes that do so at once, one wins."""
    path.parent.mkdir(parents=True, exist_ok=True, mode=0o700)
    draft = path.with_name(f".key-{secrets.token_hex(8)}")
    descriptor = os.open(draft, os.O_WRONLY | os.O_CREAT | os.O_EXCL | os.O_CLOEXEC, 0o600)
    try:
        try:
            os.write(descriptor, secrets.token_bytes(LENGTH))
            os.fsync(descriptor)
        finally:
            os.close(descriptor)
        with contextlib.suppress(FileExistsError):
            os.link(draft, path)
    finally:
        draft.unlink()
