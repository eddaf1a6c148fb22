"""``check_env``: everything that can be found out about an environment before training on it, in one go."""

from __future__ import annotations

import inspect
import re
import time
import warnings
from collections.abc import Iterator, Mapping
from contextlib import contextmanager
from typing import Any

import cloudpickle
import gymnasium
import numpy as np
from gymnasium import spaces as gs

from fugu.check.memory import check_memory
from fugu.check.official import check_gymnasium, check_pettingzoo
from fugu.check.play import check_play
from fugu.check.player import SEEING, Limits, Player, kind_of
from fugu.check.repeat import check_determinism, check_seeds
from fugu.check.report import Report, describe
from fugu.check.row_player import RowsPlayer
from fugu.check.rows import check_rows
from fugu.emulation.factory import Factory, _FromFile, _Registered, emulate, factories
from fugu.errors import ConfigError, FuguError, LoadError, SpaceError, did_you_mean
from fugu.spaces import Layout, convert
from fugu.spaces.layout import Path, path_name

SECONDS_PER_PART = 10.0
"""a slow environment is checked for fewer steps rather than for minutes"""


def check_env(env: Any, *, steps: int = 500, seed: int = 0, env_kwargs: Mapping[str, Any] | None = None) -> Report:
    """Report everything wrong with ``env``, and what it costs to run. Never raises because of the environment.

    ``env`` is what ``fugu.vector.make`` takes: an id, ``module:Class``, ``file.py:Class``, a class or a callable. ``steps`` random
    steps are taken in each part of the check (less if they take longer than ten seconds).
    """
    if isinstance(env, list | tuple):
        raise ConfigError("check_env() takes one environment; call it once for each entry of the list")
    if steps < 1:
        raise ConfigError(f"steps={steps} must be at least 1")
    report = Report(name=env if isinstance(env, str) else getattr(env, "__name__", type(env).__name__))
    start = time.perf_counter()
    with warnings.catch_warnings():
        warnings.simplefilter("ignore")
        _check(env, report, steps, seed, env_kwargs or {})
    report.facts["check_seconds"] = time.perf_counter() - start
    return report


def _check(env: Any, report: Report, steps: int, seed: int, kwargs: Mapping[str, Any]) -> None:
    """Run the parts in order. Each goes on after the failure of another as far as it makes sense."""
    built = _build(env, report, kwargs)
    if built is None:
        return
    factory, instance = built
    kind = report.facts["kind"] = kind_of(instance)
    if not isinstance(env, str):
        report.name = (getattr(instance, "metadata", None) or {}).get("name", report.name)
    with _closing(instance, report):
        if not _is_environment(instance, report):
            return
        _check_spaces(instance, kind, report)
        limits, spaces_fit = Limits(steps, seed, SECONDS_PER_PART), report.ok
        if kind in SEEING:
            with report.guard("step()", "playing the environment"):
                check_play(SEEING[kind](instance, seed), report, limits)
        if spaces_fit:
            with report.guard("fugu.emulate", "adapting the environment"):
                _check_as_rows(factory, kind, report, limits)
        if spaces_fit or kind in SEEING:
            _check_again(factory, instance, kind, report, limits)
        with report.guard("pickle", "pickling"):
            _check_pickle(factory, instance, report)
        with report.guard(f"{kind}'s checker", "running it"), _closing(_fresh(factory), report) as other:
            if isinstance(other, gymnasium.Env):
                check_gymnasium(other, report)
            elif kind.startswith("PettingZoo"):
                check_pettingzoo(other, report, cycles=min(steps, 100))


def _check_as_rows(factory: Factory, kind: str, report: Report, limits: Limits) -> None:
    with _closing(emulate(_fresh(factory)), report) as env:
        player = RowsPlayer(env, limits.seed, poison=kind == "fugu.Env")
        facts, agents = report.facts, env.num_agents
        facts["num_agents"], facts["obs_bytes"] = agents, player.layout.nbytes
        check_rows(player, report, limits, native=kind not in SEEING)
        if agents > 1 and kind != "PettingZoo AEC":
            facts["agent_steps_per_second"] = agents * facts.get("steps_per_second", 0.0)


def _check_again(factory: Factory, instance: Any, kind: str, report: Report, limits: Limits) -> None:
    """Check seeds and memory, but only where an env plays at all: else every part would tell of the same crash."""

    @contextmanager
    def player() -> Iterator[Player]:
        with _closing(_fresh(factory), report) as env:
            yield SEEING[kind](env, limits.seed) if kind in SEEING else RowsPlayer(emulate(env), limits.seed)

    if report.has("reset()") or report.has("step()"):
        return
    if not report.has("reset()", "warning"):  # it takes a seed
        with report.guard("determinism", "stepping two instances"):
            check_determinism(player, report, limits, known=_nondeterministic(instance))
    if not report.has("determinism"):
        with report.guard("reset()", "trying another seed"):
            check_seeds(player, report, seed=limits.seed)
    with report.guard("memory", "measuring memory"), player() as one:
        check_memory(one, report, limits)


def _fresh(factory: Factory) -> Any:
    return factory.make(**factory.kwargs)


@contextmanager
def _closing(env: Any, report: Report) -> Iterator[Any]:
    """Close ``env`` in the end, whatever happens; a ``close`` that fails is a finding."""
    try:
        yield env
    finally:
        close = getattr(env, "close", None)
        try:
            if close is not None:
                close()
        except KeyboardInterrupt:
            raise
        except BaseException as error:
            report.add("warning", "close()", f"close() raised {describe(error)}", "make close() safe to call at any time")


def _build(env: Any, report: Report, kwargs: Mapping[str, Any]) -> tuple[Factory, Any] | None:
    """Return the factory and a first instance; None if there is none to be had."""
    try:
        factory = factories(env, 1, kwargs)[0]
    except Exception as error:
        if isinstance(error, FuguError) and not isinstance(error, LoadError):
            raise  # a misspelt name is the caller's mistake, not a finding
        report.add(
            "error",
            "import",
            str(error) if isinstance(error, LoadError) else f"loading {report.name} raised {describe(error)}",
            "make the file importable: python " + str(env).rpartition(":")[0],
        )
        return None
    with warnings.catch_warnings(record=True) as caught:
        warnings.simplefilter("always")
        try:
            instance = _fresh(factory)
        except KeyboardInterrupt:
            raise
        except BaseException as error:
            report.add("error", "__init__", f"building {report.name} raised {describe(error)}", _build_fix(factory, error))
            return None
    for warning in caught:
        if "out of date" in str(warning.message):
            text = re.sub(r"\x1b\[[0-9;]*m|WARN: ", "", str(warning.message)).strip()
            report.add("note", "id", text, "use the newer version")
    return factory, instance


def _build_fix(factory: Factory, error: BaseException) -> str:
    if isinstance(error, TypeError) and "argument" in str(error):
        names = _parameters(factory.make)
        wrong = next((name for name in factory.kwargs if name not in names), "")
        if wrong and names:
            return f"there is no parameter {wrong!r}.{did_you_mean(wrong, names)}"
        if names:
            return f"pass its parameters as env_kwargs (--env.NAME VALUE); it takes {', '.join(names)}"
    if isinstance(error, ImportError | gymnasium.error.DependencyNotInstalled):
        return "install what is missing; `fugu doctor` lists the extras"
    return "make it build without arguments, or pass them as env_kwargs (--env.NAME VALUE)"


def _parameters(make: Any) -> list[str]:
    """Return the names of the arguments that the environment's own constructor takes, as far as they can be known."""
    try:
        if isinstance(make, _FromFile):
            make = make.load()
        elif isinstance(make, _Registered) and isinstance(make.spec.entry_point, str):
            make = gymnasium.envs.registration.load_env_creator(make.spec.entry_point)
        parameters = inspect.signature(make).parameters.values()
    except (TypeError, ValueError):
        return []
    return [p.name for p in parameters if p.kind not in (p.VAR_KEYWORD, p.VAR_POSITIONAL)]


def _is_environment(env: Any, report: Report) -> bool:
    missing = [name for name in ("observation_space", "action_space", "reset", "step") if not hasattr(env, name)]
    for name in missing:
        fix = f"set self.{name} in __init__" if name.endswith("space") else f"define {name}(self, ...)"
        report.add("error", name, f"{type(env).__name__} has no {name}", fix)
    return not missing


def _spaces(env: Any, kind: str) -> Iterator[tuple[str, Any]]:
    """Yield (where, space) of every space the env declares; the same space is given once."""
    if not kind.startswith("PettingZoo"):
        single = "single_" if kind == "Gymnasium vector" else ""
        for name in ("observation_space", "action_space"):
            yield name, getattr(env, single + name)
        return
    told: list[Any] = []
    for name in ("observation_space", "action_space"):
        for agent in getattr(env, "possible_agents", None) or env.agents:
            space = getattr(env, name)(agent)
            if not any(space is other or space == other for other in told):
                told.append(space)
                yield f"{name}({agent!r})", space


def _check_spaces(env: Any, kind: str, report: Report) -> None:
    with report.guard("spaces", "asking for the spaces"):
        for where, space in _spaces(env, kind):
            report.facts.setdefault(where.partition("(")[0], str(space))
            for path, error in _layout_problems(space, ()):
                place = "/".join(filter(None, (where, path_name(path))))
                report.add_error(error, place, error.problem)
            if where.startswith("action_space") and not report.has(where):
                _check_action_bounds(convert(space), where, report)


def _layout_problems(space: Any, path: Path) -> Iterator[tuple[Path, SpaceError]]:
    """Yield an error for every part of the space that has no place in a row, not only for the first."""
    try:
        space = convert(space)
    except SpaceError as error:
        yield path, error
        return
    parts = (
        space.spaces.items() if isinstance(space, gs.Dict) else enumerate(space.spaces) if isinstance(space, gs.Tuple) else None
    )
    if parts is not None:
        for key, part in parts:
            yield from _layout_problems(part, (*path, key))
        return
    try:
        Layout(space)
    except SpaceError as error:
        yield path, error


def _check_action_bounds(space: gs.Space, where: str, report: Report) -> None:
    for leaf in Layout(space).leaves:
        place = "/".join(filter(None, (where, leaf.name)))
        if (
            isinstance(leaf.space, gs.Box)
            and leaf.dtype.kind == "f"
            and not (np.isfinite(leaf.space.low).all() and np.isfinite(leaf.space.high).all())
        ):
            problem = f"{leaf.space} has no bounds; actions cannot be scaled or clipped"
            report.add("warning", place, problem, "declare finite bounds, Box(-1, 1, ...), and scale inside step()")


def _nondeterministic(env: Any) -> bool:
    return bool(getattr(getattr(env, "spec", None), "nondeterministic", False))


def _check_pickle(factory: Factory, instance: Any, report: Report) -> None:
    """Check what a worker process does: unpickle the factory and build its own instance with the same spaces."""
    fix = "open files, locks, connections and GPU handles inside the environment's __init__, not outside and passed in"
    try:
        data = cloudpickle.dumps(factory)
    except Exception as error:
        culprits = [f"env_kwargs[{name!r}]" for name, value in factory.kwargs.items() if not _pickles(value)]
        what = ", ".join(culprits) or "the class or callable"
        report.add("error", "pickle", f"{what} cannot be sent to a worker process: {type(error).__name__}: {error}", fix)
        return
    try:
        other = _fresh(cloudpickle.loads(data))
    except Exception as error:
        report.add("error", "pickle", f"building it again from its pickle raised {describe(error)}", fix)
        return
    kind = kind_of(other)
    with _closing(other, report):
        for (where, mine), (_, theirs) in zip(_spaces(instance, kind), _spaces(other, kind), strict=False):
            if mine != theirs:
                problem = f"a second instance has another space: {str(mine)[:80]} and {str(theirs)[:80]}"
                report.add("error", where, problem, "declare the same spaces in every instance; one batch needs one kind")


def _pickles(value: Any) -> bool:
    try:
        cloudpickle.dumps(value)
    except Exception:
        return False
    return True
