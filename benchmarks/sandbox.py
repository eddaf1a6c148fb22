"""Claims about the sandbox, each beside its alternatives in the same run: python benchmarks/sandbox.py [--out FILE] [case ...]

cases: one_core (a trivial program at full isolation on one core, manager included, beside `subprocess` and beside a bare fork),
huge_pages (with and without them), latency (one at a time), all_cores, sleepers (5% of the programs sleep into a limit of 1 s),
burners (5% loop until their CPU limit).
"""

from __future__ import annotations

import ctypes
import os
import statistics
import subprocess
import sys
import time
from collections.abc import Iterator
from contextlib import ExitStack, contextmanager
from typing import Any

import psutil

from fugu.coding.sandbox import Call, Limits, Program, Sandbox, SandboxConfig
from fugu.coding.sandbox.worker import FLAGS
from harness import Step, alternate, main, rate, rates, ratios, summaries

TRIVIAL = Program(source=b"print(sum(range(10)))")
FUNCTION = Program(source=b"def f(n): return sum(range(n))", calls=(Call("f", b"[10]"),))
NEVER = 1 << 60
PR_SET_THP_DISABLE = 41
DEPTH = 4
"""programs under way per core: enough that none waits for the manager"""

BARE_FORK = """
import gc, importlib, os, sys, time
for name in sys.argv[1].split(): importlib.import_module(name)
gc.collect(); gc.freeze(); gc.disable()
print("ready", flush=True)
for line in sys.stdin:
    for _ in range(int(line)):
        if os.fork() == 0: os._exit(0)
        os.wait()
    print("done", flush=True)
"""


def stream(sandbox: Sandbox, programs: Iterator[Program], depth: int) -> Step:
    """Keeps ``depth`` programs under way; a step is however many have finished."""

    def step() -> int:
        while sandbox.pending < depth:
            sandbox.submit(next(programs))
        return len(sandbox.collect())

    return step


def again(program: Program) -> Iterator[Program]:
    while True:
        yield program


def one_in_twenty(slow: Program) -> Iterator[Program]:
    while True:
        yield slow
        for _ in range(19):
            yield TRIVIAL


def spawning(*command: str) -> Step:
    def step() -> int:
        done = subprocess.run([sys.executable, *command, "-c", "print(sum(range(10)))"], capture_output=True)
        assert done.stdout == b"45\n"
        return 1

    return step


def forking(stack: ExitStack) -> Step:
    """The floor: the same interpreter with the same modules, fork, exit and wait; no isolation, no program, nobody asking."""
    command = [sys.executable, *FLAGS, "-c", BARE_FORK, " ".join(SandboxConfig().preload)]
    process = subprocess.Popen(command, stdin=subprocess.PIPE, stdout=subprocess.PIPE, text=True)
    stack.callback(process.wait)
    stack.callback(process.kill)
    assert process.stdout is not None and process.stdin is not None
    process.stdout.readline()

    def step() -> int:
        assert process.stdout is not None and process.stdin is not None
        process.stdin.write("50\n")
        process.stdin.flush()
        process.stdout.readline()
        return 50

    return step


@contextmanager
def on_one_core() -> Iterator[None]:
    """This process and all it starts."""
    usable = os.sched_getaffinity(0)
    os.sched_setaffinity(0, {max(usable)})
    try:
        yield
    finally:
        os.sched_setaffinity(0, usable)


def cpu_ms(sandbox: Sandbox, count: int = 300) -> dict[str, float]:
    """CPU time of one execution: of the program's process, of the zygote, of the manager. Less noisy than a rate."""
    zygote = psutil.Process(sandbox.backend._workers[0].process.pid).children()[0]  # type: ignore[attr-defined]
    before, own = sum(zygote.cpu_times()[:2]), time.process_time()
    outcomes = sandbox.run([TRIVIAL] * count)
    own, after = time.process_time() - own, sum(zygote.cpu_times()[:2])
    parts = {"program": sum(outcome.cpu_s for outcome in outcomes), "zygote": after - before, "manager": own}
    return {name: seconds / count * 1e3 for name, seconds in (*parts.items(), ("all", sum(parts.values())))}


def one_core(seconds: float, repeats: int) -> dict[str, Any]:
    with ExitStack() as stack:
        stack.enter_context(on_one_core())
        sandbox = stack.enter_context(Sandbox(SandboxConfig(workers=1, recycle=NEVER)))
        called = stack.enter_context(Sandbox(SandboxConfig(workers=1, recycle=NEVER)))
        steps = {
            "fugu": stream(sandbox, again(TRIVIAL), DEPTH),
            "fugu, a function called": stream(called, again(FUNCTION), DEPTH),
            "python -c": spawning(),
            "python -I -S -c": spawning("-I", "-S"),
            "bare fork": forking(stack),
        }
        results = rates(steps, seconds, repeats)
        level = sandbox.isolation.level
        parts = alternate({"all": lambda: cpu_ms(sandbox)["all"]}, repeats)
        return {
            "level": level,
            "load_average": os.getloadavg()[0],  # of which this benchmark is about 1; more disturbs it
            "executions_per_s": summaries(results),
            "cpu_ms": {**cpu_ms(sandbox), "all": parts["all"].summary()},
            "ratios": ratios(results, [("fugu", "python -c"), ("fugu", "python -I -S -c"), ("fugu", "bare fork")]),
        }


def huge_pages(seconds: float, repeats: int) -> dict[str, Any]:
    """What it brings that a zygote keeps its memory in huge pages: CPU time of one program, with them and where they are forbidden."""
    libc = ctypes.CDLL(None)
    with ExitStack() as stack:
        stack.enter_context(on_one_core())
        sandboxes = {}
        for name, forbidden in (("with", 0), ("without", 1)):
            libc.prctl(PR_SET_THP_DISABLE, forbidden, 0, 0, 0)  # what is started inherits it
            sandboxes[name] = stack.enter_context(Sandbox(SandboxConfig(workers=1, recycle=NEVER)))
        libc.prctl(PR_SET_THP_DISABLE, 0, 0, 0, 0)
        spent = {name: lambda sandbox=sandbox: cpu_ms(sandbox)["all"] for name, sandbox in sandboxes.items()}
        results = alternate(spent, repeats)
        return {"cpu_ms": summaries(results), "ratios": ratios(results, [("without", "with")])}


def latency(seconds: float, repeats: int) -> dict[str, Any]:
    """From ``submit`` to the outcome, nothing else under way."""
    with Sandbox(SandboxConfig(workers=1, recycle=NEVER)) as sandbox:
        until, found = time.perf_counter() + seconds * repeats, []
        while time.perf_counter() < until:
            start = time.perf_counter()
            sandbox.run([TRIVIAL])
            found.append((time.perf_counter() - start) * 1e3)
    found.sort()
    return {"ms": {"median": statistics.median(found), "p99": found[int(0.99 * len(found))], "runs": len(found)}}


def all_cores(seconds: float, repeats: int) -> dict[str, Any]:
    cores = len(os.sched_getaffinity(0))
    with ExitStack() as stack:
        with on_one_core():
            single = stack.enter_context(Sandbox(SandboxConfig(workers=1, recycle=NEVER)))
        full = stack.enter_context(Sandbox(SandboxConfig(workers=cores, recycle=NEVER)))

        def on_one() -> float:
            with on_one_core():
                return rate(stream(single, again(TRIVIAL), DEPTH), seconds)

        contestants = {"one core": on_one, f"{cores} cores": lambda: rate(stream(full, again(TRIVIAL), DEPTH * cores), seconds)}
        results = alternate(contestants, repeats)
    return {"executions_per_s": summaries(results), "ratios": ratios(results, [(f"{cores} cores", "one core")])}


def mixed(slow: Program, seconds: float, repeats: int, budgets: tuple[int, ...]) -> dict[str, Any]:
    """One worker on one core; ``in_flight`` is the budget, of which each slow program takes one place until its limit."""
    with ExitStack() as stack:
        stack.enter_context(on_one_core())
        contestants = {}
        for budget in budgets:
            for name, programs in (("clean", again(TRIVIAL)), ("5% slow", one_in_twenty(slow))):
                sandbox = stack.enter_context(Sandbox(SandboxConfig(workers=1, in_flight=budget, recycle=NEVER)))
                step = stream(sandbox, programs, budget)
                contestants[f"{name}, {budget} in flight"] = lambda step=step: steady(step, seconds)
        results = alternate(contestants, repeats)
    pairs = [(f"5% slow, {budget} in flight", f"clean, {budget} in flight") for budget in budgets]
    return {"executions_per_s": summaries(results), "ratios": ratios(results, pairs)}


def steady(step: Step, seconds: float) -> float:
    """The rate once as many slow programs end as begin."""
    until = time.perf_counter() + 1.5  # longer than the slow ones take
    while time.perf_counter() < until:
        step()
    return rate(step, seconds)


def sleepers(seconds: float, repeats: int) -> dict[str, Any]:
    slow = Program(source=b"import time; time.sleep(60)", limits=Limits(cpu_s=0.5, wall_s=1.0))
    return mixed(slow, seconds, repeats, (8, 32, 64))


def burners(seconds: float, repeats: int) -> dict[str, Any]:
    """CPU that is burnt is gone: with t the CPU time of a clean program, nobody can keep more than t / (0.95 t + 0.05 * limit)."""
    found = {}
    for limit in (0.1, 1.0):
        slow = Program(source=b"while True: pass", limits=Limits(cpu_s=limit, wall_s=10.0))
        result = mixed(slow, seconds, repeats, (32,))
        clean = 1 / result["executions_per_s"]["clean, 32 in flight"]["median"]
        result["most possible"] = clean / (0.95 * clean + 0.05 * limit)
        found[f"limit {limit:g} s"] = result
    return found


CASES = {
    "one_core": one_core,
    "huge_pages": huge_pages,
    "latency": latency,
    "all_cores": all_cores,
    "sleepers": sleepers,
    "burners": burners,
}

if __name__ == "__main__":
    main("sandbox", __doc__, CASES, repeats=5, seconds=3.0)
