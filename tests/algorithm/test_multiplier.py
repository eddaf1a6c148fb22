"""Multipliers on scripted costs against numbers worked out by hand; what episodes cost against a plain loop."""

from __future__ import annotations

import pytest
import torch

from fugu.algorithm.config import SafeConfig
from fugu.algorithm.parts.multiplier import CostMeter, Multiplier

COSTS = (20.0, 20.0, 10.0, 5.0, None, 90.0)
"""of the episodes of six batches; None: no episode finished. With a limit of 10 the violations are 1, 1, 0, -0.5 and 4, not 8"""


def prices(config: SafeConfig, costs=COSTS, limit: float = 10.0) -> list[float]:
    multiplier, seen = Multiplier([limit], config), []
    for cost in costs:
        multiplier.update(torch.tensor([0.0 if cost is None else cost]), torch.tensor(0 if cost is None else 3))
        seen.append(multiplier.value.item())
    return seen


def test_sgd_moves_by_the_violation():
    expected = [0.1, 0.2, 0.2, 0.15, 0.15, 0.55]
    assert prices(SafeConfig(multiplier="sgd", multiplier_rate=0.1)) == pytest.approx(expected)


def test_pid_adds_what_is_what_was_and_what_grows():
    config = SafeConfig(multiplier="pid", kp=1.0, ki=0.1, kd=2.0, smoothing=0.5, delay=2)
    # smoothed 0.5, 0.75, 0.375, -0.0625, 1.96875; sum 0.1, 0.2, 0.2, 0.15, 0.55; growth over two batches 0.5, 0.75, 0, 0, 1.59375
    assert prices(config) == pytest.approx([1.6, 2.45, 0.575, 0.0875, 0.0875, 5.70625])


def test_adam_is_that_of_torch():
    price = torch.zeros(1, dtype=torch.float64, requires_grad=True)
    adam = torch.optim.Adam([price], lr=0.1)
    expected = []
    for violation in (1.0, 1.0, 0.0, -0.5, None, 4.0):
        if violation is not None:
            price.grad = torch.tensor([-violation], dtype=torch.float64)
            adam.step()
        expected.append(price.item())
    assert prices(SafeConfig(multiplier="adam", multiplier_rate=0.1)) == pytest.approx(expected)


@pytest.mark.parametrize("how", ["sgd", "adam", "pid"])
def test_without_a_finished_episode_nothing_changes(how):
    multiplier = Multiplier([10.0], SafeConfig(multiplier=how))
    multiplier.update(torch.tensor([30.0]), torch.tensor(2))
    before = {name: tensor.clone() for name, tensor in multiplier.state_dict().items()}
    multiplier.update(torch.tensor([0.0]), torch.tensor(0))
    assert before["value"] > 0
    assert all(torch.equal(before[name], tensor) for name, tensor in multiplier.state_dict().items())


@pytest.mark.parametrize("how", ["sgd", "adam", "pid"])
def test_prices_stay_between_nothing_and_the_largest(how):
    config = SafeConfig(multiplier=how, multiplier_rate=0.5, ki=0.5, multiplier_max=1.0)
    assert max(prices(config, [1e9] * 20)) == 1.0
    assert prices(config, [0.0] * 5) == [0.0] * 5
    assert prices(config, [1e9] * 20 + [0.0] * 40)[-1] == 0.0  # and it comes back from there


def test_a_limit_of_zero_is_missed_by_any_cost_and_kept_by_none():
    config = SafeConfig(multiplier="sgd", multiplier_rate=0.1, multiplier_start=0.5)
    assert prices(config, [0.0, 0.001, 50.0, 0.0], limit=0.0) == pytest.approx([0.5, 0.6, 0.7, 0.7])


def test_each_cost_has_a_price_of_its_own():
    multiplier = Multiplier([10.0, 2.0], SafeConfig(multiplier="sgd", multiplier_rate=0.1, multiplier_start=1.0))
    multiplier.update(torch.tensor([5.0, 3.0]), torch.tensor(1))
    assert multiplier.value.tolist() == pytest.approx([0.95, 1.05])


@pytest.mark.parametrize("passes", [1, 3])
def test_episodes_are_summed_over_segments_and_batches(passes):
    generator = torch.Generator().manual_seed(passes)
    agents, horizon = 4, 11
    meter, running = CostMeter(agents, 2), torch.zeros(agents, 2, dtype=torch.float64)
    finished = 0
    for _ in range(4):
        cost = torch.randn((passes * agents, horizon, 2), generator=generator)
        ended = torch.rand((passes * agents, horizon), generator=generator) < 0.12
        ended[0] = False  # an episode longer than a segment
        got = meter(cost, ended)
        for segment in range(passes * agents):
            agent = segment % agents
            for t in range(horizon):
                running[agent] += cost[segment, t]
                if ended[segment, t]:
                    torch.testing.assert_close(got[segment, t], running[agent])
                    running[agent] = 0
                    finished += 1
    assert finished > 10
