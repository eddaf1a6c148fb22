"""Self-play: who sits where, who learns, what the table says, and that a run goes on from a checkpoint as if nothing had happened."""

from __future__ import annotations

import dataclasses
import shutil
import subprocess
import sys

import numpy as np
import pytest
import torch

import fugu
from fugu.algorithm.config import SelfPlayConfig
from fugu.algorithm.parts.clipped import without_open_turns
from fugu.algorithm.parts.ratings import Ratings, players, rated
from fugu.errors import ConfigError
from fugu.policy.config import PolicyConfig
from fugu.rollout.acting import Seen
from fugu.rollout.batch import Batch
from fugu.trainer import checkpoint
from fugu.trainer.build import make_trainer
from fugu.trainer.config import CheckpointConfig, TrainConfig
from fugu.trainer.config_parts import LogConfig
from fugu.trainer.interrupt import Interrupt
from fugu.trainer.state import load_own_state, own_state
from fugu.vector.config import VectorConfig
from tests.trainer.test_loop import train

BASE = TrainConfig(
    env="connect4",
    algorithm="self_play",
    steps=20 * 400,
    horizon=16,
    minibatch=128,
    threads=1,
    vector=VectorConfig(num_envs=16, num_workers=1),
    policy=PolicyConfig(hidden=(16,)),
    self_play=SelfPlayConfig(pool=3, snapshot_every=2),
    checkpoint=CheckpointConfig(every=5),
)


@pytest.fixture
def trainer():
    made = make_trainer(BASE)
    made.start()
    yield made
    made.close()


def test_half_of_the_games_have_an_earlier_version_in_one_seat(trainer):
    algorithm = trainer.algorithm
    first = torch.ones(4000, dtype=torch.bool)
    seats = algorithm._seated(torch.zeros(4000, dtype=torch.int64), first, algorithm.draws).view(-1, 2)
    past = (seats > 0).sum(1)
    assert past.max() == 1 and past.float().mean() == pytest.approx(0.5, abs=0.05)
    assert (seats[past == 1, 0] > 0).float().mean() == pytest.approx(0.5, abs=0.05)
    assert set(seats.unique().tolist()) == {0, *algorithm.who}
    going_on = torch.zeros(4000, dtype=torch.bool)
    assert torch.equal(algorithm._seated(seats.flatten(), going_on, algorithm.draws), seats.flatten())


def test_an_earlier_version_strays_as_often_as_it_is_told_to(trainer):
    algorithm = trainer.algorithm
    params = torch.tensor([[9.0, 0.0, -9.0]]).expand(4000, 3)
    algorithm.games = dataclasses.replace(algorithm.games, noise=0.25)
    strayed = (algorithm._distracted(params, algorithm.generator) == 0).all(1)
    assert strayed.float().mean() == pytest.approx(0.25, abs=0.03)
    before = algorithm.generator.get_state()
    algorithm.games = dataclasses.replace(algorithm.games, noise=0.0)
    assert torch.equal(algorithm._distracted(params, algorithm.generator), params)
    assert torch.equal(algorithm.generator.get_state(), before)  # nothing is drawn where nobody strays
    with pytest.raises(ConfigError, match="self_play.noise=2"):
        SelfPlayConfig(noise=2)


def test_who_plays_comes_from_the_generator_that_a_source_gives(trainer):
    """Batches of a pipeline have one each, so that it does not matter which of them comes first."""
    algorithm, rows = trainer.algorithm, 64
    obs = torch.from_numpy(trainer.source.vec.obs_layout.zeros(rows))
    seat, first = torch.zeros(rows, dtype=torch.int64), torch.ones(rows, dtype=torch.bool)

    def seats(seed: int) -> torch.Tensor:
        generator = torch.Generator().manual_seed(seed)
        seen = Seen(obs, first, carry={"seat": seat}, training=True, generator=generator)
        return algorithm.act(seen).columns["player"]

    one, other = seats(1), seats(2)
    assert not torch.equal(one, other)
    assert torch.equal(seats(1), one) and torch.equal(seats(2), other)


def test_an_earlier_version_plays_its_own_moves_and_nobody_learns_from_them(trainer):
    algorithm = trainer.algorithm
    with torch.no_grad():
        for member in algorithm.pool:  # always the third column
            for name, weight in member.named_parameters():
                weight.zero_()
                if name.endswith("heads.0.bias"):
                    weight[2] = 100.0
    batch = trainer.engine.collect(bool).batch
    player, action = batch["player"], batch["action"].squeeze(-1)
    counts = without_open_turns(batch.also(mask=batch["mask"] & (player == 0)))["mask"]
    obs, taken = batch["obs"][counts].clone(), batch["action"][counts].clone()
    prepared = algorithm.prepare(batch, 0.0)
    assert prepared["mask"].all() and torch.equal(prepared["obs"][:, 0], obs) and torch.equal(prepared["action"][:, 0], taken)
    assert "player" not in prepared and "seat" not in prepared
    begins = torch.ones(64, dtype=torch.bool)
    obs = torch.from_numpy(trainer.source.vec.obs_layout.zeros(64))
    done = algorithm.act(Seen(obs, begins, carry={"seat": torch.zeros(64, dtype=torch.int64)}, training=True))
    seated = done.columns["player"] > 0
    assert (done.env_action[seated] == 2).all() and not (done.env_action[~seated] == 2).all()
    assert not (action[player > 0] == 2).all()  # what is stored there is the learner's, masked
    assert torch.equal(done.carry["seat"], done.columns["player"])


def test_games_are_scored_by_who_has_more_at_their_end(trainer):
    """Two worlds over three steps: the learner wins as second player against 1, loses as first against 2."""
    algorithm = trainer.algorithm
    algorithm.who, algorithm._returns, algorithm._over = [1, 2], np.zeros(4), np.zeros(4, bool)
    algorithm.ratings.enter(0)
    algorithm.ratings.enter(0)
    seen = {}
    algorithm.ratings.record = lambda opponent, scores: seen.update({opponent: scores})
    reward, ends = torch.zeros(4, 3), torch.zeros(4, 3, dtype=torch.bool)
    ends[:, 1] = True
    reward[0, 1], reward[1, 1], reward[2, 0], reward[3, 1] = -1.0, 1.0, -1.0, 0.5
    player = torch.tensor([1, 0, 0, 2])[:, None].expand(4, 3)
    algorithm._score(Batch({"reward": reward, "terminated": ends, "truncated": torch.zeros_like(ends)}), player)
    assert seen == {1: [1.0], 2: [0.0]}
    assert (algorithm._returns == 0).all() and algorithm._points == {"score": 0.5, "games": 2.0}


def test_a_game_that_was_lost_with_its_environment_is_not_scored(trainer):
    algorithm = trainer.algorithm
    algorithm.who, algorithm._returns, algorithm._over = [1], np.zeros(4), np.zeros(4, bool)
    seen = []
    algorithm.ratings.record = lambda opponent, scores: seen.extend(scores)
    reward, ends = torch.zeros(4, 3), torch.zeros(4, 3, dtype=torch.bool)
    ends[:, 1], reward[:, 0] = True, torch.tensor([-1.0, 1.0, 1.0, -1.0])
    lost = torch.zeros_like(ends)
    lost[:2, 1] = True
    player = torch.tensor([1, 0, 1, 0])[:, None].expand(4, 3)
    columns = {"reward": reward, "terminated": torch.zeros_like(ends), "truncated": ends, "lost": lost}
    algorithm._score(Batch(columns), player)
    assert seen == [0.0] and (algorithm._returns == 0).all() and not algorithm._over.any()


@pytest.mark.parametrize("out", [0, 1], ids=["the first", "the second"])
def test_a_game_is_over_when_both_players_are(trainer, out):
    """One player is out two rows before the other, the second time across two batches."""
    algorithm = trainer.algorithm
    algorithm.who, algorithm._returns, algorithm._over = [1], np.zeros(2), np.zeros(2, bool)
    seen = []
    algorithm.ratings.record = lambda opponent, scores: seen.extend(scores)
    reward, ends = torch.zeros(2, 8), torch.zeros(2, 8, dtype=torch.bool)
    for start in (0, 4):
        ends[out, start], ends[1 - out, start + 2] = True, True
        reward[out, start], reward[1 - out, start + 2] = 2.0, 1.0  # who is out had more
    player = torch.tensor([0, 1])[:, None].expand(2, 8)
    for rows in (slice(0, 5), slice(5, 8)):
        columns = {"reward": reward[:, rows], "terminated": ends[:, rows], "truncated": torch.zeros_like(ends[:, rows])}
        algorithm._score(Batch(columns), player[:, rows])
        load_own_state(algorithm, own_state(algorithm))
    assert seen == [1.0 - out, 1.0 - out] and not algorithm._over.any()


def test_what_is_said_of_games_lies_where_the_losses_do(trainer):
    """On a GPU the metrics of an update are stacked there; a stand-in for one shows where they were put."""
    algorithm = trainer.algorithm
    batch = trainer.engine.prepare(trainer.engine.collect(bool).batch, 0.0)
    algorithm.device = torch.device("meta")
    said = algorithm.finish(batch)
    assert {value.device.type for name, value in said.items() if name.startswith("self_play/")} == {"meta"}


def test_the_pool_is_spread_over_the_training(trainer):
    """The first and the newest, and between them each of those before with the same chance."""
    algorithm, middle = trainer.algorithm, []
    for _ in range(300):
        algorithm.who, algorithm.ratings.players = [], algorithm.ratings.players[:1]
        for _ in range(12):
            algorithm._keep()
        first, *between, newest = sorted(algorithm.who)
        assert (first, newest) == (1, 12)
        middle += between
    assert len(middle) == 300 and set(middle) == set(range(2, 12))
    assert np.mean(middle) == pytest.approx(6.5, abs=0.6)
    assert len(algorithm.ratings.players) == 13  # the table forgets nobody


def test_ratings_follow_the_games_and_survive_being_saved():
    table = Ratings()
    weak, strong = table.enter(0), table.enter(100)
    table.record(weak, [1.0] * 30)
    table.record(strong, [0.0] * 30)
    now = table.players
    assert now[weak].rating < now[0].rating < now[strong].rating and now[0].games == 60
    assert players(table.state()) == table.players


def test_ratings_are_those_of_openskill():
    model = pytest.importorskip("openskill.models").BradleyTerryFull(mu=25.0, sigma=25 / 3, beta=25 / 6, tau=0.0)
    chance = np.random.default_rng(0)
    for _ in range(200):
        (a, b), (c, d) = chance.normal(25, 8, 2), chance.uniform(0.1, 9, 2)
        score = chance.choice([0.0, 0.5, 1.0])
        [[one], [other]] = model.rate([[model.rating(a, c)], [model.rating(b, d)]], ranks=[1 - score, score])
        assert rated((a, c), (b, d), score) == pytest.approx((one.mu, one.sigma), rel=1e-12)
        assert rated((b, d), (a, c), 1 - score) == pytest.approx((other.mu, other.sigma), rel=1e-12)


def test_self_play_needs_no_package_beyond_fugus_own():
    block = "import sys; sys.modules['openskill'] = None\n"
    code = block + "from fugu.algorithm.parts.ratings import Ratings\nt = Ratings()\nt.record(t.enter(0), [1.0])\n"
    code += "print(t.players[0].rating > 25)"
    assert subprocess.run([sys.executable, "-c", code], capture_output=True, text=True).stdout == "True\n"


RESUMED = {
    "feed-forward": BASE,
    "lstm": dataclasses.replace(BASE, policy=PolicyConfig(hidden=(16,), core="lstm", core_size=8)),
    "pipelined": dataclasses.replace(
        BASE,
        vector=VectorConfig(num_envs=16, batch_size=4),
        self_play=SelfPlayConfig(pool=2, snapshot_every=3, choose="hard"),
    ),
}
"""gone on with in tests/contract/test_resumed.py"""


def test_another_run_can_be_an_opponent_if_its_policy_fits(tmp_path):
    for name, hidden in (("same", (16,)), ("other", (8,))):
        train(dataclasses.replace(BASE, steps=400, policy=PolicyConfig(hidden=hidden)), tmp_path / name)
    guest = SelfPlayConfig(opponents=(str(tmp_path / "same"),))
    made = make_trainer(dataclasses.replace(BASE, self_play=guest))
    made.start()
    made.close()
    saved = checkpoint.load(checkpoint.find(tmp_path / "same")).tensors["policy"]
    theirs = made.algorithm.pool[0].state_dict()
    assert all(torch.equal(theirs[name], weight) for name, weight in saved.items())
    stranger = SelfPlayConfig(opponents=(str(tmp_path / "other"),))
    with pytest.raises(ConfigError, match="does not fit: its .* is .* must have been trained on the same environment"):
        make_trainer(dataclasses.replace(BASE, self_play=stranger))


@pytest.mark.parametrize("place", ["nowhere", "empty"])
def test_an_opponent_that_is_not_there_is_refused(place, tmp_path):
    (tmp_path / "empty").mkdir()
    gone = SelfPlayConfig(opponents=(str(tmp_path / place),))
    with pytest.raises(
        ConfigError, match=f"self_play.opponents: .*{place} is no folder of a run with a checkpoint.* give paths"
    ):
        make_trainer(dataclasses.replace(BASE, self_play=gone))


def test_a_run_needs_the_folders_of_its_opponents_only_once(tmp_path):
    train(dataclasses.replace(BASE, steps=400), tmp_path / "guest")
    guest = SelfPlayConfig(pool=3, opponents=(str(tmp_path / "guest"),))
    config = dataclasses.replace(BASE, steps=800, self_play=guest, log=LogConfig(board="off"))
    run = fugu.train("connect4", config=config, runs=tmp_path / "runs")
    shutil.rmtree(tmp_path / "guest")
    assert run.evaluate(4).episodes == 4
    run.resume(steps=1600)
    assert run.config.self_play.opponents == guest.opponents
    assert run.metrics()[-1]["self_play/opponents"] >= 2


def test_an_environment_of_one_player_is_refused():
    with pytest.raises(ConfigError, match="two players; cartpole has 1"):
        make_trainer(dataclasses.replace(BASE, env="cartpole"))


def test_a_pool_without_room_is_refused():
    with pytest.raises(ConfigError, match="no room for 2 opponents and the policy itself; try --self-play.pool 6"):
        SelfPlayConfig(pool=2, opponents=("a", "b"))


def test_the_best_has_the_highest_rating_whatever_its_return(trainer):
    before = trainer.algorithm.merit(0.0, {})
    trainer.algorithm.ratings.record(trainer.algorithm.who[0], [1.0] * 20)
    assert trainer.algorithm.merit(-1.0, {}) > before


def test_a_way_to_choose_that_there_is_not_is_refused():
    with pytest.raises(ConfigError, match="self_play.choose='hardest' must be even or hard"):
        SelfPlayConfig(choose="hardest")


def test_nobody_sits_in_but_the_policy_when_it_is_evaluated(trainer):
    trainer.update(Interrupt())
    obs = torch.from_numpy(trainer.source.vec.obs_layout.zeros(6))
    done = trainer.algorithm.act(Seen(obs, torch.ones(6, dtype=torch.bool), greedy=True))
    assert "player" not in done.columns and done.carry is None and done.env_action.shape == (6,)


def test_values_may_be_normalised_and_clipped(tmp_path):
    ppo = dataclasses.replace(BASE.ppo, normalize_value=True, value_clip=0.2)
    metrics, _ = train(dataclasses.replace(BASE, ppo=ppo), tmp_path, updates=3)
    assert len(metrics) == 3


def test_rows_that_nobody_learns_from_are_left_out():
    made = make_trainer(dataclasses.replace(BASE, vector=VectorConfig(num_envs=64, num_workers=1)))
    made.start()
    batch = made.engine.collect(bool).batch
    counts = without_open_turns(batch.also(mask=batch["mask"] & (batch["player"] == 0)))["mask"].flatten()
    action, obs = batch["action"].flatten(0, 1)[counts].clone(), batch["obs"].flatten(0, 1)[counts].clone()
    prepared = made.algorithm.prepare(batch, 0.0)
    made.close()
    rows = prepared.segments
    assert rows == len(action) and prepared.horizon == 1
    assert prepared["mask"].all()
    assert torch.equal(prepared["action"][:, 0], action) and torch.equal(prepared["obs"][:, 0], obs)
    assert prepared["advantage"].abs().sum() > 0
