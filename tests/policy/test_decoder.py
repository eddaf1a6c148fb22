"""What a decoder is compared with, by kind of leaf, and how."""

from __future__ import annotations

import math
from typing import Any

import numpy as np
import pytest
import torch
from gymnasium import spaces as gs
from torch import Tensor

from fugu.ops.laprop import LaProp
from fugu.policy.decoder import Decoder
from fugu.policy.encoder import Encoder
from fugu.spaces import Layout, Packer
from fugu.spaces.views import leaf_tensors

BYTES = np.uint8


def made(space: gs.Space, rows: int = 3) -> tuple[Decoder, list[Tensor], list[Any], Tensor]:
    """Return a decoder, leaves of samples, the samples, and features."""
    torch.manual_seed(0)
    layout = Layout(space)
    space.seed(0)
    samples = [space.sample() for _ in range(rows)]
    packed = layout.zeros(rows)
    for i, sample in enumerate(samples):
        Packer(layout).pack(sample, packed[i, ...])
    decoder = Decoder(layout, Encoder(layout, 8), 10, 12, 2, 4)
    return decoder, leaf_tensors(layout, torch.from_numpy(packed)), samples, torch.randn(rows, 10)


def squared(shown: np.ndarray, truth: np.ndarray) -> float:
    return float(((shown - truth) ** 2).sum())


def crossed(chance: np.ndarray, truth: np.ndarray) -> float:
    return float(-np.log(np.where(truth == 1, chance, 1 - chance)).sum())


def bits(numbers: Any, count: int) -> np.ndarray:
    return np.array([[int(n) >> k & 1 for k in range(count)] for n in np.ravel(numbers)]).ravel()


@pytest.mark.parametrize(
    ("space", "loss", "truth"),
    [
        (gs.Box(-1, 1, (4,)), squared, lambda x: x),
        (gs.Box(0, 10, (2, 3), np.int32), squared, lambda x: x.ravel() / 10),
        (gs.MultiBinary(5), crossed, lambda x: x),
        (gs.Discrete(6, start=2), crossed, lambda x: np.eye(6)[x - 2]),
        (gs.MultiDiscrete([2, 3]), crossed, lambda x: np.concatenate([np.eye(2)[x[0]], np.eye(3)[x[1]]])),
        (gs.Discrete(300, start=-5), crossed, lambda x: bits(x + 5, 9)),
        (gs.Box(0, 255, (7, 7, 3), BYTES), crossed, lambda x: bits(x, 8)),
        (gs.Box(0, 255, (64, 64, 3), BYTES), squared, lambda x: x.ravel() / 255),
        (gs.Box(0, 255, (3, 20, 41), BYTES), squared, lambda x: x.ravel() / 255),
        (gs.Box(-1, 3, (36, 20)), squared, lambda x: (x.ravel() + 1) / 4),
    ],
    ids=str,
)
def test_a_leaf_is_compared_with_what_was_seen(space: gs.Space, loss: Any, truth: Any):
    decoder, leaves, samples, features = made(space)
    found, shown = decoder(features, leaves), decoder.shown(features)[0]
    for i, sample in enumerate(samples):
        seen = np.asarray(truth(sample), float)
        if shown.dim() == 4:  # channels first
            seen = seen.reshape(sample.shape)
            seen = seen.reshape(-1, *shown.shape[2:]) if sample.shape[-1] != shown.shape[1] else seen.transpose(2, 0, 1)
        expected = loss(shown[i].detach().double().numpy(), seen)
        assert math.isclose(found[i].item(), expected, rel_tol=1e-4)


def test_leaves_are_added_up_and_texts_have_eight_bits_a_character():
    space = gs.Dict(a=gs.Box(-1, 1, (2,)), b=gs.Text(6), c=gs.Discrete(2))
    decoder, leaves, _, features = made(space)
    hidden = decoder.layers(features)
    parts = [part.loss(hidden, leaf) for part, leaf in zip(decoder.parts, leaves, strict=True)]
    torch.testing.assert_close(decoder(features, leaves), sum(parts))
    assert [shown.shape[1] for shown in decoder.shown(features)] == [2, 6 * 8, 2]


@pytest.mark.parametrize("space", [gs.Box(-1, 1, (3,)), gs.Box(0, 255, (16, 16, 3), BYTES), gs.Discrete(100)], ids=str)
def test_a_decoder_learns_to_show_what_it_saw(space: gs.Space):
    decoder, leaves, _, features = made(space)
    if leaves[0].dim() == 4:
        leaves = [leaves[0][:, :1, :1].expand_as(leaves[0])]  # pictures of one colour each
    optimizer = LaProp(decoder.parameters(), learning_rate=0.01, betas=(0.9, 0.99), eps=1e-20, clip=0.3)
    losses = []
    for _ in range(60):
        loss = decoder(features, leaves).mean()
        for p, gradient in zip(optimizer.parameters, torch.autograd.grad(loss, optimizer.parameters), strict=True):
            p.grad = gradient
        optimizer.step()
        losses.append(loss.item())
    assert losses[-1] < 0.2 * losses[0]
