"""Sources of other kinds fit through the same contract: one without environments, one that draws rows again and takes things back."""

from __future__ import annotations

import contextlib
from collections.abc import Callable, Mapping
from dataclasses import dataclass

import pytest
import torch
from torch import Tensor, nn

from fugu.algorithm.contract import Algorithm
from fugu.policy.config import PolicyConfig
from fugu.rollout.acting import Act, Actor, Seen
from fugu.rollout.batch import Batch, Origin
from fugu.rollout.envs import Envs
from fugu.rollout.onpolicy import OnPolicy
from fugu.rollout.source import Experience, Source
from fugu.trainer import checkpoint
from fugu.trainer.build import make_trainer
from fugu.trainer.config import CheckpointConfig, EvalConfig, TrainConfig
from fugu.trainer.interrupt import Interrupt
from fugu.trainer.loop import Trainer
from fugu.vector import make
from fugu.vector.config import VectorConfig


class Again(Source):
    """Plays a batch, and hands it on ``ratio`` times: a replay of one batch."""

    def __init__(self, inner: Source, ratio: int) -> None:
        self.inner, self.ratio, self.left = inner, ratio, 0
        self.vec, self.device, self.segments, self.horizon = inner.vec, inner.device, inner.segments, inner.horizon
        self.kept: Experience | None = None
        self.versions: list[int] = []
        self.taken: list[tuple[float, int]] = []

    def next(self, actor: Actor, stop: Callable[[], bool] = bool) -> Experience:
        if self.left == 0:
            played = self.inner.next(actor, stop)
            columns = {name: column.clone() for name, column in played.batch.columns.items()}
            self.kept = Experience(Batch(columns, played.batch.once, Origin(self.feedback)), 0, played.version)
            self.left = self.ratio - 1
            self.versions.append(played.version)
            played.batch = self.kept.batch
            return played
        self.left -= 1
        assert self.kept is not None
        return self.kept

    def feedback(self, columns: Mapping[str, Tensor], segments: Tensor | None) -> None:
        self.taken.append((float(columns["priority"].sum()), -1 if segments is None else len(segments)))

    def restart(self, seed: int) -> None:
        self.left = 0
        self.inner.restart(seed)


class Rewarded(Algorithm):
    """Learns to choose by the reward of the step before, and hands back what it found."""

    def source(self, envs: Envs) -> Source:
        return Again(envs.on_policy(self), 3)

    def act(self, seen: Seen) -> Act:
        out = self.policy(seen.obs, None, seen.first)
        action, _ = self.policy.distribution.sample_with_logprob(out.params, None, seen.generator or self.generator)
        return Act(self.policy.distribution.to_env(action), columns={"action": action, "before": seen.reward.clone()})

    def loss(self, batch: Batch) -> tuple[Tensor, dict[str, Tensor]]:
        out = self.policy(batch["obs"], None, batch["first"])
        batch.hand_back(priority=torch.ones(batch.segments))
        return out.value.square().mean(), {}


CONFIG = TrainConfig(
    env="cartpole",
    algorithm="tests.rollout.test_source:Rewarded",
    steps=6 * 16 * 8,
    horizon=8,
    minibatch=64,
    vector=VectorConfig(num_envs=16, num_workers=1),
    policy=PolicyConfig(hidden=(8,)),
    checkpoint=CheckpointConfig(every=4),
)


def test_steps_count_what_was_played_and_learned_what_was_learned_from():
    trainer = make_trainer(CONFIG)
    try:
        trainer.start()
        rows = []
        trainer.run(rows.append, Interrupt())
        source = trainer.source
        assert isinstance(source, Again)
        fresh = rows[0]["learned"]  # a first batch has no rows that are masked
        assert rows[2]["steps"] == rows[1]["steps"] == rows[0]["steps"] == fresh
        assert rows[2]["learned"] == 3 * fresh
        assert rows[-1]["steps"] >= CONFIG.steps > rows[-4]["steps"]
        assert 2.5 * rows[-1]["steps"] < rows[-1]["learned"] <= 3 * rows[-1]["steps"]
        # the rate follows the steps, not what is learned from
        assert rows[2]["learning_rate"] == rows[3]["learning_rate"] < rows[0]["learning_rate"]
        assert source.versions == [3 * number for number in range(len(source.versions))]
        assert len(source.taken) == 2 * len(rows) and all(found == (8.0, 8) for found in source.taken)
    finally:
        trainer.close()


@pytest.mark.parametrize("backend", ["native", "serial"])
def test_acting_sees_the_reward_of_the_step_before(backend):
    env = "cartpole" if backend == "native" else "CartPole-v1"
    with make(env, num_envs=4, backend=backend) as vec:
        said = []

        def act(seen: Seen) -> Act:
            said.append(seen.reward.clone())
            return Act(torch.randint(2, (4,)), columns={"before": seen.reward})

        source = OnPolicy(vec, 40)
        source.restart(1)
        first = source.next(Actor(act)).batch
        before, reward = first["before"].clone(), first["reward"].clone()
        assert before[:, 0].eq(0).all() and torch.equal(before[:, 1:], reward[:, :-1])
        again = source.next(Actor(act)).batch
        assert torch.equal(again["before"][:, 0], reward[:, -1]) and torch.equal(
            again["before"][:, 1:], again["reward"][:, :-1]
        )


# --- nothing is played at all ---


class Rows(Source):
    """Draws from rows that are there already: whether four numbers add up to more than 0."""

    segments, horizon, device = 32, 1, torch.device("cpu")

    def __init__(self) -> None:
        self.random = torch.Generator()

    def next(self, actor: Actor, stop: Callable[[], bool] = bool) -> Experience:
        obs = torch.randn(32, 1, 4, generator=self.random)
        columns = {"obs": obs, "action": (obs.sum(-1, keepdim=True) > 0).long(), "reward": torch.zeros(32, 1)}
        flags = {name: torch.full((32, 1), name in ("first", "mask")) for name in ("first", "mask", "terminated", "truncated")}
        return Experience(Batch({**columns, **flags}), 32)

    def restart(self, seed: int) -> None:
        self.random.manual_seed(seed)

    def snapshot(self) -> dict[str, Tensor]:
        return {"random": self.random.get_state()}

    def restore(self, saved: Mapping[str, Tensor]) -> None:
        self.random.set_state(saved["random"])


class Imitate(Algorithm):
    def source(self, envs: Envs) -> Source:
        return Rows()

    def act(self, seen: Seen) -> Act:
        out = self.policy(seen.obs, None, seen.first)
        return Act(self.policy.distribution.to_env(self.policy.distribution.mode(out.params)))

    def loss(self, batch: Batch) -> tuple[Tensor, dict[str, Tensor]]:
        out = self.policy(batch["obs"], None, batch["first"])
        logprob, _ = self.policy.distribution.evaluate(out.params, batch["action"])
        right = (out.params.argmax(-1, keepdim=True) == batch["action"]).float().mean()
        return -logprob.mean(), {"loss/right": right.detach()}


@dataclass(frozen=True)
class Agents:
    """Spaces without environments."""

    @staticmethod
    def trainer(config: TrainConfig, folder=None) -> Trainer:
        with make("cartpole", num_envs=2) as vec:
            from fugu.trainer.build import make_algorithm

            algorithm = make_algorithm(config, vec, torch.device("cpu"))
        return Trainer(config, Rows(), algorithm, folder=folder)


OFFLINE = TrainConfig(
    env="cartpole",
    algorithm="tests.rollout.test_source:Imitate",
    steps=32 * 60,
    horizon=1,
    minibatch=16,
    policy=PolicyConfig(hidden=(16,)),
    checkpoint=CheckpointConfig(every=20),
)


def test_a_source_without_environments_is_learned_from_and_gone_on_with(tmp_path):
    def run(folder, resume=None, updates=10**9):
        trainer = Agents.trainer(OFFLINE, folder)
        trainer.load(resume) if resume else trainer.start()
        seen = []

        def report(metrics):
            seen.append(metrics)
            if len(seen) == updates:
                raise KeyboardInterrupt

        with contextlib.suppress(KeyboardInterrupt):
            trainer.run(report, Interrupt())
        trainer.close()
        return seen

    whole = run(tmp_path / "whole")
    assert len(whole) == 60 and whole[-1]["loss/right"] > 0.9 > whole[0]["loss/right"]
    assert whole[-1]["episodes"] == 0 and "episode/return" not in whole[-1]
    cut = run(tmp_path / "cut", updates=47)
    again = run(tmp_path / "cut", resume=checkpoint.find(tmp_path / "cut"))
    assert cut == whole[:47] and again == whole[40:]


def test_the_best_of_a_run_is_what_evaluations_find(tmp_path):
    config = TrainConfig(
        env="cartpole",
        steps=40 * 16 * 8,
        horizon=8,
        minibatch=64,
        vector=VectorConfig(num_envs=16, num_workers=1),
        policy=PolicyConfig(hidden=(16,)),
        eval=EvalConfig(every=5, episodes=6, greedy=True),
    )
    trainer = make_trainer(config, tmp_path)
    rows: list[dict[str, float]] = []
    try:
        trainer.start()
        trainer.run(rows.append, Interrupt())
    finally:
        trainer.close()
    found = {row["steps"]: row["eval/return"] for row in rows if "eval/return" in row}
    assert len(found) == -(-len(rows) // 5)  # and at the end
    best = checkpoint.load(checkpoint.find(tmp_path, "best"))
    assert found[best.step] == max(found.values())
    assert isinstance(trainer.algorithm, nn.Module)


def test_a_target_is_reached_by_evaluations_where_there_are_any(tmp_path):
    config = TrainConfig(env="cartpole", steps=500_000, target=30.0, eval=EvalConfig(every=2, episodes=8), minibatch=1024)
    trainer = make_trainer(config)
    rows: list[dict[str, float]] = []
    try:
        trainer.start()
        trainer.run(rows.append, Interrupt())
    finally:
        trainer.close()
    assert rows[-1]["eval/return"] >= 30 and rows[-1]["steps"] < 500_000
    assert all(row.get("eval/return", 0) < 30 for row in rows[:-1])
