"""Recording beside the same play without it, a million rows of CartPole written and read, and what opening a large file takes.

python benchmarks/data.py --out benchmarks/results/data.json

Plays alternate, with the same actions: ``plain`` steps, ``recorded`` also writes. Times are CPU nanoseconds per row, system calls
included. ``write`` is what the operating system alone takes for the same bytes, in the same pieces, in one file. Native environments
under random actions step 512 at a time, in one thread; a policy (PPO's of two layers of 64) acts on 64 CartPoles.
"""

from __future__ import annotations

import os
import shutil
import tempfile
import time
import warnings
from collections.abc import Callable
from functools import partial
from pathlib import Path
from typing import Any

import numpy as np
import psutil

import fugu
import harness
from fugu.data import Writer, format, hdf5_write
from fugu.data.random_play import RandomPlay
from fugu.data.recording import play
from fugu.run.player import Player

NATIVE = {"cartpole": 1_000_000, "safe_point": 150_000, "connect4": 150_000, "breakout": 100_000}
ENVS, PIECE = 512, 1 << 20
POLICY_ROWS, PYTHON_ROWS = 1_000_000, 20_000
MINARI_STEPS = 40_000


def by_chance(env: str, envs: int) -> tuple[fugu.vector.VecEnv, Callable[[Any], np.ndarray], bool]:
    vec = fugu.vector.make(env, envs, **({"num_workers": 1} if env in NATIVE else {"backend": "serial", "infos": "none"}))
    masks = vec.num_choices > 0 and vec.masks_actions
    chance = RandomPlay(vec.action_layout, vec.num_agents, 1)
    return vec, lambda rows: chance.next(rows.action_mask if masks else None), masks


def plain(made: Callable[[], Any], rows: int) -> float:
    """Return CPU nanoseconds per row of playing."""
    vec, act, _ = made()
    vec.reset(1)
    done, start = 0, time.process_time()
    while done < rows:
        vec.step(act(vec.rows))
        done += vec.num_agents
    took = time.process_time() - start
    vec.close()
    return took / done * 1e9


def recorded(made: Callable[[], Any], rows: int, folder: Path) -> float:
    """Return the same of playing and recording."""
    vec, act, masks = made()
    shutil.rmtree(folder, ignore_errors=True)
    with Writer(folder, vec.spec, action_mask=masks) as writer:
        source = writer.source({})
        start = time.process_time()
        play(vec, writer, act, seed=1, sources=[source], steps=rows)
        took = time.process_time() - start
        written = writer.rows
    vec.close()
    return took / written * 1e9


def written(folder: Path) -> float:
    """Return CPU nanoseconds per row that the system takes to write as many bytes as ``folder`` has."""
    data = fugu.data.open(folder)
    size, piece = data.rows * format.row_bytes(data.forms), np.ones(PIECE, np.uint8).data
    path = folder / "plain"
    descriptor = os.open(path, os.O_WRONLY | os.O_CREAT | os.O_TRUNC)
    start = time.process_time()
    for at in range(0, size, PIECE):
        os.pwrite(descriptor, piece, at)
    took = time.process_time() - start
    os.close(descriptor)
    path.unlink()
    return took / data.rows * 1e9


def compared(made: Callable[[], Any], rows: int, folder: Path, repeats: int) -> dict[str, Any]:
    found = harness.alternate(
        {
            "recorded": partial(recorded, made, rows, folder),
            "write": partial(written, folder),
            "plain": partial(plain, made, rows),
        },
        repeats,
    )
    data = fugu.data.open(folder)
    return {
        "cpu nanoseconds per row": harness.summaries(found),
        "speed of recording": harness.ratios(found, [("plain", "recorded")]),
        "bytes per row": format.row_bytes(data.forms),
        "steps per episode": float(data.lengths.mean()),
    }


def chance(repeats: int) -> dict[str, Any]:
    with tempfile.TemporaryDirectory() as name:
        found = {env: compared(partial(by_chance, env, ENVS), rows, Path(name) / env, repeats) for env, rows in NATIVE.items()}
        found["CartPole-v1"] = compared(partial(by_chance, "CartPole-v1", 8), PYTHON_ROWS, Path(name) / "python", repeats)
    return found


def policy(repeats: int) -> dict[str, Any]:
    with tempfile.TemporaryDirectory() as name:
        with warnings.catch_warnings():
            warnings.simplefilter("ignore")
            run = fugu.train(
                "cartpole", runs=Path(name) / "runs", steps=30_000, num_envs=64, minibatch=1024, threads=1, board="off"
            )

        def made() -> tuple[Any, Any, bool]:
            player = Player(run, num_envs=64, vectors={"num_workers": 1})
            return player.vec, player.acts(), False

        return {"cartpole": compared(made, POLICY_ROWS, Path(name) / "policy", repeats)}


def million(repeats: int) -> dict[str, Any]:
    """A million rows of random CartPole: about 45,000 episodes, as short as they come."""
    out: dict[str, list[float]] = {}
    sizes: dict[str, int] = {}
    for _ in range(repeats):
        with tempfile.TemporaryDirectory() as name:
            os.environ["XDG_CACHE_HOME"] = f"{name}/cache"
            sizes = through_all(Path(name), partial(timed, out))
    found = {name: harness.Result(values).summary() for name, values in out.items()}
    return {**found, **sizes}


def timed(out: dict[str, list[float]], name: str, call: Callable[[], Any]) -> Any:
    """Return what ``call`` returns, and add to ``out`` how long it took."""
    start, cpu = time.perf_counter(), time.process_time()
    found = call()
    out.setdefault(f"{name}, seconds", []).append(time.perf_counter() - start)
    out.setdefault(f"{name}, CPU seconds", []).append(time.process_time() - cpu)
    return found


def through_all(folder: Path, timed: Callable[[str, Callable[[], Any]], Any]) -> dict[str, int]:
    """Record, open, check, read, and the same through Minari's layout. Returns sizes."""
    timed("record", lambda: fugu.record("cartpole", folder / "d", random=True, steps=960_000))
    data = timed("open", lambda: fugu.data.open(folder / "d"))
    assert not timed("check all rows", data.check)
    timed("sum of all columns", lambda: [np.asarray(data.column(each), np.float64).sum() for each in data.forms])
    part = fugu.record("cartpole", folder / "part", random=True, steps=MINARI_STEPS)
    timed("write a part in Minari's layout", lambda: hdf5_write.write(part, folder / "x.hdf5"))
    again = timed("read that part", lambda: fugu.data.open(folder / "x.hdf5"))
    assert all(part.column(each).tobytes() == again.column(each).tobytes() for each in part.forms)
    size = {"bytes": data.rows * format.row_bytes(data.forms), "bytes of the part": (folder / "x.hdf5").stat().st_size}
    return {
        "rows": data.rows,
        "episodes": data.episodes,
        "rows of the part": part.rows,
        "episodes of the part": part.episodes,
        **size,
    }


def lazy(repeats: int) -> dict[str, Any]:
    """Opening a file of hundreds of megabytes, and drawing some rows from it."""
    with tempfile.TemporaryDirectory() as name:
        fugu.record("breakout", Path(name) / "d", random=True, steps=400_000)
        process, opened, added, drawn = psutil.Process(), [], [], []
        for _ in range(repeats):
            before, start = process.memory_info().rss, time.perf_counter()
            data = fugu.data.open(Path(name) / "d")
            for each in data.forms:
                data.column(each)
            opened.append(time.perf_counter() - start)
            added.append(float(process.memory_info().rss - before))
            rows = np.random.default_rng(0).integers(data.rows, size=256)
            start = time.perf_counter()
            for _ in range(100):
                data.column("obs")[rows]
            drawn.append((time.perf_counter() - start) / 100 * 1e6)
        return {
            "bytes": data.rows * format.row_bytes(data.forms),
            "seconds to open": harness.Result(opened).summary(),
            "resident bytes added": harness.Result(added).summary(),
            "microseconds for 256 rows": harness.Result(drawn).summary(),
        }


if __name__ == "__main__":
    harness.main("data", __doc__, {"chance": chance, "policy": policy, "million": million, "lazy": lazy}, repeats=3, add=True)
