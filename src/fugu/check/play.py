"""Play an environment for some steps and look at everything it returns."""

from __future__ import annotations

import math
import time
from typing import Any

import numpy as np
from gymnasium import spaces as gs

from fugu.check.player import GymnasiumPlayer, Limits, SeeingPlayer, Seen, leaves_of, truthy
from fugu.check.report import Report, describe
from fugu.check.values import Problem, problems, show
from fugu.emulation.env import discrete_choices, flat_mask
from fugu.errors import FuguError
from fugu.spaces.layout import path_name

MAX_CRASHES = 3
"""different errors of step() to collect before giving up"""
LARGE_REWARD = 1e3
SPARSE_AFTER = 100
"""steps without any reward before that is worth a note"""


def check_play(player: SeeingPlayer, report: Report, limits: Limits) -> None:
    """Play within the limits; findings and facts go into ``report``."""
    watch = _Watch(report, player)
    until = time.perf_counter() + limits.seconds
    crashes: set[str] = set()
    if not _reset(player, watch, limits.seed):
        return
    done = 0
    while done < limits.steps and time.perf_counter() < until and len(crashes) < MAX_CRASHES:
        if player.ended:
            watch.episode_over()
            if not _reset(player, watch, None):
                break
            continue
        try:
            player.step()
        except KeyboardInterrupt:
            raise
        except BaseException as error:
            where = f"{type(error).__name__} {_innermost(error)}"
            if where not in crashes:
                _step_failed(report, error, player, done)
            crashes.add(where)
            if isinstance(error, FuguError) or not _reset(player, watch, None):
                break
            continue
        done += 1
        watch.look(step=done, source="step()")
    _again(player, watch, report)
    watch.finish(done)


def _reset(player: SeeingPlayer, watch: _Watch, seed: int | None) -> bool:
    try:
        player.reset(seed)
    except FuguError as error:
        watch.report.add_error(error, "reset()")
        return False
    except KeyboardInterrupt:
        raise
    except BaseException as error:
        when = "after an ending" if watch.episodes else f"with seed={seed}"
        watch.report.add_crash(error, "reset()", f"reset() {when}")
        return False
    watch.look(step=player.clock.steps, source="reset()")
    return True


def _again(player: SeeingPlayer, watch: _Watch, report: Report) -> None:
    """Reset twice in a row and in the middle of an episode: it must always work, and a step after it."""
    if report.has("reset()") or report.has("step()"):
        return
    for what in ("reset() in the middle of an episode", "reset() twice in a row"):
        try:
            if player.ended:
                player.reset(None)
                player.step()
            player.reset(None)
        except Exception as error:
            report.add_crash(error, "reset()", what)
            return
    try:
        if not player.ended:
            player.step()
    except Exception as error:
        report.add_crash(error, "step()", "step() after reset() was called twice in a row")


def _step_failed(report: Report, error: BaseException, player: SeeingPlayer, done: int) -> None:
    if isinstance(error, FuguError):
        report.add("error", "step()", error.complaint, error.fix or "return obs, reward, terminated, truncated, info")
        return
    problem = f"step() raised {describe(error)}\n  at step {done + 1}, action {str(player.action)[:80]}"
    report.add("error", "step()", problem, "make step() accept every action of action_space, or declare a smaller action_space")


class _Watch:
    """Looks at what a player has seen; a problem is told once per leaf and kind, with the extremes over the whole run."""

    def __init__(self, report: Report, player: SeeingPlayer) -> None:
        self.report, self.player = report, player
        self.episodes = 0
        self._found: dict[tuple[Any, str], tuple[Problem, str, int, str]] = {}
        self._rewards: dict[str, float] = {"low": math.inf, "high": -math.inf}
        self._lengths: list[int] = []
        self._length = 0
        self._kept: list[tuple[str, np.ndarray, np.ndarray]] = []
        self._kept_action: Any = None

    def look(self, step: int, source: str) -> None:
        self._changed_behind_us(step)
        for seen in self.player.seen:
            who = f" (agent {seen.agent})" if seen.agent else ""
            if seen.obs is not None or not (truthy(seen.terminated) or truthy(seen.truncated)):
                for problem in problems(self.player.observation_space(seen.agent), seen.obs):
                    self._note(problem, source, step, who)
            self._action_mask(seen, source, step, who)
            if not isinstance(seen.info, dict):
                self._once(
                    "error",
                    "info",
                    f"{source} returned {show(seen.info)}, expected a dict{who}",
                    "return {} when there is none",
                )
            if source == "step()":
                self._reward(seen.reward, step, who)
                for name in ("terminated", "truncated"):
                    self._flag(name, getattr(seen, name), step, who)
        self._length += source == "step()"
        self._keep()

    def episode_over(self) -> None:
        self.episodes += 1
        self._lengths.append(self._length)
        self._length = 0

    def finish(self, steps: int) -> None:
        """Report what was collected, and what can only be said at the end."""
        for problem, source, step, who in self._found.values():
            text = f"space says {problem.says}, {source} returned {problem.got}{who}, first at {_when(step, source)}"
            if problem.kind == "bounds":
                span = f"{problem.low:g}" if problem.low == problem.high else f"values from {problem.low:g} to {problem.high:g}"
                text = f"space says {problem.says}, {source} returned {span}{who}, first at {_when(step, source)}"
            self.report.add(problem.severity, "/".join(("obs", *filter(None, [path_name(problem.path)]))), text, problem.fix)
        self._summary(steps)
        if isinstance(self.player, GymnasiumPlayer):
            _old_forms(self.player, self.report)

    def _summary(self, steps: int) -> None:
        report, clock, low, high = self.report, self.player.clock, self._rewards["low"], self._rewards["high"]
        facts = report.facts
        facts["steps"], facts["episodes"] = steps, self.episodes
        if self._lengths:
            facts["mean_episode_length"] = float(np.mean(self._lengths))
        if steps:
            facts["steps_per_second"] = clock.steps / max(clock.step_seconds, 1e-9)
        facts["reset_ms"] = 1000 * clock.reset_seconds / max(clock.resets, 1)
        facts["reset_share"] = clock.reset_seconds / max(clock.reset_seconds + clock.step_seconds, 1e-9)
        if low <= high:
            facts["reward_min"], facts["reward_max"] = low, high
            if max(abs(low), abs(high)) > LARGE_REWARD:
                report.add(
                    "warning",
                    "reward",
                    f"rewards from {low:g} to {high:g}; values beyond {LARGE_REWARD:g} make value learning unstable",
                    "scale the reward to about -1..1 (gymnasium.wrappers.TransformReward or NormalizeReward)",
                )
            if low == high == 0 and steps >= SPARSE_AFTER:
                fix = "fine if rewards are rare by design; otherwise check that step() returns the reward"
                report.add("note", "reward", f"0 on all {steps} steps with random actions", fix)
        limit = getattr(getattr(getattr(self.player, "env", None), "spec", None), "max_episode_steps", None)
        if steps and not self.episodes and limit is None and not self.report.has("step()"):
            fix = "wrap it in gymnasium.wrappers.TimeLimit, or check longer with more steps"
            report.add("note", "terminated", f"no episode ended within {steps} steps", fix)
        if self.episodes >= 2 and facts["reset_share"] > 0.5 and clock.reset_seconds > 0.05:
            share = f"{100 * facts['reset_share']:.0f}%"
            fix = "build levels and load files once in __init__, not in reset()"
            report.add("note", "reset()", f"resets take {share} of the time ({facts['reset_ms']:.1f} ms each)", fix)

    def _note(self, problem: Problem, source: str, step: int, who: str) -> None:
        key = (problem.path, problem.kind)
        if key not in self._found:
            self._found[key] = (problem, source, step, who)
        elif problem.kind == "bounds":
            old, *_ = self._found[key]
            worse = problem if problem.severity == "error" else old
            low, high = min(old.low, problem.low), max(old.high, problem.high)
            merged = Problem(old.path, old.kind, old.says, old.got, worse.fix, worse.severity, low, high)
            self._found[key] = (merged, *self._found[key][1:])

    def _once(self, severity: Any, where: str, problem: str, fix: str) -> None:
        if not any(f.where == where and f.fix == fix for f in self.report.findings):
            self.report.add(severity, where, problem, fix)

    def _reward(self, reward: Any, step: int, who: str) -> None:
        if isinstance(reward, np.ndarray) and reward.ndim:
            got = f"step() returned an array {show(reward)}, expected one number{who}, first at step {step}"
            self._once("error", "reward", got, "return float(reward)")
            return
        if not isinstance(reward, bool | int | float | np.generic | np.ndarray) or np.asarray(reward).dtype.kind not in "biuf":
            got = f"step() returned {show(reward)}, expected a number{who}, first at step {step}"
            self._once("error", "reward", got, "return a float on every step, 0.0 where nothing was gained")
            return
        with np.errstate(over="ignore"):
            value = float(np.float32(reward))
        declared = getattr(getattr(self.player, "env", None), "metadata", None) or {}
        if math.isnan(value) and declared.get("unscored_rewards"):
            got = (
                f"NaN{who}, first at step {step}, for an episode that could not be scored, as metadata['unscored_rewards'] says"
            )
            self._once("note", "reward", got, "train with --algorithm grpo, which leaves such episodes out")
            return
        if not math.isfinite(value):
            got = f"step() returned {value}{who}, first at step {step}"
            self._once("error", "reward", got, "look for a division by zero, a log of zero or an overflow")
            return
        self._rewards["low"] = min(self._rewards["low"], value)
        self._rewards["high"] = max(self._rewards["high"], value)

    def _flag(self, name: str, value: Any, step: int, who: str) -> None:
        if isinstance(value, bool | np.bool_) or (isinstance(value, np.ndarray) and value.ndim == 0 and value.dtype == bool):
            return
        got = f"step() returned {show(value)}, expected a bool{who}, first at step {step}"
        works = isinstance(value, int | np.integer) and value in (0, 1)
        self._once("note" if works else "error", name, got, f"return bool({name})")

    def _action_mask(self, seen: Seen, source: str, step: int, who: str) -> None:
        mask = next((p["action_mask"] for p in (seen.obs, seen.info) if isinstance(p, dict) and "action_mask" in p), None)
        if mask is None and isinstance(self.player, GymnasiumPlayer):
            mask = self.player.action_mask()
        space = self.player.action_space(seen.agent)
        if mask is None or truthy(seen.terminated) or truthy(seen.truncated):
            return
        choices = discrete_choices(space)
        mask = flat_mask(mask, space)
        size = mask.size
        if not choices:
            problem = f"{size} entries from {source}, but policies choose from {space} without a mask, so training does not see it{who}"
            fix = "declare bits as MultiDiscrete([2] * n), with two entries each, or let step() take every action of the space"
            self._once("warning", "action_mask", problem, fix)
        elif size != choices:
            problem = f"{size} entries from {source} for the {choices} choices of {space}{who}, first at {_when(step, source)}"
            self._once(
                "error", "action_mask", problem, f"return one entry per choice: np.ones({choices}, np.int8), 0 where forbidden"
            )
        elif isinstance(space, gs.Discrete) and not mask.any():
            problem = f"no action is allowed{who}, first at {_when(step, source)}"
            self._once("error", "action_mask", problem, "allow at least one action in every state, a no-op if need be")

    def _keep(self) -> None:
        """Remember this call's arrays and their contents, to see next time whether the env still writes into them."""
        self._kept = [
            ("/".join(("obs", *path)), leaf, leaf.copy())
            for seen in self.player.seen
            for path, leaf in leaves_of(seen.obs)
            if isinstance(leaf, np.ndarray)
        ]

    def _changed_behind_us(self, step: int) -> None:
        for where, leaf, copy in self._kept:
            if not np.array_equal(leaf, copy, equal_nan=leaf.dtype.kind == "f"):
                problem = f"the array returned before step {step} was changed by a later call"
                fix = (
                    "return obs.copy(). fugu copies rows and is not affected; code that keeps observations (a replay buffer) is"
                )
                self._once("note", where, problem, fix)


def _old_forms(player: GymnasiumPlayer, report: Report) -> None:
    if player.old_step:
        problem = (
            "returns the old four values (obs, reward, done, info); fugu reads done as terminated unless TimeLimit.truncated"
        )
        report.add("note", "step()", problem, "works; better return obs, reward, terminated, truncated, info")
    if player.old_reset:
        report.add("note", "reset()", "returns the observation alone, the old form", "works; better return obs, info")
    if not player.seeds:
        fix = "def reset(self, *, seed=None, options=None): super().reset(seed=seed)"
        if hasattr(player.env, "seed"):
            report.add("note", "reset()", "takes no seed; the old seed() method is used", fix)
        else:
            report.add("warning", "reset()", "takes no seed, so no run can be repeated", fix)
    if not player.options:
        fix = "def reset(self, *, seed=None, options=None)"
        report.add("note", "reset()", "takes no options; those given to a vector env's reset() are dropped", fix)


def _innermost(error: BaseException) -> str:
    trace = error.__traceback__
    while trace is not None and trace.tb_next is not None:
        trace = trace.tb_next
    return f"{trace.tb_frame.f_code.co_filename}:{trace.tb_lineno}" if trace is not None else ""


def _when(step: int, source: str) -> str:
    return f"step {step}" if source == "step()" else ("the first reset" if step == 0 else f"the reset after step {step}")
