"""How every benchmark here measures: contestants alternate within each repeat, medians and spreads are reported, and the
result is one JSON object with the command, the machine and the versions."""

from __future__ import annotations

import argparse
import ctypes
import importlib.metadata
import itertools
import json
import os
import platform
import statistics
import subprocess
import sys
import tempfile
import time
from collections.abc import Callable, Iterable, Mapping, Sequence
from dataclasses import dataclass, field
from functools import partial
from pathlib import Path
from typing import Any

Step = Callable[[], int]
"""takes one step of many environments; how many"""

HERE = Path(__file__).parent

PACKAGES = (
    "fugu-rl",
    "numpy",
    "torch",
    "gymnasium",
    "stable-baselines3",
    "sb3-contrib",
    "pettingzoo",
    "mpe2",
    "mujoco",
    "envpool",
    "ray",
)


def main(
    name: str,
    doc: str | None,
    cases: Mapping[str, Callable[..., Any]],
    *,
    repeats: int,
    seconds: float | None = None,
    add: bool = False,
) -> None:
    """The command line of a benchmark: measures the cases asked for and reports what they return.

    A case is called with ``repeats`` and, where a benchmark has a default for it, with the ``seconds`` of a measurement. ``add``: the
    file keeps what other commands left there.
    """
    parser = argparse.ArgumentParser(description=doc, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("case", nargs="*", help=f"which of {', '.join(cases)} (default: all)")
    parser.add_argument("--repeats", type=int, default=repeats)
    if seconds is not None:
        parser.add_argument("--seconds", type=float, default=seconds, help="per measurement")
    parser.add_argument("--out", help="also write the JSON here")
    options = vars(parser.parse_args())
    chosen, out = options.pop("case") or list(cases), options.pop("out")
    unknown = sorted(set(chosen) - set(cases))
    if unknown:
        parser.error(f"no case {', '.join(unknown)}; there are {', '.join(cases)}")
    report(name, {case: cases[case](**options) for case in chosen}, out, add=add)


@dataclass
class Result:
    """Values of one contestant over the repeats."""

    values: list[float] = field(default_factory=list)

    @property
    def median(self) -> float:
        return statistics.median(self.values)

    def summary(self) -> dict[str, float]:
        return {"median": self.median, "min": min(self.values), "max": max(self.values), "runs": len(self.values)}


def rates(steps: Mapping[str, Step], seconds: float, repeats: int) -> dict[str, Result]:
    """Steps per second."""
    return alternate({name: partial(rate, step, seconds) for name, step in steps.items()}, repeats)


def timings(calls: Mapping[str, tuple[Callable[[], Any], int]], repeats: int) -> dict[str, Result]:
    """Microseconds per call; with every call comes how many of them are timed together."""
    return alternate({name: partial(microseconds, call, number) for name, (call, number) in calls.items()}, repeats)


def alternate(contestants: Mapping[str, Callable[[], float]], repeats: int) -> dict[str, Result]:
    """Run all contestants once per repeat, forwards and backwards in turn, so that drift hits all alike."""
    results = {name: Result() for name in contestants}
    for repeat in range(repeats):
        names = list(contestants) if repeat % 2 == 0 else list(contestants)[::-1]
        for name in names:
            results[name].values.append(contestants[name]())
    return results


def summaries(results: Mapping[str, Result]) -> dict[str, dict[str, float]]:
    return {name: result.summary() for name, result in results.items()}


def ratios(results: Mapping[str, Result], pairs: Iterable[tuple[str, str]]) -> dict[str, dict[str, float]]:
    """The first of each pair over the second, paired repeat by repeat."""
    return {f"{over} / {under}": _ratio(results[over], results[under]) for over, under in pairs}


def grouped_ratios(
    results: Mapping[str, Result], pairs: Iterable[tuple[str, str]], groups: Sequence[str]
) -> dict[str, dict[str, dict[str, float]]]:
    """As ``ratios``, by the group that each repeat belongs to."""
    out: dict[str, dict[str, dict[str, float]]] = {}
    for group in dict.fromkeys(groups):
        chosen = {
            name: Result([v for v, g in zip(result.values, groups, strict=True) if g == group])
            for name, result in results.items()
        }
        out[group] = {name: {**ratio, "repeats": groups.count(group)} for name, ratio in ratios(chosen, pairs).items()}
    return out


def _ratio(over: Result, under: Result) -> dict[str, float]:
    pairs = [a / b for a, b in zip(over.values, under.values, strict=True)]
    return {"median": statistics.median(pairs), "min": min(pairs), "max": max(pairs)}


def compiled(source: str, *flags: str) -> ctypes.CDLL:
    """A C++ file of this folder as a library."""
    with tempfile.TemporaryDirectory() as folder:
        library = Path(folder) / "library.so"
        subprocess.run(["c++", "-std=c++20", "-O3", "-shared", "-fPIC", *flags, "-o", library, HERE / source], check=True)
        return ctypes.CDLL(str(library))


def stepping(vec: Any, actions: Iterable[Any], count: int) -> Step:
    """Steps ``vec``, which has been reset, with ``actions`` in turn: ours, Gymnasium's, SB3's or EnvPool's, of ``count`` envs."""
    turns = itertools.cycle(actions)

    def step() -> int:
        vec.step(next(turns))
        return count

    return step


def rate(step: Step, seconds: float) -> float:
    """Calls ``step`` for about ``seconds`` after a tenth of that as warm-up; what it returned in all, per second."""
    until = time.perf_counter() + seconds / 10
    while time.perf_counter() < until:
        step()
    count, start = 0, time.perf_counter()
    until = start + seconds
    while (now := time.perf_counter()) < until:
        count += step()
    return count / (now - start)


def microseconds(call: Callable[[], Any], number: int) -> float:
    for _ in range(number // 10 + 1):
        call()
    start = time.perf_counter()
    for _ in range(number):
        call()
    return (time.perf_counter() - start) / number * 1e6


def _gpu() -> dict[str, str]:
    torch = sys.modules.get("torch")
    return {"gpu": torch.cuda.get_device_name()} if torch is not None and torch.cuda.is_available() else {}


def machine() -> dict[str, Any]:
    versions = {}
    for package in PACKAGES:
        try:
            versions[package] = importlib.metadata.version(package)
        except importlib.metadata.PackageNotFoundError:
            continue
    cpu = platform.processor()
    with open("/proc/cpuinfo") as file:
        cpu = next((line.split(":", 1)[1].strip() for line in file if line.startswith("model name")), cpu)
    return {
        "cpu": cpu,
        "cores": len(os.sched_getaffinity(0)),
        **_gpu(),
        "system": f"{platform.system()} {platform.release()}",
        "python": platform.python_version(),
        "versions": versions,
    }


def report(name: str, results: dict[str, Any], out: str | None, *, add: bool = False) -> None:
    """Print the JSON line, and write it to ``out`` as well. ``add``: keep what other commands left there, one record each."""
    command = "python " + " ".join([os.path.relpath(sys.argv[0]), *sys.argv[1:]])
    record = {"benchmark": name, "command": command, "machine": machine(), "results": results}
    if out is not None:
        Path(out).parent.mkdir(parents=True, exist_ok=True)
        kept: Any = record
        if add:
            found = json.loads(Path(out).read_text()) if Path(out).exists() else []
            kept = [each for each in (found if isinstance(found, list) else [found]) if each["command"] != command] + [record]
        Path(out).write_text(json.dumps(kept, indent=1) + "\n")
    print(json.dumps(record))
