"""Picking segments on the device."""

from __future__ import annotations

import pytest
import torch
from torch import Tensor

from fugu.errors import ConfigError
from fugu.ops.gather import copy_all, gather, lies_by_steps
from fugu.rollout.batch import PER_SEGMENT, Batch

SEGMENTS, HORIZON = 48, 5


def columns(device: torch.device) -> dict[str, Tensor]:
    generator = torch.Generator().manual_seed(0)

    def made(*shape: int, dtype: torch.dtype = torch.float32) -> Tensor:
        return torch.randint(0, 100, shape, generator=generator).to(device, dtype)

    steps = {
        "reward": made(HORIZON, SEGMENTS),
        "obs": made(HORIZON + 1, SEGMENTS, 7)[:HORIZON],
        "first": made(HORIZON + 1, SEGMENTS, dtype=torch.bool)[:HORIZON],
        "action": made(HORIZON, SEGMENTS, 1, dtype=torch.int64),
        "pixel": made(HORIZON, SEGMENTS, 3, 11, dtype=torch.uint8),
    }
    once = {"bootstrap": made(SEGMENTS), "state": made(SEGMENTS, 12)}
    return {**{name: column.transpose(0, 1) for name, column in steps.items()}, **once}


@pytest.mark.parametrize("together", [1, 4, 16])
def test_picked_segments_are_those_of_index_select(device: torch.device, together: int) -> None:
    given = columns(device)
    index = torch.tensor([2, 0, 2, 1], device=device)
    segments = (index[:, None] * together + torch.arange(together, device=device)).flatten()
    found = gather(given, index, once=PER_SEGMENT, together=together)
    for name, column in given.items():
        assert torch.equal(found[name], column.index_select(0, segments)), name
        assert found[name].dtype == column.dtype
        assert name in PER_SEGMENT or lies_by_steps(found[name])


def test_a_batch_picks_with_it_and_stays_in_order(device: torch.device) -> None:
    given = columns(device)
    index = torch.tensor([40, 3, 3])
    picked = Batch(given).rows(index)
    assert lies_by_steps(picked["obs"])
    plain = Batch({name: column.contiguous() for name, column in given.items()}).rows(index)
    assert not lies_by_steps(plain["obs"])
    assert all(torch.equal(picked[name], plain[name]) for name in given)


def test_a_part_is_made_compact_without_a_second_copy(device: torch.device, monkeypatch: pytest.MonkeyPatch) -> None:
    given = Batch(columns(device)).part(16, 32)
    copies: list[Tensor] = []
    real = Tensor.contiguous
    monkeypatch.setattr(Tensor, "contiguous", lambda self: copies.append(self) or real(self))
    found = given.compact()
    monkeypatch.undo()
    assert all(copy.is_contiguous() for copy in copies)
    for name, column in given.columns.items():
        assert torch.equal(found[name], column), name
        assert name in PER_SEGMENT or lies_by_steps(found[name]) is (name != "obs")
    assert found["obs"] is given["obs"]


def test_runs_must_divide_the_segments(device: torch.device) -> None:
    with pytest.raises(ConfigError, match="reward: 48 segments are not a multiple of together=5"):
        gather(columns(device), torch.tensor([0], device=device), once=PER_SEGMENT, together=5)


@pytest.mark.parametrize("shift", [0, 4, 5])
def test_all_columns_are_copied_and_nothing_beside_them(device: torch.device, shift: int) -> None:
    generator = torch.Generator().manual_seed(0)
    sizes = [1, 7, 64, 4096, 16 * 257]
    sources = [torch.randint(0, 256, (size,), generator=generator, dtype=torch.uint8).to(device) for size in sizes]
    whole = [torch.full((size + 64,), 9, dtype=torch.uint8, device=device) for size in sizes]
    copy_all([(source, to[shift : shift + len(source)]) for source, to in zip(sources, whole, strict=True)])
    for source, to in zip(sources, whole, strict=True):
        assert torch.equal(to[shift : shift + len(source)], source)
        assert (to[:shift] == 9).all() and (to[shift + len(source) :] == 9).all()


def test_what_does_not_lie_alike_is_not_copied(device: torch.device) -> None:
    whole = torch.zeros(4, 4, device=device)
    for other in (torch.zeros(4, 3, device=device), torch.zeros(4, 4, device=device).t(), whole.int()):
        with pytest.raises(ConfigError, match="copy_all: .* is not like"):
            copy_all([(whole, other)])
