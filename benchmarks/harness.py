"""How every benchmark here measures: contestants alternate within each repeat, medians and spreads are reported, and the
result is one JSON object with the command, the machine and the versions."""

from __future__ import annotations

import importlib.metadata
import json
import os
import platform
import statistics
import sys
import time
from collections.abc import Callable
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

Measure = Callable[[], float]

PACKAGES = ("fugu-rl", "numpy", "torch", "gymnasium", "stable-baselines3", "pettingzoo", "envpool")


@dataclass
class Result:
    """Values of one contestant over the repeats."""

    values: list[float] = field(default_factory=list)

    @property
    def median(self) -> float:
        return statistics.median(self.values)

    def summary(self) -> dict[str, float]:
        return {"median": self.median, "min": min(self.values), "max": max(self.values), "runs": len(self.values)}


def alternate(contestants: dict[str, Measure], repeats: int) -> dict[str, Result]:
    """Run all contestants once per repeat, forwards and backwards in turn, so that drift hits all alike."""
    results = {name: Result() for name in contestants}
    for repeat in range(repeats):
        names = list(contestants) if repeat % 2 == 0 else list(contestants)[::-1]
        for name in names:
            results[name].values.append(contestants[name]())
    return results


def ratio(results: dict[str, Result], over: str, under: str) -> dict[str, float]:
    """``over`` / ``under``, paired repeat by repeat."""
    pairs = [a / b for a, b in zip(results[over].values, results[under].values, strict=True)]
    return {"median": statistics.median(pairs), "min": min(pairs), "max": max(pairs)}


def rate(step: Callable[[], int], seconds: float) -> float:
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
        "system": f"{platform.system()} {platform.release()}",
        "python": platform.python_version(),
        "versions": versions,
    }


def report(name: str, results: dict[str, Any], out: str | None) -> None:
    """Print the JSON line, and write it to ``out`` as well."""
    command = "python " + " ".join([os.path.relpath(sys.argv[0]), *sys.argv[1:]])
    record = {"benchmark": name, "command": command, "machine": machine(), "results": results}
    if out is not None:
        Path(out).parent.mkdir(parents=True, exist_ok=True)
        Path(out).write_text(json.dumps(record, indent=1) + "\n")
    print(json.dumps(record))
