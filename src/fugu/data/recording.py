"""Play environments and record every whole episode: the loop behind ``fugu record``.

In: a vector env, a ``Writer``, and what acts on its rows. Out: episodes in the writer. Every environment plays its share, the first
ones it gets. Taking the first to finish instead would favour short episodes.
"""

from __future__ import annotations

from collections.abc import Callable, Mapping
from typing import Any

import numpy as np

from fugu.data.format import DataError
from fugu.data.tape import Tape
from fugu.data.writer import Writer
from fugu.emulation.env import Infos, Rows
from fugu.vector.seeds import env_seeds
from fugu.vector.vecenv import VecEnv

Acts = Callable[[Rows], np.ndarray]
"""rows that wait -> actions as rows of the action layout"""
LONGEST = 100_000
"""steps after which an environment that has ended no episode is given up"""


def play(
    vec: VecEnv,
    writer: Writer,
    act: Acts,
    *,
    seed: int,
    sources: Any,
    episodes: int | None = None,
    steps: int | None = None,
    stop: Callable[[], bool] = bool,
) -> None:
    """Record ``episodes`` plays of the environments, or at least ``steps`` steps: then every episode under way is played to its end.

    ``sources``: numbers of what plays in the writer's table; they go round as ``Tape`` says. ``stop`` is asked now and then; True ends
    the recording with what is complete."""
    if vec.spec.autoreset != "next_step":
        raise DataError(
            f"{vec.spec.name} resets within a step, which loses the last observation; make it with autoreset='next_step'"
        )
    seeds = env_seeds(seed, vec.num_envs)
    tape = Tape(writer, seeds, np.asarray(sources))
    if episodes is not None:
        share = np.full(vec.num_envs, episodes // vec.num_envs)
        share[: episodes % vec.num_envs] += 1
        tape.share[...] = np.repeat(share, tape.per_env)
    vec.reset(seeds.tolist())
    rows = vec.rows
    tape.see(rows.columns)
    played, last = 0, 0
    while not (stop() or (tape.now & 15 == 0 and tape.enough)):
        if steps is not None:
            played += int(np.count_nonzero(rows.mask))
            if played >= steps:
                tape.finish()
                steps = None
        action = act(rows)
        infos: Infos = vec.step(action)[4]
        rows = vec.rows
        tape.took(action, rows.columns, infos)
        tape.see(rows.columns)
        if tape.now - last >= LONGEST:
            if writer.episodes == 0:
                raise DataError(f"no episode of {vec.spec.name} ended within {LONGEST:,} steps", fix="Give it a time limit")
            last = tape.now
    tape.empty()


def recorded_by(command: Mapping[str, Any]) -> dict[str, Any]:
    """Return what ``DATA.json`` says of a recording: nothing that differs between two of the same command."""
    return {name: value for name, value in command.items() if value not in (None, (), {}, "")}
