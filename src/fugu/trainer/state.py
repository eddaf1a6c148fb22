"""The state of an algorithm in a checkpoint, found by inspection: the state of every part, its own tensors, and random generators."""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any

from torch import Tensor, nn

from fugu.algorithm.contract import Algorithm
from fugu.errors import ConfigError
from fugu.rollout.acting import generators
from fugu.trainer.sound import check_moments, check_numbers, put

OWN = "algorithm"
"""group of state that belongs to no part: tensors of the algorithm itself, and generators"""
REPLAY = "replay"
"""group of what a source remembers beside its environments"""
_EXTRA = "_extra_state"


def parts(algorithm: Algorithm) -> dict[str, nn.Module]:
    """Return the parts that are optimised and saved separately: modules that are attributes, and weights of the algorithm itself."""
    found = dict(algorithm.named_children())
    owner: dict[int, str] = {}
    for name, part in found.items():
        for parameter in part.parameters():
            if owner.setdefault(id(parameter), name) != name:
                raise ConfigError(
                    f"self.{owner[id(parameter)]} and self.{name} of the algorithm share weights, and each would move them; keep one "
                    "of the two out of its attributes"
                )
    own = dict(algorithm.named_parameters(recurse=False))
    return {**found, OWN: nn.ParameterDict(own)} if own else found


def saved_state(algorithm: Algorithm) -> dict[str, dict[str, Tensor]]:
    """Return group -> name -> tensor, of all parts and of the algorithm itself."""
    groups = {name: _flat(part.state_dict()) for name, part in algorithm.named_children()}
    return {**groups, OWN: own_state(algorithm)}


def own_state(algorithm: Algorithm) -> dict[str, Tensor]:
    """Return copies of the algorithm's own tensors and the states of all generators."""
    tensors = {name: tensor.detach().clone() for name, tensor in _own_tensors(algorithm).items()}
    if _has_extra(algorithm):
        tensors |= algorithm.get_extra_state()
    return tensors | {name: generator.get_state() for name, generator in generators(algorithm).items()}


def load_state(algorithm: Algorithm, saved: Mapping[str, Mapping[str, Tensor]]) -> None:
    """Put back what ``saved_state`` returned."""
    _check_numbers(algorithm, saved)
    for name, part in algorithm.named_children():
        part.load_state_dict(_nested(saved[name]))
    load_own_state(algorithm, saved[OWN])
    check_moments(algorithm)


def load_own_state(algorithm: Algorithm, saved: Mapping[str, Tensor]) -> None:
    """Put back what ``own_state`` returned."""
    rest = dict(saved)
    for name, tensor in _own_tensors(algorithm).items():
        put(tensor, rest.pop(name), name)
    for name, generator in generators(algorithm).items():
        generator.set_state(rest.pop(name))
    if _has_extra(algorithm):
        algorithm.set_extra_state(rest)


def load_for_playing(algorithm: Algorithm, saved: Mapping[str, Mapping[str, Tensor]]) -> None:
    """Put back everything that acting needs: all weights, and the statistics that fit. Sums over running episodes are of other
    environments."""
    _check_numbers(algorithm, saved)
    for name, part in algorithm.named_children():
        has_weights = next(part.parameters(), None) is not None
        state, mine = _nested(saved.get(name, {})), part.state_dict()
        fits = all(key in state and _shape(state[key]) == _shape(mine[key]) for key in mine)
        if has_weights or fits:
            part.load_state_dict(state)
    own = dict(saved[OWN])
    for key, tensor in _own_tensors(algorithm).items():
        kept = own.pop(key, None)
        if kept is not None and (isinstance(tensor, nn.Parameter) or kept.shape == tensor.shape):
            put(tensor, kept, key)
    if _has_extra(algorithm):
        algorithm.set_extra_state({key: value for key, value in own.items() if key not in generators(algorithm)})
    check_moments(algorithm)


def _check_numbers(algorithm: Algorithm, saved: Mapping[str, Mapping[str, Tensor]]) -> None:
    weights = [name if "." in name else f"{OWN}.{name}" for name, _ in algorithm.named_parameters()]
    check_numbers({name: saved.get(name, {}) for name in (*dict(algorithm.named_children()), OWN)}, weights)


def _own_tensors(algorithm: Algorithm) -> dict[str, Tensor]:
    """Return parameters and buffers of the algorithm itself."""
    passing = algorithm._non_persistent_buffers_set
    buffers = {name: tensor for name, tensor in algorithm.named_buffers(recurse=False) if name not in passing}
    return {**dict(algorithm.named_parameters(recurse=False)), **buffers}


def _has_extra(algorithm: Algorithm) -> bool:
    return type(algorithm).get_extra_state is not nn.Module.get_extra_state


def _flat(state: Mapping[str, Any]) -> dict[str, Tensor]:
    """Return the state of a module, with the mappings that ``get_extra_state`` returned flattened."""
    flat: dict[str, Tensor] = {}
    for name, value in state.items():
        if name.endswith(_EXTRA):
            flat |= {f"{name}/{key}": tensor for key, tensor in value.items()}
        else:
            flat[name] = value
    return flat


def _nested(flat: Mapping[str, Tensor]) -> dict[str, Any]:
    """Return the inverse of ``_flat``."""
    state: dict[str, Any] = {}
    for name, value in flat.items():
        owner, found, key = name.partition(f"{_EXTRA}/")
        if found:
            state.setdefault(owner + _EXTRA, {})[key] = value
        else:
            state[name] = value
    return state


def _shape(tensor: Any) -> Any:
    return getattr(tensor, "shape", None)
