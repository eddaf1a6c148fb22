"""Rollouts against a recorder: the rows of a batch are those the environments gave, whatever the order they came in."""

from __future__ import annotations

import numpy as np
import pytest
import torch

import fugu
from fugu.errors import CallOrderError
from fugu.rollout.acting import Act, Actor, Seen
from fugu.rollout.onpolicy import OnPolicy
from fugu.rollout.source import Stopped

HORIZON = 7
STATE = {"state": ((1,), torch.float32)}


class Counting:
    """An actor without a network: the action is a function of the observation, the value its sum, the state a running sum."""

    def __call__(self, seen: Seen) -> Act:
        total = seen.obs.float().sum(-1)
        action = (total * 1e3).long().abs() % 2
        carry = seen.carry
        if carry is not None:
            carry = {"state": torch.where(seen.first[:, None], 0.0, carry["state"]) + total[:, None]}
        return Act(action, carry, {"action": action[:, None], "value": total, "logprob": -total})


def play(batches: int, *, num_envs: int = 6, passes: int = 1, carry=None, **settings):
    """Copies of ``batches`` batches of cartpole."""
    out = []
    with fugu.vector.make("cartpole", num_envs, env_kwargs={"max_steps": 9}, **settings) as vec:
        source = OnPolicy(vec, HORIZON, passes=passes, carry=carry)
        source.restart(seed=3)
        for _ in range(batches):
            batch = source.next(Actor(Counting())).batch
            out.append({name: column.clone() for name, column in batch.columns.items()})
    return out


def by_stepping(steps: int, num_envs: int = 6):
    """The same environments stepped one after another, as columns ``[num_envs, steps + 1]``."""
    columns = {name: [] for name in ("obs", "first", "mask", "reward", "terminated", "truncated")}
    actor = Counting()
    with fugu.vector.make("cartpole", num_envs, env_kwargs={"max_steps": 9}) as vec:
        vec.reset(3)
        for _ in range(steps + 1):
            rows = vec.rows
            for name in columns:
                columns[name].append(np.array(getattr(rows, name)))
            vec.step(actor(Seen(torch.from_numpy(rows.obs), torch.from_numpy(rows.first))).env_action.numpy())
    return {name: np.stack(column, 1) for name, column in columns.items()}


@pytest.mark.parametrize("passes", [1, 3])
@pytest.mark.parametrize("batch_size, order", [(None, "pipelined"), (2, "pipelined"), (3, "first_finished")])
def test_batches_hold_the_rows_of_stepping(passes, batch_size, order):
    batches = play(2, passes=passes, batch_size=batch_size, order=order)
    expected = by_stepping(2 * passes * HORIZON)
    for number, batch in enumerate(batches):
        for part in range(passes):
            start = (number * passes + part) * HORIZON
            rows = slice(part * 6, part * 6 + 6)
            for name in ("obs", "first", "mask"):
                np.testing.assert_array_equal(batch[name][rows].numpy(), expected[name][:, start : start + HORIZON])
            for name in ("reward", "terminated", "truncated"):  # what an action produced arrives with the next row
                np.testing.assert_array_equal(batch[name][rows].numpy(), expected[name][:, start + 1 : start + HORIZON + 1])
            after = expected["obs"][:, start + HORIZON].sum(-1)
            np.testing.assert_allclose(batch["bootstrap"][rows].numpy(), after, atol=1e-6)
    assert any(batch["truncated"].any() and not batch["mask"].all() for batch in batches)


@pytest.mark.parametrize("passes", [1, 3])
def test_it_is_said_which_agents_acted_and_which_came_to_an_end(passes):
    """An agent counts once, in whatever pass it did; rows are those that some action counted on."""
    with fugu.vector.make("cartpole", 6, env_kwargs={"max_steps": 9}) as vec:
        source = OnPolicy(vec, 3, passes=passes)
        source.restart(seed=3)
        for _ in range(4):
            played = source.next(Actor(Counting()))
            batch = played.batch
            ended = (batch["terminated"] | batch["truncated"]).view(passes, 6, 3)
            assert played.rows == batch["mask"].sum() and played.acted.all()
            assert played.ended.tolist() == [bool(ended[:, agent].any()) for agent in range(6)]
            assert played.episodes().episodes == ended.sum()
    assert ended.any() or passes == 1


def test_segments_keep_the_state_they_began_with_and_it_restarts_with_the_episode():
    first, second = play(2, carry=STATE)
    running = torch.zeros(6)
    for batch in (first, second):
        np.testing.assert_allclose(batch["state"][:, 0].numpy(), running.numpy(), atol=1e-6)
        for t in range(HORIZON):
            running = torch.where(batch["first"][:, t], 0.0, running) + batch["obs"][:, t].sum(-1)


def test_backends_fill_the_same_batch():
    native = play(2)
    for backend, settings in (("serial", {}), ("process", {"num_workers": 2})):
        for a, b in zip(native, play(2, backend=backend, **settings), strict=True):
            for name in a:
                assert torch.equal(a[name], b[name]), (backend, name)


def test_action_masks_are_kept_only_where_something_is_forbidden():
    assert "action_mask" not in play(1)[0]
    with fugu.vector.make("connect4", 2) as vec:
        source = OnPolicy(vec, 40)
        source.restart(seed=0)
        seen = []

        def leftmost(waiting: Seen) -> Act:
            seen.append(None if waiting.action_mask is None else waiting.action_mask.clone())
            allowed = torch.ones(4, 7) if waiting.action_mask is None else waiting.action_mask.float()
            action = allowed.argmax(1)
            return Act(action, None, {"action": action[:, None]})

        batch = source.next(Actor(leftmost)).batch
    masks = batch["action_mask"]
    assert not masks.all()
    for t in range(40):
        assert torch.equal(masks[:, t], torch.ones(4, 7, dtype=torch.bool) if seen[t] is None else seen[t])
    chosen = masks.gather(2, batch["action"]).squeeze(-1)
    assert chosen[batch["mask"]].all()


def test_a_snapshot_goes_on_exactly_where_it_was_taken():
    with fugu.vector.make("cartpole", 6, batch_size=3) as vec:
        source = OnPolicy(vec, HORIZON, carry=STATE)
        source.restart(seed=5)
        source.next(Actor(Counting()))
        saved = source.snapshot()
        expected = [{n: c.clone() for n, c in source.next(Actor(Counting())).batch.columns.items()} for _ in range(3)]
    with fugu.vector.make("cartpole", 6, batch_size=3) as vec:
        source = OnPolicy(vec, HORIZON, carry=STATE)
        source.restore(saved)
        for batch in expected:
            for name, column in source.next(Actor(Counting())).batch.columns.items():
                assert torch.equal(column, batch[name]), name


def test_a_rollout_can_be_stopped():
    with fugu.vector.make("cartpole", 2) as vec:
        source = OnPolicy(vec, HORIZON)
        source.restart(seed=0)
        asked = iter([False, False, True])
        with pytest.raises(Stopped):
            source.next(Actor(Counting()), stop=lambda: next(asked))


def test_parking_refuses_what_makes_no_sense():
    with fugu.vector.make("cartpole", 4, batch_size=2) as vec:
        with pytest.raises(CallOrderError, match="park"):
            vec.park()
        vec.async_reset(0)
        vec.recv()
        with pytest.raises(CallOrderError, match="unpark"):
            vec.unpark()
        vec.park()
        with pytest.raises(CallOrderError, match="snapshot"):
            vec.snapshot()
        vec.recv()
        vec.park()
        assert vec.unpark().agents == slice(0, 2)
        vec.park()
        assert len(vec.snapshot()["obs"]) == 4 * 16


@pytest.mark.parametrize("passes", [1, 2])
@pytest.mark.parametrize("batch_size", [None, 2])
def test_costs_stand_in_the_row_of_the_action_that_caused_them(passes, batch_size):
    """In knapsack_cmdp taking an offer (1) costs 1, whatever it is; the row after an ending costs nothing, whatever was chosen."""

    def act(seen: Seen) -> Act:
        obs = seen.obs
        action = torch.randint(0, 2, (len(obs),), generator=generator)
        return Act(action, None, {"action": action[:, None], "cost_value": torch.stack([obs[:, 0], 2 * obs[:, 1]], 1)})

    generator = torch.Generator().manual_seed(0)
    with fugu.vector.make("knapsack_cmdp", 4, batch_size=batch_size, order="pipelined") as vec:
        source = OnPolicy(vec, 25, passes=passes)
        source.restart(seed=0)
        for _ in range(3):
            batch = source.next(Actor(act)).batch
            expected = torch.where(batch["mask"], batch["action"][..., 0], 0).float()
            assert torch.equal(batch["cost"][..., 0], expected) and batch["cost"].shape == (4 * passes, 25, 1)
            assert not batch["mask"].all()
            following = batch["cost_value"][4:, 0]  # the first row of a pass is the row after the one before
            assert torch.equal(batch["cost_bootstrap"][: 4 * (passes - 1)], following)
            assert batch["cost_bootstrap"].shape == (4 * passes, 2)
        after = torch.zeros(4, 2)
        for _ in vec.groups:
            rows = vec.unpark()
            after[rows.agents] = torch.from_numpy(rows.obs)
            vec.park()
        assert torch.equal(batch["cost_bootstrap"][-4:], after * torch.tensor([1.0, 2.0]))
