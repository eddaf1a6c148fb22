"""A run at a glance, from its files alone: how far it got, how good it is, how it ended.

Nothing that computes is imported, so a folder of hundreds of runs is listed in a moment.
"""

from __future__ import annotations

import json
import math
import time
from dataclasses import dataclass
from pathlib import Path
from typing import Any, Literal

from fugu import files
from fugu.emulation.place import from_here, title
from fugu.errors import FuguError
from fugu.run import store
from fugu.run.measure import MEASURES, measure, values
from fugu.trainer.config import TrainConfig, read_config, without_algorithm

LEFT = (
    "ended without a word: its process was killed or left by os._exit; --isolate True gives an environment a process of its own"
)
State = Literal["running", "done", "ended", "interrupted", "failed", "diverged", "damaged"]


@dataclass(frozen=True, kw_only=True)
class Overview:
    name: str
    path: str
    env: str | None
    algorithm: str | None
    seed: int | None
    tags: tuple[str, ...]
    group: str | None
    """group of runs that differ in their seed"""
    group_seeds: tuple[int, ...]
    """seeds of that group, those without a run included"""
    state: State
    """running: a process trains it. ended: by a callback. interrupted: it can go on with --resume. failed: the same, once the cause is
    mended. diverged: the same, with other settings"""
    problem: str | None
    """message of a run that failed, diverged or is damaged"""
    steps: int
    """steps done"""
    steps_asked: int | None
    measure: str | None
    """metric that the run is judged by: score, eval/return, self_play/rating, or episode/return if it has none of these"""
    score: float | None
    """its last value"""
    best_score: float | None
    """its highest value"""
    latest: dict[str, float]
    """last value of each metric that a run may be judged by"""
    steps_per_second: float | None
    """over the whole run"""
    age: float
    """seconds since it started"""


def overviews(root: Path | str = store.ROOT) -> list[Overview]:
    """Return an overview of every run in ``root``, newest first."""
    return [overview(folder) for folder in reversed(store.runs(root))]


def overview(folder: store.RunFolder) -> Overview:
    config: TrainConfig | None = None
    metrics: list[dict[str, float]] = []
    timing: list[dict[str, float]] = []
    problem = algorithm = None
    running, label = folder.locked, folder.label

    def kept(data: dict[str, Any]) -> None:
        nonlocal algorithm
        algorithm = from_here(str(data.get("algorithm", "ppo")))
        without_algorithm(data)

    try:
        config = read_config(folder.config, kept)
        metrics, timing = folder.read_metrics(), folder.read_timing()
    except (FuguError, OSError) as error:
        problem = str(error)
    newest = None if problem else _newest_checkpoint(folder.checkpoints)
    if newest is not None and not running:  # a run that is running may be replacing what is looked at
        problem = _damage(newest)
    judged_by = measure(metrics, evaluated=config is None or config.eval.every is not None)
    scores = values(metrics, judged_by) if judged_by is not None else []
    steps = int(metrics[-1]["steps"]) if metrics else 0
    state: State = "interrupted"
    if running:
        state = "running"
    elif problem is not None:
        state = "damaged"
    elif folder.diverged.exists():
        state, problem = "diverged", _divergence(folder.diverged)
    elif folder.failed.exists():
        state, problem = "failed", _first_line(folder.failed)
    elif config is not None:
        try:
            if steps >= config.steps or _reached(config, newest):
                state = "done"
        except (OSError, ValueError, KeyError, TypeError, AttributeError, RecursionError):
            state, problem = "damaged", f"{newest}/state.json cannot be read"
        if state == "interrupted" and folder.ended.exists():
            state = "ended"
        if state == "interrupted" and folder.ended_without_a_word:
            state, problem = "failed", LEFT
    return Overview(
        name=folder.name,
        path=str(folder.path),
        env=title(config.env, config.env_kwargs) if config is not None else None,
        algorithm=algorithm if config is not None else None,
        seed=config.seed if config is not None else None,
        tags=label.tags,
        group=label.group,
        group_seeds=label.seeds,
        state=state,
        problem=problem,
        steps=steps,
        steps_asked=config.steps if config is not None else None,
        measure=judged_by,
        score=scores[-1] if scores else None,
        best_score=max(scores, default=None),
        latest={name: found[-1] for name in MEASURES if (found := values(metrics, name))},
        steps_per_second=_speed(timing),
        age=time.time() - folder.started,
    )


def finished(folder: store.RunFolder, config: TrainConfig) -> bool:
    """Return whether the newest checkpoint is the end of what ``config`` asks for."""
    newest = _newest_checkpoint(folder.checkpoints)
    if newest is None:
        return False
    try:
        return int(newest.name.removeprefix("step_")) >= config.steps or _reached(config, newest)
    except (OSError, ValueError, KeyError, TypeError, AttributeError, RecursionError):
        return False


def seconds_of(timing: list[dict[str, float]]) -> list[float]:
    """Return the wall time of each line: the steps since the one before over the steps per second. Stops in between do not count."""
    out, before = [], 0.0
    for row in timing:
        speed = row.get("time/steps_per_second", math.nan)
        out.append((row["steps"] - before) / speed if speed > 0 else 0.0)
        before = row["steps"]
    return out


def _speed(timing: list[dict[str, float]]) -> float | None:
    seconds = sum(seconds_of(timing))
    return timing[-1]["steps"] / seconds if seconds > 0 else None


def _newest_checkpoint(folder: Path) -> Path | None:
    """Return the newest checkpoint by step: names are in order only up to nine digits."""
    steps = {path.name.removeprefix("step_"): path for path in folder.glob("step_*")}
    newest = max((step for step in steps if step.isdecimal()), default=None, key=int)
    return None if newest is None else steps[newest]


def _damage(checkpoint: Path) -> str | None:
    """Check quickly that the files of the newest checkpoint exist and have the right length. Loading one checks every byte."""
    try:
        listed: dict[str, Any] = json.loads(files.read(checkpoint / "MANIFEST.json", files.SMALL))["files"]
        for name, entry in listed.items():
            if (checkpoint / name).stat().st_size != entry["size"]:
                return f"{checkpoint / name} does not have its {entry['size']} bytes"
    except FileNotFoundError as error:
        return f"{error.filename} is missing"
    except (OSError, ValueError, KeyError, TypeError, AttributeError, RecursionError):
        return f"{checkpoint / 'MANIFEST.json'} cannot be read"
    return None


def _first_line(file: Path) -> str:
    try:
        return next(files.lines(file), b"").decode(errors="replace").rstrip("\n")
    except (OSError, files.NotPlain) as error:
        return f"{file} cannot be read: {getattr(error, 'strerror', None) or error}"


def _divergence(file: Path) -> str:
    from safetensors import SafetensorError, safe_open

    if not file.is_file():
        return f"training diverged; {file} is no file"
    try:
        with safe_open(file, "numpy") as content:
            return str(content.metadata()["message"])
    except (SafetensorError, OSError, KeyError, TypeError):
        return f"training diverged; {file} cannot be read"


def _reached(config: TrainConfig, checkpoint: Path | None) -> bool:
    """Return whether the run ended because it reached its target."""
    if config.target is None or checkpoint is None:
        return False
    state = json.loads(files.read(checkpoint / "state.json"))
    earlier = (state.get("score") or {}).get("mean") if config.eval.every is None else state.get("evaluated")
    merit = state.get("merit", earlier)  # earlier versions did not save it
    return merit is not None and merit >= config.target
