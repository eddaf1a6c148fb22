"""What does an update of Dreamer cost? Milliseconds of CPU time on one thread, by part, with our native kernels and with torch alone.

python benchmarks/dreamer_speed.py              # small and 1m
python benchmarks/dreamer_speed.py small --repeats 20

The batch is made up: segments of CartPole's shape, with an episode that ends in one of them. Beside the update stands its floor: the
matrix products of exactly its shapes, forward and backward, and nothing else; once as torch multiplies and once as our kernels do,
without the time for bringing operands into order.
Weights have their gradients in one product over all rows, also those of the recurrent cell.
"""

from __future__ import annotations

import contextlib
import statistics
import sys
import time
from collections.abc import Callable, Iterator
from dataclasses import dataclass
from functools import partial
from itertools import pairwise
from pathlib import Path
from typing import Any
from unittest.mock import patch

import torch
from gymnasium import spaces as gs

sys.path.insert(0, str(Path(__file__).parent.parent))

from benchmarks import harness

import fugu.native
from fugu.algorithm import dreamer as module
from fugu.algorithm.config_dreamer import DreamerConfig
from fugu.algorithm.dreamer import Dreamer
from fugu.algorithm.settings import DreamerSettings
from fugu.policy.config_world import SIZES, WorldSize
from fugu.policy.world import BINS, LAYERS, World
from fugu.presets import preset
from fugu.rollout.batch import Batch
from fugu.trainer.optimizer import Optimizer
from fugu.trainer.state import parts

SEGMENTS, OBS, ACTIONS = 16, 4, 2
CASES = {"small": (32, 128), "1m": (64, 256)}
"""rows of a segment, and starts of imagination"""
AHEAD = 15


@dataclass(frozen=True)
class Product:
    """``groups`` products ``[rows, depth] x [depth, columns]``, ``times`` times."""

    rows: int
    depth: int
    columns: int
    times: int = 1
    groups: int = 1

    @property
    def flops(self) -> int:
        return 2 * self.rows * self.depth * self.columns * self.times * self.groups


def forward(rows: int, sizes: list[int]) -> list[Product]:
    """Layers from size to size."""
    return [Product(rows, a, b) for a, b in pairwise(sizes)]


def backward(rows: int, sizes: list[int], *, into: bool) -> list[Product]:
    """``into``: also the gradient of what goes into the first layer."""
    weights = [Product(a, rows, b) for a, b in pairwise(sizes)]
    return weights + [Product(rows, b, a) for i, (a, b) in enumerate(pairwise(sizes)) if into or i]


def learned(rows: int, sizes: list[int], *, into: bool = True) -> list[Product]:
    return forward(rows, sizes) + backward(rows, sizes, into=into)


def products(size: WorldSize, time: int, starts: int) -> list[Product]:
    """All of one update; ``time``: rows of a segment and the one after the last."""
    d, h, u, z, state, g, w = (
        size.deter,
        size.hidden,
        size.units,
        size.random,
        size.state,
        size.blocks,
        size.deter // size.blocks,
    )
    rows, imagined = time * SEGMENTS, starts * AHEAD

    def cell(n: int) -> list[Product]:
        blocks = [Product(n, w + 3 * h, w, groups=g), Product(n, w, 3 * w, groups=g)]
        return [Product(n, d, h), Product(n, z, h), *blocks]

    def per_row(found: list[Product], turned: bool) -> list[Product]:
        return [Product(p.rows, *((p.columns, p.depth) if turned else (p.depth, p.columns)), time, p.groups) for p in found]

    # along the rows of replayed segments, one after the other; their weights' gradients over all of them
    step = [*cell(SEGMENTS), Product(SEGMENTS, d, h), Product(SEGMENTS, h, z)]
    world = per_row(step, False) + per_row(step, True)
    world += [Product(p.depth, rows, p.columns, groups=p.groups) for p in step]
    world += learned(rows, [OBS, *[u] * LAYERS], into=False) + learned(rows, [u, h]) + learned(rows, [ACTIONS, h], into=False)
    world += learned(rows, [d, h, h, z]) + learned(rows, [state, *[u] * LAYERS, OBS])
    world += learned(rows, [state, u, BINS]) + learned(rows, [state, u, 1])
    critic, actor = [state, *[u] * LAYERS, BINS], [state, *[u] * LAYERS, ACTIONS]
    world += learned(rows, critic) + forward(rows, critic)  # the second is that of the slow copy

    one = [*cell(starts), Product(starts, ACTIONS, h), *forward(starts, [d, h, h, z])]
    dream = [Product(p.rows, p.depth, p.columns, AHEAD, p.groups) for p in one]
    dream += [Product(p.rows, p.depth, p.columns, AHEAD + 1) for p in forward(starts, actor)]
    dream += forward(imagined + starts, [state, u, BINS]) + forward(imagined + starts, [state, u, 1])
    dream += 2 * forward(imagined + starts, critic)
    return world + dream + backward(imagined, actor, into=False) + backward(imagined, critic, into=False)


def multiplied_by_torch(found: list[Product]) -> Callable[[], None]:
    calls: list[tuple[Any, tuple[torch.Tensor, ...], int]] = []
    for p in found:
        lead = () if p.groups == 1 else (p.groups,)
        a, b, out = (
            torch.randn(*lead, p.rows, p.depth),
            torch.randn(*lead, p.depth, p.columns),
            torch.empty(*lead, p.rows, p.columns),
        )
        calls.append((torch.bmm if lead else torch.mm, (a, b, out), p.times))

    def run() -> None:
        for function, (a, b, out), times in calls:
            for _ in range(times):
                function(a, b, out=out)

    return run


def multiplied_natively(found: list[Product]) -> Callable[[], float]:
    """The same with the product of our kernels, groups as more rows: milliseconds, without those of the same calls for no rows, which
    only bring one operand into order."""
    calls: list[tuple[tuple[Any, ...], int]] = []
    empty: list[tuple[tuple[Any, ...], int]] = []
    for p in found:
        x, weight = torch.randn(p.groups * p.rows, p.depth).numpy(), [torch.randn(p.columns, p.depth).numpy()]
        bias, out = [torch.zeros(p.columns).numpy()], torch.empty(p.groups * p.rows, p.columns).numpy()
        calls.append(((x, weight, bias, [out], [0], 1), p.times))
        empty.append(((x[:0], weight, bias, [out[:0]], [0], 1), p.times))

    def run(some: list[tuple[tuple[Any, ...], int]]) -> None:
        for arguments, times in some:
            for _ in range(times):
                fugu.native.native.mlp_forward(*arguments)

    return lambda: spent(partial(run, calls)) - spent(partial(run, empty))


def made_up(size: WorldSize, horizon: int) -> Batch:
    generator = torch.Generator().manual_seed(1)
    flags = {name: torch.zeros(SEGMENTS, horizon, dtype=torch.bool) for name in ("first", "terminated", "truncated")}
    mask = torch.ones(SEGMENTS, horizon, dtype=torch.bool)
    flags["terminated"][0, 8] = flags["first"][0, 10] = True
    mask[0, 9] = False
    rows = {
        "obs": torch.rand(SEGMENTS, horizon, OBS, generator=generator),
        "reward": torch.randn(SEGMENTS, horizon, generator=generator),
        "action": torch.randint(ACTIONS, (SEGMENTS, horizon, 1), generator=generator),
    }
    return Batch({**rows, **flags, "mask": mask}).also_once(
        obs_after=torch.rand(SEGMENTS, OBS, generator=generator),
        deter=torch.zeros(SEGMENTS, size.deter, dtype=torch.float16),
        stoch=torch.zeros(SEGMENTS, size.stoch, dtype=torch.uint8),
        before=torch.zeros(SEGMENTS, ACTIONS),
    )


class Learner:
    """Dreamer with its preset, and a batch to learn from again and again."""

    def __init__(self, name: str, *, native: bool) -> None:
        self.core = fugu.native.native if native else None
        horizon, starts = CASES[name]
        config = preset("CartPole-v1", algorithm="dreamer")
        torch.manual_seed(0)
        world = World(gs.Box(-1, 1, (OBS,)), gs.Discrete(ACTIONS), SIZES[name], config.policy)
        self.dreamer = Dreamer(world, DreamerSettings(dreamer=DreamerConfig(size=name, starts=starts, ahead=AHEAD)))
        self.optimizer = Optimizer(parts(self.dreamer), config.optimizer)
        self.optimizer.set_progress(0.5)
        self.batch = made_up(SIZES[name], horizon)

    def update(self) -> None:
        with patch.object(fugu.native, "native", self.core):
            batch = self.dreamer.prepare(self.batch, 0.5)
            for loss, _ in self.dreamer.losses(batch):
                self.optimizer.step(loss)

    def milliseconds(self) -> float:
        return spent(self.update)

    def by_part(self, repeats: int) -> dict[str, float]:
        """Medians; the parts are what is said of them in the docs."""
        seen: dict[str, list[float]] = {}

        def timed(name: str, function: Callable[..., Any]) -> Callable[..., Any]:
            def call(*arguments: Any, **named: Any) -> Any:
                start = time.process_time()
                try:
                    return function(*arguments, **named)
                finally:
                    seen.setdefault(name, []).append(1000 * (time.process_time() - start))

            return call

        places = [
            (self.dreamer, "_observe", "observed states"),
            (self.dreamer.policy, "losses", "model losses"),
            (self.dreamer, "_replayed_value", "replayed value"),
            (self.dreamer, "_behaviour", "behaviour"),
            (module, "imagine", "imagination"),
            (self.dreamer, "loss", "all losses"),
            (torch.Tensor, "backward", "backward"),
        ]
        with contextlib.ExitStack() as stack:
            for owner, name, part in places:
                stack.enter_context(patch.object(owner, name, timed(part, getattr(owner, name))))
            for _ in range(repeats):
                timed("update", self.update)()
        medians = {name: statistics.median(values) for name, values in seen.items()}
        found = {
            "world forward": medians["observed states"],
            "imagination": medians["imagination"],
            "losses": medians["all losses"] - medians["observed states"] - medians["imagination"],
            "backward": medians["backward"],
            "optimizer and the rest": medians["update"] - medians["all losses"] - medians["backward"],
        }
        return {name: round(value, 2) for name, value in found.items()}


def spent(call: Callable[[], Any], times: int = 3) -> float:
    """Milliseconds of CPU time per call."""
    start = time.process_time()
    for _ in range(times):
        call()
    return 1000 * (time.process_time() - start) / times


@contextlib.contextmanager
def one_thread() -> Iterator[None]:
    before = torch.get_num_threads()
    torch.set_num_threads(1)
    yield
    torch.set_num_threads(before)


def measured(name: str, repeats: int) -> dict[str, Any]:
    horizon, starts = CASES[name]
    shapes = products(SIZES[name], horizon + 1, starts)
    with one_thread():
        fugu.native.keep_freed_memory()  # as a training does
        ours, plain = Learner(name, native=True), Learner(name, native=False)
        by_torch, natively = multiplied_by_torch(shapes), multiplied_natively(shapes)
        for call in (ours.update, plain.update, by_torch, natively):
            call()
            call()
        contestants = {
            "native": ours.milliseconds,
            "torch": plain.milliseconds,
            "products by torch": partial(spent, by_torch),
            "products by our kernels": natively,
        }
        results = harness.alternate(contestants, repeats)
        pairs = [("torch", "native"), ("native", "products by torch"), ("native", "products by our kernels")]
        return {
            "milliseconds": harness.summaries(results),
            "ratios": harness.ratios(results, pairs),
            "parts": {"native": ours.by_part(repeats), "torch": plain.by_part(repeats)},
            "products": {"gigaflop": sum(p.flops for p in shapes) / 1e9, "count": sum(p.times for p in shapes)},
        }


if __name__ == "__main__":
    harness.main("dreamer_speed", __doc__, {name: partial(measured, name) for name in CASES}, repeats=15)
