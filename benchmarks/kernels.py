"""Claims about the CPU kernels of PPO, beside torch: python benchmarks/kernels.py [CASE...] [--out FILE]

Each native kernel of `fugu.ops` against its torch reference on the same data: the MLPs 4-64-64 and 118-128 forward and backward
over 32,768 rows and forward alone over 4,096; the LSTM-128 with 118 inputs over 512 sequences of 64 rows, forward and backward, and
a single step of 2,048 rows, beside torch's own `nn.LSTM` too; sampling from and the PPO loss of 4 choices over 32,768 rows. Beside
them the sgemm rate of torch on the same cores, which the rates of MLP and LSTM are shares of. Times are milliseconds, on one and on
two threads, in a process that keeps its freed memory. torch's threads wait for each other at every operation: its figures for two
threads mean something only on two idle cores, so the machine's load before each case is reported too.
"""

from __future__ import annotations

import os
from collections.abc import Callable
from functools import partial
from typing import Any

import torch
from gymnasium import spaces as gs
from torch import Tensor

from fugu import native
from fugu.ops import lstm as memory
from fugu.ops import mlp as small
from fugu.ops import ppo_loss as losses
from fugu.ops.sample import sample_categorical, sample_categorical_reference
from fugu.policy.distribution import Distribution
from harness import Result, alternate, main, microseconds, ratios, summaries

Call = Callable[[], Any]
SGEMM_FLOPS = 2 * 512**3


def compare(contestants: Callable[..., tuple[dict[str, Call], float]], *sizes: Any, repeats: int) -> dict[str, Any]:
    torch.manual_seed(0)
    native.keep_freed_memory()
    calls, flops = contestants(*sizes)
    if flops:
        calls = {**calls, "sgemm": sgemm()}
    record: dict[str, Any] = {"load": os.getloadavg()[0]}
    for threads in (1, 2):
        torch.set_num_threads(threads)
        record[f"threads {threads}"] = measure(calls, flops, repeats)
    return record


def measure(calls: dict[str, Call], flops: float, repeats: int) -> dict[str, Any]:
    """Milliseconds of each call; its ratio to ours; and, where the work is mostly products, the rate and its share of sgemm's."""
    results = alternate({name: partial(milliseconds, call) for name, call in calls.items()}, repeats)
    others = [name for name in calls if name not in ("fugu", "sgemm")]
    record: dict[str, Any] = {"ms": summaries(results), "ratios": ratios(results, [(name, "fugu") for name in others])}
    if flops:
        work = {"fugu": flops, "sgemm": SGEMM_FLOPS}
        rates = {name: Result([count / time / 1e6 for time in results[name].values]) for name, count in work.items()}
        record |= {"gflops": summaries(rates), "share": ratios(rates, [("fugu", "sgemm")])}
    return record


def milliseconds(call: Call) -> float:
    once = microseconds(call, 1)
    return microseconds(call, max(2, round(30_000 / once))) / 1000


def sgemm() -> Call:
    a, b, out = (torch.randn(512, 512) for _ in range(3))
    return lambda: torch.mm(a, b, out=out)


def leaf(*shape: int, scale: float = 1.0) -> Tensor:
    return (scale * torch.randn(*shape)).requires_grad_()


def trained(forward: Callable[[], Tensor], grad: Tensor, leaves: list[Tensor]) -> Call:
    def call() -> None:
        torch.autograd.grad(forward(), leaves, grad)

    return call


def inferred(forward: Callable[[], Any]) -> Call:
    def call() -> None:
        with torch.no_grad():
            forward()

    return call


def mlp(rows: int, widths: tuple[int, ...], backward: bool) -> tuple[dict[str, Call], float]:
    x = torch.randn(rows, widths[0])
    sizes = list(zip(widths[1:], widths[:-1], strict=True))
    weights, biases = [leaf(out, into, scale=into**-0.5) for out, into in sizes], [leaf(out) for out, _ in sizes]
    grad = torch.randn(rows, widths[-1])
    calls = {}
    for name, function in (("fugu", small.mlp), ("torch", small.mlp_reference)):
        forward = lambda function=function: function(x, weights, biases, "tanh")  # noqa: E731
        calls[name] = trained(forward, grad, [*weights, *biases]) if backward else inferred(forward)
    products = sum(out * into for out, into in sizes)
    return calls, 2 * rows * ((3 * products - sizes[0][0] * sizes[0][1]) if backward else products)


def lstm(batch: int, time: int, backward: bool, inputs: int = 118, hidden: int = 128) -> tuple[dict[str, Call], float]:
    x = leaf(batch, time, inputs) if backward else torch.randn(batch, time, inputs)
    weights = [leaf(4 * hidden, size, scale=size**-0.5) for size in (inputs, hidden)] + [leaf(4 * hidden)]
    state, first = torch.randn(batch, 2 * hidden), torch.rand(batch, time) < 0.01
    module = torch.nn.LSTM(inputs, hidden, batch_first=True)
    grad = torch.randn(batch, time, hidden)
    calls = {}
    for name, function in (("fugu", memory.lstm), ("torch", memory.lstm_reference)):
        forward = lambda function=function: function(x, *weights, state, first)[0]  # noqa: E731
        calls[name] = trained(forward, grad, [x, *weights]) if backward else inferred(forward)
    whole = lambda: module(x)[0]  # noqa: E731
    calls["torch nn.LSTM, which cannot reset"] = (
        trained(whole, grad, [x, *module.parameters()]) if backward else inferred(whole)
    )
    return calls, 2 * batch * time * 4 * hidden * (inputs + hidden) * (3 if backward else 1)


def sample(rows: int, choices: int) -> tuple[dict[str, Call], float]:
    logits, uniform = torch.randn(rows, choices), torch.rand(rows)
    return {
        "fugu": lambda: sample_categorical(logits, uniform),
        "torch": lambda: sample_categorical_reference(logits, uniform),
    }, 0


def ppo_loss(rows: int, choices: int) -> tuple[dict[str, Call], float]:
    logits, value, weight = leaf(rows, choices), leaf(rows), torch.full((rows,), 1 / rows)
    distribution = Distribution(gs.Discrete(choices))
    action, logprob = distribution.sample_with_logprob(logits.detach())
    columns = dict(zip(("advantage", "old_value", "value_target"), torch.randn(3, rows), strict=True))
    columns |= {"old_logprob": logprob + 0.1 * torch.randn(rows), "weight": weight}
    settings: Any = {**columns, "clip": 0.2, "value_clip": 0.2, "value_coef": 0.5, "entropy_coef": 0.01}

    def by_definition() -> Tensor:
        return losses.ppo_loss_of(*distribution.evaluate(logits, action), value, **settings).total

    def fused() -> Tensor:
        return losses.ppo_loss(distribution, logits, value, action=action, **settings).total

    return {n: trained(f, torch.ones(()), [logits, value]) for n, f in (("fugu", fused), ("torch", by_definition))}, 0


CASES = {
    "mlp-4-64-64-train": partial(compare, mlp, 32768, (4, 64, 64), True),
    "mlp-4-64-64-infer": partial(compare, mlp, 4096, (4, 64, 64), False),
    "mlp-118-128-train": partial(compare, mlp, 32768, (118, 128), True),
    "mlp-118-128-infer": partial(compare, mlp, 4096, (118, 128), False),
    "lstm-train": partial(compare, lstm, 512, 64, True),
    "lstm-step": partial(compare, lstm, 2048, 1, False),
    "sample": partial(compare, sample, 32768, 4),
    "ppo-loss": partial(compare, ppo_loss, 32768, 4),
}

if __name__ == "__main__":
    main("kernels", __doc__, CASES, repeats=9)
