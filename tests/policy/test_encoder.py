"""Each kind of observation becomes the features it should."""

from __future__ import annotations

import numpy as np
import pytest
import torch
from gymnasium import spaces as gs
from hypothesis import given, settings
from hypothesis import strategies as st

from fugu.policy.encoder import Characters, Choices, Encoder, Grid, Image, OneHot, Reals, Scaled
from fugu.spaces import Layout, Packer, bound
from fugu.spaces.views import leaf_tensors
from tests.spaces.strategies import spaces, value_of

BYTES = np.uint8

KINDS = [
    (gs.Box(-1, 1, (4,)), Reals),
    (gs.Box(-np.inf, np.inf, ()), Reals),
    (gs.Box(-1, 1, (5, 5)), Reals),
    (gs.MultiBinary(6), Reals),
    (gs.Box(0, 9, (3,), np.int32), Scaled),
    (gs.Box(0, 255, (128,), BYTES), Scaled),
    (gs.Box(0, 1, (8, 8, 111), bool), Scaled),
    (gs.Box(0, 255, (10, 10), BYTES), Scaled),
    (gs.Discrete(64), OneHot),
    (gs.Discrete(65), Choices),
    (gs.MultiDiscrete([30, 30]), OneHot),
    (gs.MultiDiscrete([40, 40]), Choices),
    (gs.Text(9), Characters),
    (gs.Box(0, 255, (7, 7, 3), BYTES), Grid),
    (gs.Box(0, 255, (2, 10, 10), BYTES), Grid),
    (gs.Box(0, 255, (10, 10, 8), BYTES), Image),
    (gs.Box(0, 255, (84, 84, 4), BYTES), Image),
    (gs.Box(0, 255, (4, 84, 84), BYTES), Image),
    (gs.Box(0, 255, (210, 160, 3), BYTES), Image),
    (gs.Box(0, 1, (16, 20)), Image),
    (gs.Box(0, 255, (36, 36), BYTES), Image),
]


@pytest.mark.parametrize(("space", "kind"), KINDS, ids=lambda value: str(value) if isinstance(value, gs.Space) else "")
def test_each_leaf_gets_its_part(space: gs.Space, kind: type) -> None:
    encoder = Encoder(Layout(space), embedding=8)
    assert type(encoder.parts[0]) is kind
    features = encoder(leaf_tensors(Layout(space), torch.from_numpy(Layout(space).zeros(3))))
    assert features.shape == (3, encoder.size) and features.dtype == torch.float32


def test_channels_are_found_first_or_last() -> None:
    torch.manual_seed(0)
    first, last = (Encoder(Layout(gs.Box(0, 255, shape, BYTES)), 8) for shape in ((3, 20, 40), (20, 40, 3)))
    last.load_state_dict(first.state_dict())
    picture = torch.randint(0, 256, (2, 3, 20, 40), dtype=torch.uint8)
    torch.testing.assert_close(first([picture]), last([picture.permute(0, 2, 3, 1)]))


@pytest.mark.parametrize(
    "space",
    [
        gs.Box(0, 255, (40, 40, 3), BYTES),
        gs.Box(0, 255, (4, 84, 84), BYTES),
        gs.Box(0, 255, (20, 20), BYTES),
        gs.Box(0, 2, (3, 20, 20)),
        gs.Box(-1, 3, (20, 20, 3)),
        gs.Box(np.zeros((20, 20)), np.linspace(1, 9, 400).reshape(20, 20)),
        gs.Box(-np.inf, np.inf, (20, 20)),
    ],
    ids=str,
)
def test_an_image_is_scaled_to_one_by_its_bounds(space: gs.Box) -> None:
    torch.manual_seed(0)
    part = Image(Layout(space).leaves[0])
    image = torch.from_numpy(np.stack([space.sample() for _ in range(3)]))
    bounded = np.isfinite(space.low) & np.isfinite(space.high)
    low = torch.from_numpy(np.where(bounded, space.low, 0)).float()
    high = torch.from_numpy(np.where(bounded, space.high, 1)).float()
    scaled = (image.float() - low) / (high - low)
    plain = scaled.unsqueeze(1) if scaled.dim() == 3 else scaled.permute(0, 3, 1, 2) if part.last else scaled
    ours, theirs = part(image), part.net(plain)
    torch.testing.assert_close(ours, theirs, atol=1e-5, rtol=1e-4)
    ours, theirs = (torch.autograd.grad(out.pow(2).mean(), list(part.parameters())) for out in (ours, theirs))
    for one, other in zip(ours, theirs, strict=True):
        torch.testing.assert_close(one, other, atol=1e-5, rtol=1e-3)


def test_integers_are_scaled_by_their_bounds() -> None:
    space = gs.Box(np.array([0, -5, 3], np.int16), np.array([10, 5, 3], np.int16), dtype=np.int16)
    part = Scaled(Layout(space).leaves[0])
    torch.testing.assert_close(part(torch.tensor([[5, -5, 3], [10, 5, 3]])), torch.tensor([[0.5, 0.0, 3.0], [1.0, 1.0, 3.0]]))
    wide = Scaled(Layout(gs.Box(-np.inf, np.inf, (1,), np.int64)).leaves[0])
    assert wide(torch.tensor([[12]])).tolist() == [[12.0]]


def test_the_cells_of_a_board_are_told_apart_as_kinds_if_asked_for() -> None:
    board = gs.Box(np.array([[0, 1]]), np.array([[2, 3]]), (1, 2), BYTES)
    encoder = Encoder(Layout(board), 16, kinds=3)
    assert torch.equal(encoder([torch.tensor([[[2, 1]]], dtype=torch.uint8)]), torch.tensor([[0.0, 0, 1, 1, 0, 0]]))
    assert isinstance(Encoder(Layout(board), 16, kinds=2).parts[0], Scaled)
    widest = gs.Box(np.iinfo(np.int64).min, np.iinfo(np.int64).max, (2,), np.int64)
    assert isinstance(Encoder(Layout(widest), 16).parts[0], Scaled)


def test_one_hot_counts_from_the_start_of_the_space() -> None:
    part = Encoder(Layout(gs.Discrete(3, start=5)), 8)
    assert part([torch.tensor([5, 7])]).tolist() == [[1, 0, 0], [0, 0, 1]]
    multi = Encoder(Layout(gs.MultiDiscrete([2, 3], start=[0, 10])), 8)
    assert multi([torch.tensor([[1, 10], [0, 12]])]).tolist() == [[0, 1, 1, 0, 0], [1, 0, 0, 0, 1]]


def test_embeddings_of_different_elements_are_different() -> None:
    part = Encoder(Layout(gs.MultiDiscrete([50, 50], start=[0, 7])), 4)
    features = part([torch.tensor([[3, 10]])]).unflatten(1, (2, 4))[0]  # both are choice 3 of their element
    table = part.parts[0].table.weight
    assert torch.equal(features[0], table[3]) and torch.equal(features[1], table[53])


def test_a_grid_tells_symbols_and_places_apart() -> None:
    torch.manual_seed(0)
    part = Encoder(Layout(gs.Box(0, 255, (7, 7, 3), BYTES)), 8)
    grid = torch.zeros(4, 7, 7, 3, dtype=torch.uint8)
    grid[1, 2, 3, 0] = 5
    grid[2, 2, 3, 1] = 5
    grid[3, 3, 2, 0] = 5
    features = part([grid])
    for one in range(4):
        for other in range(one):
            assert not torch.allclose(features[one], features[other])


def test_texts_with_other_words_have_other_features() -> None:
    torch.manual_seed(0)
    space = gs.Text(24, charset="abcdefghijklmnopqrstuvwxyz ")
    packer = Packer(Layout(space))
    rows = Layout(space).zeros(3)
    for row, text in zip(rows, ("go to the red door", "go to the blue door", "go to the red door"), strict=True):
        packer.pack(text, row)
    features = Encoder(Layout(space), 8)([torch.from_numpy(rows)])
    assert torch.equal(features[0], features[2]) and not torch.allclose(features[0], features[1])


def test_equal_texts_are_read_once_and_all_get_what_they_would_alone(monkeypatch) -> None:
    torch.manual_seed(0)
    part = Characters(8)
    texts = torch.randint(97, 123, (5, 24), dtype=torch.uint8)
    rows = texts[torch.tensor([3, 0, 3, 1, 4, 4, 2, 0])]
    expected, seen, read = part._read(rows.long()), [], part._read
    monkeypatch.setattr(part, "_read", lambda codes: seen.append(len(codes)) or read(codes))
    got = part(rows)
    assert seen == [5]
    torch.testing.assert_close(got, expected)
    got.sum().backward()
    once = part.convolution.weight.grad.clone()
    part.zero_grad()
    expected.sum().backward()
    torch.testing.assert_close(part.convolution.weight.grad, once)


def test_a_text_that_never_changes_does_not_drown_the_rest() -> None:
    """Its features and those of a grid of symbols begin at about the same size."""
    torch.manual_seed(0)
    grid = Encoder(Layout(gs.Box(0, 255, (7, 7, 3), BYTES)), 16)([torch.randint(0, 8, (64, 7, 7, 3), dtype=torch.uint8)])
    text = Characters(16)(torch.randint(97, 123, (64, 53), dtype=torch.uint8))
    assert text.square().mean() < grid.square().mean() < 10 * text.square().mean()


def test_padding_of_a_sequence_needs_no_embedding_of_its_own() -> None:
    space = bound(gs.Sequence(gs.Discrete(100, start=50)), 3)
    layout = Layout(space)
    features = Encoder(layout, 4)(leaf_tensors(layout, torch.from_numpy(layout.zeros(2))))
    assert features.isfinite().all()


@settings(max_examples=40, deadline=None)
@given(space=spaces(depth=2), seed=st.integers(0, 2**31))
def test_any_space_that_has_a_row_can_be_encoded(space: gs.Space, seed: int) -> None:
    layout = Layout(space)
    if not layout.leaves or layout.nbytes == 0:
        return
    packer, rng = Packer(layout), np.random.default_rng(seed)
    rows = layout.zeros(3)
    for row in range(3):
        packer.pack(value_of(space, rng), rows[row, ...])
    encoder = Encoder(layout, 4)
    features = encoder(leaf_tensors(layout, torch.from_numpy(rows)))
    assert features.shape == (3, encoder.size)
