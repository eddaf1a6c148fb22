"""Networks of a team: who sees what, who shares what, and that agents can be told apart and exchanged."""

from __future__ import annotations

import numpy as np
import pytest
import torch
from gymnasium import spaces as gs
from torch import Tensor

from fugu.errors import ConfigError
from fugu.policy.central import SEES, Actors, Critics, Parts, _chosen, by_group, segments_together, together
from fugu.policy.config import PolicyConfig

SPACE = gs.Dict({"observation": gs.Box(-1, 1, (3,), np.float32), "state": gs.Box(-1, 1, (4,), np.float32)})
MIXED = gs.Dict({"cell": gs.Discrete(5), "observation": gs.Box(-1, 1, (3,), np.float32), "state": gs.MultiBinary(4)})
AGENTS = 3


def parts(space: gs.Space = SPACE) -> Parts:
    return Parts(space, "state")


def rows(space: gs.Space, count: int, seed: int = 0) -> Tensor:
    """Packed observations ``[count, *row]``."""
    layout = Parts(space, "state").layout
    packed = layout.zeros(count)
    rng = np.random.default_rng(seed)
    for view, leaf in zip(layout.leaf_views(packed), layout.leaves, strict=True):
        view[...] = rng.uniform(-1, 1, view.shape) if leaf.dtype.kind == "f" else rng.integers(0, 2, view.shape)
    return torch.from_numpy(packed)


def actors(space: gs.Space = SPACE, groups=(0,) * AGENTS, told: bool = True, **policy) -> Actors:
    torch.manual_seed(0)
    return Actors(parts(space), gs.Discrete(5), PolicyConfig(hidden=(16,), **policy), groups, told=told)


def critics(sees: str, space: gs.Space = SPACE, groups=(0,) * AGENTS, told: bool = True, **policy) -> Critics:
    torch.manual_seed(1)
    return Critics(parts(space), PolicyConfig(hidden=(16,), **policy), sees, groups, told=told)


def values(net: Critics, obs: Tensor) -> Tensor:
    agent = torch.arange(len(obs)) % AGENTS
    return net(together(obs, AGENTS) if net.sees == "observations" else obs, agent)


def params(net: Actors, obs: Tensor) -> Tensor:
    first = torch.zeros(len(obs), dtype=torch.bool)
    return net(obs, None, first, torch.arange(len(obs)) % AGENTS).params


def changed(space: gs.Space, obs: Tensor, leaf: str, row: int) -> Tensor:
    other = obs.clone()
    layout = parts(space).layout
    index = [found.name for found in layout.leaves].index(leaf)
    view = layout.leaf_views(other.numpy())[index]
    view[row] = 1 - view[row]
    return other


@pytest.mark.parametrize("space", [SPACE, MIXED])
def test_actors_never_see_the_state(space):
    obs, net = rows(space, 2 * AGENTS), actors(space)
    before = params(net, obs)
    assert torch.equal(params(net, changed(space, obs, "state", 4)), before)
    after = params(net, changed(space, obs, "observation", 4))
    assert not torch.equal(after[4], before[4])
    assert torch.equal(after[[0, 1, 2, 3, 5]], before[[0, 1, 2, 3, 5]])


@pytest.mark.parametrize("space", [SPACE, MIXED])
@pytest.mark.parametrize("sees", SEES)
def test_a_critic_sees_what_it_is_said_to_see(sees, space):
    obs, net = rows(space, 2 * AGENTS), critics(sees, space)
    before = values(net, obs)

    def affected(leaf: str) -> list[int]:
        return (values(net, changed(space, obs, leaf, 4)) != before).nonzero()[:, 0].tolist()

    assert affected("state") == ([4] if sees in ("state", "agent") else [])
    assert affected("observation") == {"state": [], "observations": [3, 4, 5]}.get(sees, [4])


def test_segments_and_rows_are_put_together_alike():
    obs = torch.arange(6 * 5 * 2).view(6, 5, 2)
    by_segment = segments_together(obs, AGENTS)
    for t in range(5):
        assert torch.equal(by_segment[:, t], together(obs[:, t], AGENTS))
    by_time = obs.transpose(0, 1).contiguous().transpose(0, 1)
    assert torch.equal(segments_together(by_time, AGENTS), by_segment)
    assert segments_together(by_time, AGENTS).stride(1) > segments_together(by_time, AGENTS).stride(0)


def test_exchanging_agents_exchanges_what_networks_say_of_them():
    """Untold which agent it is, a network knows it by its observation alone."""
    obs, swap = rows(SPACE, 2 * AGENTS), torch.tensor([2, 0, 1, 5, 3, 4])
    for net, said in (
        (actors(told=False), params),
        (critics("own", told=False), values),
        (critics("agent", told=False), values),
    ):
        assert torch.equal(said(net, obs[swap]), said(net, obs)[swap])


def test_networks_are_told_which_agent_it_is():
    obs = rows(SPACE, 1).expand(AGENTS, -1)
    for net, said in ((actors(), params), (critics("own"), values), (critics("state"), values)):
        assert len(said(net, obs).unique(dim=0)) == AGENTS
    assert len(params(actors(told=False), obs).unique(dim=0)) == 1


@pytest.mark.parametrize("core", ["none", "lstm"])
def test_groups_have_networks_of_their_own_in_steps_and_in_segments(core):
    """What a group's network says is what it says alone of its rows, and segments are steps in a row."""
    groups = (0, 1, 0)
    net = actors(groups=groups, core=core, **({"core_size": 8} if core == "lstm" else {}))
    obs = torch.stack([rows(SPACE, 2 * AGENTS, seed) for seed in range(4)], 1)  # [6, 4, row]
    first = torch.zeros(6, 4, dtype=torch.bool)
    agent = torch.arange(6) % AGENTS
    state = torch.zeros(6, net.state_size) if core == "lstm" else None
    whole = net(obs, state, first, agent).params
    for t in range(4):
        step = net(obs[:, t], state, first[:, t], agent)
        torch.testing.assert_close(step.params, whole[:, t])
        state = step.state
    second = agent == 1
    for p in net.nets[0].parameters():
        p.data.zero_()
    again = net(obs, torch.zeros(6, net.state_size) if core == "lstm" else None, first, agent).params
    assert torch.equal(again[second], whole[second]) and (again[~second] == 0).all()
    shuffled = torch.tensor([3, 0, 5, 1])
    given = None if core == "none" else torch.zeros(4, net.state_size)
    torch.testing.assert_close(net(obs[shuffled], given, first[shuffled], agent[shuffled]).params, again[shuffled])


def test_choosing_from_all_networks_is_the_same_as_asking_each_for_its_rows():
    net, obs = actors(groups=(0, 1, 0)), rows(SPACE, 2 * AGENTS)
    group = net.group[torch.arange(6) % AGENTS]
    first = torch.zeros(6, dtype=torch.bool)

    def call(one, index):
        own = net._own(obs, torch.arange(6) % AGENTS)
        return (one(own if index is None else own[index], None, first if index is None else first[index]).params,)

    apart, chosen = by_group(net.nets, group, call)[0], _chosen(net.nets, group, call)[0]
    torch.testing.assert_close(chosen, apart)
    parameters = list(net.parameters())
    gradients = [torch.autograd.grad(out.square().sum(), parameters, allow_unused=True) for out in (apart, chosen)]
    for one, other in zip(*gradients, strict=True):
        torch.testing.assert_close(one, other)


def test_critics_of_groups_learn_apart():
    net = critics("own", groups=(0, 1, 0))
    obs, agent = rows(SPACE, 2 * AGENTS), torch.arange(2 * AGENTS) % AGENTS
    net(obs, agent)[agent == 1].sum().backward()
    assert all(p.grad is None or (p.grad == 0).all() for p in net.nets[0].parameters())
    assert all((p.grad != 0).any() for p in net.nets[1].parameters())


def test_rows_of_absent_agents_do_not_enter_the_moments():
    obs = rows(SPACE, 2 * AGENTS)[:, None].repeat(1, 4, 1)
    mask = torch.rand(6, 4, generator=torch.Generator().manual_seed(0)) < 0.6
    spoiled = torch.where(mask[..., None], obs, 1e6)
    agent = torch.arange(6) % AGENTS
    layout = parts().layout
    for net in (actors(normalize_observation=True), actors(groups=(0, 1, 0), normalize_observation=True)):
        net.observe(spoiled, mask, agent)
        for i, alone in enumerate(net.nets):
            counted = mask & (net.group[agent] == i)[:, None]
            own = obs[counted][:, layout.spans[0].start : layout.spans[0].length].double()
            (moments,) = alone.moments.values()
            torch.testing.assert_close(moments.mean, own.mean(0))
    critic = critics("observations", normalize_observation=True)
    critic.observe(spoiled, mask, agent)
    for a in range(AGENTS):
        seen = obs[a::AGENTS][mask[a::AGENTS]][:, :3].double()
        torch.testing.assert_close(critic.nets[0].moments[f"{a} 0"].mean, seen.mean(0))
    apart = critics("own", groups=(0, 1, 2), normalize_observation=True)
    apart.observe(spoiled, mask, agent)
    for a in range(AGENTS):
        seen = obs[a::AGENTS][mask[a::AGENTS]][:, :3].double()
        torch.testing.assert_close(apart.nets[a].moments["0 0"].mean, seen.mean(0))


def test_an_observation_of_state_alone_is_refused():
    with pytest.raises(ConfigError, match="actors see nothing"):
        Parts(gs.Dict({"state": gs.Discrete(2)}), "state")
