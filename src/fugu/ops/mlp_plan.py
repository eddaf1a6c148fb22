"""The shapes that the fused network of ``native/cuda/mlp.h`` can compute, and how its kernels are launched.

A block of ``strips * split`` warps computes tiles of ``16 * strips`` rows; ``split`` warps divide the outputs of each layer of a strip
among them. Parameters and activations of a tile lie in shared memory, so what fits there decides how many strips a block has.
"""

from __future__ import annotations

import ctypes
import functools
from dataclasses import dataclass

import torch

from fugu.errors import ConfigError
from fugu.gpu.libraries import check, driver

MAX_INPUTS, MAX_WIDTH, MAX_CHOICES, MAX_HIDDEN = 128, 128, 31, 3
ACTIVATIONS = {"tanh": "kTanh", "relu": "kRelu"}
STATS = 8
"""numbers before the gradients: the sums of the loss (``kStats`` of mlp_ppo.h)"""
PREPARE_THREADS, REDUCE_THREADS, REDUCE_COLUMNS = 256, 256, 32

ROLLOUT_THREADS = 512
"""of a multiprocessor: 128 registers each"""
STRIP_CYCLES, STEP_CYCLES = 400, {1: 2600, 2: 1700, 4: 1200}
"""of one step of a strip: the work it is, and the waiting in it when ``split`` warps share it; estimates for widths of 64"""


@dataclass(frozen=True)
class Card:
    """Resources that a GPU offers a kernel."""

    processors: int = 132
    block_shared: int = 227 * 1024
    """bytes of shared memory one block may have"""
    processor_shared: int = 228 * 1024
    """bytes of shared memory of a multiprocessor; each block costs 1 KiB more than it asks for"""


@functools.cache
def card_of(device: torch.device) -> Card:
    if device.type == "cpu":
        return Card(processors=2)  # few, so that a test's blocks have more than one tile
    index = torch.cuda.current_device() if device.index is None else device.index
    values = []
    for attribute in (16, 97, 81):  # CU_DEVICE_ATTRIBUTE_MULTIPROCESSOR_COUNT, and of shared memory BLOCK_OPTIN, MULTIPROCESSOR
        value = ctypes.c_int()
        check(driver().cuDeviceGetAttribute(ctypes.byref(value), attribute, index), "asking a GPU what it offers")
        values.append(value.value)
    return Card(*values)


@dataclass(frozen=True)
class MlpShape:
    """A network: ``inputs`` numbers, ``hidden`` layers with ``activation``, then logits of ``choices`` and the value."""

    inputs: int
    hidden: tuple[int, ...]
    choices: int
    activation: str = "tanh"
    passes: int = 1
    """1: products in tf32 (relative error 2^-11 of each factor); 3: nearly float32"""

    def __post_init__(self) -> None:
        if reason := self._fault():
            raise ConfigError(f"the fused network cannot be used: {reason}")

    def _fault(self) -> str | None:
        if not 1 <= self.inputs <= MAX_INPUTS:
            return f"an observation has {self.inputs} numbers; it takes 1 to {MAX_INPUTS}"
        if not 1 <= len(self.hidden) <= MAX_HIDDEN:
            return f"{len(self.hidden)} hidden layers; it takes 1 to {MAX_HIDDEN}"
        if any(width % 16 or not 16 <= width <= MAX_WIDTH for width in self.hidden):
            return f"hidden={self.hidden} must be multiples of 16, at most {MAX_WIDTH}"
        if not 2 <= self.choices <= MAX_CHOICES:
            return f"{self.choices} choices; it takes 2 to {MAX_CHOICES}"
        if self.activation not in ACTIVATIONS:
            return f"activation {self.activation!r} is not one of {', '.join(ACTIVATIONS)}"
        return None if self.passes in (1, 3) else f"passes={self.passes} must be 1 or 3"

    @property
    def widths(self) -> tuple[int, ...]:
        return self.inputs, *self.hidden, self.choices + 1

    @property
    def parameters(self) -> int:
        return sum(out * (into + 1) for into, out in zip(self.widths, self.widths[1:], strict=False))

    @property
    def network(self) -> str:
        """The type of mlp.h."""
        widths = ", ".join(map(str, self.widths))
        return f"fugu::mlp::Network<{self.passes}, fugu::mlp::{ACTIVATIONS[self.activation]}, {widths}>"

    def shared_words(self, rows: int) -> int:
        """Count the 4-byte words of shared memory that a block of ``rows`` rows needs: ``shared_words`` of mlp.h."""
        padded = [_up(width, 8) for width in self.widths]
        rows_of = [width if width % 16 == 8 else width + 8 for width in padded]
        weights = [rows_of[0], *(_up(width, 32) for width in padded[1:])]  # words of a row of weights
        parameters = sum(out * (into + 1) for out, into in zip(padded[1:], weights, strict=False)) + 2 * padded[0]
        return parameters + rows * sum(rows_of)


@dataclass(frozen=True)
class Plan:
    """Launch settings of a kernel over tiles of rows."""

    strips: int
    split: int
    blocks_each: int
    """blocks that share a multiprocessor"""
    grid: int
    shared: int
    """bytes"""

    @property
    def rows(self) -> int:
        """of a tile"""
        return 16 * self.strips

    @property
    def threads(self) -> int:
        return 32 * self.strips * self.split

    @property
    def division(self) -> str:
        """The type of mlp.h."""
        return f"fugu::mlp::Division<{self.strips}, {self.split}>"


def plan_update(shape: MlpShape, rows: int, card: Card) -> Plan:
    """Plan the loss or a plain evaluation: two blocks of 8 warps on a multiprocessor where they fit with at least 4 strips, else
    one of 16 warps with as many strips as fit. Blocks stay, and go over all tiles."""
    for strips, each, warps in ((8, 2, 8), (4, 2, 8), (8, 1, 16), (4, 1, 16), (2, 1, 16), (1, 1, 8)):
        shared = 4 * shape.shared_words(16 * strips)
        if shared <= card.block_shared and each * (shared + 1024) <= card.processor_shared:
            tiles = -(-rows // (16 * strips))
            return Plan(strips, warps // strips, each, max(1, min(tiles, each * card.processors)), shared)
    raise _too_large(shape, card)


def plan_prepare(rows: int, card: Card) -> int:
    """Return the blocks of the kernel that sums over the batch: few enough that every block of the next can add what they found."""
    return max(1, min(-(-rows // (4 * PREPARE_THREADS)), card.processors))


def plan_reduce(shape: MlpShape) -> int:
    return -(-(STATS + shape.parameters) // REDUCE_COLUMNS)


def plan_rollout(shape: MlpShape, worlds: int, card: Card) -> Plan:
    """Plan a rollout, in which one step waits for the last: the division that is done first, by a rough model.

    A step takes STEP_CYCLES, which are fewer if several warps share a strip, and STRIP_CYCLES for each strip of a multiprocessor
    (mostly tanh). Strips that do not fit on the card at once come after one another, so large blocks, which share one copy
    of the parameters, are good for many worlds, and small ones, which spread evenly, for few.
    """
    in_all = -(-worlds // 16)
    plans: list[tuple[float, int, Plan]] = []
    for strips in (1, 2, 4, 8):
        shared = 4 * shape.shared_words(16 * strips)
        if shared > card.block_shared:
            continue
        for split, cycles in STEP_CYCLES.items():
            threads = 32 * strips * split
            if threads > ROLLOUT_THREADS or (split > 1 and split > min(shape.hidden) // 8):
                continue
            each = max(1, min(card.processor_shared // (shared + 1024), ROLLOUT_THREADS // threads))
            grid = -(-in_all // strips)
            at_once = min(each, -(-grid // card.processors))  # blocks of one multiprocessor
            rounds = -(-grid // (at_once * card.processors))
            cost = rounds * (cycles + STRIP_CYCLES * strips * at_once)
            plans.append((cost, threads, Plan(strips, split, ROLLOUT_THREADS // threads, grid, shared)))
    if not plans:
        raise _too_large(shape, card)
    return min(plans, key=lambda plan: plan[:2])[2]


def _too_large(shape: MlpShape, card: Card) -> ConfigError:
    need = 4 * shape.shared_words(16)
    return ConfigError(
        f"the fused network cannot be used: hidden={shape.hidden} on {shape.inputs} numbers needs {need} bytes of shared memory, "
        f"a block has {card.block_shared}"
    )


def _up(number: int, multiple: int) -> int:
    return -(-number // multiple) * multiple
