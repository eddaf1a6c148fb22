"""Evaluation of a policy: whole episodes, many at once, and the certainty of their mean.

Every agent of the vector env plays its share of the episodes, the first ones it gets. Taking the first to finish instead would
favour short episodes.
"""

from __future__ import annotations

import dataclasses
import math
import warnings
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass, field, replace
from typing import Any, NamedTuple

import numpy as np
import torch

from fugu.algorithm.contract import Algorithm
from fugu.config import SEEDS
from fugu.emulation.env import Infos, cost_metric
from fugu.emulation.infos import ALWAYS, numbers
from fugu.emulation.kinds import labels
from fugu.emulation.stats import lost_agents
from fugu.errors import ConfigError, FuguError
from fugu.rollout.acting import Acts
from fugu.rollout.batch import seen_of
from fugu.rollout.envs import untouched
from fugu.rollout.source import Stopped
from fugu.trainer.config import TrainConfig
from fugu.trainer.config_parts import MOST_EPISODES
from fugu.vector.vecenv import VecEnv

MOST = 64
"""most environments of an evaluation that play at once"""
APART = 7_777_777
"""distance between the seed of a run and that of its evaluations"""


@dataclass(frozen=True)
class Evaluation:
    returns: tuple[float, ...]
    """return of each episode"""
    lengths: tuple[int, ...]
    costs: dict[str, tuple[float, ...]] = field(default_factory=dict)
    """cost of each episode, by name; empty if the environment has none"""
    cut: int = 0
    """episodes that had not ended when the evaluation was given up; they are missing, and they were the long ones"""
    unscored: int = 0
    """episodes that ended without a return, because a reward was NaN; they are missing"""
    mean_infos: dict[str, float] = field(default_factory=dict)
    """means of what the environment says of an episode (``env/NAME`` in metrics), over the episodes that had it"""
    agents: dict[str, dict[str, float]] = field(default_factory=dict)
    """name or kind of agents -> episodes, mean_return and mean_length; empty where agents have no names"""

    @property
    def episodes(self) -> int:
        return len(self.returns)

    @property
    def mean(self) -> float:
        return float(np.mean(self.returns))

    @property
    def mean_length(self) -> float:
        return float(np.mean(self.lengths))

    @property
    def deviation(self) -> float:
        """Standard deviation of the returns; nan for one episode, which says nothing about it."""
        return float(np.std(self.returns, ddof=1)) if self.episodes > 1 else math.nan

    @property
    def interval(self) -> tuple[float, float]:
        """Return the 95% confidence interval of the mean (normal approximation); nan for one episode."""
        half = 1.96 * self.deviation / math.sqrt(self.episodes)
        return self.mean - half, self.mean + half

    @property
    def mean_costs(self) -> dict[str, float]:
        return {name: float(np.mean(costs)) for name, costs in self.costs.items()}

    @property
    def certainty(self) -> str:
        """Return the interval in words."""
        low, high = self.interval
        return "95% interval " + (f"{low:.2f} to {high:.2f}" if self.episodes > 1 else "unknown from one episode")

    def summary(self) -> dict[str, object]:
        """Return all figures for JSON, which has no nan."""
        known = self.episodes > 1
        return {
            "episodes": self.episodes,
            "mean_return": self.mean,
            "interval_95": list(self.interval) if known else None,
            "deviation": self.deviation if known else None,
            "min_return": min(self.returns),
            "max_return": max(self.returns),
            "mean_length": float(np.mean(self.lengths)),
            "mean_costs": self.mean_costs,
            **dataclasses.asdict(self),
        }

    def metrics(self) -> dict[str, float]:
        """Return what a training logs of an evaluation."""
        costs = self.mean_costs
        return {
            "eval/return": self.mean,
            "eval/length": self.mean_length,
            "eval/episodes": float(self.episodes),
            **{cost_metric("eval/cost", name, costs): cost for name, cost in costs.items()},
            **{f"eval/env/{name}": mean for name, mean in self.mean_infos.items()},
            **{f"eval/return/{name}": its["mean_return"] for name, its in self.agents.items()},
            **{f"eval/length/{name}": its["mean_length"] for name, its in self.agents.items()},
        }

    def __str__(self) -> str:
        return (
            f"{self.episodes} episode{'s' * (self.episodes > 1)}: mean return {self.mean:.2f} ({self.certainty}), "
            f"mean length {np.mean(self.lengths):.1f}"
            + "".join(f", mean {cost_metric('cost', name, self.costs)} {mean:.2f}" for name, mean in self.mean_costs.items())
            + "".join(f", mean {name} {mean:.2f}" for name, mean in self.mean_infos.items())
            + "".join(f", {name} {its['mean_return']:.2f}" for name, its in self.agents.items())
        ) + "".join(
            f"; {count} {why} and {'is' if count == 1 else 'are'} missing"
            for count, why in ((self.cut, "did not end"), (self.unscored, "ended without a score"))
            if count
        )


def evaluate(
    vec: VecEnv,
    act: Acts,
    *,
    episodes: int,
    seed: int,
    greedy: bool,
    device: torch.device,
    max_steps: int = 100_000,
    stop: Callable[[], bool] = bool,
) -> Evaluation:
    """Play ``episodes`` episodes, in equal shares per agent; which agents play one more is settled beforehand.

    After ``max_steps`` steps of the vector env only ended episodes count, and the rest is ``cut``: some agents' episodes may never
    end.
    """
    if episodes > MOST_EPISODES:
        raise ConfigError(f"episodes={episodes} must be at most {MOST_EPISODES}")
    agents = vec.num_agents
    share = np.full(agents, episodes // agents)
    share[: episodes % agents] += 1
    played = np.zeros(agents, np.int64)
    returns, lengths = np.zeros(agents), np.zeros(agents, np.int64)
    costs = np.zeros((agents, len(vec.spec.costs)))
    done: list[_Episode] = []
    unscored = 0
    generator = torch.Generator(device).manual_seed(seed)
    carry = None
    vec.reset(seed)
    rows = vec.rows
    keeps_log = not vec.drain_log().infos
    for _ in range(max_steps):
        if (played >= share).all():
            break
        if stop():
            raise Stopped
        seen = seen_of(rows, carry, device, training=False)
        seen.greedy, seen.generator = greedy, generator
        with torch.no_grad():
            acted = act(seen)
        carry, counted = acted.carry, rows.mask
        _, reward, terminated, truncated, infos = vec.step(acted.env_action.cpu().numpy())
        rows = vec.rows
        returns += reward
        lengths += counted
        if rows.cost is not None:
            costs += rows.cost
        ended = np.flatnonzero(terminated | truncated)
        said = _said(vec, infos, ended, keeps_log)
        lost = lost_agents(infos)
        for agent in ended:
            counts = played[agent] < share[agent] and agent not in lost
            if counts and math.isnan(returns[agent]):
                unscored += 1
            elif counts:
                own = (float(returns[agent]), int(lengths[agent]), costs[agent].tolist(), said[int(agent)])
                done.append(_Episode(int(played[agent]), int(agent), *own))
            played[agent] += agent not in lost  # else its episode was cut off by chance, and it plays another
            returns[agent], lengths[agent], costs[agent] = 0.0, 0, 0.0
    if not done and unscored:
        raise FuguError(f"{vec.spec.name} scored none of {unscored} episodes: each had a reward of NaN")
    if not done:
        raise FuguError(f"no episode of {vec.spec.name} ended within {max_steps} steps; give it a time limit")
    cut = episodes - len(done) - unscored
    if cut:
        warnings.warn(
            f"{cut} of {episodes} episodes had not ended after {max_steps:,} steps and are missing: the mean is that of shorter ones",
            RuntimeWarning,
            stacklevel=2,
        )
    done.sort(key=lambda one: (one.number, one.agent))
    return Evaluation(
        tuple(one.total for one in done),
        tuple(one.length for one in done),
        {name: tuple(one.costs[k] for one in done) for k, name in enumerate(vec.spec.costs)},
        cut,
        unscored,
        _mean_infos(done),
        _by_label(done, vec),
    )


class _Episode(NamedTuple):
    number: int
    """which episode of its agent"""
    agent: int
    total: float
    """return"""
    length: int
    costs: list[float]
    said: Mapping[str, float]
    """what the environment says of it"""


def _said(vec: VecEnv, infos: Infos, ended: np.ndarray, keeps_log: bool) -> dict[int, Mapping[str, float]]:
    """Return what the environments say of the episodes of the agents that have just ended. ``keeps_log``: they keep their statistics
    themselves, and say only the means over all of these."""
    if not len(ended):
        return {}
    if keeps_log:
        return dict.fromkeys(ended.tolist(), vec.drain_log().mean_values)
    names = (*ALWAYS, *vec.config.episode_infos)
    own = {agent: infos.get(agent, {}) for agent in ended.tolist()}
    return {agent: {**info.get("episode_log", {}), **numbers(info, names)} for agent, info in own.items()}


def _mean_infos(done: Sequence[_Episode]) -> dict[str, float]:
    had: dict[str, list[float]] = {}
    for one in done:
        for name, number in one.said.items():
            had.setdefault(name, []).append(number)
    return {name: float(np.mean(values)) for name, values in sorted(had.items())}


def _by_label(done: Sequence[_Episode], vec: VecEnv) -> dict[str, dict[str, float]]:
    found = {}
    for label, places in labels(vec.spec.agent_names).items():
        its = [one for one in done if one.agent % len(vec.spec.agent_names) in places]
        if its:
            mean_return, mean_length = np.mean([one.total for one in its]), np.mean([one.length for one in its])
            found[label] = {"episodes": len(its), "mean_return": float(mean_return), "mean_length": float(mean_length)}
    return found


class Evaluator:
    """Evaluates the current policy during training, in environments and with random numbers of its own."""

    def __init__(self, config: TrainConfig, algorithm: Algorithm, make: Callable[[TrainConfig], VecEnv]) -> None:
        """``make`` makes the environments when they are first needed."""
        self._config, self._algorithm, self._make = config, algorithm, make
        self._vec: VecEnv | None = None

    def __call__(self, stop: Callable[[], bool] = bool) -> Evaluation:
        """Play the episodes that the config asks for: the same starts and the same luck each time."""
        c, vec = self._config.eval, self.open()
        algorithm, seed = self._algorithm, (self._config.seed + APART) % SEEDS
        with untouched(algorithm):
            settings: Any = {"greedy": c.greedy, "device": algorithm.device, "stop": stop}
            return evaluate(vec, algorithm.act, episodes=c.episodes, seed=seed, **settings)

    def open(self) -> VecEnv:
        """Return the environments, which are made at the first call."""
        if self._vec is None:
            num_envs = min(self._config.eval.episodes, MOST)
            vector = replace(self._config.vector, num_envs=num_envs, batch_size=None, num_workers=None, compile=None)
            self._vec = self._make(replace(self._config, vector=vector, minibatch=None, device="cpu", precision="auto"))
        return self._vec

    def close(self) -> None:
        if self._vec is not None:
            self._vec.close()
