"""Networks of a team: actors that see what their agent sees, and a critic, used in training only, that sees more.

The rows of a world's agents are neighbours, ``[worlds * agents, *row]``. In: rows ``[B, *row]`` (stepping) or ``[S, T, *row]``
(sequences) with ``agent [B]`` or ``[S]``, which agent of its world a row or segment belongs to. A part of the observation may be for
the critic alone (``Parts``): the actors never see it. ``together`` puts beside each row those of all agents of its world.

Agents with the same ``group`` share networks, which are told by a one-hot which agent they act for.
"""

from __future__ import annotations

import dataclasses
from collections.abc import Callable, Sequence

import torch
from gymnasium import spaces as gs
from torch import Tensor, nn

from fugu.errors import ConfigError
from fugu.ops.gather import time_major
from fugu.policy.actor_critic import ActorCritic, Output
from fugu.policy.config import PolicyConfig
from fugu.policy.encoder import Encoder, is_real
from fugu.policy.layers import VALUE_GAIN, orthogonal
from fugu.policy.net import MLP, Linear
from fugu.policy.normalize import RunningMoments
from fugu.spaces import Layout
from fugu.spaces.views import leaf_tensors, write_leaves

SEES = ("state", "observations", "agent", "own")
"""inputs a critic may have: the state, the observations of all agents, state and own observation, own observation alone"""


class Parts:
    """The parts of an observation: those that everyone may see, and the one for the critic alone, the part ``state_key`` of a Dict."""

    def __init__(self, space: gs.Space, state_key: str) -> None:
        self.layout = Layout(space)
        self.own_space, self.state_space = space, None
        if isinstance(space, gs.Dict) and state_key in space.spaces:
            self.state_space = space.spaces[state_key]
            rest = {name: part for name, part in space.spaces.items() if name != state_key}
            if not rest:
                raise ConfigError(
                    f"the observation has nothing but {state_key!r}, which is for the critic alone; actors see nothing"
                )
            self.own_space = next(iter(rest.values())) if len(rest) == 1 else gs.Dict(rest)
        hidden = (state_key,) if self.state_space is not None else None
        indices = range(len(self.layout.leaves))
        self.state = [i for i in indices if self.layout.leaves[i].path[:1] == hidden]
        """leaves of the state, by index"""
        self.own = [i for i in indices if i not in self.state]
        """leaves that actors see"""

    def seen(self, sees: str) -> tuple[list[int], Layout]:
        """Return the leaves that a critic looks at, of each row, and a layout that has just these."""
        if sees in ("own", "observations"):
            return self.own, Layout(self.own_space)
        assert self.state_space is not None
        if sees == "state":
            return self.state, Layout(self.state_space)
        return self.own + self.state, Layout(gs.Dict({"observation": self.own_space, "state": self.state_space}))


def together(obs: Tensor, agents: int) -> Tensor:
    """Put the rows of all agents of its world beside each row: ``[B, *row]`` -> ``[B, agents, *row]``."""
    worlds = obs.unflatten(0, (-1, agents)).unsqueeze(1)
    return worlds.expand(-1, agents, *worlds.shape[2:]).flatten(0, 1)


def segments_together(obs: Tensor, agents: int) -> Tensor:
    """Do the same for segments, ``[S, T, *row]`` -> ``[S, T, agents, *row]``, in memory as ``obs`` lies."""
    rows = together(obs.transpose(0, 1).flatten(0, 1), agents)  # worlds of one time are neighbours, as when stepping
    seen = rows.unflatten(0, (obs.shape[1], obs.shape[0])).transpose(0, 1)
    return seen if time_major(obs) else seen.contiguous()


class Actors(nn.Module):
    """One policy per group. ``state_size``, ``distribution`` and ``observe`` are as those of an ``ActorCritic``, each of which it has.

    Their values are not used: a critic of its own learns these.
    """

    group: Tensor
    joint = False

    def __init__(
        self, parts: Parts, action_space: gs.Space, config: PolicyConfig, groups: Sequence[int], *, told: bool
    ) -> None:
        super().__init__()
        self.parts, self.told = parts, told
        space = parts.own_space
        if told:
            space = gs.Dict({"agent": gs.MultiBinary(len(groups)), "observation": space})
        self.rows = Layout(space)
        """layout of what a network sees"""
        config = dataclasses.replace(config, share=True)
        self.nets = nn.ModuleList(ActorCritic(space, action_space, config) for _ in range(max(groups) + 1))
        first: ActorCritic = self.nets[0]  # type: ignore[assignment]
        self.distribution, self.state_size = first.distribution, first.state_size
        self.register_buffer("group", torch.tensor(groups), persistent=False)
        self.register_buffer("names", torch.eye(len(groups), dtype=torch.int8), persistent=False)

    @property
    def computed_natively(self) -> bool:
        return self.nets[0].computed_natively  # type: ignore[return-value]

    @property
    def agents(self) -> int:
        """Return the number of agents of a world."""
        return len(self.group)

    def forward(self, obs: Tensor, state: Tensor | None, first: Tensor, agent: Tensor | None = None) -> Output:
        """``agent`` None: the rows are those of whole worlds."""
        if agent is None:
            agent = torch.arange(len(first), device=first.device) % self.agents
        rows = self._own(obs, agent)

        def of_group(net: nn.Module, index: Tensor | None) -> tuple[Tensor, ...]:
            out: Output = net(
                *(column if index is None or column is None else column[index] for column in (rows, state, first))
            )
            return (out.params,) if out.state is None else (out.params, out.state)

        params, *rest = by_group(self.nets, self.group[agent], of_group)
        return Output(params, params[..., 0], rest[0] if rest else None)

    @torch.no_grad()
    def observe(self, obs: Tensor, mask: Tensor, agent: Tensor) -> None:
        """Take the rows ``[S, T, *row]`` where ``mask`` is true into the moments of the policies that act on them."""
        rows = self._own(obs, agent)
        for i, net in enumerate(self.nets):
            net.observe(rows, mask & (self.group[agent] == i)[:, None])  # type: ignore[operator]

    def _own(self, obs: Tensor, agent: Tensor) -> Tensor:
        """Return rows as the networks see them."""
        if not self.told and not self.parts.state:
            return obs
        leaves = leaf_tensors(self.parts.layout, obs)
        own = [leaves[i] for i in self.parts.own]
        if self.rows.single:
            return own[0]
        batch = own[0].shape[: own[0].dim() - len(self.parts.layout.leaves[self.parts.own[0]].shape)]
        if self.told:
            own.insert(0, along(self.names[agent], batch))  # type: ignore[index]
        like = torch.from_numpy(self.rows.zeros(0))
        rows = torch.empty((*batch, *self.rows.row_shape), dtype=like.dtype, device=obs.device)
        write_leaves(self.rows, rows, own)
        return rows


class Critic(nn.Module):
    """Values ``[B]`` or ``[S, T]`` of the input that ``sees`` names. It has no memory."""

    def __init__(self, parts: Parts, agents: int, config: PolicyConfig, sees: str, *, told: bool) -> None:
        super().__init__()
        self.parts, self.agents, self.sees, self.told = parts, agents, sees, told
        self.in_bf16 = False
        self.leaves, layout = parts.seen(sees)
        self.encoder = Encoder(layout, config.embedding, config.kinds)
        self.joined = sees == "observations"
        """True if rows of all agents of a world come side by side"""
        self.copies = agents if self.joined else 1
        width = self.encoder.size * self.copies + (agents if told else 0)
        self.trunk = MLP(width, config.hidden, config.activation, natively=not self.encoder.convolves)
        self.head = orthogonal(Linear(config.hidden[-1] if config.hidden else width, 1), VALUE_GAIN)
        names = [f"{copy} {i}" for copy in range(self.copies) for i, leaf in enumerate(layout.leaves) if is_real(leaf)]
        self.moments = nn.ModuleDict(
            {name: RunningMoments(layout.leaves[int(name.split()[1])].shape) for name in names}
            if config.normalize_observation
            else {}
        )
        """moments of the leaves seen, for each agent of a world if all are; empty unless observations are normalised"""
        self.names: Tensor
        self.register_buffer("names", torch.eye(agents), persistent=False)

    def forward(self, obs: Tensor, agent: Tensor) -> Tensor:
        """Return the values of ``obs``: rows, or those of ``together``."""
        with torch.autocast(obs.device.type, torch.bfloat16, enabled=self.in_bf16):
            leaves = leaf_tensors(self.parts.layout, obs)
            row = len(self.parts.layout.row_shape) + self.joined
            batch = obs.shape[: obs.dim() - row]
            features = self.encoder([self._flat(leaves[index], i, len(batch)) for i, index in enumerate(self.leaves)])
            if self.joined:
                features = features.reshape(-1, self.copies * self.encoder.size)
            if self.told:
                features = torch.cat([features, along(self.names[agent], batch).flatten(0, len(batch) - 1)], -1)
            return self.trunk(features, self.head).float().view(batch)

    def _flat(self, leaf: Tensor, i: int, axes: int) -> Tensor:
        """Return leaf ``i`` of those seen as ``[rows (* agents), ...]``, normalised if asked for."""
        axes += self.joined
        if f"0 {i}" in self.moments:
            if self.joined:
                parts = [self.moments[f"{copy} {i}"](part) for copy, part in enumerate(leaf.unbind(axes - 1))]
                leaf = torch.stack(parts, axes - 1)
            else:
                leaf = self.moments[f"0 {i}"](leaf)
        return leaf.flatten(0, axes - 1)

    @torch.no_grad()
    def observe(self, obs: Tensor, mask: Tensor) -> None:
        """Take the rows ``[S, T, *row]`` where ``mask`` is true into the moments that normalise observations."""
        leaves = leaf_tensors(self.parts.layout, obs)
        for name, moments in self.moments.items():
            copy, i = map(int, name.split())
            whose = slice(copy, None, self.copies)
            moments.update(leaves[self.leaves[i]][whose], mask[whose])  # type: ignore[operator]


class Critics(nn.Module):
    """One critic per group."""

    group: Tensor

    def __init__(self, parts: Parts, config: PolicyConfig, sees: str, groups: Sequence[int], *, told: bool) -> None:
        super().__init__()
        self.sees, self.agents = sees, len(groups)
        self.nets = nn.ModuleList(Critic(parts, len(groups), config, sees, told=told) for _ in range(max(groups) + 1))
        self.register_buffer("group", torch.tensor(groups), persistent=False)

    def forward(self, obs: Tensor, agent: Tensor) -> Tensor:
        def of_group(net: nn.Module, index: Tensor | None) -> tuple[Tensor]:
            return (net(obs, agent) if index is None else net(obs[index], agent[index]),)

        return by_group(self.nets, self.group[agent], of_group)[0]

    def observe(self, obs: Tensor, mask: Tensor, agent: Tensor) -> None:
        """Take the rows into the moments of the critics: those that see all agents take in the rows of all."""
        for i, net in enumerate(self.nets):
            counts = mask if self.sees == "observations" else mask & (self.group[agent] == i)[:, None]
            net.observe(obs, counts)  # type: ignore[operator]


def by_group(
    nets: nn.ModuleList, group: Tensor, call: Callable[[nn.Module, Tensor | None], tuple[Tensor, ...]]
) -> list[Tensor]:
    """Return ``call(net, index)`` for each net with the rows of its group, in the order of the rows. Without index: all rows."""
    if len(nets) == 1:
        return list(call(nets[0], None))
    if group.is_cuda:
        return _chosen(nets, group, call)
    indices = [(group == i).nonzero()[:, 0] for i in range(len(nets))]
    results = [call(net, index) for net, index in zip(nets, indices, strict=True) if len(index)]
    back = torch.cat(indices).argsort()
    return [torch.cat(parts)[back] for parts in zip(*results, strict=True)]


def _chosen(nets: nn.ModuleList, group: Tensor, call: Callable[[nn.Module, Tensor | None], tuple[Tensor, ...]]) -> list[Tensor]:
    """Do the same with more work but without asking how many rows a group has, which a CUDA graph could not record."""
    rows = torch.arange(len(group), device=group.device)
    return [torch.stack(parts)[group, rows] for parts in zip(*(call(net, None) for net in nets), strict=True)]


def along(rows: Tensor, batch: Sequence[int]) -> Tensor:
    """Return ``[*batch, n]`` of ``[B, n]``: what a segment has once, repeated at each of its steps."""
    return rows.view(len(rows), *(1,) * (len(batch) - 1), -1).expand(*batch, -1)
