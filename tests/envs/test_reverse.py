"""The environment ``reverse``: what is right, what is paid, which prompts are never shown."""

from __future__ import annotations

import numpy as np
import pytest

import fugu
from fugu.envs.reverse import END, examples


def played(action, *, seed=0, **settings):
    with fugu.vector.make("reverse", len(action), env_kwargs=settings, num_workers=1) as vec:
        vec.reset(seed)
        _, reward, terminated, truncated, _ = vec.step(np.asarray(action))
        assert terminated.all() and not truncated.any()
        return reward.copy(), vec.drain_log().mean_values


def test_the_examples_are_right_and_nothing_else_is():
    prompt, answer = examples(500, seed=3, shortest=2, longest=6)
    assert sorted(set((prompt != 0).sum(1).tolist())) == [2, 3, 4, 5, 6]
    for digits, reply in zip(prompt.tolist(), answer.tolist(), strict=True):
        said = [token for token in digits if token]
        assert reply == [*reversed(said), END] + [0] * (6 - len(said)) and all(2 <= token <= 11 for token in said)
    reward, log = played(answer, seed=3, shortest=2, longest=6)
    assert (reward == 1).all() and log == {"score": 1, "tokens": 1}
    for place in range(3):  # all answers have these
        wrong = answer.clone()
        wrong[:, place] = (wrong[:, place] - 1) % 10 + 2
        assert not played(wrong, seed=3, shortest=2, longest=6)[0].any()
    after = answer.clone()
    after[answer == 0] = 7  # what comes after the end does not matter
    assert played(after, seed=3, shortest=2, longest=6)[0].all()


def test_partial_answers_are_paid_by_the_share_of_tokens_that_are_right():
    _, answer = examples(100)
    answer[:, 1] = answer[:, 4] = 0
    reward, log = played(answer, partial=0.5)
    assert reward == pytest.approx(np.full(100, 0.5 * 3 / 5)) and log["tokens"] == pytest.approx(0.6) and log["score"] == 0


def test_a_fifth_of_the_prompts_is_held_out():
    seen, held_out = ({tuple(row) for row in examples(60_000, held_out=h)[0].tolist()} for h in (0, 1))
    assert not seen & held_out
    assert len(seen | held_out) > 9_900 and len(held_out) / len(seen | held_out) == pytest.approx(0.2, abs=0.02)
