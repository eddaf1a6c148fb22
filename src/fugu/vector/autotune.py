"""``autotune``: which settings step an environment fastest on this machine? Measured, not guessed; the answer may be "serial".

Every setting gets the same random valid actions, drawn once. All are started, warmed up and then measured in turns, so that
whatever else the machine does hits them alike; where memory is short they are measured one after the other instead.
"""

from __future__ import annotations

import dataclasses
import time
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

import numpy as np
import psutil

from fugu.emulation.actions import action_rows, allowed, has_bits, has_mask_method
from fugu.emulation.build import is_compiled
from fugu.errors import ConfigError, EnvError
from fugu.vector.config import VectorConfig, usable_cores
from fugu.vector.make import make
from fugu.vector.vecenv import VecEnv

TIE = 0.05
"""a setting must be this much faster than a simpler one to be chosen over it"""
ROUNDS = 4
WAITS, MOST_WAITING = 0.2, 16
"""share of a step in which environments wait, from which more workers than cores are tried, and at most how many for a core"""
WARM_UP = 0.2
"""seconds, or one step if that takes longer"""


@dataclass
class Trial:
    """One setting and what it achieved. ``error`` is set where it did not run."""

    name: str
    config: VectorConfig
    steps_per_second: float = 0.0
    """environment steps, all environments together"""
    startup_seconds: float = 0.0
    memory_bytes: int = 0
    """what this process grew by and its workers use, rows and environments"""
    error: str = ""
    rates: list[float] = field(default_factory=list)
    """steps per second of each round; ``steps_per_second`` is their median"""


@dataclass(frozen=True)
class Tuning:
    """The measurements of ``autotune``. ``best`` is the config to use."""

    env: str
    """as one would write it in Python"""
    trials: tuple[Trial, ...]
    best: VectorConfig
    env_kwargs: Mapping[str, Any] = field(default_factory=dict)

    @property
    def python(self) -> str:
        """Return the line of Python that uses ``best``."""
        kwargs = f", env_kwargs={dict(self.env_kwargs)!r}" if self.env_kwargs else ""
        settings = "".join(f", {name}={value!r}" for name, value in chosen(self.best).items())
        return f"fugu.vector.make({self.env}, {self.best.num_envs}{kwargs}{settings})"

    @property
    def flags(self) -> str:
        """Return ``best`` as command-line flags."""
        flags = [f"--num-envs {self.best.num_envs}"]
        for name, value in chosen(self.best).items():
            flag = "--" + name.replace("_", "-")
            flags.append(flag if value is True else f"{flag} {value}")
        return " ".join(flags)

    def __str__(self) -> str:
        width = max(len(trial.name) for trial in self.trials)
        lines = [f"{'setting':{width}}  {'steps/s':>12}  {'start s':>8}  {'MiB':>7}"]
        for t in self.trials:
            numbers = f"{t.steps_per_second:12,.0f}  {t.startup_seconds:8.2f}  {t.memory_bytes / 2**20:7.1f}"
            lines.append(f"{t.name:{width}}  {t.error.splitlines()[0] if t.error else numbers}")
        return "\n".join([*lines, f"use: {self.python}"])


def autotune(env: Any, num_envs: int = 64, *, seconds: float = 0.5, env_kwargs: Mapping[str, Any] | None = None) -> Tuning:
    """Measure serial and a few process settings on ``env`` (numbers of threads, if it is a native one) for ``seconds`` each;
    the table and the best one."""
    if not seconds > 0:
        raise ConfigError(f"seconds={seconds!r} must be a positive number")
    native = is_compiled(env)
    waits = 0.0 if native else waiting(env, min(WARM_UP, seconds), env_kwargs)
    trials = measure(env, settings(num_envs, usable_cores(), native, waits), seconds=seconds, env_kwargs=env_kwargs)
    if all(trial.error for trial in trials):
        raise ConfigError(f"no setting could run this environment: {trials[0].error}")
    name = repr(env) if isinstance(env, str) else getattr(env, "__name__", type(env).__name__)
    return Tuning(name, tuple(trials), best_of(trials).config, env_kwargs or {})


def settings(num_envs: int, cores: int, native: bool = False, waits: float = 0.0) -> list[Trial]:
    """List the settings to try, simplest first. All are valid for ``num_envs``. ``native`` environments are stepped by threads.
    ``waits``: share of a step in which an environment waits for something else than a core."""
    if native:
        return _native_settings(num_envs, cores)
    trials = [Trial("serial", VectorConfig(num_envs=num_envs, backend="serial"))]
    if num_envs < 2:
        return trials

    def process(name: str, **more: Any) -> None:
        trials.append(Trial(name, VectorConfig(num_envs=num_envs, backend="process", **more)))

    workers = min(max(2, cores), num_envs)
    process(f"process, {workers} workers", num_workers=workers)
    many = min(num_envs, MOST_WAITING * cores, round(cores / max(1 - waits, 1e-9)))
    if waits > WAITS and many > workers:
        process(f"process, {many} workers (the environment waits)", num_workers=many, isolate=True)
    if cores >= 4 and workers > 2:
        process(f"process, {workers // 2} workers", num_workers=workers // 2)
    process(f"isolated, {workers} workers", num_workers=workers, isolate=True)
    if num_envs % 2 == 0:
        pairs = max(1, min(cores // 2, num_envs // 2))
        process(f"2 batches pipelined, {2 * pairs} workers", num_workers=2 * pairs, batch_size=num_envs // 2)
    batches = _nearest_divisor(num_envs, 2 * cores)
    if batches > 2:
        size = num_envs // batches
        process(f"{batches} batches first finished", num_workers=batches, batch_size=size, order="first_finished")
    return trials


def waiting(env: Any, seconds: float, env_kwargs: Mapping[str, Any] | None = None) -> float:
    """Return the share of a step in which one environment, stepped here, waits for something else than a core: it sleeps, or another
    process or machine answers. 0 where the system does not say, or the environment cannot be run here."""
    trial = Trial("one", VectorConfig(num_envs=1, backend="serial"))
    with _noting(trial):
        run = Run(env, trial, env_kwargs)
        try:
            before, began = _on_cores(), time.perf_counter()
            run.go(seconds)
            spent, after = time.perf_counter() - began, _on_cores()
        finally:
            run.close()
        if before is not None and after is not None:
            ran, queued = (new - old for new, old in zip(after, before, strict=True))
            waited = max(0.0, spent - ran - queued)
            return waited / max(waited + ran, 1e-9)
    return 0.0


def _on_cores() -> tuple[float, float] | None:
    """Return the seconds in which this thread ran, and those in which it stood in the queue for a core; None: the system does not
    say. So a busy machine makes no difference."""
    try:
        ran, queued, _ = Path("/proc/thread-self/schedstat").read_text().split()
    except (OSError, ValueError):
        return None
    return int(ran) / 1e9, int(queued) / 1e9


def _native_settings(num_envs: int, cores: int) -> list[Trial]:
    threads = min(cores, num_envs)
    trials = [Trial("native, 1 thread", VectorConfig(num_envs=num_envs, backend="native", num_workers=1))]
    if threads > 1:
        config = VectorConfig(num_envs=num_envs, backend="native", num_workers=threads)
        trials.append(Trial(f"native, {threads} threads", config))
        if num_envs % 2 == 0 and num_envs // 2 >= threads:
            halves = dataclasses.replace(config, batch_size=num_envs // 2)
            trials.append(Trial(f"2 batches pipelined, {threads} threads", halves))
    return trials


def best_of(trials: Sequence[Trial]) -> Trial:
    """Return the simplest trial (they come simplest first) that is as fast as the fastest within ``TIE``."""
    fastest = max(trial.steps_per_second for trial in trials)
    return next(trial for trial in trials if not trial.error and trial.steps_per_second >= (1 - TIE) * fastest)


def measure(env: Any, trials: Sequence[Trial], *, seconds: float, env_kwargs: Mapping[str, Any] | None = None) -> list[Trial]:
    """Fill in the trials: ``seconds`` of measurement for each, in ``ROUNDS`` turns. A trial that fails holds its error."""
    running: dict[int, Run] = {}
    together = True
    try:
        for i, trial in enumerate(trials):
            with _noting(trial):
                running[i] = Run(env, trial, env_kwargs)
                running[i].go(min(WARM_UP, seconds))
                if i == 0:
                    together = trial.memory_bytes * len(trials) < psutil.virtual_memory().available / 2
            if not together and i in running and not trial.error:
                with _noting(trial):
                    trial.rates.append(running[i].go(seconds))
            if (trial.error or not together) and i in running:
                running.pop(i).close()
        for _ in range(ROUNDS):
            for i, run in running.items():
                if not trials[i].error:
                    with _noting(trials[i]):
                        trials[i].rates.append(run.go(seconds / ROUNDS))
    finally:
        for run in running.values():
            run.close()
    for trial in trials:
        if trial.rates and not trial.error:
            trial.steps_per_second = float(np.median(trial.rates))
    return list(trials)


class Run:
    """One vector env being measured; its construction is timed and weighed into ``trial``."""

    def __init__(self, env: Any, trial: Trial, env_kwargs: Mapping[str, Any] | None) -> None:
        before, others = _memory(), _children()
        start = time.perf_counter()
        self.vec: VecEnv = make(env, env_kwargs=env_kwargs, config=trial.config)
        try:
            self._obs = self.vec.obs_layout if has_bits(self.vec.action_space) else None
            self._ask = self._obs is not None and _says_bits_by_method(self.vec)
            self.vec.async_reset()
            self.rows = self.vec.recv()
            trial.startup_seconds = time.perf_counter() - start
            workers = [_private(child) for child in _children() - others]
            trial.memory_bytes = max(0, _memory() - before) + sum(workers)
            self._action = action_rows(self.vec.action_space, self.vec.num_agents, seed=0)
        except BaseException:
            self.vec.close()
            raise
        self._per_batch = self.vec.num_envs // self.vec.config.num_batches

    def go(self, seconds: float) -> float:
        """Step for about ``seconds``; environment steps per second."""
        vec, action, space = self.vec, self._action, self.vec.action_space
        steps, start = 0, time.perf_counter()
        until = start + seconds
        while True:
            if self._ask:
                self.rows.infos = {i: {"action_mask": mask} for i, mask in enumerate(vec.call("action_masks"))}
            vec.send(allowed(action[self.rows.agents], self.rows, space, self._obs))
            self.rows = vec.recv()
            steps += self._per_batch
            now = time.perf_counter()
            if now >= until:
                return steps / (now - start)

    def close(self) -> None:
        self.vec.close()


def _says_bits_by_method(vec: VecEnv) -> bool:
    """Return True if environments must be asked which bits they allow: rows have no column for those. ConfigError if they cannot be
    asked."""
    if vec.num_agents != vec.num_envs:
        return False
    try:
        says = all(vec.access("apply", "action_masks", (has_mask_method,), {}, None))
    except (ConfigError, EnvError):
        return False
    if says and vec.config.num_batches > 1:
        raise ConfigError(
            "action_masks() of a MultiBinary cannot be asked while other batches step",
            fix='Put the mask into info["action_mask"] to measure this',
        )
    return says


class _noting:
    """``with _noting(trial):`` an exception goes into ``trial.error``."""

    def __init__(self, trial: Trial) -> None:
        self.trial = trial

    def __enter__(self) -> None: ...

    def __exit__(self, kind: Any, error: BaseException | None, trace: Any) -> bool:
        if isinstance(error, Exception):
            self.trial.error = str(error) or type(error).__name__
        return isinstance(error, Exception)


def chosen(config: VectorConfig) -> dict[str, Any]:
    """Return the settings of ``config`` that differ from the defaults, and always ``backend``."""
    plain = VectorConfig(num_envs=config.num_envs)
    names = ("num_workers", "batch_size", "order", "isolate")
    found = {name: getattr(config, name) for name in names if getattr(config, name) != getattr(plain, name)}
    return {"backend": config.backend, **found}


def _nearest_divisor(number: int, near: int) -> int:
    return min((d for d in range(1, number + 1) if number % d == 0), key=lambda d: (abs(d - near), d))


def _memory() -> int:
    return psutil.Process().memory_info().rss


def _children() -> set[psutil.Process]:
    return set(psutil.Process().children(recursive=True))


def _private(process: psutil.Process) -> int:
    try:
        return process.memory_full_info().uss
    except psutil.Error:
        return 0
