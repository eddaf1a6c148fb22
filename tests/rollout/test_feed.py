"""Environments on the CPU for a policy elsewhere: the same batches as a plain rollout, in another memory order."""

from __future__ import annotations

import time
from contextlib import nullcontext

import gymnasium
import pytest
import torch

import fugu
from fugu.gpu import emulation
from fugu.ops.gather import time_major
from fugu.rollout.acting import Act, Actor, Seen
from fugu.rollout.feed import Feed
from fugu.rollout.onpolicy import OnPolicy
from fugu.rollout.source import Stopped
from fugu.vector.seeds import env_seeds

HORIZON = 5
COLUMNS = {"action": ((1,), torch.int64), "value": ((), torch.float32), "logprob": ((), torch.float32)}
COLUMNS["cost_value"] = (2,), torch.float32
STATE = {"state": ((1,), torch.float32)}
DEVICES = ["cpu", "emulated", pytest.param("cuda", marks=pytest.mark.gpu)]


@pytest.fixture(params=DEVICES)
def device(request):
    """Emulated: on the CPU, with the kernels of a card."""
    with emulation() if request.param == "emulated" else nullcontext():
        yield "cuda" if request.param == "cuda" else "cpu"


class Remembering:
    """Acts by what it sees and remembers; every column of a batch depends on all rows before."""

    def __init__(self, choices: int) -> None:
        self.choices = choices

    def __call__(self, seen: Seen) -> Act:
        total = seen.obs.float().flatten(1).sum(1)
        state = torch.where(seen.first[:, None], 0.0, seen.carry["state"]) * 0.5 + total[:, None]
        score = torch.sin(state * torch.arange(1, self.choices + 1, device=seen.obs.device))
        if seen.action_mask is not None:
            score = score.masked_fill(~seen.action_mask, -2.0)
        choice = score.argmax(1)
        costs = torch.cat([state, -state], 1)
        columns = {"action": choice[:, None], "value": state[:, 0] * 0.1, "logprob": -total, "cost_value": costs}
        return Act(choice, {"state": state}, columns)


def batches(kind: str, env: str, count: int, batch_size: int | None = None, device: str = "cpu"):
    settings = {"env_kwargs": {"max_steps": 9}}
    if env == "CartPole-v1":  # in Python, with workers where there is more than one batch
        settings = {"infos": "none"} if batch_size is None else {"infos": "none", "num_workers": 12 // batch_size}
    out = []
    with fugu.vector.make(env, 12, batch_size=batch_size, **settings) as vec:
        if kind == "feed":
            source = Feed(vec, HORIZON, COLUMNS, carry=STATE, device=torch.device(device))
        else:
            source = OnPolicy(vec, HORIZON, carry=STATE)
        source.restart(seed=3)
        actor = Actor(Remembering(vec.num_choices))
        for _ in range(count):
            batch = source.next(actor).batch
            out.append({name: column.cpu().clone() for name, column in batch.columns.items()})
    return out


@pytest.mark.slow
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
        source = Feed(vec, HORIZON, COLUMNS, carry=STATE, device=torch.device("cpu"))
        source.restart(seed=3)
        batch = source.next(Actor(Remembering(2))).batch
        assert all(time_major(batch[name]) for name in ("obs", "reward", "mask", "value", "action"))


class Drawing(Remembering):
    """By chance as well, and keeps what it drew."""

    def __call__(self, seen: Seen) -> Act:
        done = super().__call__(seen)
        drawn = torch.rand(len(seen.first), generator=seen.generator, device=seen.obs.device)
        choice = (drawn * self.choices).long()
        return Act(choice, done.carry, {**done.columns, "action": choice[:, None], "logprob": drawn})


def test_every_batch_draws_from_random_numbers_of_its_own(device):
    with fugu.vector.make("cartpole", 12, batch_size=4) as vec:
        source = Feed(vec, HORIZON, COLUMNS, carry=STATE, device=torch.device(device))
        source.restart(seed=3)
        found = [source.next(Actor(Drawing(2))).batch["logprob"].cpu().clone() for _ in range(3)]
    for group, seed in zip(vec.groups, env_seeds(3, 3).tolist(), strict=True):
        generator = torch.Generator(device).manual_seed(seed)
        for batch in found:
            drawn = [torch.rand(4, generator=generator, device=device).cpu() for _ in range(HORIZON + 1)]
            assert torch.equal(batch[group], torch.stack(drawn[:-1], 1))  # the last was for the value after the batch


@pytest.mark.parametrize("make", [Remembering, Drawing])
def test_a_snapshot_goes_on_exactly(device, make):
    def run(cut: bool):
        def started(seed):
            source = Feed(vec, HORIZON, COLUMNS, carry=STATE, device=torch.device(device))
            source.restart(seed=seed)
            return source

        with fugu.vector.make("cartpole", 12, env_kwargs={"max_steps": 9}, batch_size=6) as vec:
            source = started(3)
            source.next(Actor(make(2)))
            if not cut:
                return {name: c.cpu().clone() for name, c in source.next(Actor(make(2))).batch.columns.items()}
            saved = {name: tensor.clone() for name, tensor in source.snapshot().items()}
        with fugu.vector.make("cartpole", 12, env_kwargs={"max_steps": 9}, batch_size=6) as vec:
            source = started(4)
            source.restore(saved)
            return {name: c.cpu().clone() for name, c in source.next(Actor(make(2))).batch.columns.items()}

    whole, parts = run(False), run(True)
    assert all(torch.equal(whole[name], parts[name]) for name in whole)


def test_a_restart_forgets_a_rollout_that_was_given_up(device):
    def after(stops: list[bool]):
        with fugu.vector.make("cartpole", 12, env_kwargs={"max_steps": 9}, batch_size=4) as vec:
            source = Feed(vec, HORIZON, COLUMNS, carry=STATE, device=torch.device(device))
            source.restart(seed=3)
            asked = iter(stops)
            if stops:
                with pytest.raises(Stopped):
                    source.next(Actor(Drawing(2)), lambda: next(asked))
            source.restart(seed=5)
            return {name: c.cpu().clone() for name, c in source.next(Actor(Drawing(2))).batch.columns.items()}

    fresh, given_up = after([]), after([False] * 7 + [True])
    assert all(torch.equal(fresh[name], given_up[name]) for name in fresh)


def test_a_batch_that_is_late_changes_nothing():
    """The others are through with their rows, and parked, long before it."""

    class Late(gymnasium.Wrapper):
        def step(self, action):
            time.sleep(0.003)
            return super().step(action)

    def run(order):
        made = [lambda: Late(gymnasium.make("CartPole-v1"))] * 2 + ["CartPole-v1"] * 6
        with fugu.vector.make(made, batch_size=2, num_workers=4, infos="none", order=order) as vec:
            source = Feed(vec, HORIZON, COLUMNS, carry=STATE, device=torch.device("cpu"))
            source.restart(seed=3)
            return [{name: c.clone() for name, c in source.next(Actor(Drawing(2))).batch.columns.items()} for _ in range(3)]

    for one, other in zip(run("pipelined"), run("first_finished"), strict=True):
        assert all(torch.equal(one[name], other[name]) for name in one)


def test_a_batch_crosses_in_one_copy(monkeypatch):
    crossed = []
    real = torch.from_numpy
    monkeypatch.setattr("fugu.rollout.transfer.torch.from_numpy", lambda array: crossed.append(array) or real(array))
    with fugu.vector.make("connect4", 12, batch_size=6) as vec:
        source = Feed(vec, HORIZON, COLUMNS, carry=STATE, device=torch.device("cpu"))
        source.restart(seed=3)
        crossed.clear()
        source.next(Actor(Remembering(vec.num_choices)))
    assert len(crossed) == 2 * HORIZON
    assert all(array.dtype == "uint8" and array.ndim == 1 for array in crossed)


@pytest.mark.parametrize(
    ("env", "backend", "at_once"), [("CartPole-v1", "process", 4), ("CartPole-v1", "serial", 2), ("cartpole", "native", 2)]
)
def test_all_batches_step_at_once_unless_they_share_whoever_steps_them(monkeypatch, env, backend, at_once):
    """Workers of one batch alone would stand idle half of the time; others are to step some while the GPU chooses for the rest."""
    workers = {} if backend == "serial" else {"num_workers": 4}
    with fugu.vector.make(env, 4, batch_size=1, backend=backend, infos="none", **workers) as vec:
        source = Feed(vec, HORIZON, COLUMNS, carry=STATE, device=torch.device("cpu"))
        source.restart(seed=3)
        stepping, most, send, recv = 0, 0, vec.send, vec.recv

        def counted_send(action):
            nonlocal stepping, most
            stepping += 1
            most = max(most, stepping)
            send(action)

        def counted_recv():
            nonlocal stepping
            stepping -= 1
            return recv()

        monkeypatch.setattr(vec, "send", counted_send)
        monkeypatch.setattr(vec, "recv", counted_recv)
        source.next(Actor(Remembering(vec.num_choices)))
    assert most == at_once
