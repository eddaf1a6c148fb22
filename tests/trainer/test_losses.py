"""Several losses of one minibatch: each sees the step before it, and moves only the parts that it reaches."""

from __future__ import annotations

from types import SimpleNamespace
from typing import Any

import pytest
import torch
from torch import nn

from fugu.algorithm.contract import Algorithm
from fugu.errors import ConfigError
from fugu.ranks import ALONE, Ranks
from fugu.rollout.batch import Batch
from fugu.trainer.config import TrainConfig
from fugu.trainer.config_parts import OptimizerConfig
from fugu.trainer.optimizer import Optimizer
from fugu.trainer.state import parts
from fugu.trainer.update import Update
from tests.trainer.fake_ranks import run_together

CONFIG = OptimizerConfig(learning_rate=0.1, schedule="constant", max_grad_norm=float("inf"), eps=1e-8)


class InTurn(Algorithm):
    """Two losses of two parts and one of the algorithm's own weight, and what is done after the last step."""

    def __init__(self, policy: nn.Module, **rest: Any) -> None:
        super().__init__(policy, **rest)
        self.critic = nn.Linear(3, 1, bias=False)
        self.own = nn.Parameter(torch.tensor(2.0))
        self.seen: list[list[torch.Tensor]] = []

    def note(self) -> None:
        self.seen.append([self.policy.weight.detach().clone(), self.critic.weight.detach().clone(), self.own.detach().clone()])

    def losses(self, batch):
        self.note()
        yield self.critic(batch["obs"]).square().mean(), {"loss/value": torch.tensor(1.0)}
        self.note()
        self.critic.requires_grad_(False)
        yield self.critic(self.policy(batch["obs"])).mean(), {"loss/policy": torch.tensor(2.0)}
        self.critic.requires_grad_(True)
        self.note()
        yield self.own.square(), {"loss/own": torch.tensor(3.0)}
        self.note()


def made(rates: dict[str, float] | None = None) -> InTurn:
    torch.manual_seed(0)
    algorithm = InTurn(nn.Linear(3, 3, bias=False))
    algorithm.rates = rates or {}
    return algorithm


def learn(algorithm: InTurn, rounds: int = 3, ranks: Ranks | None = None, share: float = 1.0) -> list[dict[str, torch.Tensor]]:
    engine = SimpleNamespace(
        algorithm=algorithm,
        config=TrainConfig(),
        count=1,
        generator=torch.Generator(),
        ranks=ALONE,  # one minibatch on each
        optimizer=Optimizer(parts(algorithm), CONFIG, *([ranks] if ranks else []), rates=algorithm.rates),
    )
    losses = lambda batch: ((share * loss, found) for loss, found in algorithm.losses(batch))  # noqa: E731
    shared = SimpleNamespace(algorithm=SimpleNamespace(losses=losses), optimizer=engine.optimizer)
    engine.step = lambda minibatch: Update._step(shared, minibatch)
    engine.optimizer.set_progress(0.0)
    obs, metrics = torch.randn(4, 2, 3, generator=torch.Generator().manual_seed(1)), []
    for _ in range(rounds):
        batch = Batch({"obs": obs, "reward": torch.zeros(4, 2)})
        Update.learn(engine, batch, lambda batch, loss, found: bool(metrics.append({**found, "total": loss})))
    return metrics


@pytest.mark.parametrize("rates", [{}, {"critic": 3.0, "algorithm": 0.5}])
def test_each_loss_moves_only_what_it_reaches_and_sees_the_step_before(rates):
    algorithm, twin = made(rates), made()
    metrics = learn(algorithm)
    # the same with torch's own optimizers, written out
    rate = {name: 0.1 * rates.get(name, 1.0) for name in ("policy", "critic", "algorithm")}
    own = {
        "policy": torch.optim.Adam(twin.policy.parameters(), rate["policy"]),
        "critic": torch.optim.Adam(twin.critic.parameters(), rate["critic"]),
        "algorithm": torch.optim.Adam([twin.own], rate["algorithm"]),
    }
    obs = torch.randn(4, 2, 3, generator=torch.Generator().manual_seed(1))
    for number in range(3):
        losses = {
            "critic": lambda: twin.critic(obs).square().mean(),
            "policy": lambda: (twin.policy(obs) @ twin.critic.weight.detach().t()).mean(),
            "algorithm": lambda: twin.own.square(),
        }
        total = 0.0
        for step, (name, loss) in enumerate(losses.items()):
            own[name].zero_grad()
            found = loss()
            found.backward()
            own[name].step()
            total += found.item()
            expected = [twin.policy.weight, twin.critic.weight, twin.own]
            for mine, theirs in zip(algorithm.seen[4 * number + step + 1], expected, strict=True):
                torch.testing.assert_close(mine, theirs.detach(), rtol=1e-5, atol=1e-6)
        assert metrics[number]["total"].item() == pytest.approx(total, rel=1e-4)
        assert {"loss/value", "loss/policy", "loss/own", "loss/grad_norm"} < metrics[number].keys()


def test_two_ranks_add_up_the_gradients_of_each_loss():
    alone = made()
    learn(alone)
    made_by = {0: made(), 1: made()}

    def work(ranks: Ranks) -> list[torch.Tensor]:
        learn(made_by[ranks.rank], ranks=ranks, share=0.5)
        return [p.detach() for p in made_by[ranks.rank].parameters()]

    for weights in run_together(2, work):
        for mine, theirs in zip(weights, alone.parameters(), strict=True):
            torch.testing.assert_close(mine, theirs.detach(), rtol=1e-4, atol=1e-6)


def test_a_rate_of_a_part_that_does_not_learn_is_refused():
    with pytest.raises(ConfigError, match="rates names 'critics', which is no part that learns; there are policy, critic"):
        learn(made({"critics": 2.0}))
