"""Training of a group: runs that differ in their seed, one after the other, each as if it were alone."""

from __future__ import annotations

import shlex
import signal
import warnings
from collections.abc import Callable, Mapping, Sequence
from dataclasses import replace
from functools import partial
from pathlib import Path
from typing import Any, Protocol

from fugu.errors import ConfigError, FuguError, NotInstalled
from fugu.run import store
from fugu.run.ending import Interrupted
from fugu.run.given import codes, flags
from fugu.run.group import Group
from fugu.run.label import Label, checked_seeds
from fugu.run.overview import finished
from fugu.run.run import Run
from fugu.run.train import ask, begin, env_name, refuse_other_run, resume
from fugu.trainer.callbacks import Callbacks
from fugu.trainer.config import TrainConfig, refuse_unread


class Begin(Protocol):
    def __call__(self, config: TrainConfig, *, name: str, label: Label) -> Run: ...


class GroupInterrupted(Interrupted):
    """A signal ended the training of a group; the run that was trained was saved, and the others wait."""

    def __init__(self, number: int, path: Path, saved: str, run: Run, again: str) -> None:
        self.signal, self.path, self.run, self.saved, self.again = number, path, run, saved, again
        KeyboardInterrupt.__init__(self, f"{saved}; go on with the whole group: {again}")

    def __reduce__(self) -> tuple[Any, ...]:
        return type(self), (self.signal, self.path, self.saved, self.run, self.again)


class SeedsFailed(FuguError, RuntimeError):
    """Some runs of a group ended with an error; the others are done. ``group``: the runs there are, if any."""

    def __init__(self, path: Path, errors: Mapping[int, Exception], total: int, group: Group | None, again: str) -> None:
        self.errors, self.group = dict(errors), group
        lines = "".join(f"\n  seed {seed}: {_headline(error)}{_where(path, seed)}" for seed, error in errors.items())
        again = f"go on with: {again}" if group is not None else "begin again: nothing was kept"
        super().__init__(f"{len(errors)} of the {total} seeds of {path} failed:{lines}", fix=f"once that is mended, {again}")


def train_seeds(config: TrainConfig, seeds: Any, name: str | None, label: Label, root: Path, one: Begin) -> Group:
    """Train a run per seed with ``one``, and return them as the group ``name``, or one named by the environment and the time."""
    seeds = checked_seeds(seeds, config.seed)
    if name is not None:
        _refuse_taken(root, name, seeds)
        return _trained(root, name, _new(config, seeds, name, label, one), config)
    base, number = store.dated(env_name(config)), 1
    while True:
        name = base if number == 1 else f"{base}-{number}"
        try:
            _refuse_taken(root, name, seeds)
            return _trained(root, name, _new(config, seeds, name, label, one), config)
        except store.NameTaken:  # by another group that started in the same second
            number += 1


def resume_group(group: Group, changes: Mapping[str, Any], callbacks: Sequence[Any] = ()) -> Group:
    """Train on every run of the group that is not finished, and begin those that are missing, as the last one began."""
    watching = Callbacks(callbacks)
    runs = {run.config.seed: run for run in group}
    for run in runs.values():
        refuse_unread(run.config, changes)
        refuse_other_run(run.config, run.with_config(changes))
    model = [*runs.values()][-1]
    todo: dict[int, Callable[[], Run]] = {}
    for seed in group.seeds:
        if seed not in runs:
            config = replace(model.with_config(changes), seed=seed)
            ask(model, config)
            one = partial(begin, root=group.root, watching=watching)
            todo |= _new(config, (seed,), group.name, model.folder.label, one, group.seeds)
        elif not finished(runs[seed].folder, runs[seed].with_config(changes)):
            todo[seed] = partial(resume, runs[seed], changes, callbacks)
    return _trained(group.root, group.name, todo, model.config, group.code)


def _new(
    config: TrainConfig, seeds: tuple[int, ...], name: str, label: Label, one: Begin, whole: tuple[int, ...] = ()
) -> dict[int, Callable[[], Run]]:
    """Return what trains a new run of each of ``seeds``; ``whole``: the seeds of all the group, if these are not."""
    label = replace(label, group=name, seeds=whole or seeds)
    return {seed: partial(one, replace(config, seed=seed), name=f"{name}-s{seed}", label=label) for seed in seeds}


def _trained(
    root: Path, name: str, todo: Mapping[int, Callable[[], Run]], config: TrainConfig, code: Mapping[str, Any] | None = None
) -> Group:
    """Train, one after the other. ``config``: that of one of the runs. ``code``: what takes the place of the code that they name."""
    path = root / name
    again = f"fugu train --resume {shlex.quote(str(path))}{flags(config)}"
    failed: dict[int, Exception] = {}
    for number, (seed, go) in enumerate(todo.items()):
        try:
            go()
        except Interrupted as end:
            saved = str(end).partition("; go on with")[0]
            raise GroupInterrupted(end.signal, path, f"{saved} of seed {seed}", end.run, again) from end
        except KeyboardInterrupt as end:  # while a run was being built, or the second Ctrl-C
            there = store.members(name, root)
            if not there:
                raise
            raise GroupInterrupted(signal.SIGINT, path, f"SIGINT at seed {seed}", Run(there[-1]), again) from end
        except Exception as error:
            if number == 0 and isinstance(error, ConfigError | NotInstalled):  # which all seeds share
                raise
            failed[seed] = error
            warnings.warn(f"seed {seed} of {path}: {_headline(error)}", RuntimeWarning, stacklevel=4)
    there = store.members(name, root)
    group = Group(name, root, **(codes(config) if code is None else code)) if there else None
    if failed or group is None:
        raise SeedsFailed(path, failed, len(group.seeds) if group is not None else len(todo), group, again)
    return group


def _refuse_taken(root: Path, name: str, seeds: tuple[int, ...]) -> None:
    for each in (name, *(f"{name}-s{seed}" for seed in seeds)):
        store.refuse_taken(root, each)


def _where(path: Path, seed: int) -> str:
    """Return where the whole error of a run of the group is, if it had begun."""
    folder = store.RunFolder(path.with_name(f"{path.name}-s{seed}"))
    return f" (all of it in {folder.path / folder.failed.name})" if folder.failed.exists() else ""


def _headline(error: Exception) -> str:
    text = error.headline if isinstance(error, FuguError) else str(error).partition("\n")[0]
    return f"{type(error).__name__}: {text}"
