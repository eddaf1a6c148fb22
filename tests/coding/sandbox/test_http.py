"""The http backend against a service in this process: one that runs programs through our own sandbox, and ones that misbehave."""

from __future__ import annotations

import json
import threading
import time
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from http.server import BaseHTTPRequestHandler, ThreadingHTTPServer

import pytest

from fugu.coding.sandbox import http as backend
from fugu.coding.sandbox.config import SandboxConfig
from fugu.coding.sandbox.contract import Call, Limits, Outcome, Program
from fugu.coding.sandbox.http import HttpBackend
from fugu.coding.sandbox.plain import open_plain
from fugu.coding.sandbox.sandbox import Sandbox
from fugu.errors import ConfigError, SandboxError
from tests.timing import in_time

Answer = Callable[[BaseHTTPRequestHandler, dict], None]


@contextmanager
def service(answer: Answer) -> Iterator[str]:
    class Handler(BaseHTTPRequestHandler):
        def do_POST(self) -> None:
            body = json.loads(self.rfile.read(int(self.headers["Content-Length"])))
            try:
                answer(self, body)
            except OSError:  # the other side has had enough
                self.close_connection = True

        def log_message(self, *_: object) -> None:
            pass

    server = ThreadingHTTPServer(("127.0.0.1", 0), Handler)
    server.daemon_threads = True
    thread = threading.Thread(target=server.serve_forever, args=(0.02,))
    thread.start()
    try:
        yield f"http://127.0.0.1:{server.server_port}"
    finally:
        server.shutdown()
        server.server_close()
        thread.join()


def reply(handler: BaseHTTPRequestHandler, body: bytes, code: int = 200) -> None:
    handler.send_response(code)
    handler.send_header("Content-Length", str(len(body)))
    handler.end_headers()
    handler.wfile.write(body)


def executed(handler: BaseHTTPRequestHandler, body: dict) -> None:
    """What SandboxFusion does, with our own sandbox inside."""
    assert body["language"] == "python"
    seconds, memory = body["run_timeout"], body["memory_limit_MB"]
    limits = Limits(cpu_s=seconds, wall_s=seconds, memory_mb=memory, output_kb=4096, flood_kb=8192)
    with Sandbox(backend=open_plain(SandboxConfig(backend="subprocess", min_level=0))) as inner:
        (outcome,) = inner.run([Program(source=body["code"].encode(), stdin=body["stdin"].encode(), limits=limits)])
    ran = {"ok": "Finished", "time_limit": "TimeLimitExceeded"}.get(outcome.status, "Error")
    result = {
        "status": ran,
        "execution_time": outcome.wall_s,
        "return_code": outcome.exit_code,
        "stdout": outcome.stdout.decode("utf-8", "replace"),
        "stderr": outcome.stderr.decode("utf-8", "replace"),
    }
    told = {"status": "Success" if ran == "Finished" else "Failed", "message": "", "run_result": result}
    reply(handler, json.dumps(told).encode())


def ask(url: str, *programs: Program, **more: object) -> list[Outcome]:
    with Sandbox(SandboxConfig(backend="http", url=url, min_level=0, workers=4, retries=0, **more)) as sandbox:  # type: ignore[arg-type]
        return sandbox.run(programs)


def test_programs_run_through_the_service() -> None:
    quick = Limits(cpu_s=0.5, wall_s=0.5)
    with service(executed) as url:
        outcomes = ask(
            url,
            Program(source=b"print(int(input()) * 2)", stdin=b"21"),
            Program(source=b"print('x')\ndef f(x):\n    return (x, 1)", calls=(Call("f", b"[1]"), Call("f", b"[2]"))),
            Program(source=b"1 / 0"),
            Program(source=b"while True:\n    pass", limits=quick),
            Program(source=b"import os\ndef f(x):\n    os._exit(0)", calls=(Call("f", b"[1]"),)),
            Program(source=b"x = []\nwhile True:\n    x.append(bytearray(1 << 24))"),
            Program(source="# coding: latin-1\nprint(len('é'))".encode("latin-1")),
            Program(source=b"print('x' * 2000000)"),
            Program(source=b"#" * 300_000),
        )
    statuses = [
        "ok",
        "ok",
        "runtime_error",
        "time_limit",
        "runtime_error",
        "memory_limit",
        "ok",
        "output_limit",
        "runtime_error",
    ]
    assert [each.status for each in outcomes] == statuses
    assert outcomes[0].stdout == b"42\n"
    assert (outcomes[1].stdout, outcomes[1].results) == (b"x\n", (b'{"__tuple__":[1,1]}', b'{"__tuple__":[2,1]}'))
    assert outcomes[2].detail == "ZeroDivisionError: division by zero"
    assert outcomes[4].results == ()
    assert {each.isolation.level for each in outcomes} == {0}


def fine(**changes: object) -> bytes:
    run = {"status": "Finished", "execution_time": 0.1, "return_code": 0, "stdout": "1\n", "stderr": "", **changes}
    return json.dumps({"status": "Success", "message": "", "run_result": run}).encode()


BROKEN: dict[str, Answer] = {
    "error": lambda handler, _: reply(handler, b"no", 500),
    "not-json": lambda handler, _: reply(handler, b"<html>"),
    "not-an-object": lambda handler, _: reply(handler, b"[1, 2]"),
    "deep": lambda handler, _: reply(handler, b"[" * 100_000),
    "wrong-types": lambda handler, _: reply(handler, fine(stdout=["1"])),
    "wrong-time": lambda handler, _: reply(handler, fine(execution_time=float("nan"))),
    "wrong-code": lambda handler, _: reply(handler, fine(return_code="0")),
    "unknown-status": lambda handler, _: reply(handler, fine(status="Great")),
    "no-result": lambda handler, _: reply(handler, b'{"status": "Success"}'),
    "its-own-error": lambda handler, _: reply(handler, b'{"status": "SandboxError", "message": "\\u001b[31mfull"}'),
    "huge": lambda handler, _: reply(handler, b'{"status": "' + b"x" * 20_000_000 + b'"}'),
    "nothing": lambda handler, _: handler.connection.close(),
    "garbage": lambda handler, _: handler.connection.sendall(b"\0" * 1000),
}


@pytest.mark.parametrize("name", BROKEN)
def test_a_broken_service_is_an_internal_error(name: str) -> None:
    with service(BROKEN[name]) as url:
        (outcome,) = ask(url, Program(source=b"print(1)"))
    assert outcome.status == "internal_error"
    assert outcome.detail.isprintable() and outcome.detail


def test_a_service_that_drips_is_given_up_at_the_deadline(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(backend, "EXTRA_S", 0.3)

    def drip(handler: BaseHTTPRequestHandler, _: dict) -> None:
        handler.send_response(200)
        handler.send_header("Content-Length", "1000")
        handler.end_headers()
        for _ in range(100):
            handler.wfile.write(b" ")
            handler.wfile.flush()
            time.sleep(0.05)

    with service(drip) as url:
        start = time.monotonic()
        (outcome,) = ask(url, Program(source=b"print(1)", limits=Limits(cpu_s=0.2, wall_s=0.2)))
        assert outcome.status == "internal_error"
        in_time(time.monotonic() - start, 2.5)


def test_only_what_failed_on_the_way_is_asked_again() -> None:
    asked: list[str] = []

    def late(handler: BaseHTTPRequestHandler, body: dict) -> None:
        asked.append(body["code"])
        if len(asked) == 1:
            handler.connection.close()
        elif len(asked) == 2:
            reply(handler, b"", 429)
        else:
            reply(handler, fine())

    with service(late) as url:
        (outcome,) = ask(url, Program(source=b"print(1)"))
    assert (outcome.status, len(asked)) == ("ok", 3)

    def wrong(handler: BaseHTTPRequestHandler, body: dict) -> None:
        asked.append(body["code"])
        reply(handler, fine(return_code=1, status="Error"))

    asked.clear()
    with service(wrong) as url:
        (outcome,) = ask(url, Program(source=b"1 / 0"))
    assert (outcome.status, len(asked)) == ("runtime_error", 1)


def test_no_service_is_an_internal_error() -> None:
    with service(executed) as url:
        pass
    (outcome,) = ask(url, Program(source=b"print(1)"))
    assert outcome.status == "internal_error" and "refused" in outcome.detail


def test_close_breaks_off_what_is_under_way(no_leaks: None) -> None:
    release = threading.Event()
    with service(lambda handler, _: (release.wait(5), reply(handler, fine()))[1]) as url:
        opened = HttpBackend(url, 2)
        opened.submit(0, Program(source=b"print(1)"))
        time.sleep(0.1)
        start = time.monotonic()
        opened.close()
        opened.close()
        in_time(time.monotonic() - start, 2)
        release.set()


def test_what_it_cannot_do_is_refused_at_once() -> None:
    with pytest.raises(SandboxError, match="min_level=0"):
        Sandbox(SandboxConfig(backend="http", url="http://127.0.0.1:1"))
    with pytest.raises(ConfigError, match="needs url"):
        Sandbox(SandboxConfig(backend="http", min_level=0))
    with pytest.raises(ConfigError, match="must be like"):
        Sandbox(SandboxConfig(backend="http", min_level=0, url="ftp://x"))
    tests = Program(source=b"", partner=Program(source=b"", calls=(Call("f"),)))
    with pytest.raises(ConfigError, match="assert-style"):
        ask("http://127.0.0.1:1", tests)
