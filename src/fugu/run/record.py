"""``fugu.record``: play a run's policy, a mixture of its checkpoints, or chance, and record every whole episode.

The same call writes the same bytes: seeds of environments, actions and noise come from ``seed``, and nothing of the moment goes in.
"""

from __future__ import annotations

import os
from collections.abc import Callable, Iterator, Mapping, Sequence
from contextlib import contextmanager
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import numpy as np

from fugu import vector
from fugu.config import fitting
from fugu.data.dataset import DataSet
from fugu.data.random_play import Noise, RandomPlay
from fugu.data.recording import Acts, play
from fugu.data.writer import Writer
from fugu.emulation.build import is_compiled
from fugu.emulation.env import Rows
from fugu.errors import ConfigError
from fugu.run.player import Player, config_to_play
from fugu.run.run import Run
from fugu.trainer import checkpoint
from fugu.trainer.build import make_vec
from fugu.vector.vecenv import VecEnv

PHASE = 104_729
"""distance between the seeds of policies that play one after the other"""
MOST, MOST_NATIVE = 64, 512
"""most environments that play at once by themselves"""
STEPS_EACH = 1000
"""of a recording of so many steps, those that an environment plays at least"""


@dataclass(frozen=True)
class Budget:
    """Says how much is recorded: plays of the environments, or steps."""

    episodes: int | None = None
    steps: int | None = None

    def part(self, number: int, parts: int) -> Budget:
        """Return the share of one of several that play one after the other."""
        shares = [None if all is None else all // parts + (number < all % parts) for all in (self.episodes, self.steps)]
        return Budget(*shares)

    def envs(self, most: int) -> int:
        """Return how many environments play at once: no more than there are episodes, or thousands of steps."""
        return max(1, min(most, self.episodes if self.episodes is not None else (self.steps or 0) // STEPS_EACH))


@dataclass(frozen=True)
class Playing:
    """Environments with what acts in them."""

    vec: VecEnv
    act: Acts
    about: dict[str, Any]
    """what the table of sources says of what acts"""

    @property
    def masks(self) -> bool:
        """Return whether actions may be forbidden."""
        return self.vec.num_choices > 0 and self.vec.masks_actions


@dataclass(frozen=True)
class Scenario:
    """Says what plays, in which environments."""

    run: Run | None
    """None: ``env`` is played"""
    env: Any
    env_kwargs: Mapping[str, Any]
    vectors: Mapping[str, Any]
    device: str
    greedy: bool

    @property
    def name(self) -> str:
        """Return what the environment is called in what is written."""
        env = self.env if self.run is None else self.run.config.env
        return env if isinstance(env, str) else getattr(env, "__name__", type(env).__name__)

    @property
    def settings(self) -> dict[str, Any]:
        return {**({} if self.run is None else self.run.config.env_kwargs), **self.env_kwargs}

    def most(self, random: bool) -> int:
        env = self.env if self.run is None else self.run.config.env
        return MOST_NATIVE if random and is_compiled(env) else MOST

    @contextmanager
    def by_chance(self, num_envs: int, seed: int) -> Iterator[Playing]:
        """Make the environments, and what draws random actions in them."""
        if self.run is not None:
            config = config_to_play(self.run, num_envs=num_envs, seed=seed, env_kwargs=self.env_kwargs, vectors=self.vectors)
            vec = make_vec(config)
        else:
            vec = vector.make(self.env, num_envs, env_kwargs=self.env_kwargs, **{"infos": "none", **self.vectors})
        with vec:
            chance = RandomPlay(vec.action_layout, vec.num_agents, seed)
            masks = vec.num_choices > 0 and vec.masks_actions
            yield Playing(vec, lambda rows: chance.next(rows.action_mask if masks else None), {"policy": "random"})

    @contextmanager
    def by_policy(self, which: str | int, num_envs: int, seed: int) -> Iterator[Playing]:
        """Make the environments, and load the policy of a checkpoint."""
        assert self.run is not None
        player = Player(
            self.run,
            which,
            num_envs=num_envs,
            seed=seed,
            device=self.device,
            env_kwargs=self.env_kwargs,
            vectors=self.vectors,
        )
        with player:
            about = {"policy": self.run.folder.name, "checkpoint": player.step}
            yield Playing(player.vec, player.acts(greedy=self.greedy), about | ({"greedy": True} if self.greedy else {}))


def record(
    what: Any,
    out: str | os.PathLike[str],
    *,
    episodes: int | None = None,
    steps: int | None = None,
    random: bool = False,
    noise: float | Sequence[float] = (),
    checkpoints: str | int | Sequence[str | int] = "latest",
    greedy: bool = False,
    seed: int = 1,
    num_envs: int | None = None,
    append: bool = False,
    env_kwargs: Mapping[str, Any] | None = None,
    runs: str | Path = "runs",
    device: str = "cpu",
    vectors: Mapping[str, Any] | None = None,
    stop: Callable[[], bool] = bool,
    **code: Any,
) -> DataSet:
    """Play ``what``, a run or with ``random`` an environment in any form, and write its episodes into the new folder ``out``.

    ``episodes`` of the environment are played (100 if nothing is said), or as many as make ``steps``. ``noise``: chance of a random
    choice, or deviation of a number in halves of its range; of several values each episode gets the next. ``checkpoints``: ``latest``,
    ``best``, ``all`` or steps; several play the same share each, one after the other. ``vectors``: settings of ``fugu.vector.make``,
    such as ``backend``. ``code``: ``env``, ``policy``, ``algorithm`` and ``trust_code``, as for ``Run``. ``stop`` is asked meanwhile;
    True ends the recording with the episodes that are complete.
    """
    if episodes is not None and steps is not None:
        raise ConfigError("give either episodes or steps, not both")
    budget = Budget(
        100 if steps is None and episodes is None else fitting("episodes", episodes, int | None, 1),
        fitting("steps", steps, int | None, 1),
    )
    num_envs, seed = fitting("num_envs", num_envs, int | None, 1), fitting("seed", seed, int, 0)
    amounts = [fitting("noise", amount, float, 0) for amount in ([*noise] if isinstance(noise, Sequence) else [noise])]
    if (vectors or {}).get("backend") == "device":
        raise ConfigError(
            "backend='device': rows are recorded from environments on the CPU, which give the same; leave backend out"
        )
    if random and (amounts or greedy):
        raise ConfigError(f"random play has no {'noise' if amounts else 'most likely actions'}; leave that out")
    run = _run(what, random, runs, code)
    scenario = Scenario(run, what, env_kwargs or {}, vectors or {}, device, greedy)
    several: list[Any] = [None] if random or run is None else _checkpoints(run, checkpoints)
    writer: Writer | None = None
    try:
        for number, which in enumerate(several):
            part, part_seed = budget.part(number, len(several)), seed + PHASE * number
            if 0 in (part.episodes, part.steps):
                continue
            count = num_envs or part.envs(scenario.most(random))
            opened = scenario.by_chance(count, part_seed) if which is None else scenario.by_policy(which, count, part_seed)
            with opened as playing:
                if writer is None:
                    about = {"env": scenario.name, "env_kwargs": scenario.settings, "seed": seed, "num_envs": count}
                    writer = Writer(out, playing.vec.spec, recorded=_plain(about), action_mask=playing.masks, append=append)
                sources = [writer.source(playing.about | how) for how in ([{"noise": x} for x in amounts] or [{}])]
                act = _with_noise(playing, amounts, part_seed) if amounts else playing.act
                budgets = {"episodes": part.episodes, "steps": part.steps}
                play(playing.vec, writer, act, seed=part_seed, sources=sources, stop=stop, **budgets)
    except BaseException:
        if writer is not None:
            writer.close(whole=False)
        raise
    assert writer is not None
    writer.close()
    return DataSet.at(Path(out))


def _run(what: Any, random: bool, runs: str | Path, code: Mapping[str, Any]) -> Run | None:
    """Return the run that ``what`` means; None if it is an environment."""
    if isinstance(what, Run):
        return what.with_code(**code) if code else what
    if isinstance(what, str | Path) and is_run(str(what), runs):
        return Run(what, runs, **code)
    if not random:
        raise ConfigError(
            f"{what!r:.60} is no run, and nothing else says what to do in it; add random=True (--random) for random play, or name a "
            "run: latest, its name or its folder"
        )
    if any(code.values()):
        raise ConfigError(f"{what!r:.60} is no run, and {next(iter(code))} is for runs")
    return None


def is_run(text: str, runs: str | Path) -> bool:
    """Return whether ``text`` means a run: latest, a name in ``runs``, or a folder."""
    return text.partition("~")[0] == "latest" or any((Path(at) / text / "config.toml").is_file() for at in ("", runs))


def _checkpoints(run: Run, wanted: str | int | Sequence[str | int]) -> list[str | int]:
    """Return the checkpoints that are meant, each once, those of ``all`` ascending."""
    if wanted == "all" or wanted in (["all"], ("all",)):
        steps = checkpoint.steps(run.folder.checkpoints)
        return [*steps] if steps else ["latest"]
    chosen = [wanted] if isinstance(wanted, str | int) else list(wanted)
    if not chosen:
        raise ConfigError("checkpoints is empty; name some, or all")
    return list(dict.fromkeys(chosen))


def _with_noise(playing: Playing, amounts: Sequence[float], seed: int) -> Acts:
    vec = playing.vec
    noise = Noise(vec.action_layout, vec.num_envs, vec.spec.num_agents, amounts, seed)

    def noisy(rows: Rows) -> np.ndarray:
        return noise(playing.act(rows), rows.first, rows.action_mask if playing.masks else None)

    return noisy


def _plain(about: Mapping[str, Any]) -> dict[str, Any]:
    """Return what JSON holds; of anything else its name."""
    return {name: _plain_value(value) for name, value in about.items() if value not in (None, {})}


def _plain_value(value: Any) -> Any:
    if isinstance(value, Mapping):
        return {str(name): _plain_value(each) for name, each in value.items()}
    if isinstance(value, list | tuple):
        return [_plain_value(each) for each in value]
    return value if isinstance(value, str | int | float | bool | None) else repr(value)[:200]
