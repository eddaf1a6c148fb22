"""Run what is behind the last door: the program is read and run, its functions are called, or it is test code that calls others.

Up to ``READY`` all code is ours and an error is ours too (``SETUP_FAILED``: the program never ran, and its outcome is an internal
error). From then on nothing this process says is believed, and nothing it can reach is worth having.
"""

from __future__ import annotations

import _random
import atexit
import builtins
import gc
import linecache
import os
import random
import sys
import threading
import traceback
from types import ModuleType
from typing import Any, NoReturn

from fugu.coding.sandbox import values, wire
from fugu.coding.sandbox.standins import Agent, Examiner
from fugu.coding.sandbox.wire import CHANNEL, Order

NAME = "main.py"
_SETUP_EXIT = 70


def begin(order: Order, source_size: int, names_size: int) -> NoReturn:
    """Read the program and run it, behind the last door."""
    try:
        source = wire.read_exactly(CHANNEL, source_size)
        names = wire.read_exactly(CHANNEL, names_size)
        _seed(order.seed)
        gc.enable()
        os.write(CHANNEL, wire.frame(wire.READY))
    except BaseException as error:
        give_up(error)
    if order.mode == wire.STDIO:
        os.close(CHANNEL)
        os._exit(_finish(_execute(source, sys.modules["__main__"]) or 0))
    go(order.mode, source, names)


def go(mode: int, source: bytes, names: bytes) -> NoReturn:
    """Run a program that others talk to."""
    main = sys.modules["__main__"]
    if mode == wire.CALLS:
        _serve(source, main)
    _test(source, names.decode().split("\0"), main)


# What ``random.seed`` does with a number, without what it does to find out that it is one: fewer pages to copy.
_seed = _random.Random.seed.__get__(random._inst)


def hooks() -> tuple[Any, ...]:
    """Return what ``native/sandbox_child.c`` needs for its part of ``begin``, in its order."""
    return (
        _seed,
        *(compile, NAME, "exec", 0, True),
        sys.modules["__main__"].__dict__,
        "flush",
        *(threading._active, atexit._ncallbacks),  # type: ignore[attr-defined]
        *(give_up, failed, _finish, go),
    )


def rehearse() -> None:
    """Go through the motions of executions in the zygote itself.

    What Python keeps on the way (where attributes were found, which instructions suit which types, lists of free memory) is then there
    in every child, instead of being written by each, on pages that have to be copied first.
    """
    source = b"import math\ndef f(n): return math.floor(n)\ndef g(n): return n[0]\nprint(sum(range(f(10.0))))"
    request = values.encode({"function": "f", "args": [1.5]})
    reader, writer = os.pipe()
    null = os.open("/dev/null", os.O_WRONLY | os.O_CLOEXEC)
    os.dup2(null, 1)
    for _ in range(20):  # instructions are specialised after some repetitions
        wire.write_all(writer, source)
        main = ModuleType("__main__")
        main.__dict__["__builtins__"] = builtins
        _seed(0)
        text = wire.read_exactly(reader, len(source))
        _finish(_execute(text, main) or 0)
        _answer(request, main, text)
        agent = Agent(bytes, main.__dict__.__getitem__, give_up)
        asked = Examiner(agent.serve).named("g")
        _ = asked([1, "a"]), asked([2.5])
    for descriptor in (reader, writer, null):
        os.close(descriptor)


def fresh_interpreter(private_tmp: bool) -> None:
    """Make this interpreter as if it had just started: nothing of ours among the modules, new streams, a new ``__main__``.

    Done once in the zygote. The streams are made over pipes, as which they then know themselves, whatever a child puts in their place.
    """
    for name in [name for name in sys.modules if name.startswith("fugu")]:
        del sys.modules[name]
    if private_tmp:  # else it is everyone's, and anyone could put modules there
        sys.path.insert(0, "/tmp")
    for descriptor in (0, 1):
        ends = os.pipe()
        os.dup2(ends[descriptor], descriptor)
        os.close(ends[0])
        os.close(ends[1])
    stdin, stdout = (_stream(0, "r", "surrogateescape"), _stream(1, "w", "surrogateescape"))
    stderr = _stream(2, "w", "backslashreplace", buffering=1)
    vars(sys).update(stdin=stdin, __stdin__=stdin, stdout=stdout, __stdout__=stdout, stderr=stderr, __stderr__=stderr)
    main = ModuleType("__main__")
    main.__dict__["__builtins__"] = builtins
    sys.modules["__main__"] = main


def _stream(descriptor: int, mode: str, errors: str, buffering: int = -1) -> Any:
    return open(descriptor, mode, buffering, encoding="utf-8", errors=errors, closefd=False)


def give_up(error: BaseException) -> NoReturn:
    """Report that the program never ran, which is our fault."""
    try:
        text = f"{type(error).__name__}: {error}"
        wire.write_all(CHANNEL, wire.frame(wire.SETUP_FAILED, text.encode("utf-8", "replace")[:500]))
    finally:
        os._exit(_SETUP_EXIT)


def _execute(source: bytes, main: ModuleType) -> int | None:
    """Run the program; its exit code, or None where it came to its end without one."""
    try:
        exec(compile(source, NAME, "exec", dont_inherit=True), main.__dict__)
    except BaseException as error:
        if error.__traceback__ is not None:
            error.__traceback__ = error.__traceback__.tb_next  # without ours
        return failed(error, source)
    return None


def failed(error: BaseException, source: bytes) -> int:
    """Return the exit code of a program that ``error`` ended."""
    try:
        if isinstance(error, SystemExit):
            return _exit_code(error)
        _show(error, source)
    except BaseException:  # what shows it is the program's by now
        return 1
    return 1


def _exit_code(stop: SystemExit) -> int:
    if stop.code is None:
        return 0
    if isinstance(stop.code, int):
        return stop.code & 0xFF
    print(stop.code, file=sys.stderr)
    return 1


def _show(error: BaseException, source: bytes) -> None:
    """Print the traceback as Python does, with the program's lines."""
    linecache.cache[NAME] = (len(source), None, source.decode("utf-8", "replace").splitlines(keepends=True), NAME)
    traceback.print_exception(error)


def _finish(code: int) -> int:
    """End as Python would: threads are waited for, exit handlers run, output is flushed. (``os._exit`` alone would lose it.)"""
    try:
        if len(threading._active) > 1:  # type: ignore[attr-defined]
            threading._shutdown()  # type: ignore[attr-defined]
        atexit._run_exitfuncs()
    except BaseException:
        code = code or 1
    return _flushed(code)


def _flush_and_exit(code: int) -> NoReturn:
    os._exit(_flushed(code))


def _flushed(code: int) -> int:
    for name in ("stdout", "__stdout__", "stderr"):
        try:
            getattr(sys, name).flush()
        except BaseException:
            code = code or 120
    return code


def _serve(source: bytes, main: ModuleType) -> NoReturn:
    """Run the program, then answer calls of its functions until there are no more."""
    code = _execute(source, main)
    if code is not None:
        os._exit(_finish(code))
    try:
        wire.write_all(CHANNEL, wire.frame(wire.LOADED))
        while True:
            try:
                _, size = wire.FRAME.unpack(wire.read_exactly(CHANNEL, wire.FRAME.size))
            except EOFError:
                break
            request = wire.read_exactly(CHANNEL, size)
            if request.startswith(b'{"ask"'):
                _serve_tests(request, main, source)
            wire.write_all(CHANNEL, _answer(request, main, source))
    except BaseException:
        _flush_and_exit(1)
    _flush_and_exit(0)


def _answer(request: bytes, main: ModuleType, source: bytes) -> bytes:
    try:
        call = values.decode(request)
        result = _find(main, call["function"])(*call["args"], **call.get("kwargs", {}))
        return wire.frame(wire.VALUE, values.encode(result))
    except SystemExit as stop:
        _flush_and_exit(_exit_code(stop) or 1)
    except BaseException as error:
        if error.__traceback__ is not None:
            error.__traceback__ = error.__traceback__.tb_next
        _show(error, source)
        sys.stderr.flush()
        return wire.frame(wire.RAISED, values.encode([type(error).__name__, str(error)[:1000]]))


def _find(main: ModuleType, path: str) -> Any:
    found: Any = main
    for name in path.split("."):
        # The method of a class is called on an instance of it: Solution.two_sum.
        found = getattr(found() if isinstance(found, type) else found, name)
    return found


def _serve_tests(question: bytes, main: ModuleType, source: bytes) -> NoReturn:
    """Answer test code, from its first question on, until it has no more."""

    def show(error: BaseException) -> None:
        while error.__traceback__ is not None and error.__traceback__.tb_frame.f_code.co_filename != NAME:
            error.__traceback__ = error.__traceback__.tb_next
        _show(error, source)
        sys.stderr.flush()

    def swap(message: bytes) -> bytes:
        wire.write_all(CHANNEL, wire.frame(wire.VALUE, message))
        return _received()[1]

    agent = Agent(swap, lambda name: _find(main, name), show)
    try:
        while True:
            question = swap(agent.serve(question))
    except EOFError:
        _flush_and_exit(0)


def _received() -> tuple[int, bytes]:
    kind, size = wire.FRAME.unpack(wire.read_exactly(CHANNEL, wire.FRAME.size))
    return kind, wire.read_exactly(CHANNEL, size)


def _test(source: bytes, names: list[str], main: ModuleType) -> NoReturn:
    """Run test code, ours, in which the agent's functions are calls through the manager to the process that has them."""

    def swap(message: bytes) -> bytes:
        wire.write_all(CHANNEL, wire.frame(wire.CALL, message))
        kind, answer = _received()
        if kind != wire.VALUE:
            raise RuntimeError("the program did not answer")
        return answer

    tests = Examiner(swap)
    for name in names:
        main.__dict__[name] = tests.named(name)
    main.__dict__["candidate"] = main.__dict__[names[0]]
    code = _execute(source, main)
    if code is None:
        wire.write_all(CHANNEL, wire.frame(wire.DONE_TESTING))
    _flush_and_exit(code or 0)
