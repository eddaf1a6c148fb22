"""Claims about the CPU kernels of PPO, beside torch: python benchmarks/kernels.py [--out FILE] [--threads 2] [--repeats 9]

Each kernel of `fugu.policy.kernels` against its torch reference on the same data: the MLPs 4-64-64 and 118-128 forward and backward
over 32,768 rows and forward alone over 4,096; the LSTM-128 with 118 inputs over 512 sequences of 64 rows, forward and backward, and
a single step of 2,048 rows, beside torch's own `nn.LSTM` too; sampling from and the PPO loss of 4 choices over 32,768 rows. Beside
them the sgemm rate of torch on the same cores, which the rates of MLP and LSTM are shares of. Times are milliseconds.
"""

from __future__ import annotations

import argparse
from collections.abc import Callable
from typing import Any

import torch
from torch import Tensor

from fugu.policy import kernels
from harness import Result, alternate, microseconds, ratio, report

Call = Callable[[], Any]


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--repeats", type=int, default=9)
    parser.add_argument("--threads", type=int, default=2)
    parser.add_argument("--only", help="claims whose name contains this")
    parser.add_argument("--out", help="also write the JSON here")
    options = parser.parse_args()
    torch.set_num_threads(options.threads)
    torch.manual_seed(0)
    claims = {
        "mlp 4-64-64, 32768 rows, forward and backward": lambda: mlp(32768, (4, 64, 64), backward=True),
        "mlp 4-64-64, 4096 rows, forward": lambda: mlp(4096, (4, 64, 64), backward=False),
        "mlp 118-128, 32768 rows, forward and backward": lambda: mlp(32768, (118, 128), backward=True),
        "mlp 118-128, 4096 rows, forward": lambda: mlp(4096, (118, 128), backward=False),
        "lstm-128 of 118, 512 x 64, forward and backward": lambda: lstm(512, 64, backward=True),
        "lstm-128 of 118, 2048 x 1, forward": lambda: lstm(2048, 1, backward=False),
        "sample of 4, 32768 rows": lambda: sample(32768, 4),
        "ppo loss of 4, 32768 rows, forward and backward": lambda: ppo_loss(32768, 4),
    }
    results: dict[str, Any] = {"threads": options.threads}
    for name, claim in claims.items():
        if options.only is None or options.only in name:
            results[name] = compare(*claim(), options.repeats)
    report("kernels", results, options.out)


def compare(calls: dict[str, Call], flops: float, repeats: int) -> dict[str, Any]:
    """Milliseconds of each call; its ratio to ours; and, where the work is mostly products, the rate and its share of sgemm's."""
    if flops:
        calls = {**calls, "sgemm": sgemm()}
    results = alternate({name: (lambda call=call: milliseconds(call)) for name, call in calls.items()}, repeats)
    record: dict[str, Any] = {
        "ms": {name: result.summary() for name, result in results.items()},
        "ratios": {f"{name} / fugu": ratio(results, name, "fugu") for name in calls if name not in ("fugu", "sgemm")},
    }
    if flops:
        rates = {
            "fugu": Result([flops / time / 1e6 for time in results["fugu"].values]),
            "sgemm": Result([SGEMM_FLOPS / time / 1e6 for time in results["sgemm"].values]),
        }
        record["gflops"] = {name: result.summary() for name, result in rates.items()}
        record["share_of_sgemm"] = ratio(rates, "fugu", "sgemm")
    return record


def milliseconds(call: Call) -> float:
    once = microseconds(call, 1)
    return microseconds(call, max(2, round(30_000 / once))) / 1000


SGEMM_FLOPS = 2 * 512**3


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
    for name, function in (("fugu", kernels.mlp), ("torch", kernels.mlp_reference)):
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
    for name, function in (("fugu", kernels.lstm), ("torch", kernels.lstm_reference)):
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
        "fugu": lambda: kernels.sample_categorical(logits, uniform),
        "torch": lambda: kernels.sample_categorical_reference(logits, uniform),
    }, 0


def ppo_loss(rows: int, choices: int) -> tuple[dict[str, Call], float]:
    logits, value, weight = leaf(rows, choices), leaf(rows), torch.full((rows,), 1 / rows)
    action, logprob = kernels.sample_categorical(logits, torch.rand(rows))
    columns = (action, logprob + 0.1 * torch.randn(rows), *(torch.randn(rows) for _ in range(3)), weight)
    settings = {"clip": 0.2, "value_clip": 0.2, "value_coef": 0.5, "entropy_coef": 0.01}
    calls = {}
    for name, function in (("fugu", kernels.ppo_loss_categorical), ("torch", kernels.ppo_loss_categorical_reference)):
        forward = lambda function=function: function(logits, value, *columns, **settings)[0]  # noqa: E731
        calls[name] = trained(forward, torch.ones(()), [logits, value])
    return calls, 0


if __name__ == "__main__":
    main()
