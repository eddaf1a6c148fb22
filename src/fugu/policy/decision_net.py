"""The network of a Decision Transformer: what to do so that a return is reached, read off a sequence of returns, observations and
actions (Chen et al. 2021, arXiv:2106.01345).

Each step of an episode is three tokens in a row: the return that is still to come, the observation, the action. What is said of the
time, by a table of steps since the episode began, is added to all three, and there are no other positions. The token of the
observation sees itself and all before it, so not the action that it is to foretell.

In: ``to_go [rows, steps]``, ``obs [rows, steps, *row]``, ``action [rows, steps, dims]``, ``time [rows, steps]``. Out: parameters of the
distribution of actions, ``[rows, steps, size]``. Steps that are none come last, where nothing that counts can see them.
"""

from __future__ import annotations

from collections.abc import Mapping

import torch
from gymnasium import spaces as gs
from torch import Generator, Tensor, nn

from fugu.errors import ConfigError
from fugu.policy.action_input import ActionInput
from fugu.policy.causal import Causal, Memory
from fugu.policy.config import PolicyConfig
from fugu.policy.encoder import Encoder, is_real
from fugu.policy.normalize import RunningMoments
from fugu.policy.squashed import Around
from fugu.spaces import Layout
from fugu.spaces.views import leaf_tensors

TOKENS = 3
"""tokens of a step"""


class DecisionNet(nn.Module):
    scale: Tensor
    best: Tensor

    def __init__(
        self,
        observation_space: gs.Space,
        action_space: gs.Space,
        net: PolicyConfig,
        *,
        context: int,
        longest: int,
        dropout: float,
    ) -> None:
        """``context``: most steps that are looked at. ``longest``: steps of an episode that are told apart."""
        super().__init__()
        self.context = context
        self.obs_layout = Layout(observation_space)
        if not self.obs_layout.leaves or 0 in self.obs_layout.row_shape:
            raise ConfigError(f"{observation_space} has nothing to observe; a policy needs at least one number")
        self.distribution = Around(action_space)
        self.action_input = ActionInput(self.distribution)
        real = {str(i): leaf.shape for i, leaf in enumerate(self.obs_layout.leaves) if is_real(leaf)}
        self.moments = nn.ModuleDict(
            {i: RunningMoments(shape) for i, shape in real.items()} if net.normalize_observation else {}
        )
        self.encoder = Encoder(self.obs_layout, net.embedding, net.kinds)
        width, reals = net.width, self.distribution.reals
        self.from_return = nn.Linear(1, width)
        self.from_obs = nn.Linear(self.encoder.size, width)
        self.from_action = nn.Linear(self.action_input.size, width)
        self.time = nn.Embedding(longest, width)
        self.norm = nn.LayerNorm(width)
        self.causal = Causal(width, net.attention_heads, net.layers, dropout)
        self.head = nn.Linear(width, self.distribution.size - reals)
        self.log_std = nn.Parameter(torch.zeros(reals))
        for layer in (self.from_return, self.from_obs, self.from_action, self.time, self.head):
            nn.init.normal_(layer.weight, std=0.02)
        for linear in (self.from_return, self.from_obs, self.from_action, self.head):
            nn.init.zeros_(linear.bias)
        self.register_buffer("scale", torch.ones(()))
        """return that is 1 to the network"""
        self.register_buffer("best", torch.zeros(()))
        """best return of the episodes that were learned from"""

    @torch.no_grad()
    def observe(self, obs: Tensor, mask: Tensor) -> None:
        """Take rows into the moments that normalise observations."""
        leaves = leaf_tensors(self.obs_layout, obs) if self.moments else []
        for index, moments in self.moments.items():
            moments.update(leaves[int(index)], mask)  # type: ignore[operator]

    # --- whole sequences ---

    def forward(self, to_go: Tensor, obs: Tensor, action: Tensor, time: Tensor, generator: Generator | None = None) -> Tensor:
        """``generator``: draws what is left out while learning; None: nothing is."""
        when = self._when(time)
        features = self._features(obs.flatten(0, 1)).unflatten(0, time.shape)
        said = self._said(to_go), features, self.from_action(self.action_input(action))
        tokens = self.norm(torch.stack([token + when for token in said], 2).flatten(1, 2))
        return self._params(self.causal(tokens, slice(1, None, TOKENS), generator))

    def _when(self, time: Tensor) -> Tensor:
        return self.time(time.clamp(max=self.time.num_embeddings - 1))

    def _said(self, to_go: Tensor) -> Tensor:
        return self.from_return((to_go / self.scale)[..., None])

    def _features(self, rows: Tensor) -> Tensor:
        """Return ``[N, width]`` of ``rows [N, *row]``."""
        leaves = leaf_tensors(self.obs_layout, rows)
        for index, moments in self.moments.items():
            leaves[int(index)] = moments(leaves[int(index)])
        return self.from_obs(self.encoder(leaves))

    def _params(self, hidden: Tensor) -> Tensor:
        out = self.head(hidden)
        return torch.cat([out, self.log_std.expand(*out.shape[:-1], -1)], -1)

    # --- step by step ---

    def begin(self, rows: int, device: torch.device) -> dict[str, Tensor]:
        """Return what is carried before the first step: places, tokens, their keys and values, and the last action."""
        slots = TOKENS * self.context
        return {
            "time": torch.zeros(rows, dtype=torch.int64, device=device),
            "place": torch.zeros(rows, dtype=torch.int64, device=device),
            "tokens": torch.zeros(rows, slots, self.norm.weight.shape[0], device=device),
            "memory": self.causal.memory(rows, slots, device),
            "before": torch.zeros(rows, self.action_input.size, device=device),
        }

    def step(self, obs: Tensor, to_go: Tensor, first: Tensor, carry: Mapping[str, Tensor]) -> tuple[Tensor, dict[str, Tensor]]:
        """Return the parameters ``[rows, size]`` for the next action, and what is carried on but for that action.

        The context grows step by step. When it is full its older half is forgotten and the rest is read anew, as a sequence that begins
        there: the network has learned from such sequences, and from no others.
        """
        time = torch.where(first, 0, carry["time"] + 1)
        place = torch.where(first, 0, carry["place"] + 1)
        tokens, memory = carry["tokens"].clone(), Memory(carry["memory"].clone())
        full = place == self.context
        if full.any():
            place = torch.where(full, self._forget(full, tokens, memory), place)
        when, earlier = self._when(time), self._when((time - 1).clamp(min=0))
        new = torch.stack(
            [self.from_action(carry["before"]) + earlier, self._said(to_go) + when, self._features(obs) + when], 1
        )
        new = self.norm(new)
        # slot 0 takes the action before the first step, which there was none of
        slot = TOKENS * place[:, None] + torch.arange(TOKENS, device=place.device)
        tokens.scatter_(1, slot[..., None].expand_as(new), new)
        params = self._params(self.causal.extend(new, slot, memory)[:, -1])
        return params, {"time": time, "place": place, "tokens": tokens, "memory": memory.kept}

    def _forget(self, full: Tensor, tokens: Tensor, memory: Memory) -> int:
        """Let the rows that are ``full`` keep the newer half of their steps. Returns how many these are."""
        kept = self.context // 2
        rows, size = full.nonzero()[:, 0], TOKENS * kept - 1  # the last action is not there yet
        if kept:
            begin = TOKENS * (self.context - kept) + 1
            rest = tokens[rows, begin : begin + size]
            slot = torch.arange(1, size + 1, device=rows.device).expand(len(rows), -1)
            part = Memory(memory.kept[rows])
            self.causal.extend(rest, slot, part)
            memory.kept[rows] = part.kept
            tokens[rows, 1 : size + 1] = rest
        return kept
