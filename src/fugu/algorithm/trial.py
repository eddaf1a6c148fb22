"""Checks of a user's own algorithm: it is inspected, and tried on a few rows, so that mistakes are reported before anything starts."""

from __future__ import annotations

import ast
import dataclasses
import difflib
import inspect
import sys
from collections.abc import Callable, Iterable, Iterator
from pathlib import Path
from typing import Any

import torch
from torch import Tensor, nn

from fugu.algorithm.contract import Algorithm, Metrics
from fugu.algorithm.find import is_own
from fugu.algorithm.settings import Settings
from fugu.algorithm.setup import Setup
from fugu.emulation.columns import TABLE as ENV_COLUMNS
from fugu.emulation.columns import present
from fugu.errors import ConfigError, FuguError, raised
from fugu.ranks import ALONE
from fugu.rollout.acting import Act, Seen, replica
from fugu.rollout.batch import Batch
from fugu.rollout.columns import BOOTSTRAPS, PER_SEGMENT
from fugu.rollout.envs import Envs, blank, untouched
from fugu.rollout.source import Source
from fugu.spaces.views import TORCH_DTYPES

BY_NAME = {"asdict", "astuple", "vars", "getattr", "fields"}
"""functions that read attributes without naming them"""
MEMBERS = ("build", "source", "act", "prepare", "loss", "losses", "rates", "enough", "finish", "merit", "restarted", "Config")
"""members of the contract"""
NEEDED = ("act", "loss")
GROUPS = {"optimizer", "algorithm", "envs", "score", "replay"}
"""parts of a checkpoint that are not parts of an algorithm"""


def check_class(kind: Any, name: str) -> None:
    """Raise a ConfigError if ``kind``, which ``name`` means, is no algorithm, or has a member that is missing or misspelt."""
    if not (inspect.isclass(kind) and issubclass(kind, Algorithm)):
        raise ConfigError(
            f"{name} must be a class with fugu.Algorithm as its base; write class {name.rpartition(':')[2]}(fugu.Algorithm)"
        )
    _check_members(kind, name)
    _check_settings(kind, name)


def _check_members(kind: type[Algorithm], name: str) -> None:
    own = [key for key in vars(kind) if not key.startswith("_")]
    known = {key for key in dir(Algorithm) if not key.startswith("_")}
    for member in NEEDED:
        if getattr(kind, member) is getattr(Algorithm, member) and (member != "loss" or kind.losses is None):
            near = _near(member, [key for key in own if key not in known])
            raise ConfigError(f"{name} has no {member}.{near} See `fugu new algorithm` for a working example")
    for key in own:
        if key in known or not callable(getattr(kind, key)):
            continue
        near = _near(key, MEMBERS)
        if near and not _mentioned(kind, key):
            raise ConfigError(f"{name} has {key}, which nothing calls.{near} Names that begin with _ are yours")
    for member in ("act", "loss", "prepare", "finish", "source", "merit", "restarted"):
        given, wanted = (_positional(getattr(each, member)) for each in (kind, Algorithm))
        if given is not None and given != wanted:
            words = ", ".join(inspect.signature(getattr(Algorithm, member)).parameters)
            raise ConfigError(f"{name}: {member} takes other arguments than it is called with; write def {member}({words})")


def _near(word: str, known: Iterable[str]) -> str:
    found = difflib.get_close_matches(word, list(known), n=1, cutoff=0.66)
    return f" Did you mean {found[0]!r}?" if found else ""


def _positional(function: Any) -> int | None:
    """Return the number of positional arguments of a function; None if it takes any number."""
    parameters = inspect.signature(function).parameters.values()
    if any(p.kind is p.VAR_POSITIONAL for p in parameters):
        return None
    return sum(p.kind in (p.POSITIONAL_ONLY, p.POSITIONAL_OR_KEYWORD) and p.default is p.empty for p in parameters)


def _check_settings(kind: type[Algorithm], name: str) -> None:
    config = kind.Config
    if not dataclasses.is_dataclass(config):
        raise ConfigError(f"{name}.Config must be a dataclass; write @dataclass(frozen=True, kw_only=True) above it")
    if not config.__dataclass_params__.frozen:  # type: ignore[attr-defined]
        raise ConfigError(f"{name}.Config must be frozen; write @dataclass(frozen=True, kw_only=True) above it")
    for field in dataclasses.fields(config):
        if field.default is dataclasses.MISSING and field.default_factory is dataclasses.MISSING:
            raise ConfigError(f"{name}.Config.{field.name} needs a default, with which --algorithm {name} alone will do")
        if "Config" in vars(kind) and not issubclass(config, Settings) and not _mentioned(kind, field.name):
            raise ConfigError(
                f"{name}.Config.{field.name} is read by nothing in {kind.__name__}; use self.settings.{field.name}, or leave it out"
            )


def _mentioned(kind: type, attribute: str) -> bool:
    """Return whether the modules of ``kind``, of its bases and of its settings read ``.attribute`` of something.

    True where a source is not at hand, imports from beside it, or reads attributes by names that only a run knows.
    """
    classes = [each for each in kind.__mro__ if issubclass(each, Algorithm) and each is not Algorithm]
    for each in (*classes, kind.Config):  # type: ignore[attr-defined]
        try:
            tree = ast.parse(inspect.getsource(sys.modules[each.__module__]))
        except (OSError, TypeError, SyntaxError, KeyError):
            return True
        for node in ast.walk(tree):
            if isinstance(node, ast.Attribute) and node.attr == attribute:
                return True
            if isinstance(node, ast.Call) and isinstance(node.func, ast.Name) and node.func.id in BY_NAME:
                return True
            if isinstance(node, ast.ImportFrom | ast.Import) and _beside(node, each):
                return True
    return False


def _beside(node: ast.ImportFrom | ast.Import, kind: type) -> bool:
    """Return whether a module is imported that lies beside that of ``kind``, and so may read its settings."""
    folder = Path(getattr(sys.modules[kind.__module__], "__file__", None) or "").parent
    names = [node.module or ""] if isinstance(node, ast.ImportFrom) else [each.name for each in node.names]
    return any((folder / f"{name.partition('.')[0]}{end}").exists() for name in names if name for end in (".py", ""))


def built(kind: type[Algorithm], name: str, setup: Setup) -> Algorithm:
    """Build the algorithm of a run. What a class of the user's own raises or returns instead is a ConfigError."""
    if not is_own(name):
        return kind.build(setup)
    made = _called(name, "build", lambda: kind.build(setup), "the spaces of these environments")
    if not isinstance(made, Algorithm):
        raise ConfigError(f"{name}: build must return the algorithm, got {type(made).__name__}")
    return made


def source_of(algorithm: Algorithm, name: str, envs: Envs) -> Source:
    """Ask the algorithm for its source. What one of the user's own raises or returns instead is a ConfigError."""
    if not is_own(name):
        return algorithm.source(envs)
    made = _called(name, "source", lambda: algorithm.source(envs), "these environments")
    if not isinstance(made, Source):
        raise ConfigError(f"{name}: source must return a source (envs.on_policy(self), say), got {type(made).__name__}")
    return made


def try_algorithm(algorithm: Algorithm, name: str, envs: Envs) -> None:
    """Let a copy of a user's own algorithm act and learn on rows of zeros; a ConfigError says what is wrong with what it returns.
    Those of fugu are not tried: tests do that."""
    if not is_own(name):
        return
    taken = sorted(GROUPS & {key for key, _ in algorithm.named_children()})
    if taken:
        raise ConfigError(f"{name}: a checkpoint has a part {taken[0]!r} of its own; give self.{taken[0]} another name")
    with untouched(algorithm):
        copied = replica(algorithm)
        for part in copied.modules():
            if "ranks" in vars(part):
                setattr(part, "ranks", ALONE)  # noqa: B010 - others are not asked
        _check_parts(copied, name)
        seen = blank(envs.vec, envs.device, worlds=2)
        done = _act(copied, name, envs, seen)
        _act(copied, name, envs, dataclasses.replace(seen, greedy=True, training=False))
        if type(algorithm).source is Algorithm.source:  # otherwise batches have columns that only the source knows
            _learn(copied, name, _batch(envs, seen, done))


def _check_parts(algorithm: Algorithm, name: str) -> None:
    """Refuse networks that would be neither learned nor saved, and call what is called rarely."""
    for key, value in vars(algorithm).items():
        several = value.values() if isinstance(value, dict) else value if isinstance(value, list | tuple) else ()
        if not key.startswith("_") and any(isinstance(each, nn.Module) for each in several):
            raise ConfigError(f"{name}: self.{key} holds networks that are not found there; use nn.ModuleList or nn.ModuleDict")
    costs = dict.fromkeys(getattr(algorithm, "costs", ()), 0.0)
    merit = _called(name, "merit", lambda: algorithm.merit(0.0, costs), "a mean return of 0")
    if not (merit is None or isinstance(merit, int | float)):
        raise ConfigError(f"{name}: merit must return a number or None, got {_described(merit)}")
    _called(name, "restarted", algorithm.restarted, "environments that have been restarted")


def _act(algorithm: Algorithm, name: str, envs: Envs, seen: Seen) -> Act:
    rows = len(seen.first)
    with torch.no_grad():
        done = _called(name, "act", lambda: algorithm.act(seen), f"{rows} rows of zeros")
    if not isinstance(done, Act):
        raise ConfigError(f"{name}: act must return fugu.Act(env_action, ...), got {type(done).__name__}")
    wanted = [rows, *envs.vec.action_layout.row_shape]
    _expect(name, "env_action of act", done.env_action, wanted, "use self.policy.distribution.to_env(action)")
    taken = {column.name for column in ENV_COLUMNS}.union(envs.vec.spec.columns)
    for what, columns in (("columns", done.columns), ("carry", done.carry or {})):
        for key, column in columns.items():
            if what == "columns" and key in taken:
                raise ConfigError(f"{name}: act keeps a column {key!r}, which environments write; give it another name")
            if not isinstance(column, Tensor) or column.dim() == 0 or len(column) != rows:
                raise ConfigError(f"{name}: {what}[{key!r}] of act must be a tensor with {rows} rows, got {_described(column)}")
            if column.is_floating_point() and not column.isfinite().all():
                raise ConfigError(
                    f"{name}: {what}[{key!r}] of act is not finite on rows of zeros; look at the network's first weights"
                )
    return done


def _batch(envs: Envs, seen: Seen, done: Act, horizon: int = 2) -> Batch:
    """Return a batch of copies of these rows, with rewards that differ."""
    rows = len(seen.first)

    def repeated(column: Tensor) -> Tensor:
        return column[:, None].expand(rows, horizon, *column.shape[1:]).clone()

    columns = {"obs": repeated(seen.obs), "first": repeated(seen.first), "mask": repeated(seen.first)}
    columns["first"][:, 1:] = False
    columns["reward"] = torch.linspace(-1, 1, rows * horizon, device=envs.device).view(rows, horizon)
    columns["terminated"] = torch.zeros_like(columns["first"])
    columns["truncated"] = torch.zeros_like(columns["first"])
    for form in present(envs.vec.spec):
        if form.name not in columns and form.when == "outcome":
            columns[form.name] = torch.zeros((rows, horizon, *form.shape), dtype=TORCH_DTYPES[form.dtype], device=envs.device)
    if envs.vec.spec.num_agents > 1:
        columns["acts_after"] = seen.first.clone()
    columns |= {key: repeated(column) for key, column in done.columns.items()}
    columns |= {kept: done.columns[key].clone() for key, kept in BOOTSTRAPS.items() if key in done.columns}
    carry = {key: torch.zeros_like(column) for key, column in (done.carry or {}).items()}
    return Batch({**columns, **carry}, PER_SEGMENT | carry.keys())


def _learn(algorithm: Algorithm, name: str, batch: Batch) -> None:
    what = f"a batch of {batch.segments} segments x {batch.horizon} rows"
    with torch.no_grad():
        batch = _called(name, "prepare", lambda: algorithm.prepare(batch, 0.0), what)
    if not isinstance(batch, Batch):
        raise ConfigError(f"{name}: prepare must return a batch (batch.also(advantage=...)), got {type(batch).__name__}")
    with torch.enable_grad():
        if algorithm.losses is None:
            _check_loss(name, "loss", _called(name, "loss", lambda: algorithm.loss(batch), what), what)
        else:
            losses = _called(name, "losses", lambda: algorithm.losses(batch), what)  # type: ignore[misc]
            if not isinstance(losses, Iterator):
                raise ConfigError(f"{name}: losses must be a generator; write yield loss, metrics")
            while (found := _called(name, "losses", lambda: next(losses, None), what)) is not None:
                _check_loss(name, "losses", found, what)
    if all(p.grad is None for p in algorithm.parameters()):
        raise ConfigError(f"{name}: loss depends on no weight of the algorithm; keep networks as attributes: self.critic = ...")
    with torch.no_grad():
        _check_metrics(name, "finish", _called(name, "finish", lambda: algorithm.finish(batch), what))


def _check_loss(name: str, member: str, found: Any, what: str) -> None:
    if not isinstance(found, tuple) or len(found) != 2:
        verb = "return" if member == "loss" else "yield"
        raise ConfigError(f"{name}: {member} must {verb} (loss, metrics), got {type(found).__name__}")
    loss, metrics = found
    if not isinstance(loss, Tensor) or loss.dim() or not loss.is_floating_point():
        raise ConfigError(
            f"{name}: loss must be a scalar, got {_described(loss)}; take its mean over the rows of batch['mask']"
        )
    if not loss.isfinite():
        raise ConfigError(f"{name}: loss is {loss.item()} on rows of zeros; look for divisions by zero and logarithms of it")
    if not loss.requires_grad:
        raise ConfigError(f"{name}: loss carries no gradient, so nothing is learned; leave out torch.no_grad() and detach()")
    _called(name, "the gradient of loss", loss.backward, what)
    _check_metrics(name, member, metrics)


def _check_metrics(name: str, member: str, metrics: Any) -> Metrics:
    if not isinstance(metrics, dict):
        raise ConfigError(f"{name}: metrics of {member} must be a dict of scalars, got {type(metrics).__name__}")
    for key, value in metrics.items():
        if not isinstance(value, Tensor) or value.dim() or value.requires_grad:
            raise ConfigError(
                f"{name}: the metric {key!r} of {member} must be a scalar tensor without a gradient, got {_described(value)}; "
                "use value.detach()"
            )
        if not key.startswith(("loss/", "env/")):
            raise ConfigError(
                f"{name}: the metric {key!r} of {member} must have a name that begins with loss/, as in 'loss/{key}'"
            )
    return metrics


def _called(name: str, member: str, call: Callable[[], Any], what: str) -> Any:
    try:
        return call()
    except FuguError:
        raise
    except Exception as error:
        raise ConfigError(f"{name}: {member} failed on {what}: {raised(error)}") from error


def _expect(name: str, what: str, got: Any, shape: list[int], fix: str) -> None:
    if not isinstance(got, Tensor) or list(got.shape) != shape:
        raise ConfigError(f"{name}: {what} must be a tensor {shape}, got {_described(got)}; {fix}")


def _described(value: Any) -> str:
    if isinstance(value, Tensor):
        grad = " with a gradient" if value.requires_grad else ""
        return f"{str(value.dtype).removeprefix('torch.')}{list(value.shape)}{grad}"
    return type(value).__name__
