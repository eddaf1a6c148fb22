"""Training from what was asked for to a run: settle its config, make its objects and its folder, and let it train."""

from __future__ import annotations

import operator
import os
import shlex
from collections.abc import Mapping
from contextlib import ExitStack
from pathlib import Path
from typing import Any

from fugu.config import fitting, fixed_paths, override, to_toml
from fugu.emulation.place import from_anywhere, title
from fugu.errors import ConfigError
from fugu.gpu import failure
from fugu.presets import preset
from fugu.run import store
from fugu.run.given import announce, by_name, codes, fitted, look, refuse_other_count, refuse_other_env
from fugu.run.live import attend
from fugu.run.origin import note_origin, refuse_other_spaces, renew_origin
from fugu.run.run import Run
from fugu.run.timer import Timer
from fugu.trainer import checkpoint
from fugu.trainer.build import make_trainer
from fugu.trainer.config import TrainConfig, refuse_unread, with_algorithm
from fugu.trainer.loop import Trainer
from fugu.vector.config import VectorConfig


def train(env: Any = "cartpole", *, config: TrainConfig | None = None, runs: str | Path = "runs", **settings: Any) -> Run:
    """Train a policy and return the run.

    ``env`` is anything ``fugu.vector.make`` takes: a name, a class, a function that makes one, or a list of these. ``policy`` and
    ``algorithm`` may be classes too. ``settings`` change fields of the environment's preset, by a name that
    is unique (``steps=100_000``, ``learning_rate=1e-3``), by section (``ppo={"gamma": 0.9}``) or by path; or give a whole
    ``config``.
    """
    named, settings = by_name(env, settings)
    if config is None:
        algorithm = fitting("algorithm", settings.get("algorithm"), str | None)
        env_kwargs = fitting("env_kwargs", settings.get("env_kwargs", {}), Mapping[str, Any])
        config = preset(
            look(named),
            env_kwargs,
            str(settings.get("device", "cpu")),
            None if algorithm is None else from_anywhere(algorithm),
            start_timeout=fitting("vector.start_timeout", _start_timeout(settings), float),
        )
        config = fitted(config, named)
        settings["env_kwargs"] = {**config.env_kwargs, **env_kwargs}
    elif not isinstance(env, str):
        config = override(config, {"env": named})
    if "algorithm" in settings:
        config = with_algorithm(config, from_anywhere(fitting("algorithm", settings.pop("algorithm"), str)))
    refuse_unread(config, settings)
    config = override(config, settings)
    config = override(config, {"env": from_anywhere(config.env), "policy.net": from_anywhere(config.policy.net)})
    if config.policy.start is not None:
        config = override(config, {"policy.start": str(Path(config.policy.start).resolve())})
    refuse_other_count(config)
    text = to_toml(config)  # refuses what could not be read back
    with ExitStack() as stack:
        stack.enter_context(failure.explained())
        timer = Timer()
        trainer = make_trainer(config, clock=timer)
        stack.callback(trainer.close)
        folder = store.create(Path(runs), Path(title(config.env, config.env_kwargs)).name)
        _write(folder.config, text)
        announce(config, folder)
        note_origin(folder, config, trainer.source.vec)
        stack.enter_context(folder.lock())
        trainer.folder = folder.checkpoints
        stack.callback(folder.discard_if_empty)
        trainer.start()
        return attend(Run(folder, **codes(config)), trainer, timer)


def _start_timeout(settings: Mapping[str, Any]) -> float:
    """Return the start timeout in ``settings``, in any of their forms: a preset may have to build an environment before there is a
    config."""
    section = settings.get("vector", {})
    inner = section.get("start_timeout") if isinstance(section, Mapping) else getattr(section, "start_timeout", None)
    return settings.get("start_timeout") or settings.get("vector.start_timeout") or inner or VectorConfig.start_timeout


def resume(run: Run, changes: Mapping[str, Any] | None = None) -> Run:
    """Train on from the newest good checkpoint, exactly as the run would have gone on."""
    run.gate.check()
    run.gate.check_links()
    refuse_other_env(run.gate, run.config)
    refuse_unread(run.config, changes or {})
    config = run.with_config(changes or {})
    _refuse_other_run(run.config, config)
    with ExitStack() as stack:
        stack.enter_context(failure.explained())
        stack.enter_context(run.folder.lock())
        path = checkpoint.find(run.folder.checkpoints, "latest")
        timer = Timer()
        trainer = make_trainer(config.from_checkpoint(), run.folder.checkpoints, timer)
        stack.callback(trainer.close)
        if "env" in run.given:
            refuse_other_spaces(run.folder, trainer.source.vec)
        trainer.load(path)
        if trainer.finished:
            raise ConfigError(_done(run, trainer))
        if config != run.config or run.given:
            _write(run.folder.config, to_toml(config))
            run.config = config
        renew_origin(run.folder, run.gate, run.given)
        if run.folder.diverged.exists():
            run.folder.diverged.replace(run.folder.diverged.with_stem("diverged-earlier"))
        return attend(run, trainer, timer)


def _refuse_other_run(before: TrainConfig, after: TrainConfig) -> None:
    for path in fixed_paths(before):
        name = ".".join(path)
        get = operator.attrgetter(name)
        if get(before) != get(after):
            raise ConfigError(f"a run that goes on cannot change {name}; start a new one for that")


def _done(run: Run, trainer: Trainer) -> str:
    command = f"fugu train --resume {shlex.quote(str(run.path))}"
    steps, target = trainer.steps, trainer.config.target
    if steps >= trainer.config.steps:
        return f"this run has done its {steps:,} steps; give it more to do: {command} --steps {2 * steps}"
    return f"this run has reached its target of {target:g}; drop it: {command} --target None"


def _write(path: Path, text: str) -> None:
    """Write the file at once or not at all."""
    draft = path.with_suffix(".tmp")
    with draft.open("w", encoding="utf-8") as file:
        file.write(text)
        file.flush()
        os.fsync(file.fileno())
    draft.replace(path)
