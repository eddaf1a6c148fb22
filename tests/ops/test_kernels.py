"""The fused kernels against their torch references, those in float64: values and gradients, on every instruction set there is."""

from __future__ import annotations

import math
import os
import subprocess
import sys

import pytest
import torch
from gymnasium import spaces as gs

from fugu.native import native
from fugu.ops import sample
from fugu.ops.lstm import lstm, lstm_reference
from fugu.ops.mlp import mlp, mlp_reference
from fugu.ops.ppo_loss import Loss, ppo_loss
from fugu.policy.distribution import Distribution

SETTINGS = {"clip": 0.2, "value_clip": 0.3, "value_coef": 0.5, "entropy_coef": 0.1}

pytestmark = pytest.mark.skipif(native is None, reason="the native core is not built")


def random(*shape: int, seed: int = 0, scale: float = 1.0) -> torch.Tensor:
    return scale * torch.randn(*shape, generator=torch.Generator().manual_seed(seed))


def gradients(function, tensors, *rest, **settings):
    """Outputs, and the gradients of a random weighting of them for each of ``tensors``."""
    leaves = [tensor.detach().clone().requires_grad_() for tensor in tensors]
    outputs = function(*leaves, *rest, **settings)
    outputs = outputs if isinstance(outputs, tuple) else (outputs,)
    total = sum((out * random(*out.shape, seed=i).to(out.dtype)).sum() for i, out in enumerate(outputs))
    return outputs, torch.autograd.grad(total, leaves)


def assert_same(function, reference, tensors, *rest, tolerance: float = 3e-6, **settings) -> None:
    """``function`` in float32 equals ``reference`` in float64, relative to the largest number of each output and gradient."""
    exact = gradients(reference, [tensor.double() for tensor in tensors], *rest, **settings)
    found = gradients(function, tensors, *rest, **settings)
    for ours, theirs in zip((*found[0], *found[1]), (*exact[0], *exact[1]), strict=True):
        assert ours.shape == theirs.shape
        assert ours.dtype == torch.float32
        if ours.numel():
            scale = max(1e-3, theirs.abs().max().item())
            assert (ours.double() - theirs).abs().max().item() <= tolerance * scale


def layers(*widths: int) -> list[torch.Tensor]:
    sizes = list(zip(widths[1:], widths[:-1], strict=True))
    weights = [random(out, into, seed=9 + i, scale=into**-0.5) for i, (out, into) in enumerate(sizes)]
    return [*weights, *(random(out, seed=19 + i) for i, (out, _) in enumerate(sizes))]


def call_mlp(function, activation="tanh", last=None):
    def call(x, *parameters):
        half = len(parameters) // 2
        return function(x, parameters[:half], parameters[half:], activation, last=last)

    return call


# MLP


@pytest.mark.parametrize("activation", ["tanh", "relu"])
@pytest.mark.parametrize(
    "rows, widths", [(1, (4, 64, 64)), (1001, (5, 67, 30)), (100, (1, 1)), (49, (118, 128)), (530, (3, 17, 256, 5))]
)
def test_mlp_and_its_gradients_equal_the_reference(instructions, rows, widths, activation):
    tensors = [random(rows, widths[0]), *layers(*widths)]
    assert_same(call_mlp(mlp, activation), call_mlp(mlp_reference, activation), tensors)


def test_mlp_with_a_linear_head_equals_the_reference(instructions):
    tensors = [random(100, 4), *layers(4, 64, 64, 3)]
    assert_same(call_mlp(mlp, "tanh", "none"), call_mlp(mlp_reference, "tanh", "none"), tensors)


def test_mlp_without_rows_has_zero_gradients(instructions):
    outputs, grads = gradients(call_mlp(mlp), [random(0, 4), *layers(4, 8, 8)])
    assert outputs[0].shape == (0, 8)
    assert all((grad == 0).all() for grad in grads)


def test_mlp_gives_the_same_with_and_without_gradients(instructions):
    x, *parameters = [random(333, 4), *layers(4, 64, 64)]
    with torch.no_grad():
        alone = call_mlp(mlp)(x, *parameters)
    outputs, _ = gradients(call_mlp(mlp), [x, *parameters])
    assert torch.equal(alone, outputs[0])


def test_mlp_leaves_out_the_gradient_of_its_input_when_nobody_wants_it(instructions):
    x, weight, bias = random(100, 4), *layers(4, 64)
    weight.requires_grad_()
    mlp(x, [weight], [bias], "tanh").sum().backward()
    assert x.grad is None
    exact = weight.detach().double().requires_grad_()
    mlp_reference(x.double(), [exact], [bias.double()], "tanh").sum().backward()
    torch.testing.assert_close(weight.grad.double(), exact.grad, rtol=1e-4, atol=1e-4)


def test_mlp_takes_tensors_that_are_not_contiguous(instructions):
    x, weight, bias = random(4, 50).t(), random(4, 16).t(), random(32)[::2]
    torch.testing.assert_close(
        mlp(x, [weight], [bias], "relu"), mlp_reference(x, [weight], [bias], "relu"), rtol=1e-5, atol=1e-5
    )


def test_a_nan_stays_in_its_row_and_reaches_the_gradients(instructions):
    x, *parameters = [random(60, 4), *layers(4, 16, 16)]
    x[30, 2] = math.nan
    (out,), (grad_x, *grads) = gradients(call_mlp(mlp), [x, *parameters])
    assert out.isnan().all(1).nonzero().flatten().tolist() == [30]
    assert grad_x.isnan().any(1).nonzero().flatten().tolist() == [30]
    assert all(grad.isnan().any() for grad in grads)


def test_tanh_is_exact_to_a_few_roundings_everywhere(instructions):
    edges = torch.tensor([0.0, 1e-30, 1e-8, 8.9, 9.1, 50.0, 1e30, math.inf])
    x = torch.cat([edges, torch.logspace(-6, 1.2, 10_000)])
    x = torch.cat([x, -x])[:, None]
    found = mlp(x, [torch.ones(1, 1)], [torch.zeros(1)], "tanh").double()
    exact = x.double().tanh()
    assert ((found - exact).abs() <= 4e-7 * exact.abs()).all()
    assert (found.abs() <= 1).all()


# LSTM


def lstm_case(batch: int, time: int, inputs: int, hidden: int, often: float = 0.2):
    weights = [random(4 * hidden, size, seed=size, scale=size**-0.5) for size in (inputs, hidden)]
    first = torch.rand(batch, time, generator=torch.Generator().manual_seed(5)) < often
    return [random(batch, time, inputs), *weights, random(4 * hidden, seed=3), random(batch, 2 * hidden, seed=4)], first


@pytest.mark.parametrize("shape", [(1, 1, 1, 1), (3, 5, 2, 8), (100, 7, 5, 19), (49, 3, 118, 128), (2, 40, 3, 33)])
@pytest.mark.parametrize("often", [0.0, 0.2, 1.0])
def test_lstm_and_its_gradients_equal_the_reference(instructions, shape, often):
    tensors, first = lstm_case(*shape, often)
    assert_same(lstm, lstm_reference, tensors, first, tolerance=1e-5)


def test_lstm_equals_torch(instructions):
    (x, weight_ih, weight_hh, bias, state), first = lstm_case(5, 6, 4, 12, often=0.0)
    module = torch.nn.LSTM(4, 12, batch_first=True)
    with torch.no_grad():
        for parameter, ours in zip(module.parameters(), (weight_ih, weight_hh, bias, torch.zeros_like(bias)), strict=True):
            parameter.copy_(ours)
        out, (h, c) = module(x, tuple(half.unsqueeze(0).contiguous() for half in state.chunk(2, -1)))
    ours, new_state = lstm(x, weight_ih, weight_hh, bias, state, first)
    torch.testing.assert_close(ours, out, rtol=1e-5, atol=1e-5)
    torch.testing.assert_close(new_state, torch.cat([h[0], c[0]], -1), rtol=1e-5, atol=1e-5)


def test_lstm_step_by_step_equals_the_sequence(instructions):
    (x, *weights, state), first = lstm_case(60, 9, 7, 16)
    whole, last = lstm(x, *weights, state, first)
    for t in range(9):
        h, state = lstm(x[:, t : t + 1], *weights, state, first[:, t : t + 1])
        assert torch.equal(h[:, 0], whole[:, t])
    assert torch.equal(state, last)


def test_what_was_before_a_first_row_never_comes_back(instructions):
    (x, *weights, state), first = lstm_case(4, 6, 3, 8, often=0.0)
    first[:, (0, 3)] = True
    state[:] = math.nan
    outputs, (grad_x, *grad_weights, grad_state) = gradients(
        lambda *tensors: lstm(*tensors, first)[0][:, 3:], [x, *weights, state]
    )
    alone, _ = lstm(x[:, 3:], *weights, torch.zeros_like(state), first[:, 3:])
    assert torch.equal(outputs[0], alone)
    assert (grad_state == 0).all()
    assert (grad_x[:, :3] == 0).all()
    assert not any(grad.isnan().any() for grad in (grad_x, *grad_weights))


# PPO loss


def ppo_case(rows: int, choices: int, masked: bool = False):
    mask = None
    if masked:
        mask = random(rows, choices, seed=8) > 0
        mask[torch.arange(rows), torch.arange(rows) % choices] = True
    logits = random(rows, choices, scale=2)
    action, logprob = sample.sample_categorical_reference(
        logits, torch.rand(rows, generator=torch.Generator().manual_seed(2)), mask
    )
    weight = torch.rand(rows, generator=torch.Generator().manual_seed(3))
    advantage, old_value, value_target = (random(rows, seed=4 + i) for i in range(3))
    old_logprob = logprob + random(rows, seed=7, scale=0.3)
    rest = [action, old_logprob, advantage, old_value, value_target, weight / weight.sum()]
    return [logits, random(rows, seed=10)], rest, mask


def doubles(columns: list[torch.Tensor]) -> list[torch.Tensor]:
    return [column.double() if column.is_floating_point() else column for column in columns]


def ppo(tensors, rest, mask, **settings) -> Loss:
    names = ("action", "old_logprob", "advantage", "old_value", "value_target", "weight")
    columns = dict(zip(names, [rest[0][:, None], *rest[1:]], strict=True))
    distribution = Distribution(gs.Discrete(tensors[0].shape[1]))
    return ppo_loss(distribution, *tensors, **columns, action_mask=mask, **{**SETTINGS, **settings})


def ppo_gradients(tensors, rest, mask, **settings):
    """Loss, its parts and its gradients: those of the kernel for float32, by the definition for float64."""
    leaves = [tensor.clone().requires_grad_() for tensor in tensors]
    loss = ppo(leaves, rest, mask, **settings)
    return [*(part.detach() for part in loss), *torch.autograd.grad(3 * loss.total, leaves)]


@pytest.mark.parametrize("rows, choices", [(1, 2), (1, 1), (3000, 4), (77, 19)])
@pytest.mark.parametrize("masked", [False, True])
@pytest.mark.parametrize("value_clip", [0.3, math.inf])
def test_ppo_loss_and_its_gradients_equal_the_definition(instructions, rows, choices, masked, value_clip):
    tensors, rest, mask = ppo_case(rows, choices, masked)
    found = ppo_gradients(tensors, rest, mask, value_clip=value_clip)
    exact = ppo_gradients([t.double() for t in tensors], doubles(rest), mask, value_clip=value_clip)
    for ours, theirs in zip(found, exact, strict=True):
        scale = max(1e-3 if theirs.dim() else 1.0, theirs.abs().max().item())
        assert ours.shape == theirs.shape
        assert (ours.double() - theirs).abs().max().item() <= 1e-5 * scale


def test_ppo_loss_of_one_row_by_hand(instructions):
    half = math.log(0.5)
    action, old_logprob, advantage = torch.tensor([1]), torch.tensor([half - math.log(1.5)]), torch.tensor([2.0])
    rest = [action, old_logprob, advantage, torch.tensor([1.0]), torch.tensor([0.0]), torch.ones(1)]
    loss = ppo([torch.zeros(1, 2), torch.tensor([2.0])], rest, None, value_clip=0.5, value_coef=0.25)
    by_hand = {"policy": -1.2 * 2, "value": 0.5 * 4, "entropy": math.log(2), "kl": 0.5 - math.log(1.5), "clip_fraction": 1.0}
    by_hand["total"] = -2.4 + 0.25 * 2 - 0.1 * math.log(2)
    assert {name: part.item() for name, part in loss._asdict().items()} == pytest.approx(by_hand, rel=1e-6)


def test_going_back_again_adds_the_same_gradients(instructions):
    (logits, value), rest, mask = ppo_case(50, 4)
    logits.requires_grad_()
    loss = ppo([logits, value], rest, mask).total
    assert type(loss.grad_fn).__name__ == "_PpoLossCategoricalBackward"
    loss.backward(retain_graph=True)
    once = logits.grad.clone()
    loss.backward(retain_graph=True)
    loss.backward()
    torch.testing.assert_close(logits.grad, 3 * once)


def test_rows_without_weight_give_nothing_even_if_they_are_nan(instructions):
    tensors, rest, mask = ppo_case(50, 4, masked=True)
    kept = torch.arange(50) % 3 != 0
    rest[-1] = torch.where(kept, rest[-1], 0)
    small = ppo_gradients([t[kept] for t in tensors], [c[kept] for c in rest], mask[kept])
    for column in (*tensors, *rest[1:-1]):
        column[~kept] = math.nan
    mask[~kept] = (torch.arange(50) % 2 == 0)[~kept, None]
    for dtype in (torch.float32, torch.float64):
        given = [tensor.to(dtype) for tensor in tensors], rest if dtype is torch.float32 else doubles(rest)
        *found, grad_logits, grad_value = (part.float() for part in ppo_gradients(*given, mask))
        for ours, theirs in zip((*found, grad_logits[kept], grad_value[kept]), small, strict=True):
            torch.testing.assert_close(ours, theirs, rtol=1e-5, atol=1e-6)
        assert (grad_logits[~kept] == 0).all()
        assert (grad_value[~kept] == 0).all()


@pytest.mark.parametrize("column", range(7))
def test_a_nan_in_a_row_that_counts_shows_in_the_loss(instructions, column):
    tensors, rest, mask = ppo_case(20, 3)
    floats = [*tensors, *rest[1:]]
    floats[column].view(20, -1)[7] = math.nan
    loss = ppo_gradients(tensors, rest, mask)[0]
    assert loss.isnan()


# All of them


def results(threads: int, monkeypatch) -> list[torch.Tensor]:
    monkeypatch.setattr(torch, "get_num_threads", lambda: threads)
    tensors, first = lstm_case(200, 3, 5, 16)
    outputs, grads = gradients(call_mlp(mlp), [random(3000, 4), *layers(4, 64, 64)])
    lstm_outputs, lstm_grads = gradients(lstm, tensors, first)
    loss = ppo_gradients(*ppo_case(5000, 4))
    sampled = sample.sample_categorical(random(5000, 4), random(5000, seed=1).sigmoid())
    return [*outputs, *grads, *lstm_outputs, *lstm_grads, *loss, *sampled]


def test_the_number_of_threads_changes_no_bit(instructions, monkeypatch):
    once = results(1, monkeypatch)
    for threads in (2, 3, 2):
        for ours, theirs in zip(results(threads, monkeypatch), once, strict=True):
            assert torch.equal(ours, theirs)


def test_without_the_native_core_the_reference_is_used(monkeypatch):
    with_core = results(1, monkeypatch)
    monkeypatch.setattr("fugu.native.native", None)
    for ours, theirs in zip(results(1, monkeypatch), with_core, strict=True):
        torch.testing.assert_close(ours, theirs, rtol=1e-3, atol=1e-4)


def test_other_dtypes_and_activations_take_the_reference():
    x, weight, bias = random(10, 4), *layers(4, 8)
    assert mlp(x.double(), [weight.double()], [bias.double()], "tanh").dtype == torch.float64
    torch.testing.assert_close(mlp(x, [weight], [bias], "gelu"), torch.nn.functional.gelu(x @ weight.t() + bias))


def test_a_forked_child_computes_without_its_parents_threads():
    x, weight, bias = random(4000, 4).numpy(), *(tensor.numpy() for tensor in layers(4, 64))
    out, again = torch.empty(4000, 64).numpy(), torch.empty(4000, 64).numpy()
    native.mlp_forward(x, [weight], [bias], [out], [1], 2)
    child = os.fork()
    if child == 0:
        native.mlp_forward(x, [weight], [bias], [again], [1], 2)
        os._exit(0 if (out == again).all() else 1)
    assert os.waitstatus_to_exitcode(os.waitpid(child, 0)[1]) == 0


def test_kept_memory_is_not_fetched_from_the_system_again():
    script = (
        "import resource, torch\n"
        "from fugu.native import keep_freed_memory\n"
        "assert keep_freed_memory()\n"
        "faults = lambda: resource.getrusage(resource.RUSAGE_SELF).ru_minflt\n"
        "for _ in range(20): torch.zeros(10_000_000)\n"
        "before = faults()\n"
        "for _ in range(5): torch.zeros(10_000_000)\n"
        "print(faults() - before)\n"
    )
    done = subprocess.run([sys.executable, "-c", script], capture_output=True, text=True, check=True)
    assert int(done.stdout) < 1000  # of 5 times 9,766 pages


def test_wrong_shapes_are_refused_before_anything_is_touched():
    x, weight, bias, out = (torch.zeros(*shape).numpy() for shape in ((10, 4), (8, 5), (8,), (10, 8)))
    with pytest.raises(ValueError, match="weight has another shape"):
        native.mlp_forward(x, [weight], [bias], [out], [1], 1)
    with pytest.raises(ValueError, match="no kernels called sse9"):
        native.lstm_kept(8, set="sse9")
