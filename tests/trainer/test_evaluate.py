"""Evaluations: each agent plays its share, and what did not end is told."""

from __future__ import annotations

import functools
import math

import gymnasium
import numpy as np
import pytest
import torch

from fugu import vector
from fugu.errors import FuguError
from fugu.rollout.acting import Act, Seen
from fugu.trainer.evaluate import Evaluation, evaluate
from fugu.vector.vecenv import VecEnv
from tests.emulation.test_stats import Pack


class Long(gymnasium.Env):
    """Episodes of ``length`` steps that pay 1 each; those of length 7 cannot be scored."""

    metadata = {"unscored_rewards": True}  # noqa: RUF012
    observation_space = gymnasium.spaces.Box(-1, 1, (1,))
    action_space = gymnasium.spaces.Discrete(2)

    def __init__(self, length: int) -> None:
        self.length = length

    def reset(self, *, seed=None, options=None):
        super().reset(seed=seed)
        self.count = 0
        return np.zeros(1, np.float32), {}

    def step(self, action):
        self.count += 1
        ends = self.count == self.length
        return np.zeros(1, np.float32), np.nan if ends and self.length == 7 else 1.0, ends, False, {}


def play(lengths: list[int], episodes: int, max_steps: int = 100) -> Evaluation:
    """One environment per length."""

    with vector.make([functools.partial(Long, length) for length in lengths], backend="serial") as vec:
        return still(vec, episodes, max_steps)


def still(vec: VecEnv, episodes: int, max_steps: int = 1000) -> Evaluation:
    """Evaluate a policy that always chooses 0."""

    def act(seen: Seen) -> Act:
        return Act(torch.zeros(len(seen.obs), dtype=torch.int64))

    return evaluate(vec, act, episodes=episodes, seed=0, greedy=False, device=torch.device("cpu"), max_steps=max_steps)


def test_shares_are_settled_beforehand_so_that_short_episodes_are_not_favoured(recwarn):
    result = play([2, 9, 5, 3], episodes=6)
    assert result.lengths == (2, 9, 5, 3, 2, 9) and result.returns == (2.0, 9.0, 5.0, 3.0, 2.0, 9.0)
    assert result.cut == 0 and "missing" not in str(result) and not recwarn
    assert play([2, 9, 5, 3], episodes=3).lengths == (2, 9, 5)


def test_episodes_that_do_not_end_are_counted_and_not_made_up_for_by_others():
    with pytest.warns(RuntimeWarning, match="3 of 10 episodes had not ended after 50 steps"):
        result = play([2, 1000, 5, 3], episodes=10, max_steps=50)  # the second agent was to play three, the last two
    assert result.cut == 3 and result.lengths == (2, 5, 3, 2, 5, 3, 2)
    assert result.summary()["cut"] == 3 and result.summary()["episodes"] == 7
    assert "3 did not end and are missing" in str(result)


def test_an_evaluation_in_which_nothing_ends_is_an_error():
    with pytest.raises(FuguError, match="no episode of Long ended within 20 steps"):
        play([1000, 2000], episodes=2, max_steps=20)


def test_episodes_without_a_score_are_told_and_in_no_mean():
    result = play([7, 2, 3], episodes=6)
    assert result.returns == (2.0, 3.0, 2.0, 3.0) and result.mean == 2.5 and result.lengths == (2, 3, 2, 3)
    assert (result.unscored, result.cut) == (2, 0) and result.summary()["unscored"] == 2
    assert str(result).endswith("; 2 ended without a score and are missing")
    with pytest.raises(FuguError, match="scored none of 2 episodes"):
        play([7, 7], episodes=2)


def test_one_episode_says_nothing_of_the_spread():
    result = play([2], episodes=1)
    assert math.isnan(result.deviation) and all(map(math.isnan, result.interval))
    assert result.summary()["interval_95"] is None and result.summary()["deviation"] is None
    assert str(result) == "1 episode: mean return 2.00 (95% interval unknown from one episode), mean length 2.0"


class Saying(Long):
    """Says at the end how long it was, and of long episodes also whether they are even."""

    def step(self, action):
        obs, reward, ends, truncated, _ = super().step(action)
        info = {"length": np.int64(self.count), "is_success": self.length > 2}
        return obs, reward, ends, truncated, info | ({"even": self.length % 2 == 0} if self.length > 3 else {})


@pytest.mark.parametrize("settings", [{"backend": "serial"}, {"backend": "process", "num_workers": 2}], ids=str)
@pytest.mark.filterwarnings("ignore:info")
def test_means_of_infos_are_over_the_episodes_that_count_and_have_them(settings):
    makers = [functools.partial(Saying, length) for length in (1, 2, 4, 6, 5)]
    with vector.make(makers, 5, infos="none", episode_infos=("length", "even"), **settings) as vec:
        found = still(vec, 12)
    assert found.mean_infos == {"length": pytest.approx(found.mean_length), "is_success": 6 / 12, "even": 4 / 6}
    assert found.summary()["mean_infos"] == found.mean_infos and ", mean even 0.67" in str(found)
    assert found.metrics()["eval/env/is_success"] == 0.5


def test_environments_in_cpp_say_what_they_log():
    with vector.make("breakout", 8, infos="none") as vec:
        found = still(vec, 8)
    assert found.mean_infos.keys() == {"score", "cleared"}


@pytest.mark.parametrize("settings", [{"backend": "serial"}, {"backend": "process", "num_workers": 2}], ids=str)
def test_returns_are_told_by_agent_and_kind(settings):
    with vector.make(Pack, 2, infos="none", **settings) as vec:  # wolf_0, sheep, wolf_1: paid 0, 10 and 20 a step
        found = still(vec, 9)
    means = {label: (its["episodes"], its["mean_return"], its["mean_length"]) for label, its in found.agents.items()}
    assert means == {"wolf": (6, 40.0, 4.0), "wolf_0": (3, 0.0, 4.0), "sheep": (3, 20.0, 2.0), "wolf_1": (3, 80.0, 4.0)}
    assert found.metrics()["eval/return/sheep"] == 20.0 and found.metrics()["eval/length/wolf_1"] == 4.0
    assert found.mean == pytest.approx(np.mean(found.returns)), "the score stays the mean over all"
