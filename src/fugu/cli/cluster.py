"""``fugu cluster check``: look at every machine of a Ray cluster as a training would use it, and measure the way to it."""

from __future__ import annotations

import json
import os
import statistics
import time
from dataclasses import dataclass
from typing import Any

import numpy as np
import psutil
from rich.table import Table
from rich.text import Text

from fugu.cli.options import console, parse
from fugu.errors import ConfigError, FuguError, SandboxError
from fugu.vector.config import usable_cores
from fugu.vector.ray_actor import Surroundings, versions
from fugu.vector.ray_cluster import Cluster, Place

PATIENCE_S = 120.0
"""longest wait for a machine"""


@dataclass(frozen=True, kw_only=True)
class Options:
    """Show versions, cores, memory, object store, round trip, speed and sandbox of every machine of a Ray cluster.

    Exit code 1 if a machine does not answer, or has other versions than this one.
    """

    address: str | None = None
    """Address of the cluster: HOST:PORT, or auto for the one that this machine is in; none: Ray is started on this machine alone"""
    calls: int = 50
    """Calls whose median is the round trip"""
    megabytes: int = 32
    """Megabytes that are sent to and fro to measure the speed"""
    json: bool = False
    """Print a JSON object"""

    def __post_init__(self) -> None:
        for name in ("calls", "megabytes"):
            if getattr(self, name) < 1:
                raise ConfigError(f"--{name} {getattr(self, name)} must be at least 1")


class Probe:
    """An actor on the machine that is looked at."""

    def __init__(self, surroundings: Surroundings) -> None:
        surroundings.enter()

    def about(self) -> dict[str, Any]:
        memory = psutil.virtual_memory()
        return {
            "versions": all_versions(),
            "cores": usable_cores(),
            "memory": memory.total,
            "free": memory.available,
            "sandbox": sandbox_level(),
        }

    def echo(self, content: np.ndarray) -> np.ndarray:
        return content


def main(argv: list[str]) -> int:
    options = parse(Options, "cluster check", argv)
    cluster = Cluster(options.address)
    try:
        report = examine(cluster, options)
    finally:
        cluster.leave()
    print(json.dumps(report, indent=2)) if options.json else show(report)
    return int(any(machine["problem"] for machine in report["machines"]))


def examine(cluster: Cluster, options: Options) -> dict[str, Any]:
    """Return everything that is shown, as plain values."""
    stores = {each["NodeID"]: each.get("Resources", {}).get("object_store_memory", 0.0) for each in cluster.ray.nodes()}
    here = all_versions()
    machines = []
    for place in cluster.places(None):
        machine: dict[str, Any] = {"address": place.address, "store": stores.get(place.ident, 0.0), "problem": ""}
        try:
            machine |= look(cluster, place, options)
        except Exception as error:  # of Ray, which has many
            said = error.complaint if isinstance(error, FuguError) else f"{type(error).__name__}: {error}"
            machine["problem"] = " ".join(said.split())[:300]
        else:
            other = {name: found for name, found in machine["versions"].items() if found != here[name]}
            if other:
                told = ", ".join(f"{name} {found} (here {here[name]})" for name, found in other.items())
                machine["problem"] = f"other versions: {told}; install the same on all machines"
        machines.append(machine)
    return {"address": options.address, "here": here, "token": token(), "machines": machines}


def look(cluster: Cluster, place: Place, options: Options) -> dict[str, Any]:
    """Return what a machine says of itself, and how fast it is reached."""
    ray, actor = cluster.ray, cluster.start(Probe, place, Surroundings.here(0))
    try:
        about = ray.get(actor.about.remote(), timeout=PATIENCE_S)
        small, large = np.zeros(8, np.uint8), np.zeros(options.megabytes << 20, np.uint8)
        took = []
        for _ in range(options.calls):
            began = time.perf_counter()
            ray.get(actor.echo.remote(small), timeout=PATIENCE_S)
            took.append(time.perf_counter() - began)
        began = time.perf_counter()
        ray.get(actor.echo.remote(large), timeout=PATIENCE_S)
        spent = time.perf_counter() - began
    finally:
        cluster.end([(actor, place, None)])
    return {**about, "round_trip_ms": 1000 * statistics.median(took), "mb_per_s": 2 * large.nbytes / 1e6 / spent}


def all_versions() -> dict[str, str]:
    """Return the versions that must be alike on all machines of a cluster."""
    import ray
    import torch

    return {**versions(), "ray": ray.__version__, "torch": torch.__version__}


def sandbox_level() -> int | None:
    """Return how well programs are kept apart here, 0 to 3; None if that cannot be found out."""
    from fugu.coding.sandbox import probe

    try:
        return probe.examine().level
    except SandboxError:
        return None


def token() -> str:
    """Return how the cluster knows who may use it."""
    mode = os.environ.get("RAY_AUTH_MODE", "disabled")
    place = os.environ.get("RAY_AUTH_TOKEN_PATH") or (
        "RAY_AUTH_TOKEN" if "RAY_AUTH_TOKEN" in os.environ else "~/.ray/auth_token"
    )
    return f"token of {place}" if mode == "token" else "none: whoever reaches its ports can run programs there"


def show(report: dict[str, Any]) -> None:
    here = ", ".join(f"{name} {version}" for name, version in report["here"].items())
    print(f"here     {here}")
    print(f"cluster  {report['address'] or 'this machine alone, started for this check'}")
    print(f"token    {report['token']}\n")
    table = Table(box=None, padding=(0, 2, 0, 0))
    table.add_column("machine")
    for name in ("cores", "memory GB", "free GB", "object store GB", "round trip ms", "MB/s", "sandbox"):
        table.add_column(name, justify="right")
    for machine in report["machines"]:
        if "cores" not in machine:
            table.add_row(machine["address"])
            continue
        level = machine["sandbox"]
        numbers = (
            f"{machine['cores']}",
            *(f"{machine[name] / 1e9:.1f}" for name in ("memory", "free", "store")),
            f"{machine['round_trip_ms']:.2f}",
            f"{machine['mb_per_s']:,.0f}",
            "none" if level is None else f"level {level}",
        )
        table.add_row(machine["address"], *numbers)
    out = console()
    out.print(table)
    for machine in report["machines"]:
        if machine["problem"]:
            out.print(Text(f"{machine['address']}: {machine['problem']}", style="red"))
