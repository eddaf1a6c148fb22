"""GAE over tokens equals a loop over each episode's tokens, whatever the lengths of its turns."""

from __future__ import annotations

import math

import pytest
import torch

from fugu.advantage.tokens import token_gae


def by_hand(value, reward, counts, gamma, lam):
    """One episode at a time: the list of its tokens, from the last to the first."""
    out = torch.zeros(value.shape, dtype=torch.float64)
    for s in range(value.shape[0]):
        tokens = [(t, k) for t in range(value.shape[1]) for k in range(value.shape[2]) if counts[s, t, k]]
        following, next_value = 0.0, 0.0
        for place in reversed(range(len(tokens))):
            t, k = tokens[place]
            last_of_turn = place == len(tokens) - 1 or tokens[place + 1][0] != t
            paid = reward[s, t].item() if last_of_turn else 0.0
            following = paid + gamma * next_value - value[s, t, k].item() + gamma * lam * following
            next_value = value[s, t, k].item()
            out[s, t, k] = following
    return out


@pytest.mark.parametrize(("gamma", "lam"), [(1.0, 0.95), (0.9, 0.0), (0.97, 1.0), (1.0, 1.0)])
def test_it_equals_a_loop_over_the_tokens_of_each_episode(gamma, lam):
    generator = torch.Generator().manual_seed(3)
    value = torch.randn((40, 3, 7), generator=generator)
    reward = torch.randn((40, 3), generator=generator)
    lengths = torch.randint(1, 8, (40, 3), generator=generator)
    turns = torch.randint(0, 4, (40, 1, 1), generator=generator)  # some episodes have no token at all
    counts = (torch.arange(7) < lengths[..., None]) & (torch.arange(3)[:, None] < turns)
    expected = by_hand(value, reward, counts, gamma, lam)
    got = token_gae(value, reward, counts, gamma=gamma, lam=lam)
    assert torch.allclose(got.double(), expected, atol=1e-5)
    assert (got[~counts] == 0).all() and got.abs().max() > 1


def test_what_does_not_count_may_hold_anything():
    counts = torch.tensor([[[True, True, False]], [[False, False, False]]])
    value = torch.tensor([[[0.5, 0.25, math.nan]], [[math.nan] * 3]])
    got = token_gae(value, torch.tensor([[1.0], [math.nan]]), counts, gamma=1.0, lam=1.0)
    assert got.tolist() == [[[0.5, 0.75, 0.0]], [[0.0, 0.0, 0.0]]]
