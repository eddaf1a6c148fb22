"""Backend ``http``: a service somewhere that runs programs, spoken to as ``fusion`` says. How well it keeps them apart is its
operator's business and cannot be seen from here, so it counts as level 0 and has to be asked for with ``min_level=0``.

The service and the way to it are not trusted to work: every request has a deadline and every answer a size, whatever is not the agreed
answer is an internal error, and only what failed on the way is asked again. Programs have no effects, so asking twice does no harm.
"""

from __future__ import annotations

import contextlib
import http.client
import json
import os
import queue
import secrets
import socket
import threading
import time
from collections.abc import Mapping
from urllib.parse import urlsplit

from fugu.coding.sandbox.accept import accept
from fugu.coding.sandbox.config import FEATURES, SandboxConfig
from fugu.coding.sandbox.contract import Isolation, Outcome, Program, printable
from fugu.coding.sandbox.fusion import question, split_results, understood, verdict
from fugu.coding.sandbox.protections import PROTECTIONS
from fugu.errors import ConfigError

EXTRA_S = 10.0
"""beyond the program's wall limit, for the way and the service's own queue"""
TRIES = 3
AGAIN = (429, 502, 503, 504)
"""answers that mean: not now"""


class HttpBackend:
    """As many requests at once as ``workers``, each in a thread of its own."""

    name = "http"
    isolation = Isolation(0, tuple(FEATURES))
    gaps: Mapping[str, str] = dict.fromkeys(PROTECTIONS, "what the service does cannot be seen from here")

    def __init__(self, url: str, places: int) -> None:
        parts = urlsplit(url)
        if parts.scheme not in ("http", "https") or not parts.hostname:
            raise ConfigError(f"url={url!r} must be like http://127.0.0.1:8080")
        self.secure, self.host, self.port = parts.scheme == "https", parts.hostname, parts.port
        self.path = parts.path.rstrip("/") + "/run_code"
        self.places, self.running, self.closed = places, 0, False
        self.asked: queue.SimpleQueue[tuple[int, Program] | None] = queue.SimpleQueue()
        self.answered: queue.SimpleQueue[tuple[int, Outcome]] = queue.SimpleQueue()
        self.bell, self.ring = os.pipe()
        os.set_blocking(self.bell, False)
        self.open: set[socket.socket] = set()
        self.threads = [threading.Thread(target=self._work, name=f"sandbox-http-{i}", daemon=True) for i in range(places)]
        for thread in self.threads:
            thread.start()

    @property
    def room(self) -> int:
        return self.places - self.running

    def submit(self, ticket: int, program: Program) -> None:
        if program.partner is not None:
            raise ConfigError("backend='http' cannot run test code beside a program (assert-style tests); use backend='fork'")
        self.running += 1
        self.asked.put((ticket, program))

    def collect(self, timeout: float | None) -> list[tuple[int, Outcome]]:
        done = []
        with contextlib.suppress(queue.Empty):
            if self.running:
                done.append(self.answered.get(timeout=timeout) if timeout != 0 else self.answered.get_nowait())
            while True:
                done.append(self.answered.get_nowait())
        for _ in done:
            os.read(self.bell, 1)
        self.running -= len(done)
        return done

    def fileno(self) -> int:
        return self.bell

    def alive(self) -> bool:
        return not self.closed

    def close(self) -> None:
        """Break off requests under way."""
        if self.closed:
            return
        self.closed = True
        for _ in self.threads:
            self.asked.put(None)
        for sock in list(self.open):
            _break_off(sock)
        for thread in self.threads:
            thread.join(5.0)
        os.close(self.bell)
        os.close(self.ring)

    def _work(self) -> None:
        while (request := self.asked.get()) is not None and not self.closed:
            ticket, program = request
            try:
                outcome = self._run(program)
            except Exception as error:  # whatever a hostile answer brought about, it is not the program's
                outcome = self._internal(f"{type(error).__name__}: {error}")
            os.write(self.ring, b"1")  # first, so that the reader of the answer finds its byte
            self.answered.put((ticket, outcome))

    def _run(self, program: Program) -> Outcome:
        problem = program.too_large()
        if problem is not None:
            return Outcome(status="runtime_error", detail=problem, isolation=self.isolation, backend=self.name)
        mark = secrets.token_hex(16)
        body = json.dumps(question(program, mark)).encode()
        until = time.monotonic() + program.limits.wall_s + EXTRA_S
        most = 4 * (program.limits.flood_kb + program.limits.result_kb * max(len(program.calls), 1)) * 1024
        problem = ""
        for attempt in range(TRIES):
            if attempt:
                time.sleep(min(0.1 * 4 ** (attempt - 1), max(0.0, until - time.monotonic())))
            if self.closed or time.monotonic() >= until:
                break
            try:
                code, answer = self._post(body, until, most)
            except (OSError, http.client.HTTPException) as error:
                problem = f"{self.host}: {type(error).__name__}: {error}"
                continue
            if code not in AGAIN:
                if code != 200:
                    return self._internal(f"{self.host} answered {code}")
                return self._outcome(program, answer, mark)
            problem = f"{self.host} answered {code}"
        return self._internal(problem or f"{self.host} did not answer in time")

    def _post(self, body: bytes, until: float, most: int) -> tuple[int, bytes]:
        kind = http.client.HTTPSConnection if self.secure else http.client.HTTPConnection
        left = max(0.01, until - time.monotonic())
        connection = kind(self.host, self.port, timeout=left)
        connection.connect()
        # Kept here, since the connection forgets it when it starts to read. The timeout of a socket is for one read; a service that
        # sends a byte now and then is ended by the alarm.
        sock = connection.sock
        alarm = threading.Timer(max(0.0, until - time.monotonic()), _break_off, [sock])
        alarm.daemon = True
        alarm.start()
        self.open.add(sock)
        try:
            connection.request("POST", self.path, body, {"Content-Type": "application/json"})
            response = connection.getresponse()
            answer = response.read(most + 1)
            if len(answer) > most:
                raise http.client.HTTPException(f"more than {most} bytes")
            if time.monotonic() >= until:
                raise TimeoutError("it took too long")
            return response.status, answer
        finally:
            self.open.discard(sock)
            alarm.cancel()
            connection.close()

    def _internal(self, detail: str) -> Outcome:
        return Outcome(status="internal_error", detail=printable(detail), isolation=self.isolation, backend=self.name)

    def _outcome(self, program: Program, answer: bytes, mark: str) -> Outcome:
        told = understood(answer)
        if told is None:
            return self._internal(f"{self.host} sent something else than an answer")
        stdout, results = split_results(told["stdout"], mark, program)
        status, detail = verdict(program, told, len(results))
        kept = program.limits.output_kb * 1024
        return Outcome(
            status=status,
            detail=printable(detail),
            stdout=stdout[:kept],
            stderr=told["stderr"][:kept],
            truncated=len(stdout) > kept or len(told["stderr"]) > kept,
            results=results,
            exit_code=told["code"],
            wall_s=told["wall_s"],
            isolation=self.isolation,
            backend=self.name,
        )


def open_http(config: SandboxConfig) -> HttpBackend:
    if config.url is None:
        raise ConfigError("backend='http' needs url, e.g. http://127.0.0.1:8080")
    accept(config, HttpBackend.isolation, "what the service does cannot be seen from here")
    return HttpBackend(config.url, config.worker_count)


def _break_off(sock: socket.socket) -> None:
    with contextlib.suppress(OSError):
        sock.shutdown(socket.SHUT_RDWR)
