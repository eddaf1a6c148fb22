"""The short way from one observation to the most probable action, for networks whose ``act`` does nothing else.

What an action costs beyond the network's own forward pass is one write into a row that is kept, and a look at the parameters with
numpy. Whatever has no short way (a batch, a mask, a value that needs converting) is left to the long one, which says what is wrong.
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
from fugu.rollout.acting import Carry
from fugu.run.observed import Reader


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
        self._decode = decoder(network, reader)

    def __call__(self, obs: Any, memory: Carry | None) -> tuple[Any, Carry | None]:
        """Return the action on ``obs`` and the memory after it; None and the memory as it was if there is no short way."""
        if not self._pack(obs, self._row):
            return None, memory
        with torch.inference_mode():
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
    if not plain or device.type != "cpu" or reader.masked or native is None:
        return None
    return Quick(network, reader, native.pack)


def decoder(network: ActorCritic, reader: Reader) -> Callable[[Tensor], Any]:
    """Return a function of the parameters of one row: the most probable action in the environment's own form."""
    distribution, space = network.distribution, reader.env.action_space
    if isinstance(space, gs.Discrete):
        start = int(space.start)
        return lambda params: int(params.numpy()[0].argmax()) + start
    if isinstance(space, gs.Box) and space.dtype == np.float32 and not distribution.squashes:
        scale, shift = distribution.env_action.units()
        if bool((scale == 1).all() and (shift == 0).all()):  # the mean is the action, up to its bounds
            low, high, size = space.low, space.high, distribution.reals
            return lambda params: params.numpy()[0, :size].reshape(space.shape).clip(low, high)

    def action(params: Tensor) -> Any:
        return reader.actions.value(distribution.to_env(distribution.mode(params)).numpy(), single=True)

    return action
