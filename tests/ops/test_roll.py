"""Native imagination, on every instruction set there is, against torch in float64 on the same draws."""

from __future__ import annotations

import dataclasses

import pytest
import torch

from fugu.ops import roll
from fugu.ops.roll import Model
from tests.ops.cases import random
from tests.ops.test_observe import params_of as observing
from tests.ops.test_stack import params_of as stacked

KINDS = {"choice": ([3], 0, 0), "choices": ([2, 4], 0, 0), "numbers": ([], 0, 2), "all": ([3, 2], 2, 1)}
DETER, HIDDEN, BLOCKS, VARIABLES, CLASSES = 24, 10, 3, 4, 5
ROWS, AHEAD = 130, 3


def model_of(kind: str) -> Model:
    counts, binaries, reals = KINDS[kind]
    numbers = sum(counts) + binaries + reals
    stoch = VARIABLES * CLASSES
    return Model(
        observing(DETER, HIDDEN, BLOCKS, stoch)[:11],
        stacked([DETER, HIDDEN, HIDDEN, stoch], bare=True),
        stacked([DETER + stoch, 12, 12, numbers + reals], bare=True),
        stacked([numbers, HIDDEN], bare=False),
        CLASSES,
        0.01,
        counts,
        binaries,
        reals,
        (0.1, 1.0),
    )


def given(model: Model) -> list[torch.Tensor]:
    generator = torch.Generator().manual_seed(3)
    start = torch.randint(CLASSES, (ROWS, VARIABLES), generator=generator)
    noise = torch.rand(AHEAD + 1, ROWS, model.dims, generator=generator)
    if model.reals:
        noise[..., -model.reals :].normal_(generator=generator)
    one_hot = torch.nn.functional.one_hot(start, CLASSES).flatten(1).float()
    return [random(ROWS, DETER).tanh(), one_hot, torch.rand(AHEAD, ROWS, VARIABLES, generator=generator), noise]


@pytest.mark.parametrize("kind", KINDS)
def test_what_is_imagined_equals_the_reference(instructions, kind, monkeypatch):
    model = model_of(kind)
    double = {name: [p.double() for p in getattr(model, name)] for name in ("cell", "prior", "actor", "action")}
    exact = dataclasses.replace(model, **double)
    columns = given(model)
    expected = roll.roll_reference(exact, *(x.double() for x in columns))
    monkeypatch.setattr(roll, "roll_reference", None)
    found = roll.roll(model, *columns)
    for mine, theirs in zip(found, expected, strict=True):
        torch.testing.assert_close(mine.double(), theirs, rtol=1e-4, atol=1e-4)
    assert found[0].shape == (AHEAD + 1, ROWS, DETER + VARIABLES * CLASSES) and found[1].shape == (AHEAD + 1, ROWS, model.dims)


def test_any_number_of_threads_gives_the_same_bits(monkeypatch):
    model = model_of("all")
    found = []
    for threads in (1, 2):
        monkeypatch.setattr("fugu.native.threads", threads)
        found.append(roll.roll(model, *given(model)))
    assert torch.equal(found[0][0], found[1][0]) and torch.equal(found[0][1], found[1][1])


def test_what_is_not_float32_is_left_to_torch():
    model = model_of("choice")
    assert roll.takes(model, torch.zeros(1, DETER)) and not roll.takes(model, torch.zeros(1, DETER, dtype=torch.float64))
