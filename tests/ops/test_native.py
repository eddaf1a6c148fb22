"""What all native kernels of a learner have in common."""

from __future__ import annotations

import os
import subprocess
import sys

import pytest
import torch

from fugu.native import native
from fugu.ops import sample
from fugu.ops.lstm import lstm
from fugu.ops.mlp import mlp
from tests.ops.cases import call_mlp, gradients, layers, lstm_case, ppo_case, ppo_gradients, random

pytestmark = pytest.mark.skipif(native is None, reason="the native core is not built")


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
