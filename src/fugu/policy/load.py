"""A network of the user's own: found by name, built, and tried on two rows before anything else starts."""

from __future__ import annotations

import dataclasses
import inspect
from typing import Any

import torch
from gymnasium import spaces as gs
from torch import Tensor, nn

from fugu.emulation.factory import load_named
from fugu.errors import ConfigError, FuguError
from fugu.policy.config import PolicyConfig


def build_net(observation_space: gs.Space, action_space: gs.Space, config: PolicyConfig) -> nn.Module:
    """Return ``Net(observation_space, action_space, **settings)``; the settings are those fields of the config that it names."""
    kind = find(config.net)
    if isinstance(kind, type) and not issubclass(kind, nn.Module):
        raise ConfigError(f"{config.net} must be a torch.nn.Module; write class {kind.__name__}(nn.Module)")
    settings = {name: getattr(config, name) for name in _settings(kind)}
    try:
        net = kind(observation_space, action_space, **settings)
    except FuguError:
        raise
    except Exception as error:
        call = ", ".join(("observation_space", "action_space", *(f"{name}=..." for name in settings)))
        raise ConfigError(f"{config.net}: building it with ({call}) failed: {type(error).__name__}: {error}") from error
    if not isinstance(net, nn.Module):
        raise ConfigError(f"{config.net} must make a torch.nn.Module, got {type(net).__name__}")
    missing = [name for name in ("encode", "decode") if not callable(getattr(net, name, None))]
    size = getattr(net, "hidden_size", None)
    if not isinstance(size, int) or isinstance(size, bool) or size < 1:
        missing.append("hidden_size (a whole number: how many features encode returns)")
    if missing:
        raise ConfigError(f"{config.net} has no {', '.join(missing)}; see `fugu new policy` for a working example")
    return net


def _settings(kind: Any) -> list[str]:
    """Return the fields of the config that ``kind`` takes; all of them if it takes any keyword."""
    names = [field.name for field in dataclasses.fields(PolicyConfig) if field.name != "net"]
    if not callable(kind) or getattr(kind, "__init__", None) is nn.Module.__init__:  # its **kwargs only serves to refuse them
        return []
    parameters = inspect.signature(kind).parameters.values()
    if any(p.kind is p.VAR_KEYWORD for p in parameters):
        return names
    return [name for name in names if name in {p.name for p in parameters}]


def find(name: str) -> Any:
    """Return the class that ``file.py:Net`` or ``module:Net`` names."""
    if ":" not in name:
        raise ConfigError(
            f"policy.net={name} has no values, which this algorithm needs; type --algorithm grpo or --policy.net default"
        )
    return load_named(name)


@torch.enable_grad()
def try_net(net: Any, name: str, obs: Any, core_size: int | None, params_size: int) -> None:
    """Run ``encode`` and ``decode`` on the two rows of zeros ``obs``, and raise an error about any output that does not fit or that
    could not be learned. ``core_size``: of the recurrent core between them, None without one."""
    if core_size is None and not any(p.requires_grad for p in net.parameters()):
        raise ConfigError(f"{name} has no weights to learn; keep its layers as attributes: self.layer = nn.Linear(...)")
    training = net.training
    net.eval()  # two rows of zeros must not enter anyone's batch statistics
    try:
        hidden = _call(name, "encode", net.encode, obs)
        _expect(name, "encode(obs)", hidden, [(2, net.hidden_size)], "hidden [rows, hidden_size]")
        features = hidden.new_zeros(2, core_size or net.hidden_size)
        features.requires_grad_(core_size is not None or hidden.requires_grad)
        answer = _call(name, "decode", net.decode, features)
        if not isinstance(answer, tuple) or len(answer) != 2:
            raise ConfigError(f"{name}: decode(hidden) must return (params, value), got {type(answer).__name__}")
        _expect(name, "params of decode(hidden)", answer[0], [(2, params_size)], "params [rows, distribution.size]")
        _expect(name, "value of decode(hidden)", answer[1], [(2,), (2, 1)], "value [rows]")
        if not answer[0].requires_grad and not torch.is_inference_mode_enabled():
            raise ConfigError(
                f"{name}: params of decode(hidden) carry no gradient, so nothing is learned; leave out torch.no_grad(), detach() "
                "and .data in encode and decode"
            )
    finally:
        net.train(training)


def _call(name: str, method: str, function: Any, argument: Any) -> Any:
    try:
        return function(argument)
    except FuguError:
        raise
    except Exception as error:
        raise ConfigError(
            f"{name}: {method} failed on two rows ({_describe(argument)}): {type(error).__name__}: {error}"
        ) from error


def _expect(name: str, what: str, got: Any, shapes: list[tuple[int, ...]], meaning: str) -> None:
    if not isinstance(got, Tensor) or not got.is_floating_point() or tuple(got.shape) not in shapes:
        raise ConfigError(
            f"{name}: {what} must be a float tensor {list(shapes[0])} for two rows ({meaning}), got {_describe(got)}"
        )
    if got.dtype != torch.float32:
        raise ConfigError(f"{name}: {what} must be float32, got {_describe(got)}; leave out .double(), or end with .float()")
    if not got.isfinite().all():
        raise ConfigError(
            f"{name}: {what} must be finite for two rows of zeros, got {got[~got.isfinite()][0].item()}; look at its first weights, "
            "and for divisions by zero"
        )


def _describe(value: Any) -> str:
    if isinstance(value, Tensor):
        return f"{str(value.dtype).removeprefix('torch.')}{list(value.shape)}"
    if isinstance(value, dict):
        return "{" + ", ".join(f"{key!r}: {_describe(part)}" for key, part in value.items()) + "}"
    if isinstance(value, tuple):
        return "(" + ", ".join(map(_describe, value)) + ")"
    return type(value).__name__
