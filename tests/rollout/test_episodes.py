"""Episodes in groups: members begin alike on every backend, rows are those of stepping, and only whole groups are replaced."""

from __future__ import annotations

import math

import gymnasium
import numpy as np
import pytest
import torch

import fugu
from fugu.errors import ConfigError
from fugu.rollout.acting import Act, Actor, Seen
from fugu.rollout.batch import Batch
from fugu.rollout.episodes import Episodes, Groups, _replaced
from fugu.rollout.source import Stopped

BACKENDS = {
    "native": ("cartpole", {}),
    "native in turns": ("cartpole", {"batch_size": 3}),
    "first finished": ("cartpole", {"batch_size": 3, "order": "first_finished"}),
    "serial": ("CartPole-v1", {"backend": "serial"}),
    "process": ("CartPole-v1", {"backend": "process", "num_workers": 2}),
    "process in turns": ("CartPole-v1", {"backend": "process", "num_workers": 2, "batch_size": 6}),
}


STATE = {"state": ((1,), torch.float32)}


class Member:
    """Acts by which member of its group an agent is, so that members go different ways: ``member`` lefts, then rights."""

    def __init__(self, size: int = 3):
        self.size = size

    def __call__(self, seen: Seen) -> Act:
        count = torch.where(seen.first, 0.0, seen.carry["state"][:, 0])
        action = (count > torch.arange(len(count)) % self.size).long()
        return Act(action, {"state": (count + 1)[:, None]}, {"action": action[:, None], "count": count})


def episodes(env="cartpole", num_envs=12, horizon=100, groups=None, **settings):
    vec = fugu.vector.make(env, num_envs, **settings)
    source = Episodes(vec, horizon, groups or Groups(3), carry=STATE)
    source.restart(4)
    return source


@pytest.mark.parametrize("case", BACKENDS)
def test_members_of_a_group_begin_alike_and_groups_do_not(case):
    env, settings = BACKENDS[case]
    source = episodes(env, **settings)
    with source.vec:
        for _ in range(2):
            batch = source.next(Actor(Member())).batch
            starts = batch["obs"][:, 0].view(4, 3, -1)
            assert torch.equal(starts, starts[:, :1].expand(4, 3, 4).contiguous())
            assert len(torch.unique(starts[:, 0], dim=0)) == 4
            assert batch["group"].tolist() == [0, 0, 0, 1, 1, 1, 2, 2, 2, 3, 3, 3]
            assert batch["first"][:, 0].all() and batch["mask"][:, 0].all()


def test_rows_and_scores_are_those_of_stepping_each_environment_alone():
    source = episodes("CartPole-v1", backend="serial")
    with source.vec:
        seeds = episodes("CartPole-v1", backend="serial")._starts()
        played = source.next(Actor(Member()))
        batch = played.batch
        log = played.episodes()
    env = gymnasium.make("CartPole-v1")
    lengths = []
    for i, seed in enumerate(seeds):
        obs, _ = env.reset(seed=seed)
        over, t = False, 0
        while not over:
            np.testing.assert_array_equal(batch["obs"][i, t], obs)
            obs, reward, over, _, _ = env.step(int(t > i % 3))
            assert batch["mask"][i, t] and batch["reward"][i, t] == reward and bool(batch["terminated"][i, t]) == over
            t += 1
        assert not batch["mask"][i, t:].any() and not batch["reward"][i, t:].any() and not batch["terminated"][i, t:].any()
        assert batch["score"][i] == t
        lengths.append(t)
    assert batch.horizon == max(lengths) > min(lengths)
    assert log.episodes == 12 and log.mean_return == log.mean_length == pytest.approx(np.mean(lengths))


def test_backends_and_orders_of_arrival_fill_the_same_batch():
    def batch(**settings):
        source = episodes(**settings)
        with source.vec:
            source.next(Actor(Member()))
            return {name: column.clone() for name, column in source.next(Actor(Member())).batch.columns.items()}

    whole = batch()
    mask = whole["mask"]
    for settings in ({"batch_size": 3}, {"batch_size": 6, "order": "first_finished"}, {"backend": "serial"}):
        other = batch(**settings)
        for name, column in whole.items():
            same = mask if column.shape[:2] == mask.shape else ...
            assert torch.equal(column[same], other[name][same]), (settings, name)


def test_an_episode_that_does_not_end_is_truncated_at_the_horizon():
    source = episodes(horizon=5)
    with source.vec:
        with pytest.warns(RuntimeWarning, match="try --horizon 20"):
            batch = source.next(Actor(Member())).batch
        source.next(Actor(Member()))  # says it once
    assert batch.horizon == 5 and batch["mask"].all()
    assert batch["truncated"][:, -1].all() and not batch["truncated"][:, :-1].any() and not batch["terminated"].any()
    assert batch["score"].eq(5).all()


def test_what_environments_log_is_not_made_up_where_no_episode_ended():
    source = episodes("knapsack_cmdp", horizon=3)
    with source.vec, pytest.warns(RuntimeWarning, match="none of 12 episodes ended"):
        log = source.next(Actor(Member())).episodes()
    assert log.episodes == 12 and log.mean_length == 3 and not log.mean_values and not log.mean_costs


def test_what_episodes_cost_is_logged():
    source = episodes("knapsack_cmdp", num_envs=6)
    with source.vec:
        played = source.next(Actor(Member()))
        batch = played.batch
        log = played.episodes()
    assert log.episodes == 6 and log.mean_costs["cost"] == pytest.approx(batch["action"].sum() / 6, abs=3)


def test_memory_starts_anew_with_every_episode():
    source = episodes()
    with source.vec:
        for _ in range(2):
            batch = source.next(Actor(Member())).batch
            t = torch.arange(batch.horizon).expand(12, -1).float()
            assert torch.equal(batch["count"][batch["mask"]], t[batch["mask"]])
            assert batch["state"].eq(0).all()


def test_agents_of_one_world_are_compared_with_their_likes_in_others():
    vec = fugu.vector.make("connect4", 4)
    with vec:
        source = Episodes(vec, 50, Groups(2))
        source.restart(0)
        assert source._group.tolist() == [0, 1, 0, 1, 2, 3, 2, 3]

        def leftmost(seen: Seen) -> Act:
            allowed = torch.ones(8, 7) if seen.action_mask is None else seen.action_mask.float()
            return Act(allowed.argmax(1), None, {"action": allowed.argmax(1)[:, None]})

        batch = source.next(Actor(leftmost)).batch
    assert torch.equal(batch["score"][0::2], -batch["score"][1::2])  # rewards that come while an agent waits count for it
    assert batch["score"].abs().eq(1).all()
    chosen = batch["action_mask"].gather(2, batch["action"]).squeeze(-1)
    assert chosen[batch["mask"]].all() and not batch["action_mask"].all()


class Unscored(gymnasium.Env):
    """Ends at once. Seeds that divide by three cannot be scored."""

    observation_space = gymnasium.spaces.Box(0, 2**31, (1,), np.float32)
    action_space = gymnasium.spaces.Discrete(2)
    metadata = {"unscored_rewards": True}  # noqa: RUF012

    def reset(self, *, seed=None, options=None):
        self.seed = seed or 0
        return np.array([self.seed % 997], np.float32), {}

    def step(self, action):
        return np.zeros(1, np.float32), math.nan if self.seed % 3 == 0 else 1.0, True, False, {}


class Crashing(Unscored):
    def step(self, action):
        if self.seed % 3 == 0:
            raise RuntimeError("the sandbox is gone")
        return np.zeros(1, np.float32), 1.0, True, False, {}


class CrashingReset(Unscored):
    def reset(self, *, seed=None, options=None):
        if seed is not None and seed % 3 == 0 and seed % 2:
            raise RuntimeError("the sandbox is gone")
        return super().reset(seed=seed)

    def step(self, action):
        return np.zeros(1, np.float32), 1.0, True, False, {}


def coin(seen: Seen) -> Act:
    action = torch.zeros(len(seen.obs), dtype=torch.int64)
    return Act(action, None, {"action": action[:, None]})


@pytest.mark.slow
@pytest.mark.parametrize("env", [Unscored, Crashing, CrashingReset])
def test_what_could_not_be_scored_has_no_score_instead_of_zero(env):
    settings = {} if env is Unscored else {"on_error": "restart", "max_restarts": 100}
    with fugu.vector.make(env, 20, num_workers=1, **settings) as vec:
        source = Episodes(vec, 4, Groups(2))
        source.restart(1)
        seeds = np.array(source._starts())
        bad = (seeds % 3 == 0) & (seeds % 2 == 1) if env is CrashingReset else seeds % 3 == 0
        source.restart(1)
        played = source.next(Actor(coin))
        batch = played.batch
        assert 0 < bad.sum() < 20
        assert np.isnan(batch["score"].numpy()).tolist() == bad.tolist()
        assert batch["score"][~torch.from_numpy(bad)].eq(1).all()
        log = played.episodes()
        assert log.episodes == 20 - bad.sum() and log.mean_return == 1


def test_groups_that_are_not_worth_it_are_replaced_whole_and_only_so_often():
    calls = []

    def worth(batch, groups):
        calls.append(batch["obs"][::3, 0, 0].clone())
        good = torch.zeros(groups, dtype=torch.bool)
        good[[[1], [1, 3], [0]][len(calls) - 1]] = True
        return good

    source = episodes(groups=Groups(3, 3, worth))
    with source.vec:
        played = source.next(Actor(Member()))
        batch = played.batch
        log = played.episodes()
    assert len(calls) == 3  # four good groups were found by then
    seen = batch["obs"][:, 0, 0].view(4, 3)
    expected = torch.stack([calls[1][1], calls[0][1], calls[1][3], calls[2][0]])
    assert torch.equal(seen, expected[:, None].expand(4, 3))
    assert batch["round"].view(4, 3)[:, 0].tolist() == [1, 0, 1, 2]
    assert batch["group"].tolist() == [i // 3 for i in range(12)]
    assert torch.equal(batch["score"], batch["reward"].sum(1)) and batch["mask"].sum() == batch["score"].sum()
    assert log.episodes == 36  # the mean return is that of the policy, not of what was kept


@pytest.mark.parametrize("masked", ["batch", "fresh"])
def test_replaced_groups_keep_their_rows_where_lengths_and_masks_differ(masked):
    """Either may be the longer one, and only one of them may forbid actions."""

    def batch(rows: int, number: float, mask: bool) -> Batch:
        columns = {
            "obs": torch.full((4, rows, 2), number),
            "reward": torch.full((4, rows), number),
            "mask": torch.ones(4, rows, dtype=torch.bool),
            "group": torch.tensor([0, 0, 1, 1]),
            "score": torch.arange(4) + number,
            "round": torch.zeros(4, dtype=torch.int64),
        }
        return Batch({**columns, **({"action_mask": torch.zeros(4, rows, 3, dtype=torch.bool)} if mask else {})})

    old, new = batch(2, 10.0, masked == "batch"), batch(3, 20.0, masked == "fresh")
    for first, second in ((old, new), (new, old)):
        out = _replaced(first, second, first["group"], torch.tensor([1]), torch.tensor([0]), 5)
        assert out["score"].tolist() == [*first["score"][:2].tolist(), *second["score"][:2].tolist()]
        assert out["round"].tolist() == [0, 0, 5, 5] and out["group"].tolist() == [0, 0, 1, 1]
        for rows, source in ((slice(0, 2), first), (slice(2, 4), second)):
            length = source.horizon
            assert torch.equal(out["obs"][rows, :length], source["obs"][:2])
            assert not out["mask"][rows, length:].any() and out["mask"][rows, :length].all()
            allowed = out["action_mask"][rows]
            assert allowed[:, length:].all() and bool(allowed[:, :length].all()) == ("action_mask" not in source)


def test_refilling_gives_up_after_its_rounds():
    calls = []

    def never(batch, groups):
        calls.append(1)
        return torch.zeros(groups, dtype=torch.bool)

    source = episodes(groups=Groups(3, 2, never))
    with source.vec:
        batch = source.next(Actor(Member())).batch
    assert len(calls) == 3 and batch["round"].eq(0).all()


def test_environments_must_be_whole_groups():
    with fugu.vector.make("cartpole", 10) as vec, pytest.raises(ConfigError, match=r"--vector.num-envs 12"):
        Episodes(vec, 4, Groups(4))


def test_a_rollout_can_be_stopped_and_the_next_one_is_whole():
    source = episodes(batch_size=3)
    with source.vec:
        with pytest.raises(Stopped):
            source.next(Actor(Member()), lambda: True)
        batch = source.next(Actor(Member())).batch
    assert batch["mask"][:, 0].all() and batch["terminated"].any(1).all()


def test_a_snapshot_goes_on_with_the_same_starts():
    source = episodes()
    with source.vec:
        source.next(Actor(Member()))
        saved = source.snapshot()
        expected = source.next(Actor(Member())).batch["obs"].clone()
        source.restart(99)
        source.next(Actor(Member()))
        assert source.fits(saved)
        source.restore(saved)
        assert torch.equal(source.next(Actor(Member())).batch["obs"], expected)
