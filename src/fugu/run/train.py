"""Training from what was asked for to a run: settle its config, make its objects and its folder, and let it train."""

from __future__ import annotations

import operator
import shlex
import warnings
from collections.abc import Mapping, Sequence
from contextlib import ExitStack
from dataclasses import replace
from functools import partial
from pathlib import Path
from typing import TYPE_CHECKING, Any, overload

from fugu import files
from fugu.config import fitting, fixed_paths, override, to_toml
from fugu.emulation.place import from_anywhere, title
from fugu.errors import ConfigError
from fugu.gpu import failure
from fugu.presets import preset
from fugu.run import store
from fugu.run.begun import policy_of
from fugu.run.config_file import from_file
from fugu.run.given import announce, by_name, codes, fitted, flags, look, refuse_other_count, refuse_other_env
from fugu.run.label import Label, checked_name, checked_tags
from fugu.run.live import attend
from fugu.run.origin import note_origin, refuse_other_spaces, renew_origin
from fugu.run.output import kept_output
from fugu.run.run import Run
from fugu.run.several import accompany, beside, earlier, here, joined, note_job
from fugu.run.timer import Timer
from fugu.run.trust import ASKED, SERVICE
from fugu.together import first_says, launched
from fugu.trainer import checkpoint
from fugu.trainer.build import make_trainer
from fugu.trainer.callbacks import Callbacks
from fugu.trainer.config import TrainConfig, refuse_unread, with_algorithm
from fugu.trainer.loop import Trainer
from fugu.vector.config import VectorConfig

if TYPE_CHECKING:
    from fugu.run.group import Group


@overload
def train(env: Any = ..., *, seeds: None = ..., **settings: Any) -> Run: ...


@overload
def train(env: Any = ..., *, seeds: int | Sequence[int], **settings: Any) -> Group: ...


def train(
    env: Any = None,
    *,
    config: TrainConfig | str | Path | None = None,
    runs: str | Path = "runs",
    name: str | None = None,
    tags: Sequence[str] = (),
    seeds: int | Sequence[int] | None = None,
    callbacks: Sequence[Any] = (),
    trust_code: bool = False,
    **settings: Any,
) -> Run | Group:
    """Train a policy and return the run.

    ``env`` is anything ``fugu.vector.make`` takes: a name, a class, a function that makes one, or a list of these; cartpole by default.
    ``policy`` and ``algorithm`` may be classes too. ``settings`` change fields of the environment's preset, by a name that is unique
    (``steps=100_000``, ``learning_rate=1e-3``), by section (``ppo={"gamma": 0.9}``) or by path.
    ``config`` takes the preset's place if it is a whole config, or stands between the two if it is a file with a part of one.

    ``name`` is the run's folder in ``runs``; ``tags`` are words to find it by. ``seeds`` trains a run per seed, one after the other,
    and returns their ``Group``: so many, beginning with ``seed``, or those listed. ``callbacks`` are functions ``f(run, metrics)``
    and objects as in ``trainer/callbacks.py``. ``trust_code``: the code that the config of somebody else's run names may be executed.
    """
    watching = Callbacks(callbacks)
    name = None if name is None else checked_name(name)
    label = Label(tags=checked_tags(tags))
    if isinstance(config, str | Path):
        config = _of_file(config, env, settings, trust_code)
    config = _settled(env, config, settings, seeds, runs)
    if seeds is None:
        return begin(config, Path(runs), name, label, watching)
    if config.ranks.processes > 1 or (launched() or 1) > 1:
        raise ConfigError("--seeds trains one run after the other, each in one process; leave --seeds or --processes out")
    from fugu.run.seeds import train_seeds

    return train_seeds(config, seeds, name, label, Path(runs), partial(begin, root=Path(runs), watching=watching))


def _settled(
    env: Any, config: TrainConfig | None, settings: dict[str, Any], seeds: Any, runs: str | Path = "runs"
) -> TrainConfig:
    """Return the config of what ``train`` was called with."""
    named, settings = by_name("cartpole" if env is None else env, settings)
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
    elif env is not None and not isinstance(env, str):
        config = override(config, {"env": named})
    if "algorithm" in settings:
        config = with_algorithm(config, from_anywhere(fitting("algorithm", settings.pop("algorithm"), str)))
    config, settings = _begun(config, settings, runs)
    refuse_unread(config, settings)
    if seeds is not None and not hasattr(seeds, "__index__") and "seed" in settings:
        raise ConfigError(f"seeds={seeds!r:.60} and seed={settings['seed']!r:.60}: which of the two? Leave one out")
    config = override(config, settings)
    config = override(config, {"env": from_anywhere(config.env), "policy.net": from_anywhere(config.policy.net)})
    if config.policy.start is not None:
        config = override(config, {"policy.start": str(Path(config.policy.start).resolve())})
    config = _with_whole_sink(config)
    refuse_other_count(config)
    return config


def _begun(config: TrainConfig, settings: dict[str, Any], runs: str | Path) -> tuple[TrainConfig, dict[str, Any]]:
    """Return config and settings of a run that may begin with the policy of another: then its network is that of the other."""
    section = settings.get("policy")
    inside = section if isinstance(section, Mapping) and "start" in section else {}
    text = inside["start"] if inside else settings.get("policy.start", config.policy.start)
    policy = policy_of(text, runs) if isinstance(text, str) else None
    if policy is None:
        return config, settings
    settings = {name: value for name, value in settings.items() if name != "policy.start"}
    if inside:
        settings["policy"] = {name: value for name, value in inside.items() if name != "start"}
    return replace(config, policy=policy), settings


def begin(config: TrainConfig, root: Path, name: str | None, label: Label, watching: Callbacks) -> Run:
    """Train a new run in ``root`` with a settled config, and let ``watching`` see it."""
    config, ranks = joined(config)
    text = to_toml(config)  # refuses what could not be read back
    if (before := earlier(root, ranks[0].rank == 0)) is not None:  # one of the processes had ended
        run = Run(before, **codes(config))
        go_on(run, {"ranks.processes": config.ranks.processes}, watching)
        return run
    if ranks[0].rank:
        return Run(accompany(config, ranks), **codes(config))
    if name is not None:
        store.refuse_taken(root, name)
    with ExitStack() as stack:
        stack.enter_context(failure.explained())
        output = stack.enter_context(kept_output(config.log))  # before there are workers, which print where they began
        timer = Timer()
        trainer = make_trainer(here(config), clock=timer, ranks=ranks[0])
        stack.callback(trainer.close)
        trainer.watch(watching)
        folder = store.create(root, env_name(config), name, label)
        stack.callback(folder.discard_if_empty)
        stack.enter_context(folder.lock())
        files.write(folder.config, text)
        note_job(folder)
        announce(config, folder, trainer.source.note)
        note_origin(folder, config, trainer.source.vec)
        trainer.folder = folder.checkpoints
        first_says((str(folder.path), None))
        stack.enter_context(beside(config, ranks, None))
        trainer.start()
        return attend(Run(folder, **codes(config)), trainer, timer, output)


def env_name(config: TrainConfig) -> str:
    """Return what runs on the environment of ``config`` are called."""
    return Path(title(config.env, config.env_kwargs)).name


def _of_file(path: str | Path, env: Any, settings: dict[str, Any], trust_code: bool) -> TrainConfig:
    """Return the config in a file, with those of ``settings`` that decide which preset it changes."""
    named, found = by_name("cartpole" if env is None else env, settings)
    algorithm = fitting("algorithm", found.get("algorithm"), str | None)
    return from_file(
        path,
        None if env is None else named,
        fitting("env_kwargs", settings.pop("env_kwargs", {}), Mapping[str, Any]),
        device=fitting("device", settings.get("device"), str | None),
        algorithm=None if algorithm is None else from_anywhere(algorithm),
        start_timeout=_start_timeout(settings, None),
        given=[role for role, where in ASKED.items() if len(where) > 1 and _gives(found, where)],
        trust_code=trust_code,
    )


def _gives(settings: Mapping[str, Any], where: tuple[str, ...]) -> bool:
    """Return whether ``settings``, in any of their forms, name what stands at ``where`` in a config."""
    section = settings.get(where[0])
    inside = where[-1] in section if isinstance(section, Mapping) else hasattr(section, where[-1])
    return inside or ".".join(where) in settings or where[-1] in settings


def _with_whole_sink(config: TrainConfig) -> TrainConfig:
    """Return ``config`` with the whole path of the file that has the user's own logger."""
    return config if config.log.sink is None else override(config, {"log.sink": from_anywhere(config.log.sink)})


def _start_timeout(settings: Mapping[str, Any], otherwise: float | None = VectorConfig.start_timeout) -> Any:
    """Return the start timeout in ``settings``, in any of their forms: a preset may have to build an environment before there is a
    config."""
    section = settings.get("vector", {})
    inner = section.get("start_timeout") if isinstance(section, Mapping) else getattr(section, "start_timeout", None)
    return settings.get("start_timeout") or settings.get("vector.start_timeout") or inner or otherwise


def resume(run: Run, changes: Mapping[str, Any] | None = None, callbacks: Sequence[Any] = ()) -> Run:
    """Train on from the newest good checkpoint, exactly as the run would have gone on. A run that is done is left as it is, with a
    warning."""
    if done := go_on(run, changes or {}, Callbacks(callbacks)):
        warnings.warn(done, RuntimeWarning, stacklevel=3)
    return run


def go_on(run: Run, changes: Mapping[str, Any], watching: Callbacks) -> str | None:
    """Train on, and let ``watching`` see it. Returns why there was nothing to do, or None."""
    refuse_unread(run.config, changes)
    config = _with_whole_sink(run.with_config(changes))
    config, ranks = joined(config)
    given = ask(run, config)
    run.gate.check_links()
    refuse_other_env(run.gate, run.config)
    refuse_other_run(run.config, config)
    if ranks[0].rank:
        accompany(config.from_checkpoint(), ranks)
        return None
    with ExitStack() as stack:
        stack.enter_context(failure.explained())
        stack.enter_context(run.folder.lock())
        path = checkpoint.find(run.folder.checkpoints, "latest", whole=True)
        output = stack.enter_context(kept_output(config.log))
        timer = Timer()
        trainer = make_trainer(here(config.from_checkpoint()), run.folder.checkpoints, timer, ranks[0])
        stack.callback(trainer.close)
        trainer.watch(watching)
        if "env" in run.given:
            refuse_other_spaces(run.folder, trainer.source.vec)
        first_says((str(run.path), path))
        stack.enter_context(beside(config.from_checkpoint(), ranks, path))
        trainer.load(path)
        if trainer.finished:
            return _done(run, trainer)
        if config != run.config or run.given:
            files.write(run.folder.config, to_toml(config))
            run.config = config
        renew_origin(run.folder, run.gate, {role: name for role, name in given.items() if name is not None})
        if run.folder.diverged.exists():
            run.folder.diverged.replace(run.folder.diverged.with_stem("diverged-earlier"))
        attend(run, trainer, timer, output)
    return None


def ask(run: Run, config: TrainConfig) -> dict[str, Any]:
    """Raise ``Untrusted`` if ``run``, trained with ``config``, would execute or send anything that nobody has asked for. Returns what
    was given in the place of its code."""
    given = dict(run.given)
    if config.log.sink != run.config.log.sink:
        given["sink"] = config.log.sink
    run.gate.given |= {*given, *([SERVICE] if config.log.wandb != run.config.log.wandb else [])}
    run.gate.check()
    return given


def refuse_other_run(before: TrainConfig, after: TrainConfig) -> None:
    for path in fixed_paths(before):
        name = ".".join(path)
        get = operator.attrgetter(name)
        if get(before) != get(after):
            raise ConfigError(f"a run that goes on cannot change {name}; start a new one for that")


def _done(run: Run, trainer: Trainer) -> str:
    command = f"fugu train --resume {shlex.quote(str(run.path))}{flags(run.config)}"
    steps, target = trainer.steps, trainer.config.target
    if steps >= trainer.config.steps:
        return f"this run has done its {steps:,} steps; give it more to do: {command} --steps {2 * steps}"
    return f"this run has reached its target of {target:g}; drop it: {command} --target None"
