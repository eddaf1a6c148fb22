"""The network of a Decision Transformer sees what it may, and sees the same whole and step by step."""

from __future__ import annotations

import numpy as np
import pytest
import torch
from gymnasium import spaces as gs

from fugu.policy.config import PolicyConfig
from fugu.policy.decision_net import DecisionNet
from fugu.spaces import Layout, Packer
from fugu.spaces.views import TORCH_DTYPES

STEPS = 7
SPACES = {
    "discrete": (gs.Box(-1, 1, (3,), np.float32), gs.Discrete(4, start=-1)),
    "several": (gs.Box(0, 255, (4, 4, 3), np.uint8), gs.MultiDiscrete([3, 2])),
    "continuous": (gs.Box(-1, 1, (3,), np.float32), gs.Box(-2, 2, (2,), np.float32)),
    "unbounded": (gs.Discrete(5), gs.Box(-np.inf, np.inf, (2,), np.float32)),
    "mixed": (
        gs.Dict(place=gs.Box(-9, 9, (2,), np.float32), kind=gs.Tuple([gs.Discrete(3), gs.MultiBinary(2)])),
        gs.Dict(push=gs.Box(-1, 1, (2,), np.float32), mode=gs.Discrete(3), bits=gs.MultiBinary(2)),
    ),
}


@pytest.fixture(params=SPACES)
def net(request) -> DecisionNet:
    torch.manual_seed(0)
    config = PolicyConfig(width=16, layers=3, attention_heads=2, normalize_observation=True)
    made = DecisionNet(*SPACES[request.param], config, context=STEPS, longest=20, dropout=0.1)
    for p in made.parameters():  # so that attention does something
        p.data.add_(torch.randn(p.shape) * 0.2)
    return made.eval()


def rows_of(space: gs.Space, count: int) -> torch.Tensor:
    layout = Layout(space)
    space.seed(3)
    rows, packer = layout.zeros(count), Packer(layout)
    for k in range(count):
        packer.pack(space.sample(), rows[k, ...])
    return torch.from_numpy(rows)


def sequence(net: DecisionNet, segments: int = 3, steps: int = STEPS) -> dict[str, torch.Tensor]:
    obs = rows_of(net.obs_layout.space, segments * steps).unflatten(0, (segments, steps))
    rows = rows_of(net.distribution.layout.space, segments * steps).unflatten(0, (segments, steps))
    action = net.distribution.env_action.inverse(rows).to(net.distribution.dtype)
    time = torch.arange(steps).expand(segments, -1) + torch.tensor([[0], [3], [16]])[:segments]
    return {"to_go": torch.randn(segments, steps), "obs": obs, "action": action, "time": time}


def test_an_action_is_foretold_from_what_came_before_it_and_nothing_else(net):
    """By gradients: of all tokens, those before an action and no others change what is said of it."""
    given = sequence(net)
    seen: list[torch.Tensor] = []
    forward = net.causal.forward

    def spy(x: torch.Tensor, *rest: object) -> torch.Tensor:
        seen.append(x.detach().requires_grad_())
        return forward(seen[-1], *rest)

    net.causal.forward = spy
    params = net(**given)
    for step in range(STEPS):
        (gradient,) = torch.autograd.grad(
            params[:, step, : net.distribution.size - net.distribution.reals].sum(), seen[0], retain_graph=True
        )
        reached = gradient.abs().sum(-1) > 0  # [segments, tokens]
        may = torch.arange(3 * STEPS) <= 3 * step + 1  # its return and its observation are the last it may see
        assert torch.equal(reached, may.expand_as(reached))


def test_tokens_of_a_step_stand_side_by_side(net):
    """Return, observation and action of a step change only what is said from that step on, or after it."""
    given = sequence(net)
    before = net(**given)
    for name, late in (("to_go", 0), ("action", 1)):
        for step in range(STEPS - 1):
            changed = given[name].clone()
            changed[:, step] = changed[:, step].roll(1, 0) + (0 if name == "action" else 0.5)
            if torch.equal(changed, given[name]):
                continue
            moved = (net(**{**given, name: changed}) - before).abs().amax((0, 2)) > 1e-7
            assert moved.nonzero()[0, 0] == step + late


def test_steps_that_are_none_change_nothing(net):
    given, short = sequence(net), 4
    junk = {name: torch.cat([column[:, :short], column[:, short:].flip(0) * 0], 1) for name, column in given.items()}
    alone = net(**{name: column[:, :short].contiguous() for name, column in given.items()})
    torch.testing.assert_close(net(**junk)[:, :short], alone)
    torch.testing.assert_close(net(**given)[:, :short], alone)


@pytest.mark.parametrize("context", [1, 2, 5, 7])
def test_step_by_step_with_a_memory_says_what_the_whole_sequence_says(net, context):
    """Rows begin anew at different times; when the context is full it goes on as a sequence of the newer half."""
    net.context = context
    steps = 3 * STEPS
    obs = rows_of(net.obs_layout.space, 2 * steps).unflatten(0, (2, steps))
    action = net.distribution.env_action.inverse(rows_of(net.distribution.layout.space, 2 * steps))
    action = action.to(net.distribution.dtype).unflatten(0, (2, steps))
    to_go = torch.randn(2, steps)
    begins = [{0, 9}, {0, 4, 11}]
    carry = net.begin(2, torch.device("cpu"))
    window: list[list[int]] = [[], []]
    start = [0, 0]
    for t in range(steps):
        first = torch.tensor([t in each for each in begins])
        params, after = net.step(obs[:, t], to_go[:, t], first, carry)
        for row in range(2):
            if t in begins[row]:
                window[row], start[row] = [], t
            if len(window[row]) == context:
                window[row] = window[row][context - context // 2 :]
            window[row].append(t)
            index = window[row]
            whole = net(
                to_go[row : row + 1, index],
                obs[row : row + 1, index],
                action[row : row + 1, index],
                torch.tensor([index]) - start[row],
            )
            torch.testing.assert_close(params[row], whole[0, -1], rtol=1e-4, atol=1e-5)
        carry = {**after, "before": net.action_input(action[:, t])}


def test_a_carry_of_zeros_is_one_that_begins(net):
    """What is carried before the first row is told by ``first`` alone."""
    obs, first = rows_of(net.obs_layout.space, 2), torch.ones(2, dtype=torch.bool)
    fresh = net.begin(2, torch.device("cpu"))
    spoilt = {name: column + 1 for name, column in fresh.items()}
    spoilt["before"] = fresh["before"]
    (a, _), (b, _) = net.step(obs, torch.ones(2), first, fresh), net.step(obs, torch.ones(2), first, spoilt)
    torch.testing.assert_close(a, b)
    assert TORCH_DTYPES["float32"] == a.dtype


def test_what_is_left_out_comes_from_the_generator_that_is_given(net):
    given = sequence(net)
    draws = [net(**given, generator=torch.Generator().manual_seed(seed)) for seed in (1, 1, 2)]
    assert torch.equal(draws[0], draws[1]) and not torch.equal(draws[0], draws[2])
    assert torch.equal(net(**given), net(**given))
