"""Episodes that a crash cut off are no episodes: they are in no mean, no score and no evaluation."""

from __future__ import annotations

from functools import partial

import numpy as np
import pytest
import torch

import fugu
from fugu.rollout.acting import Act, Actor, Seen
from fugu.rollout.feed import Feed
from fugu.rollout.onpolicy import OnPolicy
from fugu.trainer.evaluate import evaluate
from tests.faults.faulty import Faulty

pytestmark = pytest.mark.usefixtures("no_leaks")

WHOLE = 6
"""steps of an episode, and its return"""


class Fragile(Faulty):
    """Every second episode, by chance, is lost in its third step; the others pay 6."""

    def __init__(self, fault: str = "raise") -> None:
        super().__init__(fault, length=WHOLE)

    def reset(self, *, seed=None, options=None):
        obs = super().reset(seed=seed, options=options)
        self.at = 3 if self.np_random.random() < 0.5 else 100
        return obs


def make(fault="raise", backend="serial", **settings):
    settings = {"num_workers": 2, **settings} if backend == "process" else settings
    return fugu.vector.make(
        partial(Fragile, fault), 4, backend=backend, on_error="restart", max_restarts=10**6, seed=3, **settings
    )


class Still:
    """Always chooses 0."""

    def __call__(self, seen: Seen) -> Act:
        action = torch.zeros(len(seen.obs), dtype=torch.int64)
        return Act(action, None, {"action": action[:, None]})


@pytest.mark.parametrize(
    ("fault", "backend"),
    [("raise", "serial"), ("raise", "process"), pytest.param("kill", "process", marks=pytest.mark.slow)],
)
def test_lost_episodes_are_in_no_statistics(fault, backend):
    with make(fault, backend) as vec:
        vec.reset()
        whole = lost = 0
        for _ in range(30 if fault == "kill" else 40):
            infos = vec.step(np.zeros(4, np.int64))[4]
            whole += sum("episode" in info for info in infos.values())
            lost += sum("restarted" in info for info in infos.values())
            assert not any("episode" in info and "restarted" in info for info in infos.values())
        log = vec.drain_log()
    assert lost >= 4 and whole >= 2
    assert (log.episodes, log.mean_return, log.mean_length) == (whole, WHOLE, WHOLE)


@pytest.mark.parametrize("backend", ["serial", "process"])
def test_an_evaluation_plays_other_episodes_instead(backend):
    with make(backend=backend) as vec:
        found = evaluate(vec, Still(), episodes=10, seed=0, greedy=False, device=torch.device("cpu"))
        assert vec.restarts
    assert found.returns == (WHOLE,) * 10 and found.cut == 0


@pytest.mark.parametrize("kind", ["plain", "feed"])
def test_a_batch_names_the_rows_and_the_agents_that_ended_an_episode(kind):
    with make() as vec:
        if kind == "plain":
            source = OnPolicy(vec, 4, passes=2)
        else:
            source = Feed(vec, 8, {"action": ((1,), torch.int64)}, device=torch.device("cpu"))
        source.restart(seed=1)
        seen = marked = 0
        memory = set()
        for _ in range(12):
            experience = source.next(Actor(Still()))
            batch, ends = experience.batch, experience.batch["terminated"].any(1)
            marked += int(batch["truncated"].any())
            if "lost" in batch:
                assert torch.equal(batch["lost"], batch["truncated"])  # there is no other reason here
                memory |= {(batch["lost"].data_ptr(), experience.ended.data_ptr(), batch["lost"].stride())}
            else:
                assert kind == "plain" and not batch["truncated"].any()
            assert torch.equal(experience.ended, ends.view(-1, 4).any(0))
            seen += int(experience.ended.sum())
        assert 0 < marked < 12 and seen
        assert kind == "plain" or len(memory) == 1  # a recording relies on it


def test_a_score_and_a_target_are_of_whole_episodes(tmp_path):
    settings = {"num_envs": 4, "steps": 10_000, "target": WHOLE, "horizon": 32, "minibatch": 64, "board": "off"}
    settings |= {"backend": "serial", "on_error": "restart", "max_restarts": 10**6}
    run = fugu.train(Fragile, runs=tmp_path, **settings)
    returns = [line["episode/return"] for line in run.metrics() if "episode/return" in line]
    assert returns and set(returns) == {WHOLE}
    assert run.metrics()[-1]["score"] == WHOLE and run.metrics()[-1]["steps"] < 10_000
