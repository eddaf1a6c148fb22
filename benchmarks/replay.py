"""A replay of a million rows: what drawing costs, what a checkpoint takes, and that memory stays flat over ten million rows.

python benchmarks/replay.py --out benchmarks/results/replay.json

Rows are those of ``cartpole`` under random actions, 32 bytes each. Draws are batches of 256 rows, by chance alone and by priority with
all priorities set again. A checkpoint is written when the replay is full, again after a tenth of it was played anew, and read back.
"""

from __future__ import annotations

import tempfile
import time
from pathlib import Path
from typing import Any

import psutil
import torch

import fugu
import harness
from fugu.rollout.acting import Act, Actor, Seen
from fugu.rollout.config import ReplayConfig
from fugu.rollout.onpolicy import OnPolicy
from fugu.rollout.replay import Replay
from fugu.trainer import checkpoint

ROWS, AGENTS, EVERY, BATCH = 1_000_000, 250, 100, 256


def act(seen: Seen) -> Act:
    action = torch.randint(2, (len(seen.first),))
    return Act(action, columns={"action": action[:, None]})


def made(**changes: Any) -> Replay:
    vec = fugu.vector.make("cartpole", AGENTS)
    config = ReplayConfig(size=ROWS, start=1, ratio=1, every=EVERY, **changes)
    replay = Replay(OnPolicy(vec, EVERY), config, horizon=1, minibatch=BATCH, acted={"action": ((1,), torch.int64)})
    replay.restart(0)
    return replay


def play(replay: Replay, rows: int) -> None:
    """Play this many rows more without drawing."""
    for _ in range(rows // (AGENTS * EVERY)):
        replay._keep(replay.inner.next(Actor(act)))


def drawing(repeats: int) -> dict[str, Any]:
    uniform, chosen = made(), made(priority=0.6)
    for replay in (uniform, chosen):
        play(replay, ROWS)
        replay.segments = BATCH

    def again() -> None:
        batch = chosen._draw()
        batch.hand_back(priority=torch.rand(BATCH))

    calls = {"uniform": (uniform._draw, 500), "by priority": (again, 500)}
    found = harness.summaries(harness.timings(calls, repeats))
    for replay in (uniform, chosen):
        replay.close()
    return {"microseconds per batch": found}


def saving(repeats: int) -> dict[str, Any]:
    out: dict[str, list[float]] = {"seconds when full": [], "seconds after a tenth more": [], "seconds to read": []}
    sizes: dict[str, int] = {}
    for _ in range(repeats):
        with tempfile.TemporaryDirectory() as name:
            folder, replay = Path(name), made()
            play(replay, ROWS)
            out["seconds when full"].append(_saved(folder, 1, replay))
            sizes["bytes when full"] = _bytes(folder)
            play(replay, ROWS // 10)
            out["seconds after a tenth more"].append(_saved(folder, 2, replay))
            sizes["bytes added by a tenth more"] = _bytes(folder) - sizes["bytes when full"]
            path, other, start = checkpoint.find(folder, whole=True), made(), time.perf_counter()
            other.remember(checkpoint.load(path).tensors["replay"], checkpoint.pages(path))
            out["seconds to read"].append(time.perf_counter() - start)
            for column, its in zip(replay._ring.columns.values(), other._ring.columns.values(), strict=True):
                assert torch.equal(column, its)
            replay.close()
            other.close()
    return {**{name: harness.Result(values).summary() for name, values in out.items()}, **sizes}


def _saved(folder: Path, step: int, replay: Replay) -> float:
    start, kept = time.perf_counter(), replay.kept()
    checkpoint.save(folder, step, {"replay": dict(kept.tensors)}, {}, pages=kept.pages)
    return time.perf_counter() - start


def _bytes(folder: Path) -> int:
    return sum(path.stat().st_size for path in folder.rglob("*") if path.is_file())


def memory(repeats: int) -> dict[str, Any]:
    replay, seen = made(priority=0.6), []
    for _ in range(10):
        play(replay, ROWS)
        seen.append(psutil.Process().memory_info().rss)
    rows = replay._ring.end * AGENTS
    replay.close()
    return {"rows played": rows, "replay bytes": replay.nbytes, "resident bytes after each million": seen}


if __name__ == "__main__":
    harness.main("replay", __doc__, {"drawing": drawing, "saving": saving, "memory": memory}, repeats=3)
