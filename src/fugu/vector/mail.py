"""Messages between the parent and a worker that have no fixed size: factories, infos, errors, results of calls.

A message answers one command and carries its sequence number. It travels as packets over a SOCK_SEQPACKET socket, which keeps
their borders: a reader that is interrupted (Ctrl-C) may lose a packet, and with it that message, but never the thread of the
conversation. Messages of earlier commands, which nobody waits for any more, are dropped.

The other end may be stopped, or waiting for this one to read. So the parent never waits for room: what does not fit is kept, and goes
out by and by, while it waits for an answer.
"""

from __future__ import annotations

import contextlib
import select
import socket
import struct
import time
from collections import deque

HEAD = struct.Struct("<III")  # sequence number, which part, of how many
PART = 64 * 1024
HANDSHAKE = 0
"""the sequence number of messages before there are commands"""


def pair() -> tuple[socket.socket, socket.socket]:
    return socket.socketpair(socket.AF_UNIX, socket.SOCK_SEQPACKET)


GONE = (BrokenPipeError, ConnectionResetError)
"""what sending raises when the other end is closed"""


class Mailbox:
    """One end. ``post`` sends what there is room for and keeps the rest, ``send`` waits for room, ``receive`` for a whole message."""

    def __init__(self, end: socket.socket) -> None:
        end.setblocking(False)
        self._socket = end
        self._poll = select.poll()
        self._outgoing: deque[tuple[bytes, memoryview]] = deque()
        self._parts: list[bytes] = []
        self._assembling = -1
        self._whole: tuple[int, bytes] | None = None
        """the last message that came, if nobody has asked for it yet"""

    def fileno(self) -> int:
        return self._socket.fileno()

    def post(self, seq: int, content: bytes) -> None:
        """Send a message after those that are kept, as far as there is room."""
        if len(content) <= PART and not self._outgoing:  # as most are
            with contextlib.suppress(BlockingIOError):
                self._socket.sendmsg([HEAD.pack(seq, 0, 1), content])
                return
        parts = max(1, -(-len(content) // PART))
        view = memoryview(content)
        self._outgoing.extend((HEAD.pack(seq, i, parts), view[i * PART : (i + 1) * PART]) for i in range(parts))
        self.push()

    def push(self) -> bool:
        """Send what was kept, as far as there is room; return True if nothing is left. Raise one of ``GONE`` if nobody reads."""
        while self._outgoing:
            try:
                self._socket.sendmsg(self._outgoing[0])
            except BlockingIOError:
                return False
            except GONE:
                self._outgoing.clear()
                raise
            self._outgoing.popleft()
        return True

    def send(self, seq: int, content: bytes) -> None:
        """Send a message; wait for room, however long that takes."""
        self.post(seq, content)
        while not self.push():
            self._wait(select.POLLOUT)

    def receive(self, seq: int, timeout: float) -> bytes | None:
        """Return the message with this number, or None if it does not come in time. Raise EOFError when the other end is gone."""
        deadline = time.monotonic() + timeout
        while True:
            if self._whole is not None and self._whole[0] == seq:
                (_, content), self._whole = self._whole, None
                return content
            if self._outgoing:
                with contextlib.suppress(*GONE):  # it may have said something before
                    self.push()
            left = max(0.0, deadline - time.monotonic())
            found = self._wait(select.POLLIN | (select.POLLOUT if self._outgoing else 0), left)
            if not found:
                return None
            if found & ~select.POLLOUT:
                self._take()

    def take_in(self) -> None:
        """Read all that has come so far, so that a sender nobody listens to can go on. The last message is kept: it may be wanted."""
        while self._wait(select.POLLIN, 0):
            self._take()

    def shutdown(self) -> None:
        """End the conversation; a process that waits on the other side finds out."""
        with contextlib.suppress(OSError):  # it is over already
            self._socket.shutdown(socket.SHUT_RDWR)

    def close(self) -> None:
        self._socket.close()

    def _wait(self, events: int, timeout: float | None = None) -> int:
        """Return which of ``events`` have come, beside those that always count: an error, the end."""
        self._poll.register(self._socket, events)
        found = self._poll.poll(None if timeout is None else timeout * 1000)
        return found[0][1] if found else 0

    def _take(self) -> None:
        """Read one packet."""
        try:
            packet = self._socket.recv(HEAD.size + PART)
        except ConnectionResetError:
            packet = b""
        if not packet:
            raise EOFError
        if len(packet) < HEAD.size:  # not by a worker of ours: something in it has written to its socket
            return
        number, part, parts = HEAD.unpack_from(packet)
        if part == 0 or number != self._assembling:
            self._assembling, self._parts = number, []
        if part < len(self._parts):  # sent once more by one that was interrupted
            return
        self._parts.append(packet[HEAD.size :])
        if part != len(self._parts) - 1:  # an earlier part was lost to an interrupt: so is the message
            self._parts = []
        elif part + 1 == parts:
            self._whole, self._parts = (number, b"".join(self._parts)), []
