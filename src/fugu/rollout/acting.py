"""Acting: what a policy sees of some rows, what it does on them, and a view of its weights that can act while others change.

A ``carry`` is what a policy takes on from an agent's row to its next, by name: ``[rows, ...]`` each. An episode begins with zeros, and
whoever reads a carry clears it where ``first`` is True; None is zeros everywhere.
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
    """Rows that wait for an action, where the policy is."""

    obs: Tensor
    """[rows, *row_shape]"""
    first: Tensor
    """[rows] bool; the row is the first of its episode"""
    reward: Tensor | None = None
    """[rows] what the action before brought; 0 in the first row of an episode"""
    mask: Tensor | None = None
    """[rows] bool; False where no action counts: the row after an ending, and agents that wait or are not there"""
    action_mask: Tensor | None = None
    """[rows, choices] bool; None: nothing is forbidden"""
    carry: Carry | None = None
    """what ``Act.carry`` was on the row before; None: zeros"""
    training: bool = False
    """whether the rows will be learned from"""
    greedy: bool = False
    """whether to take what is most probable instead of drawing"""
    generator: torch.Generator | None = None
    """where to draw from; None: from a generator of the policy's own"""
    into: Mapping[str, Tensor] | None = None
    """where columns are to be kept: a policy may write them there itself and leave them out of ``Act.columns``"""


@dataclass(slots=True)
class Act:
    """What a policy did on some rows."""

    env_action: Tensor
    """[rows, *row_shape] for the environment, where the policy is"""
    carry: Carry | None = None
    """what is to be seen of it on the next rows; None: nothing"""
    columns: Mapping[str, Tensor] = field(default_factory=dict)
    """what is kept beside the rows: ``action``, and whatever learning wants to see again (logprob, value, ...)"""


Acts = Callable[[Seen], Act]


@dataclass(frozen=True, slots=True)
class Actor:
    """A policy as it was published."""

    act: Acts
    """acts on rows"""
    version: int = 0
    """updates that were done when it was published"""


class Published:
    """Publishes copies of a module that acts, so that it can act in one thread while another one changes its weights.

    There are two copies, so an actor stays what it was until the second ``publish`` after its own. Random generators are shared
    with the original: only one of the actors may act at a time.
    """

    def __init__(self, module: nn.Module, act: Callable[[Any], Acts] = lambda module: module.act) -> None:
        self._module, self._act = module, act
        self._copies = [replica(module).requires_grad_(False) for _ in range(2)]
        self._turn = 0

    def publish(self, version: int) -> Actor:
        """Return an actor of this moment, after copying all weights and statistics."""
        self._turn ^= 1
        into = self._copies[self._turn]
        with torch.no_grad():
            into.load_state_dict(self._module.state_dict())
        return Actor(self._act(into), version)


def replica(module: Net) -> Net:
    """Return a copy of ``module`` that shares its random generators and its ranks."""
    shared: dict[int, Any] = {id(generator): generator for generator in generators(module).values()}
    ranks = [part.ranks for part in module.modules() if isinstance(getattr(part, "ranks", None), Ranks)]
    return copy.deepcopy(module, shared | {id(each): each for each in ranks})


def generators(module: nn.Module) -> dict[str, torch.Generator]:
    """Find all random generators that ``module`` and its parts have as attributes, by path."""
    found: dict[str, torch.Generator] = {}
    for path, part in module.named_modules():
        for name, value in vars(part).items():
            if isinstance(value, torch.Generator):
                found[f"{path}.{name}" if path else name] = value
    return found


def forms_of(columns: Mapping[str, Tensor] | None) -> dict[str, tuple[tuple[int, ...], torch.dtype]]:
    """Return shape and dtype of a row of each of ``columns``."""
    return {name: (tuple(column.shape[1:]), column.dtype) for name, column in (columns or {}).items()}


def zeros(forms: Forms, rows: int, device: torch.device | str) -> dict[str, Tensor]:
    """Return columns of zeros."""
    return {name: torch.zeros((rows, *shape), dtype=dtype, device=device) for name, (shape, dtype) in forms.items()}
