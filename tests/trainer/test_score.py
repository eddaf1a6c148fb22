"""The score of a run: no favour for episodes that end soon, and the same after a checkpoint."""

from __future__ import annotations

import dataclasses
import warnings

import gymnasium
import numpy as np
import pytest
import torch
from gymnasium import spaces as gs

from fugu.presets import preset
from fugu.rollout.batch import Batch
from fugu.rollout.source import Experience
from fugu.trainer.checkpoint import find
from fugu.trainer.config import CheckpointConfig
from fugu.trainer.interrupt import Interrupt
from fugu.trainer.score import Score
from fugu.vector.vecenv import EpisodeLog
from tests.trainer.test_loop import train
from tests.trainer.test_saving import SERIAL, trainer_of

CPU = torch.device("cpu")


def rows(ended: list[int], agents: int, acted: list[int] | None = None) -> Experience:
    """Two rows an agent, in which these ended an episode."""
    terminated, mask = torch.zeros(agents, 2, dtype=torch.bool), torch.zeros(agents, 2, dtype=torch.bool)
    terminated[ended, 1] = True
    mask[acted if acted is not None else slice(None)] = True
    batch = Batch({"terminated": terminated, "truncated": torch.zeros_like(terminated), "mask": mask})
    return Experience(batch, int(mask.sum()), acted=mask.any(1), ended=terminated.any(1))


def log(episodes: int, mean: float) -> EpisodeLog:
    return EpisodeLog(episodes=episodes, mean_return=mean, mean_length=1.0, mean_costs={}, mean_values={})


def test_it_waits_for_those_that_take_longer() -> None:
    score = Score(200, CPU)
    for _ in range(3):
        score.see(rows(list(range(120)), 200))
        score.add(log(120, 1.0))
        assert score.value is None and not score.settled
    score.see(rows(list(range(120, 200)), 200))
    score.add(log(80, 0.0))
    assert score.value == pytest.approx(360 / 440) and score.settled


def test_those_that_never_act_or_never_end_hold_nobody_up() -> None:
    absent, endless = Score(4, CPU), Score(4, CPU)
    absent.see(rows([0, 1], 4, acted=[0, 1]))
    absent.add(log(100, 2.0))
    assert absent.value == 2.0
    for done in range(1, 4):
        endless.see(rows([0, 1, 2], 4))
        endless.add(log(40, 3.0))
        assert endless.value == (None if done * 40 < 100 else 3.0)


def test_it_is_the_mean_of_the_last_hundred_episodes_of_whole_rounds() -> None:
    score = Score(60, CPU)
    for mean in (1.0, 2.0, 4.0):
        score.see(rows(list(range(60)), 60))
        score.add(log(60, mean))
    assert score.value == pytest.approx((60 * 4.0 + 40 * 2.0) / 100)
    score.restart()
    assert score.value == pytest.approx(3.2) and not score.settled


def test_environments_that_never_come_to_the_end_of_a_round_have_a_score_all_the_same() -> None:
    score = Score(4, CPU)
    for _ in range(5):
        score.see(rows([0, 1], 4))
        score.add(log(30, 2.0))
        assert not score.settled
        score.restart()
    assert score.value == pytest.approx(2.0)


def test_it_goes_on_from_what_was_saved() -> None:
    score = Score(4, CPU)
    for _ in range(50):
        score.see(rows([0, 1, 2, 3], 4))
        score.add(log(4, 1.0))
    score.see(rows([0, 2], 4))
    score.add(log(2, 7.0))
    again = Score(4, CPU)
    again.load(score.state(), {name: tensor.clone() for name, tensor in score.tensors().items()})
    for each in (score, again):
        each.see(rows([1, 3], 4))
        each.add(log(2, 9.0))
    assert score.value == again.value and score.state() == again.state()
    assert score.value == pytest.approx((24 * 4 * 1.0 + 2 * 7.0 + 2 * 9.0) / 100)


def test_a_maze_is_not_solved_by_those_who_were_lucky_at_once() -> None:
    """512 worlds begin together: the first hundred episodes to end are all of them won."""
    with trainer_of(dataclasses.replace(preset("maze"), target=0.9, threads=1)) as trainer:
        returns = [trainer.update(Interrupt()).get("episode/return") for _ in range(2)]
        assert trainer.episodes > 100 and returns[-1] == pytest.approx(1.0)
        assert trainer.score.value is None and not trainer.finished


class Long(gymnasium.Env):
    """Episodes of 50 steps."""

    observation_space = gs.Box(0, 1, (1,), np.float32)
    action_space = gs.Discrete(2)

    def reset(self, *, seed=None, options=None):
        self.time = 0
        return np.zeros(1, np.float32), {}

    def step(self, action):
        self.time += 1
        return np.full(1, self.time / 50, np.float32), 1.0, self.time == 50, False, {}


def test_environments_that_cannot_be_saved_come_to_the_end_of_an_episode(tmp_path) -> None:
    """A checkpoint every 40 steps, at which they start anew, would leave them without one."""
    config = dataclasses.replace(
        SERIAL, env=f"{__name__}:Long", steps=40 * 16 * 8, checkpoint=CheckpointConfig(every=5, keep=9), target=None
    )
    with warnings.catch_warnings():
        warnings.simplefilter("error")
        whole, _ = train(config, tmp_path)
    assert whole[-1]["episodes"] >= 4 * 16
    assert {row["episode/length"] for row in whole if "episode/length" in row} == {50}
    path = find(tmp_path)
    first = sorted(path.parent.glob("step_*"))[0]
    again, _ = train(config, tmp_path / "again", resume=first)
    assert again and again == whole[-len(again) :]


def test_who_cannot_wait_for_the_end_of_episodes_says_so(tmp_path) -> None:
    config = dataclasses.replace(
        SERIAL, env=f"{__name__}:Long", steps=12 * 16 * 8, checkpoint=CheckpointConfig(every=1), target=None
    )
    with pytest.warns(RuntimeWarning, match=r"type --checkpoint.every 10"):
        train(config, tmp_path)
