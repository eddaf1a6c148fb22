"""Every loss of the GRPO family against a loop over episodes and tokens, and what its gradients are."""

from __future__ import annotations

import math
from itertools import pairwise

import pytest
import torch

from fugu.algorithm.parts.group_losses import GroupLossSettings, divergence, group_loss, token_weight

LONGEST = 9
FAMILY = {
    "grpo": ("token", "clip", 0.2, 0.2, "sequence"),
    "dr_grpo": ("token", "clip", 0.2, 0.2, "longest"),
    "dapo": ("token", "clip", 0.2, 0.28, "token"),
    "gspo": ("sequence", "clip", 0.03, 0.04, "sequence"),
    "cispo": ("token", "weight", 0.2, 0.3, "token"),
}
KINDS = [(name, kl) for name in FAMILY for kl in ("k2", "k3")]


def slow(new, old, advantage, counts, reference, importance, entropy, name, kl, kl_coef, entropy_coef):
    """What the loss is, number by number; ``new`` is a list of lists of 0-d tensors."""
    ratio, cut, low, high, average = FAMILY[name]
    lengths = [sum(c) for c in counts]
    episodes, tokens = sum(length > 0 for length in lengths), sum(lengths)
    total = 0.0
    for i, length in enumerate(lengths):
        chosen = [t for t in range(len(counts[i])) if counts[i][t]]
        mean = sum(new[i][t] - old[i][t] for t in chosen) / max(length, 1)
        for t in chosen:
            r = (mean if ratio == "sequence" else new[i][t] - old[i][t]).exp()
            if cut == "weight":
                gain = min(r.detach(), torch.tensor(1 + high)) * advantage[i] * new[i][t]
            else:
                gain = min(r * advantage[i], r.clamp(1 - low, 1 + high) * advantage[i])
            log = reference[i][t] - new[i][t]
            away = log**2 / 2 if kl == "k2" else log.exp() - log - 1
            loss = -importance[i][t] * gain + kl_coef * away - entropy_coef * entropy[i][t]
            total += loss / {"sequence": length * episodes, "token": tokens, "longest": episodes * LONGEST}[average]
    return total


def columns(seed: int = 0) -> dict[str, torch.Tensor]:
    """Six episodes of 0 to 9 tokens with gaps, one without any; NaN wherever nothing counts."""
    generator = torch.Generator().manual_seed(seed)

    def random(*shape):
        return torch.rand(shape, generator=generator, dtype=torch.float64)

    counts = torch.arange(LONGEST) < torch.tensor([9, 1, 4, 0, 7, 2])[:, None]
    counts[4, 2] = False
    old = -3 * random(6, LONGEST)
    out = {
        "logprob": old + 0.6 * (random(6, LONGEST) - 0.5),
        "old_logprob": old,
        "reference_logprob": old + 0.4 * (random(6, LONGEST) - 0.5),
        "importance": 0.5 + random(6, LONGEST),
        "entropy": random(6, LONGEST),
    }
    out = {name: torch.where(counts, column, math.nan) for name, column in out.items()}
    out["advantage"] = torch.tensor([1.0, -2.0, 0.7, math.nan, -0.4, 0.0], dtype=torch.float64)
    return {**out, "counts": counts}


def computed(c, name, kl, parts=((0, 6),)):
    ratio, cut, low, high, average = FAMILY[name]
    settings = GroupLossSettings(ratio=ratio, cut=cut, clip_low=low, clip_high=high, kl=kl, kl_coef=0.3, entropy_coef=0.05)
    weight, share = token_weight(c["counts"], average, LONGEST).double(), token_weight(c["counts"], "token", LONGEST).double()
    losses = []
    for start, stop in parts:
        part = {key: column[start:stop] for key, column in c.items()}
        losses.append(
            group_loss(
                part["logprob"],
                part["entropy"],
                old_logprob=part["old_logprob"],
                advantage=part["advantage"][:, None],
                weight=weight[start:stop],
                share=share[start:stop],
                settings=settings,
                importance=part["importance"],
                reference_logprob=part["reference_logprob"],
            )
        )
    return [sum(parts) for parts in zip(*losses, strict=True)]


@pytest.mark.parametrize(("name", "kl"), KINDS)
def test_loss_and_gradient_equal_the_slow_loop(name, kl):
    c = columns()
    c["logprob"].requires_grad_()
    c["entropy"].requires_grad_()
    total = computed(c, name, kl)[0]
    gradients = torch.autograd.grad(total, (c["logprob"], c["entropy"]))
    rows = {key: [list(row) for row in c[key]] for key in c if key != "advantage"}
    expected = slow(
        rows["logprob"],
        rows["old_logprob"],
        list(c["advantage"]),
        c["counts"].tolist(),
        rows["reference_logprob"],
        rows["importance"],
        rows["entropy"],
        name,
        kl,
        0.3,
        0.05,
    )
    assert total.item() == pytest.approx(expected.item(), abs=1e-7)
    for got, want in zip(gradients, torch.autograd.grad(expected, (c["logprob"], c["entropy"])), strict=True):
        assert torch.allclose(got, torch.where(c["counts"], want, 0.0), atol=1e-7)


@pytest.mark.parametrize("name", FAMILY)
def test_parts_of_a_step_add_up_to_the_whole(name):
    c = columns(1)
    whole = computed(c, name, "k2")
    for bounds in ([0, 1, 2, 3, 4, 5, 6], [0, 4, 6]):
        parts = computed(c, name, "k2", list(pairwise(bounds)))
        for a, b in zip(whole, parts, strict=True):
            assert float(a) == pytest.approx(float(b), abs=1e-12)


@pytest.mark.parametrize("name", FAMILY)
def test_nothing_that_counts_is_a_loss_of_zero(name):
    c = columns()
    c["counts"] = torch.zeros_like(c["counts"])
    assert [float(x) for x in computed(c, name, "k3")] == [0.0] * 6


def test_the_clip_cuts_the_gradient_exactly_where_a_token_has_moved_far_enough():
    ratio = torch.tensor([[0.79, 0.81, 1.0, 1.27, 1.29]], dtype=torch.float64)
    ones = torch.ones_like(ratio)
    settings = GroupLossSettings(ratio="token", cut="clip", clip_low=0.2, clip_high=0.28)
    for advantage, flows in ((1.0, [1, 1, 1, 1, 0]), (-1.0, [0, 1, 1, 1, 1])):
        logprob = ratio.log().requires_grad_()
        loss = group_loss(
            logprob,
            0 * ones,
            old_logprob=0 * ones,
            advantage=advantage * ones,
            weight=ones / 5,
            share=ones / 5,
            settings=settings,
        )
        loss.total.backward()
        assert (logprob.grad != 0).int().tolist() == [flows]
        assert loss.clip_fraction.item() == pytest.approx(0.2)


def test_the_ratio_of_a_sequence_is_the_geometric_mean():
    ratios = torch.tensor([[1.1, 0.9, 1.2, 5.0]])
    counts = torch.tensor([[True, True, True, False]])
    settings = GroupLossSettings(ratio="sequence", cut="clip", clip_low=1, clip_high=9)
    weight = token_weight(counts, "sequence", 4)
    one = torch.ones_like(ratios)
    loss = group_loss(
        ratios.log(), 0 * one, old_logprob=0 * one, advantage=2 * one, weight=weight, share=weight, settings=settings
    )
    assert loss.policy.item() == pytest.approx(-2 * (1.1 * 0.9 * 1.2) ** (1 / 3))


def test_k2_has_the_gradient_of_the_divergence_from_the_reference_and_k3_that_of_the_reverse():
    """By enumeration of five choices, as the tokens that the policy draws with their probabilities."""
    generator = torch.Generator().manual_seed(3)
    logits, reference = torch.randn(2, 5, generator=generator, dtype=torch.float64)
    logits.requires_grad_()
    log_q = reference.log_softmax(0)

    def gradient(of):
        return torch.autograd.grad(of(logits.log_softmax(0)), logits)[0]

    forward = gradient(lambda log_p: (log_p.exp() * (log_p - log_q)).sum())
    reverse = gradient(lambda log_p: (log_q.exp() * (log_q - log_p)).sum())
    for kind, expected in (("k2", forward), ("k3", reverse)):
        got = gradient(lambda log_p, kind=kind: (log_p.detach().exp() * divergence(log_p, log_q, kind)).sum())
        assert torch.allclose(got, expected, atol=1e-12)
    assert not torch.allclose(forward, reverse, atol=1e-2)
