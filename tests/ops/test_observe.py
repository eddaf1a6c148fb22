"""The native sequence of observed states, on every instruction set there is, against torch in float64 on the same draws."""

from __future__ import annotations

import pytest
import torch

from fugu.ops import observe
from tests.ops.cases import assert_same, random

SIZES = [(1, 1, 4, 3, 2, 2, 2), (6, 5, 24, 10, 3, 4, 5), (4, 16, 128, 64, 8, 8, 8), (3, 2, 128, 20, 4, 4, 32)]
"""time, segments, deter, hidden, blocks, variables, classes"""


def params_of(deter: int, hidden: int, blocks: int, random_size: int) -> list[torch.Tensor]:
    width = deter // blocks
    depth = width + 3 * hidden
    shapes = [(hidden, deter), (hidden,), (hidden,), (hidden, random_size), (hidden,), (hidden,)]
    shapes += [(blocks, depth, width), (blocks, 1, width), (deter,), (blocks, width, 3 * width), (blocks, 1, 3 * width)]
    shapes += [(hidden, deter), (hidden,), (random_size, hidden), (random_size,)]
    return [random(*shape, seed=i, scale=0.3) + (i in (2, 5, 8, 12)) for i, shape in enumerate(shapes)]


def sequence(time: int, segments: int, deter: int, hidden: int, variables: int, classes: int) -> dict[str, torch.Tensor]:
    generator = torch.Generator().manual_seed(5)
    first = torch.rand(time, segments, generator=generator) < 0.3
    first[0, 0] = False
    start = torch.randint(classes, (segments, variables), generator=generator)
    return {
        "first": first,
        "deter": random(segments, deter, seed=1).tanh(),
        "stoch": torch.nn.functional.one_hot(start, classes).flatten(1).float(),
        "uniform": torch.rand(time, segments, variables, generator=generator),
    }


@pytest.mark.parametrize("sizes", SIZES, ids=str)
def test_states_and_gradients_equal_the_reference(instructions, sizes):
    time, segments, deter, hidden, blocks, variables, classes = sizes
    given = sequence(time, segments, deter, hidden, variables, classes)
    params = params_of(deter, hidden, blocks, variables * classes)
    tensors = [random(time, segments, hidden, seed=7), random(time, segments, hidden, seed=8), *params]

    def run(function):
        def found(action, seen, *params):
            kept = {name: x if x.dtype is torch.bool else x.to(action.dtype) for name, x in given.items()}
            return function(params, classes, 0.01, action, seen, **kept)

        return found

    assert_same(run(observe.observe), run(observe.observe_reference), tensors, tolerance=3e-5)


def test_it_is_the_native_kernel_that_was_asked(monkeypatch):
    monkeypatch.setattr(observe, "observe_reference", None)
    given = sequence(2, 3, 8, 4, 2, 3)
    action = random(2, 3, 4)
    deter, stoch, chance = observe.observe(params_of(8, 4, 2, 6), 3, 0.01, action, action, **given)
    assert deter.shape == (2, 3, 8) and stoch.shape == (2, 3, 6) and chance.shape == (2, 3, 2, 3)
    assert set(stoch.unique().tolist()) == {0.0, 1.0}


def test_states_that_have_a_gradient_themselves_are_left_to_torch():
    given = sequence(2, 3, 8, 4, 2, 3)
    given["deter"].requires_grad_()
    action = random(2, 3, 4)
    deter, _, _ = observe.observe(params_of(8, 4, 2, 6), 3, 0.01, action, action, **given)
    assert torch.autograd.grad(deter.sum(), given["deter"])[0].abs().sum() > 0


def test_classes_are_drawn_with_their_probabilities(instructions):
    """Of many segments alike, which differ in their uniform numbers alone."""
    rows, variables, classes = 20_000, 2, 5
    given = sequence(1, 1, 8, 4, variables, classes)
    uniform = torch.rand(1, rows, variables, generator=torch.Generator().manual_seed(0))
    action = random(1, 1, 4).expand(1, rows, 4)
    deter, stoch = given["deter"].expand(rows, -1), given["stoch"].expand(rows, -1)
    params = params_of(8, 4, 2, variables * classes)
    _, drawn, chance = observe.observe(
        params, classes, 0.01, action, action, given["first"].expand(1, rows), deter, stoch, uniform
    )
    torch.testing.assert_close(drawn[0].mean(0), chance[0, 0].flatten(), atol=0.015, rtol=0)
    assert chance.min() >= 0.01 / classes * 0.999
