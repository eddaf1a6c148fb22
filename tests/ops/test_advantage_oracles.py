"""The advantages equal what their definitions say, computed another way, and what other libraries compute."""

from __future__ import annotations

from types import SimpleNamespace

import numpy as np
import pytest

from fugu.advantage import gae, gae_reference, vtrace
from tests.ops.columns import Episode, live, noise, random_ratio

GAMMA, LAM = 0.97, 0.9


def lambda_advantage(reward: list[float], value: list[float], gamma: float, lam: float) -> float:
    """Of the first of ``len(reward)`` steps, as a mixture of n-step returns; ``value[-1]`` is that of what lies beyond them."""
    steps = len(reward)
    returns = [sum(gamma**i * reward[i] for i in range(n)) + gamma**n * value[n] for n in range(1, steps + 1)]
    mixed = sum((1 - lam) * lam ** (n - 1) * returns[n - 1] for n in range(1, steps)) + lam ** (steps - 1) * returns[-1]
    return mixed - value[0]


def vtrace_advantage(
    reward: list[float], value: list[float], ratio: list[float], gamma: float, lam: float, rho_clip: float, c_clip: float
) -> float:
    """Definition (1) of the IMPALA paper less V(x_s), with the c's of its remark 2; double loop, no recursion."""
    total = 0.0
    for t in range(len(reward)):
        trace = np.prod([lam * min(c_clip, ratio[i]) for i in range(t)])
        total += gamma**t * trace * min(rho_clip, ratio[t]) * (reward[t] + gamma * value[t + 1] - value[t])
    return total


def seen_from(episode: Episode, step: int, end: int) -> tuple[list[float], list[float]]:
    """Rewards and values from ``step`` on, in a segment that ends before row ``end``."""
    last = min(len(episode.reward), step + end - episode.row[step])
    value = list(episode.value)
    if len(value) > len(episode.reward) and episode.terminated:
        value[-1] = 0.0
    return episode.reward[step:last], value[step : last + 1]


@pytest.mark.parametrize("waiting", [0.0, 0.3], ids=["always-on-turn", "waiting-for-turns"])
@pytest.mark.parametrize("horizon", [1, 2, 7, 8, 9, 16, 37, 64])
def test_equals_brute_force_over_explicit_episodes(kernel, horizon, waiting):
    rng = np.random.default_rng([horizon, int(10 * waiting)])
    agents, segments = 11, 3  # each agent fills three segments, one after the other
    lived = [live(rng, segments * horizon, mean_length=6, waiting=waiting) for _ in range(agents)]
    rows = segments * horizon
    ratio = np.exp(0.5 * rng.standard_normal((agents, rows)))
    expected_gae, expected_vtrace, counted = np.zeros((agents, rows)), np.zeros((agents, rows)), 0
    for agent, (columns, episodes) in enumerate(lived):
        weight = np.where(columns["mask"][:rows], ratio[agent], 1.0)
        for episode in episodes:
            for step in range(len(episode.reward)):
                row = episode.row[step]
                if row == rows or not columns["mask"][row]:
                    continue
                end = (row // horizon + 1) * horizon
                reward, value = seen_from(episode, step, end)
                weights = list(weight[row : row + len(reward)])
                expected_gae[agent, row] = lambda_advantage(reward, value, GAMMA, LAM)
                expected_vtrace[agent, row] = vtrace_advantage(reward, value, weights, GAMMA, LAM, 1.1, 0.9)
                counted += 1
    assert counted > agents * rows * (1 - waiting) / 2
    stacked = {name: np.stack([columns[name] for columns, _ in lived]) for name in lived[0][0]}
    bootstrap = stacked["value"][:, horizon::horizon].astype(np.float32).reshape(-1)

    def column(name: str) -> np.ndarray:
        array = stacked[name][:, :rows]
        return np.ascontiguousarray(array.astype(np.float32) if array.dtype != bool else array).reshape(-1, horizon)

    inputs = [column(name) for name in ("value", "reward", "terminated", "truncated")] + [bootstrap]
    got = gae(*inputs, gamma=GAMMA, lam=LAM, mask=column("mask"))
    np.testing.assert_allclose(got.reshape(agents, rows), expected_gae, rtol=0, atol=1e-5)
    ratio32 = ratio.astype(np.float32).reshape(-1, horizon)
    ratio32[~column("mask")] = np.nan  # never read
    got = vtrace(*inputs, ratio32, gamma=GAMMA, lam=LAM, rho_clip=1.1, c_clip=0.9, mask=column("mask"))
    np.testing.assert_allclose(got.reshape(agents, rows), expected_vtrace, rtol=0, atol=1e-5)


@pytest.mark.parametrize("shape", [(64, 128), (13, 31)])
def test_equals_stable_baselines3_where_nothing_is_truncated(kernel, shape):
    buffers = pytest.importorskip("stable_baselines3.common.buffers")
    torch = pytest.importorskip("torch")
    segments, horizon = shape
    columns = noise(segments, horizon)
    columns["truncated"][:] = False
    terminated = columns["terminated"]
    starts = np.zeros((horizon, segments), np.float32)
    starts[1:] = terminated.T[:-1]
    theirs = SimpleNamespace(
        buffer_size=horizon,
        gamma=GAMMA,
        gae_lambda=LAM,
        episode_starts=starts,
        values=columns["value"].T,
        rewards=columns["reward"].T,
        advantages=np.zeros((horizon, segments), np.float32),
    )
    last = torch.from_numpy(columns["bootstrap"])
    buffers.RolloutBuffer.compute_returns_and_advantage(theirs, last, terminated[:, -1])
    got = gae(**columns, gamma=GAMMA, lam=LAM)
    np.testing.assert_allclose(got, theirs.advantages.T, rtol=0, atol=1e-5)
    np.testing.assert_allclose(got + columns["value"], theirs.returns.T, rtol=0, atol=1e-5)


@pytest.mark.parametrize("clips", [(1.0, 1.0), (1.3, 0.8)])
def test_targets_equal_torchrl_vtrace_with_lambda_one(kernel, clips):
    functional = pytest.importorskip("torchrl.objectives.value.functional")
    torch = pytest.importorskip("torch")
    columns, ratio = noise(13, 31), random_ratio(13, 31)
    next_value = np.concatenate([columns["value"][:, 1:], columns["bootstrap"][:, None]], axis=1)

    def theirs(array: np.ndarray) -> object:
        return torch.from_numpy(array)[..., None]

    _, target = functional.vtrace_advantage_estimate(
        GAMMA,
        theirs(np.log(ratio)),
        theirs(np.zeros_like(ratio)),
        theirs(columns["value"]),
        theirs(next_value),
        theirs(columns["reward"]),
        theirs(columns["terminated"] | columns["truncated"]),
        theirs(columns["terminated"]),
        rho_thresh=clips[0],
        c_thresh=clips[1],
    )
    got = vtrace(**columns, ratio=ratio, gamma=GAMMA, lam=1.0, rho_clip=clips[0], c_clip=clips[1])
    np.testing.assert_allclose(got + columns["value"], target[..., 0].numpy(), rtol=0, atol=1e-5)


def test_hand_computed_rows():
    # Rows: a step, a truncated step, the masked final row, a terminated step, its masked final row, a step.
    value = np.array([[1.0, 2.0, 3.0, 4.0, 5.0, 6.0]], np.float32)
    reward = np.array([[1.0, 1.0, 9.0, 1.0, 9.0, 1.0]], np.float32)
    truncated = np.array([[0, 1, 0, 0, 0, 0]], bool)
    terminated = np.array([[0, 0, 0, 1, 0, 0]], bool)
    mask = np.array([[1, 1, 0, 1, 0, 1]], bool)
    got = gae(value, reward, terminated, truncated, np.array([8.0], np.float32), gamma=0.5, lam=0.5, mask=mask)
    last = 1 + 0.5 * 8 - 6  # bootstrap beyond the segment
    before_limit = 1 + 0.5 * 3 - 2  # the value of the final observation
    np.testing.assert_array_equal(got, np.array([[1 + 0.5 * 2 - 1 + 0.25 * before_limit, before_limit, 0, 1 - 4, 0, last]]))


def test_lambda_one_is_the_discounted_return_less_the_value(kernel):
    columns = noise(9, 20, ending=0)
    got = gae(**columns, gamma=GAMMA, lam=1.0)
    future = columns["bootstrap"].astype(float)
    for t in reversed(range(20)):
        future = columns["reward"][:, t] + GAMMA * future
        np.testing.assert_allclose(got[:, t] + columns["value"][:, t], future, rtol=0, atol=1e-5)


def test_vtrace_on_policy_is_gae(kernel):
    columns = noise(21, 30)
    mask = np.random.default_rng(3).random((21, 30)) < 0.8
    ones = np.ones((21, 30), np.float32)
    on_policy = vtrace(**columns, ratio=ones, gamma=GAMMA, lam=LAM, rho_clip=2.0, mask=mask)
    np.testing.assert_allclose(on_policy, gae(**columns, gamma=GAMMA, lam=LAM, mask=mask), rtol=0, atol=1e-6)


def test_formula_does_not_depend_on_the_horizon(kernel):
    # A kernel with one formula for multiples of its width and another for the rest would fail here.
    columns, ratio = noise(10, 40, ending=0.0), random_ratio(10, 40)
    columns["truncated"][:, 12] = True
    whole = vtrace(**columns, ratio=ratio, gamma=GAMMA, lam=LAM, rho_clip=0.7)
    for horizon in range(13, 40):
        part = {name: np.ascontiguousarray(array[:, :horizon]) for name, array in columns.items() if name != "bootstrap"}
        part["bootstrap"] = np.ascontiguousarray(columns["value"][:, horizon])
        got = vtrace(**part, ratio=np.ascontiguousarray(ratio[:, :horizon]), gamma=GAMMA, lam=LAM, rho_clip=0.7)
        np.testing.assert_array_equal(got[:, :13], whole[:, :13])


def test_reference_in_float64_agrees_with_the_kernel_on_long_rows():
    columns = noise(17, 1000, ending=0.001)
    wide = {name: array.astype(float) if array.dtype == np.float32 else array for name, array in columns.items()}
    expected = gae_reference(**wide, gamma=0.999, lam=0.99)
    got = gae(**columns, gamma=0.999, lam=0.99)
    np.testing.assert_allclose(got, expected, rtol=0, atol=1e-5 * np.abs(expected).max())
