"""Acting: the rows a policy sees, what it does on them, and a copy of its weights that can act while the original changes.

A ``carry`` is what a policy takes along from an agent's row to its next, by name: ``[rows, ...]`` each. An episode begins with
zeros, and the code that reads a carry clears it where ``first`` is True; None is zeros everywhere.
"""

from __future__ import annotations

import copy
from collections.abc import Callable, Mapping
from dataclasses import dataclass, field
from typing import Any, TypeVar

import torch
from torch import Tensor, nn

from fugu.ranks import Ranks

Net = TypeVar("Net", bound=nn.Module)

Carry = Mapping[str, Tensor]

Forms = Mapping[str, tuple[tuple[int, ...], torch.dtype]]
"""columns by name: the shape of a row, and its dtype"""


@dataclass(slots=True)
class Seen:
    """Rows that wait for an action, on the policy's device."""

    obs: Tensor
    """[rows, *row_shape]"""
    first: Tensor
    """[rows] bool; the row is the first of its episode"""
    reward: Tensor | None = None
    """[rows] reward of the action before; 0 in the first row of an episode"""
    mask: Tensor | None = None
    """[rows] bool; False where no action counts: the row after an ending, and agents that wait or are absent"""
    action_mask: Tensor | None = None
    """[rows, choices] bool; None: nothing is forbidden"""
    carry: Carry | None = None
    """``Act.carry`` of the row before; None: zeros"""
    training: bool = False
    """True if the rows will be learned from"""
    greedy: bool = False
    """True to take the most probable action instead of drawing one"""
    generator: torch.Generator | None = None
    """generator to draw from; None: the policy's own"""
    into: Mapping[str, Tensor] | None = None
    """tensors that columns are kept in: a policy may write them there itself and leave them out of ``Act.columns``"""


@dataclass(slots=True)
class Act:
    """The actions of a policy on some rows, and what it keeps of them."""

    env_action: Tensor
    """[rows, *row_shape] for the environment, on the policy's device"""
    carry: Carry | None = None
    """what the policy sees again on the next rows; None: nothing"""
    columns: Mapping[str, Tensor] = field(default_factory=dict)
    """columns kept beside the rows: ``action``, and everything that learning needs again (logprob, value, ...)"""


Acts = Callable[[Seen], Act]


@dataclass(frozen=True, slots=True)
class Actor:
    """A published version of a policy."""

    act: Acts
    """function that acts on rows"""
    version: int = 0
    """number of updates when it was published"""


class Published:
    """Publishes copies of a module that acts, so that it can act in one thread while another thread changes its weights.

    There are two copies, so an actor stays unchanged until the second ``publish`` after its own. Random generators are shared with
    the original, or, ``apart`` from it, among the copies: only one of the actors may act at a time.
    """

    def __init__(
        self,
        module: nn.Module,
        act: Callable[[Any], Acts] = lambda module: module.act,
        *,
        copies: int = 2,
        apart: bool = False,
    ) -> None:
        """``copies``: one is enough if nobody acts while weights are published."""
        self._module, self._act = module, act
        first = replica(module, apart=apart).requires_grad_(False)
        self._copies = [first, *(replica(first).requires_grad_(False) for _ in range(copies - 1))]
        self._turn = 0

    @property
    def generators(self) -> dict[str, torch.Generator]:
        """Return the random generators that actors draw from, by path."""
        return generators(self._copies[0])

    def publish(self, version: int) -> Actor:
        """Return an actor of this moment, after copying all weights and statistics."""
        self._turn = (self._turn + 1) % len(self._copies)
        into = self._copies[self._turn]
        with torch.no_grad():
            into.load_state_dict(self._module.state_dict())
        return Actor(self._act(into), version)


def replica(module: Net, *, apart: bool = False) -> Net:
    """Return a copy of ``module`` that shares its ranks and its random generators; ``apart``: with generators of its own, in the same
    states."""
    shared: dict[int, Any] = {id(each): _copy_of(each) if apart else each for each in generators(module).values()}
    ranks = [part.ranks for part in module.modules() if isinstance(getattr(part, "ranks", None), Ranks)]
    return copy.deepcopy(module, shared | {id(each): each for each in ranks})


def _copy_of(generator: torch.Generator) -> torch.Generator:
    copied = torch.Generator(generator.device)
    copied.set_state(generator.get_state())
    return copied


def generators(module: nn.Module) -> dict[str, torch.Generator]:
    """Find all random generators that ``module`` and its parts have as attributes, also in lists and mappings, by path."""
    found: dict[str, torch.Generator] = {}
    for path, part in module.named_modules():
        prefix = f"{path}." if path else ""
        for name, value in vars(part).items():
            if name in _OF_ANY_MODULE:
                continue
            if isinstance(value, dict):
                found |= {f"{prefix}{name}.{key}": each for key, each in value.items() if _is_generator(each)}
            elif isinstance(value, list | tuple):
                found |= {f"{prefix}{name}.{key}": each for key, each in enumerate(value) if _is_generator(each)}
            elif _is_generator(value):
                found[f"{prefix}{name}"] = value
    return found


_OF_ANY_MODULE = frozenset(vars(nn.Module()))
"""attributes that torch gives to every module: there are many, and this is asked before every update"""


def _is_generator(value: object) -> bool:
    return torch.Generator in type(value).__mro__  # isinstance asks a method in Python, which takes ten times as long


def forms_of(columns: Mapping[str, Tensor] | None) -> dict[str, tuple[tuple[int, ...], torch.dtype]]:
    """Return the shape and dtype of a row of each of ``columns``."""
    return {name: (tuple(column.shape[1:]), column.dtype) for name, column in (columns or {}).items()}


def zeros(forms: Forms, rows: int, device: torch.device | str) -> dict[str, Tensor]:
    """Return columns of zeros."""
    return {name: torch.zeros((rows, *shape), dtype=dtype, device=device) for name, (shape, dtype) in forms.items()}
