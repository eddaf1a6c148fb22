"""Claims about the advantage kernels, beside other ways to compute the same: python benchmarks/advantage.py [--out FILE] [case ...]

For [2048 x 64] and [8192 x 128], a case each: `fugu.ops.gae` and `vtrace` into a given output with one and two threads, a
torch loop over the same segment-major data (one thread), SB3's RolloutBuffer (numpy, over its own time-major data), a scalar C++ loop
one row at a time as a stand-in for PufferLib's kernel (scalar_advantage.cpp, compiled here), and plain copies. GAE reads 10 bytes per
row and writes 4; "copy" copies those 14 bytes, "copy of the inputs" the 10. Needs the extra `sb3` and a C++ compiler.
"""

from __future__ import annotations

import ctypes
import functools
from collections.abc import Callable
from types import SimpleNamespace
from typing import Any

import numpy as np
import torch

from fugu.advantage import gae, gae_reference, vtrace
from harness import compiled, main, ratios, summaries, timings

SHAPES = ((2048, 64), (8192, 128))
GAMMA, LAM = 0.99, 0.95


def columns(segments: int, horizon: int) -> dict[str, np.ndarray]:
    rng = np.random.default_rng(0)
    shape = (segments, horizon)
    return {
        "value": rng.standard_normal(shape, np.float32),
        "reward": rng.standard_normal(shape, np.float32),
        "terminated": rng.random(shape) < 0.01,
        "truncated": rng.random(shape) < 0.01,
        "bootstrap": rng.standard_normal(segments, np.float32),
    }


def torch_loop(data: dict[str, np.ndarray]) -> Callable[[], None]:
    """Flags as float tensors, made beforehand; the loop anyone would write."""
    value, reward, bootstrap = (torch.from_numpy(data[name]) for name in ("value", "reward", "bootstrap"))
    going_on = 1 - torch.from_numpy(data["terminated"]).float()
    unended = 1 - torch.from_numpy(data["terminated"] | data["truncated"]).float()
    out = torch.empty_like(value)

    def call() -> None:
        advantage, next_value = torch.zeros_like(bootstrap), bootstrap
        for t in reversed(range(value.shape[1])):
            delta = reward[:, t] + GAMMA * going_on[:, t] * next_value - value[:, t]
            advantage = delta + GAMMA * LAM * unended[:, t] * advantage
            out[:, t] = advantage
            next_value = value[:, t]

    call()
    np.testing.assert_allclose(out.numpy(), gae(**data, gamma=GAMMA, lam=LAM), rtol=0, atol=1e-5)
    return call


def sb3(data: dict[str, np.ndarray]) -> Callable[[], None]:
    from stable_baselines3.common.buffers import RolloutBuffer

    segments, horizon = data["value"].shape
    starts = np.zeros((horizon, segments), np.float32)
    starts[1:] = data["terminated"].T[:-1]
    buffer = SimpleNamespace(
        buffer_size=horizon,
        gamma=GAMMA,
        gae_lambda=LAM,
        episode_starts=starts,
        values=np.ascontiguousarray(data["value"].T),
        rewards=np.ascontiguousarray(data["reward"].T),
        advantages=np.zeros((horizon, segments), np.float32),
    )
    last, ended = torch.from_numpy(data["bootstrap"]), data["terminated"][:, -1]
    return lambda: RolloutBuffer.compute_returns_and_advantage(buffer, last, ended)


def scalar_loop(data: dict[str, np.ndarray], weight: np.ndarray) -> Callable[[], None]:
    function = compiled("scalar_advantage.cpp").scalar_advantage
    segments, horizon = data["value"].shape
    shifted = [np.zeros((segments, horizon), np.float32) for _ in range(2)]  # reward and done arrive with the next observation
    for to, name in zip(shifted, ("reward", "terminated"), strict=True):
        to[:, 1:] = data[name][:, :-1]
    out = np.empty((segments, horizon), np.float32)
    pointers = [array.ctypes.data_as(ctypes.c_void_p) for array in (data["value"], *shifted, weight, out)]
    sizes = [ctypes.c_int64(segments), ctypes.c_int64(horizon)]
    settings = [ctypes.c_float(number) for number in (GAMMA, LAM, 1.0, 1.0)]
    arrays = (data["value"], *shifted, weight, out)  # alive as long as the pointers to them

    def call(alive: Any = arrays) -> None:
        function(*pointers, *sizes, *settings)

    call()
    known = {**data, "truncated": np.zeros_like(data["truncated"])}
    short = {name: np.ascontiguousarray(array[:, :-1]) for name, array in known.items() if name != "bootstrap"}
    short["bootstrap"] = np.ascontiguousarray(data["value"][:, -1])
    expected = vtrace(**short, ratio=np.ascontiguousarray(weight[:, :-1]), gamma=GAMMA, lam=LAM)
    np.testing.assert_allclose(out[:, :-1], expected, rtol=0, atol=1e-5)
    return call


def copy(count: int) -> Callable[[], None]:
    source, target = np.ones(count, np.uint8), np.zeros(count, np.uint8)
    return lambda: np.copyto(target, source)


def shape(segments: int, horizon: int, repeats: int) -> dict[str, Any]:
    data = columns(segments, horizon)
    weight = np.exp(0.2 * np.random.default_rng(1).standard_normal((segments, horizon))).astype(np.float32)
    out = np.zeros((segments, horizon), np.float32)
    inputs = sum(array.nbytes for array in data.values())
    settings = {"gamma": GAMMA, "lam": LAM}
    difference = np.abs(gae(**data, **settings) - gae_reference(**data, **settings)).max()
    calls: dict[str, tuple[Callable[[], Any], int]] = {
        "fugu gae, 1 thread": (lambda: gae(**data, **settings, out=out, threads=1), 16),
        "fugu gae, 2 threads": (lambda: gae(**data, **settings, out=out, threads=2), 16),
        "fugu gae, 1 thread, new output": (lambda: gae(**data, **settings, threads=1), 16),
        "fugu vtrace, 1 thread": (lambda: vtrace(**data, ratio=weight, **settings, out=out, threads=1), 16),
        "fugu vtrace, 2 threads": (lambda: vtrace(**data, ratio=weight, **settings, out=out, threads=2), 16),
        "copy": (copy(inputs + out.nbytes), 16),
        "copy of the inputs": (copy(inputs), 16),
        "scalar C++ loop, row by row (stand-in for PufferLib's)": (scalar_loop(data, weight), 4),
        "SB3 RolloutBuffer (time-major)": (sb3(data), 4),
        "fugu gae_reference (numpy)": (lambda: gae_reference(**data, **settings, out=out), 2),
        "torch loop, segment-major": (torch_loop(data), 2),
    }
    scale = max(1, 2**20 // (segments * horizon))
    results = timings({name: (call, number * scale) for name, (call, number) in calls.items()}, repeats)
    scalar, torch_name, sb3_name = (next(n for n in calls if n.startswith(p)) for p in ("scalar", "torch", "SB3"))
    pairs = [
        (torch_name, "fugu gae, 1 thread"),
        (torch_name, "fugu gae, 2 threads"),
        (scalar, "fugu vtrace, 1 thread"),
        (scalar, "fugu gae, 1 thread"),
        (sb3_name, "fugu gae, 1 thread"),
        ("fugu gae, 1 thread", "copy"),
        ("fugu gae, 1 thread", "copy of the inputs"),
        ("fugu gae, 2 threads", "copy"),
        ("fugu gae, 1 thread", "fugu gae, 2 threads"),
    ]
    return {
        "bytes": {"inputs": inputs, "output": out.nbytes},
        "largest_difference_from_reference": float(difference),
        "us": summaries(results),
        "ratios": ratios(results, pairs),
    }


CASES = {f"{segments}x{horizon}": functools.partial(shape, segments, horizon) for segments, horizon in SHAPES}

if __name__ == "__main__":
    torch.set_num_threads(1)
    main("advantage", __doc__, CASES, repeats=15)
