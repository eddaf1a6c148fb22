"""The environment as fugu sees it: rows. Do they follow the convention of ``emulation/env.py``, and are their values sound?

For an adapted env this tests the way from its values to rows and its restart after an ending; for a native ``fugu.Env`` it is
the whole check of what the env writes.
"""

from __future__ import annotations

import time
from collections.abc import Iterator

import numpy as np

from fugu.check.player import Limits
from fugu.check.report import Report
from fugu.check.row_player import RowsPlayer
from fugu.check.values import problems
from fugu.emulation.columns import outcomes
from fugu.emulation.env import Rows, spec_of
from fugu.emulation.stats import EpisodeStats
from fugu.errors import FuguError, SpaceError

AGENTS_LOOKED_AT = 64
"""of a native env with many agents, those whose observations are compared with their space on every step"""


def check_rows(player: RowsPlayer, report: Report, limits: Limits, *, native: bool) -> None:
    """Play within the limits. ``native``: also look at the values, and take facts from here."""
    until = time.perf_counter() + limits.seconds
    call, done = "reset()", 0
    try:
        player.reset(limits.seed)
        watch = _Watch(player, report)
        watch.started()
        call = "step()"
        while done < limits.steps and time.perf_counter() < until:
            acted = player.rows.mask.copy()
            player.step()
            done += 1
            watch.stepped(done, acted)
            if native:
                watch.values(done)
        call = "reset()"
        player.reset(None)
        watch.started()
    except FuguError as error:
        if not any(report.has(place) for place in ("obs", "reward", "reset()", "step()")):  # said better before
            whole = isinstance(error, SpaceError) and error.agent is None and error.sub_env is None
            if whole and error.where in {leaf.name for leaf in player.layout.leaves}:
                report.add_error(error, f"obs/{error.where}", error.problem)
            else:
                report.add_error(error, call)
    except Exception as error:
        if not report.has(call):
            report.add_crash(error, call, f"{call} through fugu's adapter" if not native else call)
    if native and done:
        watch.facts(done)


class _Watch:
    def __init__(self, player: RowsPlayer, report: Report) -> None:
        self.player, self.report = player, report
        agents = player.env.num_agents
        self.stats = EpisodeStats(agents, spec_of(player.env).costs)
        self.lengths: list[int] = []
        self.reward = np.array([np.inf, -np.inf])
        self.at_once = bool(getattr(player.env, "restarts_at_once", False))
        self.over = np.zeros(agents, bool)
        """ended and not yet restarted"""

    def started(self) -> None:
        rows = self.player.rows
        self.over[:] = False
        self.stats.start(slice(0, len(self.over)))
        fix = "call out.start() in reset() and write out.obs"
        self._expect(~rows.mask | rows.first, "first", "reset() left first=False on a row that waits for an action", fix)
        self._expect(~(rows.terminated | rows.truncated), "terminated", "reset() left an ending flag set", fix)
        self._expect(rows.reward == 0, "reward", "reset() left a reward that is not 0", fix)
        for name, column in _also(rows):
            self._expect(_each(column == 0), name, f"reset() left a {name} that is not 0", fix)

    def stepped(self, step: int, acted: np.ndarray) -> None:
        """Check the rows of a step; ``acted`` is the mask of the rows before it."""
        rows = self.player.rows
        ended = rows.terminated | rows.truncated
        again = ended & rows.first & rows.mask if self.at_once else np.zeros_like(ended)
        ended &= ~again  # those have begun the next episode, on the same row
        at = f"at step {step}"
        self._expect(
            ~ended | ~rows.mask,
            "mask",
            f"an episode ended but its row has mask=True {at}",
            "set out.mask False where the episode ended",
        )
        self._expect(
            ~ended | ~rows.first,
            "first",
            f"an episode ended but its row has first=True {at}: the row after an ending holds the final observation",
            "restart on the next step, not on the same one; set out.first False on every row but the first of an episode",
        )
        self._expect(
            ~self.over | ~rows.mask | rows.first,
            "first",
            f"the first row after an ending has first=False {at}",
            "on the step after an ending start the next episode: new obs, reward 0, out.first True, out.mask True",
        )
        self._expect(
            ~rows.first | ~acted | self.over | again,
            "first",
            f"first=True in the middle of an episode {at}",
            "set out.first False on every step that does not start an episode, and out.terminated or out.truncated where one ends",
        )
        self._expect(
            ~(self.over & rows.first) | ((rows.reward == 0) & ~ended),
            "reward",
            f"the step that restarts an episode has a reward or an ending flag {at}",
            "write reward 0 and no flags on the first row of an episode; the action taken on the final row is ignored",
        )
        for name, column in _also(rows):
            self._expect(
                ~(self.over & rows.first) | _each(column == 0),
                name,
                f"the step that restarts an episode has a {name} {at}",
                f"write {name} 0 on the first row of an episode; the action taken on the final row is ignored",
            )
        masks = rows.action_mask
        if masks is not None:
            self._expect(
                ~rows.mask | masks.any(axis=1),
                "action_mask",
                f"no action is allowed {at}",
                "allow at least one action wherever mask is True",
            )
        self.over = (self.over & ~rows.first) | ended

        episode = rows[:]  # with infos of its own
        self.stats.update(episode, acted)
        self.lengths += [info["episode"]["l"] for info in episode.infos.values()]

    def values(self, step: int) -> None:
        """Check what only a native env can get wrong: numbers nobody looked at on the way into the row."""
        player, rows = self.player, self.player.rows
        bad = ~np.isfinite(rows.reward)
        fix = "write out.reward for every agent on every step, 0 where nothing was gained"
        self._expect(~bad, "reward", f"NaN, infinite or never written at step {step}", fix)
        for name, column in _also(rows):
            fix = f"write out[{name!r}] for every agent on every step, 0 where there is nothing to say"
            self._expect(_each(np.isfinite(column)), name, f"NaN, infinite or never written at step {step}", fix)
        if not bad.any():
            self.reward = np.array([min(self.reward[0], rows.reward.min()), max(self.reward[1], rows.reward.max())])
        for leaf, view in zip(player.layout.leaves, player.layout.leaf_views(rows.obs), strict=True):
            if leaf.lead or leaf.shape != (leaf.space.shape or ()):
                continue  # padded: text, and elements of sequences
            for agent in np.flatnonzero(rows.mask)[:AGENTS_LOOKED_AT]:
                for problem in problems(leaf.space, view[agent]):
                    where = "/".join(("obs", *map(str, leaf.path)))
                    got = problem.got or f"{problem.low:g}..{problem.high:g}"
                    text = f"space says {problem.says}, step() wrote {got} or never wrote it (agent {agent}, step {step})"
                    if not self.report.has(where, problem.severity):
                        self.report.add(problem.severity, where, text, problem.fix)
        infos = player.infos
        if infos is not None and not (isinstance(infos, dict) and all(isinstance(info, dict) for info in infos.values())):
            fix = "return {agent index: dict} of the agents that have an info, or None"
            if not self.report.has("info"):
                self.report.add("error", "info", f"step() returned {type(infos).__name__} {infos!r:.60}", fix)

    def facts(self, done: int) -> None:
        facts, clock = self.report.facts, self.player.clock
        facts["steps"], facts["episodes"] = done, len(self.lengths)
        if self.lengths:
            facts["mean_episode_length"] = float(np.mean(self.lengths))
        else:
            fix = "end episodes after a number of steps, or check longer with more steps"
            self.report.add("note", "terminated", f"no episode ended within {done} steps", fix)
        facts["steps_per_second"] = done / max(clock.step_seconds, 1e-9)
        facts["reset_ms"] = 1000 * clock.reset_seconds / max(clock.resets, 1)
        if self.reward[0] <= self.reward[1]:
            facts["reward_min"], facts["reward_max"] = map(float, self.reward)

    def _expect(self, good: np.ndarray, where: str, problem: str, fix: str) -> None:
        """Add a finding unless ``good`` holds for every agent."""
        if good.all() or any(f.where == where and f.fix == fix for f in self.report.findings):
            return
        agent = f" (agent {int(np.argmin(good))})" if len(good) > 1 else ""
        self.report.add("error", where, problem + agent, fix)


def _also(rows: Rows) -> Iterator[tuple[str, np.ndarray]]:
    """Yield what a step produced beside its reward and ending: costs, and columns of the environment's own."""
    usual = ("reward", "terminated", "truncated")
    return ((name, rows[name]) for name in outcomes(rows.columns) if name not in usual)


def _each(good: np.ndarray) -> np.ndarray:
    """Say for each agent whether all its numbers are ``good``."""
    return np.asarray(good.reshape(len(good), -1).all(1))
