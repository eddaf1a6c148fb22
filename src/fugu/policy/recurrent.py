"""Memory between encoder and heads: LSTM and MinGRU, each in a stepping and a sequence form that compute the same.

``step(x [B, I], state [B, S], first [B]) -> (out [B, H], state [B, S])`` advances by one row. ``sequence(x [B, T, I], state [B, S],
first [B, T]) -> (out [B, T, H], state [B, S])`` does the same for T rows; gradients flow through time inside it. The state is
one flat tensor and zero at the start of an episode: it is zeroed before a row with ``first`` is processed. ``ops/lstm.py`` and
``ops/mingru.py`` compute them.
"""

from __future__ import annotations

from typing import cast

import torch
from torch import Tensor, nn

from fugu.ops.lstm import lstm, lstm_step, takes_segments
from fugu.ops.mingru import Layer, mingru, mingru_step
from fugu.policy.layers import orthogonal
from fugu.policy.net import Linear


class LSTM(nn.Module):
    """Long short-term memory (Hochreiter & Schmidhuber 1997). State: output and cell side by side.

    Rows of the weights are in torch's order: input gate, forget gate, candidate, output gate.
    """

    def __init__(self, size_in: int, size: int) -> None:
        super().__init__()
        self.size = size
        self.state_size = 2 * size
        self.weight_in = nn.Parameter(_stacked(4, size, size_in))
        self.weight_state = nn.Parameter(_stacked(4, size, size))
        bias = torch.zeros(4 * size)
        bias[size : 2 * size] = 1.0  # remember until taught otherwise (Jozefowicz et al. 2015)
        self.bias = nn.Parameter(bias)

    @property
    def takes_segments(self) -> bool:
        """True if ``sequence`` reads ``[B, T, I]`` as it is; False if it prefers time first in memory."""
        return takes_segments(self.weight_in)

    def step(self, x: Tensor, state: Tensor, first: Tensor) -> tuple[Tensor, Tensor]:
        return lstm_step(x, self.weight_in, self.weight_state, self.bias, state, first)

    def sequence(self, x: Tensor, state: Tensor, first: Tensor) -> tuple[Tensor, Tensor]:
        return lstm(x, self.weight_in, self.weight_state, self.bias, state, first)


class MinGRU(nn.Module):
    """Minimal gated recurrent unit (Feng et al. 2024): gates depend on the input only, so that all rows are computed at once.

    Each layer is ``h = (1 - z) * h + z * candidate`` and puts out ``h`` or its own input, by a learned highway gate. State: ``h``
    of the layers side by side.
    """

    LONGEST = 32
    """rows after which the slowest units have forgotten two thirds, at the start of training"""

    def __init__(self, size_in: int, size: int, layers: int = 1) -> None:
        super().__init__()
        self.size = size
        self.state_size = layers * size
        self.enter = orthogonal(Linear(size_in, size), 1.0) if size_in != size else nn.Identity()
        self.layers = nn.ModuleList(nn.Linear(size, 3 * size) for _ in range(layers))
        """candidate, gate z and highway gate of each layer"""
        # gates start with time constants spread over 1..LONGEST rows (Tallec & Ollivier 2018)
        spread = -torch.linspace(1, self.LONGEST, size).log()
        for layer in self._linear:
            layer.weight.data.copy_(_stacked(3, size, size))
            layer.bias.data.zero_()
            layer.bias.data[size : 2 * size] = spread

    takes_segments = False
    """the scan goes through time"""

    def step(self, x: Tensor, state: Tensor, first: Tensor) -> tuple[Tensor, Tensor]:
        return mingru_step(x, *self._weights(), state, first)

    def sequence(self, x: Tensor, state: Tensor, first: Tensor) -> tuple[Tensor, Tensor]:
        return mingru(x, *self._weights(), state, first)

    def _weights(self) -> tuple[Layer | None, list[Layer]]:
        """Return weight and bias of the layer before all others, if there is one, and of each layer."""
        enter = (self.enter.weight, self.enter.bias) if isinstance(self.enter, nn.Linear) else None
        return enter, [(layer.weight, layer.bias) for layer in self._linear]

    @property
    def _linear(self) -> list[nn.Linear]:
        return cast("list[nn.Linear]", list(self.layers))


def _stacked(blocks: int, size: int, size_in: int) -> Tensor:
    """Return ``[blocks * size, size_in]``, each block orthogonal."""
    return torch.cat([nn.init.orthogonal_(torch.empty(size, size_in)) for _ in range(blocks)])
