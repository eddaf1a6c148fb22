"""``fugu sandbox``: test with twenty escape attempts how well programs are isolated here, and measure how fast they run."""

from __future__ import annotations

import json
from dataclasses import asdict, dataclass
from typing import Any

from rich.table import Table
from rich.text import Text

from fugu.cli.options import console, parse
from fugu.coding.sandbox import probe, smoke
from fugu.coding.sandbox.config import BackendName, SandboxConfig
from fugu.coding.sandbox.protections import PROTECTIONS, gaps
from fugu.coding.sandbox.sandbox import Sandbox
from fugu.errors import ConfigError


@dataclass(frozen=True, kw_only=True)
class Options:
    """Test with twenty escape attempts how well programs are isolated here, and measure how fast they run.

    Exit code 1 if an attempt succeeds.
    """

    backend: BackendName = "fork"
    """Backend that runs the programs: fork, subprocess, bubblewrap, docker, podman or http"""
    min_level: int = 0
    """Level below which the command fails: 3 namespaces, 2 Landlock, 1 seccomp, 0 limits only"""
    workers: int | None = None
    """Processes that run programs at once; none: one per usable core"""
    image: str = SandboxConfig.image
    """Container image; only for docker and podman"""
    runtime: str | None = None
    """Container runtime, such as runsc for gVisor; only for docker and podman; none: the default one"""
    url: str | None = None
    """Address of the service; only for http"""
    seconds: float = 1.0
    """Seconds to measure for; 0: no measurement"""
    json: bool = False
    """Print a JSON object"""

    def __post_init__(self) -> None:
        if self.seconds < 0:
            raise ConfigError(f"--seconds {self.seconds} must not be negative")


def main(argv: list[str]) -> int:
    options = parse(Options, "sandbox", argv)
    config = SandboxConfig(
        backend=options.backend,
        min_level=options.min_level,
        workers=options.workers,
        image=options.image,
        runtime=options.runtime,
        url=options.url,
    )
    with smoke.surroundings() as names, Sandbox(config) as sandbox:
        report = examine(sandbox, names, options.seconds)
    print(json.dumps(report, indent=2)) if options.json else show(report)
    return int(any(attempt["contained"] is False for attempt in report["attempts"]))


def examine(sandbox: Sandbox, names: dict[str, str], seconds: float) -> dict[str, Any]:
    """Return everything that is shown, as plain values."""
    missing = gaps(sandbox.backend)
    results = list(smoke.attempts(sandbox, names))
    rate = smoke.executions_per_second(sandbox, seconds) if seconds else None
    remedies = probe.examine().remedies() if sandbox.backend.name == "fork" else {}
    return {
        "backend": sandbox.backend.name,
        "isolation": asdict(sandbox.isolation),
        "remedies": remedies,
        "protections": {name: missing.get(name, "") for name in PROTECTIONS},
        "attempts": [{"what": each.attempt.what, "contained": each.contained, "found": each.found} for each in results],
        "executions_per_s": rate,
        "workers": sandbox.config.worker_count,
    }


def show(report: dict[str, Any]) -> None:
    isolation = report["isolation"]
    lacks = f", without {', '.join(isolation['missing'])}" if isolation["missing"] else ""
    print(f"backend {report['backend']}, level {isolation['level']} of 3{lacks}\n")
    for name, remedy in report["remedies"].items():
        print(f"{name}: {remedy}")
    print("a program here")
    table = Table(box=None, show_header=False, padding=(0, 2, 0, 0))
    for name, why in report["protections"].items():
        mark = Text("-", style="yellow") if why else Text("ok", style="green")
        table.add_row(mark, PROTECTIONS[name], Text(f"no: {why}" if why else "", style="dim"))
    console().print(table)
    print("\ntried")
    table = Table(box=None, show_header=False, padding=(0, 2, 0, 0))
    marks = {True: Text("contained", style="green"), False: Text("ESCAPED", style="red"), None: Text("-", style="yellow")}
    for attempt in report["attempts"]:
        table.add_row(marks[attempt["contained"]], attempt["what"], Text(attempt["found"], style="dim"))
    console().print(table)
    if report["executions_per_s"] is not None:
        workers = report["workers"]
        print(f"\n{report['executions_per_s']:.0f} executions/s with {workers} worker{'s' if workers > 1 else ''}")
