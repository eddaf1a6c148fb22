"""The short way from one observation to the most probable action, for networks whose ``act`` does nothing else.

What an action costs beyond the network's own forward pass is one write into a row that is kept, and a look at the parameters with
numpy. Whatever has no short way (a batch, a mask beside the observation, a value that needs converting) is left to the long one,
which says what is wrong.
"""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

import numpy as np
import torch
from gymnasium import spaces as gs
from torch import Tensor

from fugu.algorithm.contract import Algorithm
from fugu.policy.actor_critic import ActorCritic
from fugu.policy.distribution import Distribution
from fugu.rollout.acting import Carry
from fugu.run.observed import Reader
from fugu.spaces.layout import Leaf, Node

Row = np.ndarray
"""parameters of one row, ``[size]``"""


class Quick:
    def __init__(self, network: ActorCritic, reader: Reader, pack: Callable[[Any, Any], bool]) -> None:
        """``pack``: the native packer of observations."""
        rows = reader.observations.layout.zeros(1)
        self._row = rows[0, ...]
        self._obs, self._begins, self._goes_on = (
            torch.from_numpy(rows),
            torch.ones(1, dtype=torch.bool),
            torch.zeros(1, dtype=torch.bool),
        )
        self._network, self._pack, self._recurrent = network, pack, network.state_size > 0
        self._without_gradient = torch.inference_mode()  # kept: making one costs as much as entering it
        mask = reader.mask_of(rows)
        decode = decoder(network, reader)
        self._decode = decode if mask is None else masked(decode, mask, reader)

    def __call__(self, obs: Any, memory: Carry | None) -> tuple[Any, Carry | None]:
        """Return the action on ``obs`` and the memory after it; None and the memory as it was if there is no short way."""
        if not self._pack(obs, self._row):
            return None, memory
        with self._without_gradient:
            if not self._recurrent:
                return self._decode(self._network(self._obs, None, self._goes_on).params), None
            if memory is None:
                params, _, state = self._network(self._obs, None, self._begins)
            elif len(memory["state"]) == 1:
                params, _, state = self._network(self._obs, memory["state"], self._goes_on)
            else:
                return None, memory
            return self._decode(params), {"state": state}


def quick_of(algorithm: Algorithm, reader: Reader, device: torch.device) -> Quick | None:
    """Return the short way, if there is one for this algorithm, its network and these spaces."""
    network = algorithm.policy
    plain = getattr(type(algorithm).act, "greedy_is_mode", False) and isinstance(network, ActorCritic)
    native = reader.observations.packer.fast
    if not plain or device.type != "cpu" or native is None:
        return None
    return Quick(network, reader, native.pack)


def decoder(network: ActorCritic, reader: Reader) -> Callable[[Tensor], Any]:
    """Return a function of the parameters of one row: the most probable action in the environment's own form."""
    distribution, space, layout = network.distribution, reader.env.action_space, reader.actions.layout
    if isinstance(space, gs.Discrete):
        start = int(space.start)
        return lambda params: int(params.numpy()[0].argmax()) + start
    leaves = leaf_decoders(distribution, layout.leaves)
    build = None if leaves is None or distribution.squashes else builder(layout.root, leaves)
    if build is None:
        return lambda params: reader.actions.value(distribution.to_env(distribution.mode(params)).numpy(), single=True)
    scale, shift = torch.ones(1, distribution.size), torch.zeros(1, distribution.size)
    reals = slice(distribution.choices + distribution.binaries, distribution.size - distribution.reals)
    scale[0, reals], shift[0, reals] = distribution.env_action.units()
    if bool((scale == 1).all() and (shift == 0).all()):  # means are the numbers, up to their bounds
        return lambda params: build(_single(params).numpy()[0])
    kept = torch.empty(1, distribution.size)
    row = kept.numpy()[0]

    def action(params: Tensor) -> Any:
        torch.addcmul(shift, _single(params), scale, out=kept)  # rounds as EnvAction does
        return build(row)

    return action


def masked(decode: Callable[[Tensor], Any], mask: np.ndarray, reader: Reader) -> Callable[[Tensor], Any]:
    """Return ``decode`` without the choices that ``mask [choices]`` forbids, which is read at every call. A mask that forbids
    all of them forbids none."""
    space, choices = reader.env.action_space, reader.choices
    if isinstance(space, gs.Discrete):
        start = int(space.start)

        def choice(params: Tensor) -> int:
            row = params.numpy()[0]
            found = np.where(mask, row, -np.inf).argmax()
            return int(found if mask[found] else row.argmax()) + start

        return choice

    def action(params: Tensor) -> Any:
        if mask.any():
            params = params.clone()  # a network may return what it keeps
            np.copyto(params.numpy()[0, :choices], -np.inf, where=mask == 0)
        return decode(params)

    return action


def leaf_decoders(distribution: Distribution, leaves: tuple[Leaf, ...]) -> list[Callable[[Row], Any]] | None:
    """Return per leaf a function that makes its value, in memory of its own, of parameters whose means are in the units of the
    environment; None if one has none."""
    found: list[Callable[[Row], Any]] = []
    choice, bit = 0, distribution.choices
    real = bit + distribution.binaries
    for leaf in leaves:
        space = leaf.space
        if isinstance(space, gs.Discrete) and space.dtype == np.int64:
            found.append(_one_of(choice, choice + int(space.n), space.start))
            choice += int(space.n)
        elif isinstance(space, gs.MultiDiscrete) and space.dtype == np.int64:
            found.append(_several(choice, space))
            choice += int(space.nvec.sum())
        elif isinstance(space, gs.MultiBinary):
            found.append(_bits(bit, space))
            bit += int(np.prod(space.shape))
        elif isinstance(space, gs.Box) and space.dtype == np.float32:
            found.append(_numbers(real, space))
            real += int(np.prod(space.shape))
        else:
            return None
    return found


def builder(node: Node, leaves: list[Callable[[Row], Any]]) -> Callable[[Row], Any] | None:
    """Return a function that makes the value at ``node`` of those of its leaves; None for structures that are not fixed."""
    if not isinstance(node.space, gs.Dict | gs.Tuple):
        return None if node.children else leaves[node.leaf]
    parts = [builder(child, leaves) for child in node.children]
    known = [part for part in parts if part is not None]
    if len(known) < len(parts):
        return None
    if isinstance(node.space, gs.Tuple):
        return lambda row: tuple([part(row) for part in known])
    named = list(zip(node.keys, known, strict=True))
    return lambda row: {key: part(row) for key, part in named}


def _single(params: Tensor) -> Tensor:
    return params if params.dtype is torch.float32 else params.float()


def _one_of(begin: int, end: int, start: np.integer) -> Callable[[Row], Any]:
    return lambda row: row[begin:end].argmax() + start


def _several(begin: int, space: gs.MultiDiscrete) -> Callable[[Row], Any]:
    counts, shape, start = np.ravel(space.nvec).tolist(), space.shape, np.asarray(space.start)
    end, shifts = begin + sum(counts), bool(start.any())
    if len(set(counts)) == 1:
        rows, width = len(counts), counts[0]

        def found(row: Row) -> np.ndarray:
            return row[begin:end].reshape(rows, width).argmax(1)
    else:
        ends = begin + np.cumsum(counts)
        cuts = [slice(int(stop) - count, int(stop)) for stop, count in zip(ends, counts, strict=True)]

        def found(row: Row) -> np.ndarray:
            return np.array([row[cut].argmax() for cut in cuts])

    return lambda row: found(row).reshape(shape) + start if shifts else found(row).reshape(shape)


def _bits(begin: int, space: gs.MultiBinary) -> Callable[[Row], Any]:
    end, shape = begin + int(np.prod(space.shape)), space.shape
    return lambda row: (row[begin:end] > 0).view(np.int8).reshape(shape)


def _numbers(begin: int, space: gs.Box) -> Callable[[Row], Any]:
    end, shape, low, high = begin + int(np.prod(space.shape)), space.shape, space.low.ravel(), space.high.ravel()
    if len(shape) == 1:
        return lambda row: np.minimum(np.maximum(row[begin:end], low), high)
    return lambda row: np.minimum(np.maximum(row[begin:end], low), high).reshape(shape)
