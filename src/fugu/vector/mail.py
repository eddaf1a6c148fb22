"""Messages between the parent and a worker that have no fixed size: factories, infos, errors, results of calls.

A message answers one command and carries its sequence number. It travels as packets over a SOCK_SEQPACKET socket, which keeps
their borders: a reader that is interrupted (Ctrl-C) may lose a packet, and with it that message, but never the thread of the
conversation. Messages of earlier commands, which nobody waits for any more, are dropped.
"""

from __future__ import annotations

import contextlib
import select
import socket
import struct
import time

HEAD = struct.Struct("<III")  # sequence number, which part, of how many
PART = 64 * 1024
HANDSHAKE = 0
"""the sequence number of messages before there are commands"""


def pair() -> tuple[socket.socket, socket.socket]:
    return socket.socketpair(socket.AF_UNIX, socket.SOCK_SEQPACKET)


class Mailbox:
    """One end. ``send`` blocks until the other side has room; ``receive`` waits for a whole message."""

    def __init__(self, end: socket.socket) -> None:
        self._socket = end
        self._poll = select.poll()
        self._poll.register(end, select.POLLIN)
        self._parts: list[bytes] = []
        self._assembling = -1

    def send(self, seq: int, content: bytes) -> None:
        parts = max(1, -(-len(content) // PART))
        view = memoryview(content)
        for i in range(parts):
            self._socket.sendmsg([HEAD.pack(seq, i, parts), view[i * PART : (i + 1) * PART]])

    def receive(self, seq: int, timeout: float) -> bytes | None:
        """Return the message with this number, or None if it does not come in time. Raise EOFError when the other end is gone."""
        deadline = time.monotonic() + timeout
        while True:
            left = max(0.0, deadline - time.monotonic())
            if not self._poll.poll(left * 1000):
                return None
            content = self._take(seq)
            if content is not None:
                return content

    def drop(self) -> None:
        """Read away what has come so far, so that a sender nobody listens to can go on."""
        while self._poll.poll(0):
            self._take(-1)

    def shutdown(self) -> None:
        """End the conversation; a process that waits on the other side finds out."""
        with contextlib.suppress(OSError):  # it is over already
            self._socket.shutdown(socket.SHUT_RDWR)

    def close(self) -> None:
        self._socket.close()

    def _take(self, seq: int) -> bytes | None:
        """Read one packet; return the message if this completes the one asked for."""
        try:
            packet = self._socket.recv(HEAD.size + PART)
        except ConnectionResetError:
            packet = b""
        if not packet:
            raise EOFError
        number, part, parts = HEAD.unpack_from(packet)
        if number != seq:
            return None
        if part == 0 or number != self._assembling:
            self._assembling, self._parts = number, []
        self._parts.append(packet[HEAD.size :])
        if part != len(self._parts) - 1:  # an earlier part was lost to an interrupt: so is the message
            self._parts = []
            return None
        if part + 1 < parts:
            return None
        content, self._parts = b"".join(self._parts), []
        return content
