"""Observations -> parameters of the action distribution and values: network, memory and normalisation put together.

In: ``obs`` rows ``[B, *row]`` with ``first [B]`` (stepping) or ``[B, T, *row]`` with ``first [B, T]`` (sequences), and ``state [B,
state_size]``, the memory before the first of these rows. Out: ``params [B, (T,) size]`` for ``policy.distribution``, ``value [B, (T)]``
and the memory after the last row. Without a memory ``state_size`` is 0 and the state passes through untouched.
"""

from __future__ import annotations

from typing import Any, NamedTuple

import torch
from gymnasium import spaces as gs
from torch import Tensor, nn

from fugu.errors import ConfigError
from fugu.ops.gather import flat, time_major, unflat
from fugu.ops.mlp import runs_natively
from fugu.policy.choices import Drawn, Judged
from fugu.policy.config import PolicyConfig
from fugu.policy.distribution import Distribution
from fugu.policy.encoder import is_real, is_vector
from fugu.policy.load import build_net, try_net
from fugu.policy.net import DefaultNet
from fugu.policy.normalize import RunningMoments
from fugu.policy.recurrent import LSTM, MinGRU
from fugu.spaces import Layout
from fugu.spaces.views import leaf_tensors


class Output(NamedTuple):
    params: Tensor
    """[*batch, distribution.size]"""
    value: Tensor
    """[*batch]"""
    state: Tensor | None
    """[B, state_size]"""


def make_policy(
    observation_space: gs.Space, action_space: gs.Space, config: PolicyConfig | None = None, *, seed: int | None = None
) -> ActorCritic:
    """Make a policy for these spaces. With ``seed`` its weights depend on nothing else, and torch's own generator is left alone."""
    config = config or PolicyConfig()
    if seed is None:
        return ActorCritic(observation_space, action_space, config)
    with torch.random.fork_rng(devices=[]):
        torch.manual_seed(seed)
        return ActorCritic(observation_space, action_space, config)


class ActorCritic(nn.Module):
    """A network with ``encode`` and ``decode``, a recurrent core between them if asked for, and the distribution of actions."""

    tokens = 1
    """an action is one choice, however many parts it has"""

    def __init__(self, observation_space: gs.Space, action_space: gs.Space, config: PolicyConfig) -> None:
        super().__init__()
        self.config = config
        self.obs_layout = Layout(observation_space)
        if not self.obs_layout.leaves or 0 in self.obs_layout.row_shape:
            raise ConfigError(f"{observation_space} has nothing to observe; a policy needs at least one number")
        self.distribution = Distribution(action_space)
        self.net: Any
        if config.net == "default":
            self.net = DefaultNet(observation_space, action_space, config)
        else:
            self.net = build_net(observation_space, action_space, config)
        self.core: Any = _core(config, self.net.hidden_size)
        self.state_size = 0 if self.core is None else self.core.state_size
        self.in_bf16 = False
        """True if matrix products are computed in bfloat16"""
        self.moments = nn.ModuleDict(
            {str(i): RunningMoments(leaf.shape) for i, leaf in enumerate(self.obs_layout.leaves) if is_real(leaf)}
            if config.normalize_observation
            else {}
        )
        """moments by index of the leaf; empty unless observations are normalised"""
        self._is_vector = is_vector(observation_space) and not self.moments
        """True if a row is the observation as the network gets it"""
        zeros = torch.from_numpy(self.obs_layout.zeros(2))
        core_size = None if self.core is None else config.core_size
        try_net(self.net, config.net, self.structured(zeros), core_size, self.distribution.size)

    @property
    def computed_natively(self) -> bool:
        """True if nearly all of the work is done by native kernels."""
        if not isinstance(self.net, DefaultNet) or isinstance(self.core, MinGRU) or self.net.encoder.convolves:
            return False
        return runs_natively(next(self.parameters()), self.net.trunk.activation)

    def initial_state(self, n: int, device: torch.device | str | None = None) -> Tensor:
        """Return ``[n, state_size]``, the memory at the start of an episode."""
        return torch.zeros(n, self.state_size, device=device)

    def forward(self, obs: Tensor, state: Tensor | None, first: Tensor) -> Output:
        forward = self._step if first.dim() == 1 else self._sequence
        if state is None and self.core is not None:
            state = self.initial_state(len(first), first.device)
        if not self.in_bf16:
            return forward(obs, state, first)
        with torch.autocast(obs.device.type, torch.bfloat16):
            params, value, state = forward(obs, state, first)
        return Output(params.float(), value.float(), None if state is None else state.float())

    @property
    def joint(self) -> bool:
        """True if logits and value of a single choice are the outputs of one layer, side by side."""
        d, net = self.distribution, self.net
        return isinstance(net, DefaultNet) and net.value_trunk is None and d.heads == d.dims == 1

    def joint_step(self, obs: Tensor, state: Tensor | None, first: Tensor) -> tuple[Tensor, Tensor | None]:
        """Advance by one row: return ``[B, choices + 1]``, logits and value side by side as that layer returns them, and the
        memory."""
        with torch.autocast(obs.device.type, torch.bfloat16, enabled=self.in_bf16):
            hidden = self.net.encode(self.structured(obs))
            if self.core is not None:
                hidden, state = self.core.step(hidden, state, first)
            return self.net.heads[0](hidden), state

    def _step(self, obs: Tensor, state: Tensor | None, first: Tensor) -> Output:
        if self.core is None:
            params, value = self._whole(obs)
        else:
            hidden, state = self.core.step(self.net.encode(self.structured(obs)), state, first)
            params, value = self.net.decode(hidden)
        return Output(params, value.reshape(first.shape), state)

    def _sequence(self, obs: Tensor, state: Tensor | None, first: Tensor) -> Output:
        if self.core is None:
            by_time = time_major(first)
            params, value = self._whole(flat(obs, by_time))
            return Output(unflat(params, first, by_time), unflat(value.reshape(-1), first, by_time), state)
        if self.core.takes_segments:
            hidden = self.net.encode(self.structured(obs.flatten(0, 1))).unflatten(0, first.shape)
            out, state = self.core.sequence(hidden, state, first)
            params, value = self.net.decode(out.flatten(0, 1))
            return Output(params.unflatten(0, first.shape), value.reshape(first.shape), state)
        # this core goes row by row, so rows of one time lie together from here on; its transposing back costs nothing then
        times = first.t().shape
        hidden = self._encoded(obs.transpose(0, 1))  # [T, B, hidden_size]
        out, state = self.core.sequence(hidden.transpose(0, 1), state, first)
        params, value = self.net.decode(out.transpose(0, 1).flatten(0, 1))
        return Output(params.unflatten(0, times).transpose(0, 1), value.reshape(times).t(), state)

    def _encoded(self, obs: Tensor) -> Tensor:
        """Return ``net.encode`` of ``[T, B, *row]``, with rows of one time next to each other."""
        if isinstance(self.net, DefaultNet) and self.net.reads_rows:
            return self.net.encode(self.structured(obs))  # in any memory order: that may save a copy
        return self.net.encode(self.structured(obs.flatten(0, 1))).unflatten(0, obs.shape[:2])

    def _whole(self, rows: Tensor) -> tuple[Tensor, Tensor]:
        """Return parameters and values of ``rows [N, *row]`` without a core between encoder and heads."""
        obs = self.structured(rows)
        return self.net.whole(obs) if hasattr(self.net, "whole") else self.net.decode(self.net.encode(obs))

    def draw(
        self,
        obs: Tensor,
        state: Tensor | None,
        first: Tensor,
        action_mask: Tensor | None,
        generator: torch.Generator,
        *,
        greedy: bool = False,
    ) -> Drawn:
        """Make one choice per row (``choices.py``)."""
        out = self(obs, state, first)
        if greedy:
            action = self.distribution.mode(out.params, action_mask)
            logprob = self.distribution.logprob(out.params, action, action_mask)
        else:
            action, logprob = self.distribution.sample_with_logprob(out.params, action_mask, generator)
        return Drawn(action, logprob[:, None], out.state)

    def judge(self, obs: Tensor, state: Tensor | None, first: Tensor, action: Tensor, action_mask: Tensor | None) -> Judged:
        logprob, entropy = self.distribution.evaluate(self(obs, state, first).params, action, action_mask)
        return Judged(logprob[..., None], entropy[..., None])

    def counts(self, action: Tensor) -> Tensor:
        return torch.ones((*action.shape[:-1], 1), dtype=torch.bool, device=action.device)

    def unfinished(self, action: Tensor) -> Tensor:
        return torch.zeros(action.shape[:-1], dtype=torch.bool, device=action.device)

    @torch.no_grad()
    def observe(self, obs: Tensor, mask: Tensor | None = None) -> None:
        """Take the rows ``obs [*batch, *row]`` where ``mask [*batch]`` is true into the moments that normalise observations."""
        if not self.moments:
            return
        leaves = leaf_tensors(self.obs_layout, obs)
        for index, moments in self.moments.items():
            moments.update(leaves[int(index)], mask)  # type: ignore[operator]

    def structured(self, rows: Tensor) -> Any:
        """Return rows as the space's own structure, reals normalised if asked for; otherwise views."""
        if self._is_vector and rows.dtype is torch.float32 and rows.shape[-1:] == self.obs_layout.row_shape:
            return rows
        leaves = leaf_tensors(self.obs_layout, rows)
        for index, moments in self.moments.items():
            leaves[int(index)] = moments(leaves[int(index)])
        return leaves[0] if self.obs_layout.plain else self.obs_layout.assemble(leaves)


def _core(config: PolicyConfig, size_in: int) -> LSTM | MinGRU | None:
    if config.core == "none":
        return None
    if config.core == "lstm":
        return LSTM(size_in, config.core_size)
    return MinGRU(size_in, config.core_size, config.core_layers)
