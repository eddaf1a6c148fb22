"""Environments on the CPU for a policy elsewhere: the same batches as a plain rollout, in another memory order."""

from __future__ import annotations

import pytest
import torch

import fugu
from fugu.rollout.batch import time_major
from fugu.rollout.feed import Feed
from fugu.rollout.onpolicy import Act, OnPolicy

HORIZON = 5
COLUMNS = {"action": ((1,), torch.int64), "value": ((), torch.float32), "logprob": ((), torch.float32)}
COLUMNS["cost_value"] = (2,), torch.float32
DEVICES = ["cpu", pytest.param("cuda", marks=pytest.mark.gpu)]


class Remembering:
    """Acts by what it sees and remembers; every column of a batch depends on all rows before."""

    def __init__(self, choices: int) -> None:
        self.choices = choices

    def __call__(self, obs, state, first, action_mask, *, greedy=False, into=None):
        total = obs.float().flatten(1).sum(1)
        state = torch.where(first[:, None], 0.0, state) * 0.5 + total[:, None]
        score = torch.sin(state * torch.arange(1, self.choices + 1, device=obs.device))
        if action_mask is not None:
            score = score.masked_fill(~action_mask, -2.0)
        choice = score.argmax(1)
        costs = torch.cat([state, -state], 1)
        columns = {"action": choice[:, None], "value": state[:, 0] * 0.1, "logprob": -total, "cost_value": costs}
        return Act(choice, state, columns)


def batches(kind: str, env: str, count: int, batch_size: int | None = None, device: str = "cpu"):
    settings = {"env_kwargs": {"max_steps": 9}}
    if env == "CartPole-v1":  # in Python, with workers where there is more than one batch
        settings = {"infos": "none"} if batch_size is None else {"infos": "none", "num_workers": 12 // batch_size}
    out = []
    with fugu.vector.make(env, 12, batch_size=batch_size, **settings) as vec:
        if kind == "feed":
            source = Feed(vec, HORIZON, COLUMNS, state_size=1, device=torch.device(device))
        else:
            source = OnPolicy(vec, HORIZON, state_size=1)
        source.restart(seed=3)
        act = Remembering(vec.num_choices)
        for _ in range(count):
            batch = source.next(act)
            out.append({name: column.cpu().clone() for name, column in batch.columns.items()})
    return out


@pytest.mark.parametrize("device", DEVICES)
@pytest.mark.parametrize("batch_size", [None, 6, 3])
@pytest.mark.parametrize("env", ["cartpole", "CartPole-v1", "connect4", "knapsack_cmdp"])
def test_batches_are_those_of_a_plain_rollout(env, batch_size, device):
    expected, got = batches("onpolicy", env, 4, batch_size), batches("feed", env, 4, batch_size, device)
    for one, other in zip(expected, got, strict=True):
        assert one.keys() - {"action_mask"} == other.keys() - {"action_mask"}
        for name in one.keys() & other.keys():
            torch.testing.assert_close(other[name], one[name], rtol=0, atol=1e-5 if device == "cuda" else 0)


def test_rows_of_the_same_time_lie_together():
    with fugu.vector.make("cartpole", 12) as vec:
        source = Feed(vec, HORIZON, COLUMNS, state_size=1, device=torch.device("cpu"))
        source.restart(seed=3)
        batch = source.next(Remembering(2))
        assert all(time_major(batch[name]) for name in ("obs", "reward", "mask", "value", "action"))


def test_a_snapshot_goes_on_exactly():
    def run(cut: bool):
        with fugu.vector.make("cartpole", 12, env_kwargs={"max_steps": 9}, batch_size=6) as vec:
            source = Feed(vec, HORIZON, COLUMNS, state_size=1, device=torch.device("cpu"))
            source.restart(seed=3)
            source.next(Remembering(2))
            if not cut:
                return {name: c.clone() for name, c in source.next(Remembering(2)).columns.items()}
            saved = {name: tensor.clone() for name, tensor in source.snapshot().items()}
        with fugu.vector.make("cartpole", 12, env_kwargs={"max_steps": 9}, batch_size=6) as vec:
            source = Feed(vec, HORIZON, COLUMNS, state_size=1, device=torch.device("cpu"))
            source.restart(seed=4)
            source.restore(saved)
            return {name: c.clone() for name, c in source.next(Remembering(2)).columns.items()}

    whole, parts = run(False), run(True)
    assert all(torch.equal(whole[name], parts[name]) for name in whole)
