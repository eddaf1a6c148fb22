"""``fugu data FILE``: describe, check, draw, filter, join and convert recorded episodes."""

from __future__ import annotations

import json
from collections.abc import Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import TYPE_CHECKING, Annotated, Any

import numpy as np
import tyro
from rich.text import Text

from fugu import files
from fugu.cli.options import console, json_alone, parse
from fugu.errors import ConfigError, FuguError

if TYPE_CHECKING:
    from fugu.data.dataset import DataSet

QUANTILES = (0, 10, 25, 50, 75, 90, 100)


@dataclass(frozen=True, kw_only=True)
class Options:
    """Say what is in recorded episodes; with --out, write those that --filter lets through, of several files together.

    A name that ends in .hdf5 is written in Minari's layout, minari:NAME as a local data set of Minari, all else as a folder, the fast
    form.
    """

    file: Annotated[tyro.conf.Positional[tuple[str, ...]], tyro.conf.arg(metavar="FILE")]
    """Folders that fugu record wrote, files or folders in Minari's layout, or minari:NAME"""
    filter: tyro.conf.UseAppendAction[tuple[str, ...]] = ()
    """Episodes to take: top=0.1 (share with the highest returns), return>=100, length<=50, source=random, seed=7, agent=0, terminated,
    truncated, sound; give it again for more conditions"""
    check: bool = False
    """Look at every row, and list what no training should see; the exit code is 1 if there is anything"""
    out: Annotated[str, tyro.conf.arg(aliases=["-o"])] = ""
    """Folder, file .hdf5 or minari:NAME to write"""
    plot: str = ""
    """File to draw returns and lengths in: .png, .svg or .pdf"""
    salvage: bool = False
    """Take the whole episodes of a folder that is damaged or cut off"""
    json: str = ""
    """File to write the description to as JSON; - or nothing: print it instead of anything else; empty: no such file"""


def main(argv: list[str]) -> int:
    options = parse(Options, "data", json_alone(argv))
    if not options.file:
        raise ConfigError("name a file: a folder that fugu record wrote, a file .hdf5, or minari:NAME")
    from fugu.data.opening import open as open_data
    from fugu.data.picking import pick

    parts = [pick(open_data(file, salvage=options.salvage), options.filter) for file in options.file]
    if options.filter and not any(part.episodes for part in parts):
        raise ConfigError(f"the filters let no episode through: {', '.join(options.filter)}")
    found = [describe(part) for part in parts]
    if options.check:
        for part, about in zip(parts, found, strict=True):
            about["problems"] = [str(problem) for problem in part.check()]
    if options.plot:
        from fugu.run.histogram import plot

        plot(parts, list(options.file), Path(options.plot))
    text = json.dumps(found if len(found) > 1 else found[0], indent=1)
    if options.json == "-":
        print(text)
    else:
        for name, about in zip(options.file, found, strict=True):
            _print(name, about, checked=options.check)
    if options.json not in ("", "-"):
        try:
            files.write(Path(options.json), text + "\n")
        except OSError as error:
            raise FuguError(f"{options.json} cannot be written: {error.strerror}") from None
    if options.out:
        written = write(parts, options.out)
        if options.json != "-":
            console().print(Text(f"{written}: {sum(part.episodes for part in parts):,} episodes written"), soft_wrap=True)
    return int(any(about.get("problems") for about in found))


def write(parts: Sequence[DataSet], out: str) -> Path:
    """Write the episodes of ``parts`` to what ``out`` names, in the form that it asks for."""
    import shutil
    import tempfile

    from fugu.data import hdf5_write, minari, picking
    from fugu.data.opening import SUFFIXES

    name = out.removeprefix(minari.PREFIX) if out.startswith(minari.PREFIX) else ""
    path = minari.folder_of(name) / minari.MAIN if name else Path(out)
    if path.suffix not in SUFFIXES:
        picking.write(parts, path)
        return path
    if len(parts) == 1:
        hdf5_write.write(parts[0], path, name)
        return path
    folder = Path(tempfile.mkdtemp(prefix="fugu-"))
    try:
        hdf5_write.write(picking.write(parts, folder / "joined"), path, name)
    finally:
        shutil.rmtree(folder, ignore_errors=True)
    return path


def describe(data: DataSet) -> dict[str, Any]:
    """Return what is in ``data``, as JSON."""
    from fugu.data.format import row_bytes

    sources = []
    for number, source in enumerate(data.sources):
        own = data.returns[data.source == number]
        mean = {"mean_return": float(own.mean())} if len(own) else {}
        sources.append({**source, "episodes": len(own), **mean})
    return {
        "path": str(data.path),
        "env": data.spec.name,
        "recorded": dict(data.about.get("recorded", {})),
        "fugu": data.about.get("fugu"),
        "observation_space": str(data.spec.observation_space),
        "action_space": str(data.spec.action_space),
        "agents": data.spec.num_agents,
        "columns": {name: f"{form.dtype}{list(form.shape)}" for name, form in data.forms.items()},
        "episodes": data.episodes,
        "steps": data.steps,
        "bytes": data.rows * row_bytes(data.forms),
        "terminated": int(data.terminated.sum()),
        "truncated": int(data.truncated.sum()),
        "returns": _quantiles(data.returns),
        "lengths": _quantiles(data.lengths),
        "sources": sources,
        "closed": data.about.get("closed") is not None,
    }


def _quantiles(values: np.ndarray) -> dict[str, float]:
    values = values[np.isfinite(values)]
    if not len(values):
        return {}
    quantiles = np.percentile(values, QUANTILES)
    return {"mean": float(values.mean()), **{f"{q}%": float(value) for q, value in zip(QUANTILES, quantiles, strict=True)}}


def _print(name: str, about: dict[str, Any], *, checked: bool) -> None:
    out = console()

    def line(label: str, text: str) -> None:
        out.print(Text(f"  {label:<13} {text}"), soft_wrap=True)

    out.print(Text(name))
    line("environment", about["env"] + (f", {about['agents']} agents" if about["agents"] > 1 else ""))
    line("observations", about["observation_space"])
    line("actions", about["action_space"])
    more = "".join(f", {name}" for name in about["columns"] if name in ("action_mask", "cost"))
    line("episodes", f"{about['episodes']:,}, of {about['steps']:,} steps, {about['bytes'] / 1e6:,.1f} MB{more}")
    line("endings", f"{about['terminated']:,} terminated, {about['truncated']:,} truncated")
    for label in ("returns", "lengths"):
        if about[label]:
            line(label, "  ".join(f"{name} {value:.4g}" for name, value in about[label].items()))
    for source in about["sources"]:
        said = ", ".join(f"{key} {value}" for key, value in source.items() if key not in ("episodes", "mean_return"))
        mean = f", mean return {source['mean_return']:.2f}" if "mean_return" in source else ""
        line("source", f"{said}: {source['episodes']:,} episodes{mean}")
    line("written by", f"fugu {about['fugu']}" + ("" if about["closed"] else "; the recording did not end by itself"))
    if checked:
        for problem in about["problems"]:
            out.print(Text(f"  problem       {problem}"), style="red", soft_wrap=True)
        if not about["problems"]:
            line("checked", "all rows, nothing found")
