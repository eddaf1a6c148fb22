"""Actors: a view of the weights that stays what it was while others learn, and what is tried before anything starts."""

from __future__ import annotations

import threading

import pytest
import torch
from torch import nn

from fugu.rollout.acting import Act, Actor, Published, Seen, generators, replica
from fugu.rollout.batch import Batch, Origin
from fugu.rollout.columns import PER_SEGMENT


class Weighing(nn.Module):
    """Acts by its weight and by a random number."""

    def __init__(self) -> None:
        super().__init__()
        self.weight = nn.Parameter(torch.zeros(4096))
        self.register_buffer("moment", torch.zeros(()))
        self.inner = nn.Module()
        self.generator = torch.Generator().manual_seed(3)

    def act(self, seen: Seen) -> Act:
        return Act(self.weight.detach() + self.moment, columns={"drawn": torch.rand(1, generator=self.generator)})


SEEN = Seen(torch.zeros(1), torch.ones(1, dtype=torch.bool))


def test_an_actor_stays_what_it_was_while_the_weights_go_on():
    module = Weighing()
    published = Published(module)
    first = published.publish(1)
    with torch.no_grad():
        module.weight.fill_(5.0)
        module.moment.fill_(2.0)
    assert first.act(SEEN).env_action.eq(0).all() and first.version == 1
    second = published.publish(2)
    assert second.act(SEEN).env_action.eq(7).all() and second.version == 2
    assert first.act(SEEN).env_action.eq(0).all()  # until the second publish after its own


def test_an_actor_in_a_thread_sees_one_version_of_all_weights_while_the_learner_writes():
    module = Weighing()
    published = Published(module)
    torn, waiting, done = [], threading.Semaphore(0), threading.Semaphore(0)
    actors = [published.publish(0)]

    def act() -> None:
        while True:
            waiting.acquire()
            actor = actors[-1]
            if actor.version < 0:
                return
            for _ in range(20):  # while the learner goes on writing
                found = actor.act(SEEN).env_action
                if not found.eq(float(actor.version)).all():
                    torn.append((actor.version, found.unique().tolist()))
            done.release()

    thread = threading.Thread(target=act)
    thread.start()
    try:
        for version in range(1, 100):
            waiting.release()
            for part in module.weight.detach().split(512):  # a learner writes piece by piece
                part.fill_(float(version))
            fresh = published.publish(version)  # the one before is still acting
            done.acquire(timeout=60)
            actors.append(fresh)
    finally:
        actors.append(Actor(module.act, -1))
        waiting.release()
        thread.join()
    assert not torn


def test_copies_draw_from_the_generators_of_the_original():
    module = Weighing()
    expected = [torch.rand(1, generator=generator) for generator in [torch.Generator().manual_seed(3)] for _ in range(3)]
    actor = Published(module).publish(0)
    drawn = [module.act(SEEN).columns["drawn"], actor.act(SEEN).columns["drawn"], replica(module).act(SEEN).columns["drawn"]]
    assert all(map(torch.equal, drawn, expected))


def test_generators_are_found_wherever_a_part_has_one():
    module = Weighing()
    module.inner.own = torch.Generator()
    assert set(generators(module)) == {"generator", "inner.own"}


def batch(**columns: torch.Tensor) -> Batch:
    found: list[tuple[dict[str, torch.Tensor], torch.Tensor | None]] = []
    base = {"reward": torch.zeros(6, 3), "mask": torch.ones(6, 3, dtype=torch.bool)}
    made = Batch({**base, **columns}, PER_SEGMENT, Origin(lambda columns, segments: found.append((dict(columns), segments))))
    return made, found  # type: ignore[return-value]


def test_what_is_found_of_a_minibatch_goes_back_to_the_segments_it_is_of():
    whole, found = batch()
    whole.rows(torch.tensor([4, 1, 5])).part(1, 3).also(advantage=torch.zeros(2, 3)).hand_back(
        priority=torch.tensor([0.1, 0.2])
    )
    whole.hand_back(latent=torch.zeros(6, 2))
    assert found[0][1].tolist() == [1, 5] and found[0][0]["priority"].tolist() == pytest.approx([0.1, 0.2])
    assert found[1][1] is None and found[1][0]["latent"].shape == (6, 2)


def test_columns_of_segments_may_have_any_name():
    whole, _ = batch()
    whole = whole.also_once(latent=torch.arange(6.0)[:, None]).also(noise=torch.arange(18.0).view(6, 3))
    chosen = whole.rows(torch.tensor([5, 0]))
    assert chosen["latent"].tolist() == [[5.0], [0.0]] and chosen["noise"].shape == (2, 3)
    assert "noise" not in whole.without("noise")


def test_where_no_source_asks_for_it_nothing_is_handed_back():
    Batch({"reward": torch.zeros(2, 2)}).hand_back(priority=torch.zeros(2))
