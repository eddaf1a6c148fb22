"""A whole rollout in one kernel: ``mlp_rollout`` lets the fused network (``mlp_ppo.py``) play the worlds of a ``NativeDevice``.

The arithmetic of the network is that of ``mlp_ppo``, bit for bit, and that of the worlds is the CPU engine's. The source is
``native/cuda/mlp_rollout.h``. Slabs are time-major, so that a step writes the rows of neighbouring worlds next to each other.
"""

from __future__ import annotations

import ctypes
import functools
from collections.abc import Sequence
from dataclasses import dataclass, fields

import torch
from torch import Tensor

from fugu.errors import ConfigError
from fugu.gpu.module import EXACT, Kernel, compile_module
from fugu.ops.mlp_plan import MlpShape, Plan, card_of, plan_rollout
from fugu.ops.mlp_ppo import MomentPointers, Moments, ParameterPointers, moment_pointers, parameter_pointers
from fugu.spaces import Layout
from fugu.vector.device_native import NativeDevice
from fugu.vector.device_worlds import KernelSource


@dataclass(slots=True, eq=False)
class RolloutSlabs:
    """The memory that a rollout of ``steps`` steps reads and writes, contiguous and on one device."""

    obs: Tensor
    """[steps + 1, worlds, inputs] float32; row 0 is what the rollout begins with"""
    first: Tensor
    """[steps + 1, worlds] bool, as is ``mask``; row 0 goes with ``obs``'s and is not looked at"""
    mask: Tensor
    action: Tensor
    """[steps, worlds] int64 (or [steps, worlds, 1])"""
    logprob: Tensor
    """[steps, worlds] float32, as are ``value`` and ``reward``"""
    value: Tensor
    reward: Tensor
    terminated: Tensor
    """[steps, worlds] bool, as is ``truncated``"""
    truncated: Tensor
    uniform: Tensor
    """[steps, worlds] float32 in [0, 1), read: which action is sampled"""
    bootstrap: Tensor
    """[worlds] float32: the value of the last row"""

    @classmethod
    def new(cls, shape: MlpShape, worlds: int, steps: int, device: torch.device) -> RolloutSlabs:
        forms = _forms(shape, worlds, steps)
        return cls(**{name: torch.zeros(form, dtype=dtype, device=device) for name, (form, dtype) in forms.items()})


def mlp_rollout(
    shape: MlpShape,
    worlds: NativeDevice,
    slabs: RolloutSlabs,
    weights: Sequence[Tensor],
    biases: Sequence[Tensor],
    *,
    moments: Moments | None = None,
    value_moments: Moments | None = None,
    carry: bool,
) -> None:
    """Play ``steps`` steps from the first row of the slabs; with ``carry`` the last one is copied there before.

    ``moments`` normalise what the network sees of observations; with ``value_moments`` its values are in units of those, and the slabs
    hold real ones.

    What ends is added to the statistics of ``worlds``. Captured in a CUDA graph, a replay goes on where the last one ended.
    """
    why_not(shape, worlds)
    steps, agents = slabs.uniform.shape
    device = slabs.obs.device
    _check(shape, slabs, agents, steps)
    parts = worlds.parts
    if parts.words.shape[1] != agents or parts.words.device != device:
        raise ConfigError(f"slabs of {agents} worlds on {device}, but {parts.words.shape[1]} worlds on {parts.words.device}")
    plan = plan_rollout(shape, agents, card_of(device))
    pointers = [getattr(slabs, field.name).data_ptr() for field in fields(RolloutSlabs)]
    arguments = _Rollout(
        parameter_pointers(weights, biases, moments),
        parts.words.data_ptr(),
        parts.logs.data_ptr(),
        *pointers,
        moment_pointers(value_moments),
        agents,
        steps,
        parts.time_limit,
        carry,
    )
    kernel = _kernel(shape, plan, parts.source, device)
    kernel(plan.grid, plan.threads, bytes(arguments), parts.params, shared=plan.shared)


def why_not(shape: MlpShape, worlds: NativeDevice) -> None:
    """Raise a ConfigError where the rollout of these worlds cannot be one kernel."""
    spec = worlds.spec
    layout = Layout(spec.observation_space)
    faults = {
        f"a world has {spec.num_agents} agents": spec.num_agents != 1,
        "it masks actions": worlds.num_choices > 0,
        f"it has costs ({', '.join(spec.costs)})": bool(spec.costs),
        f"an observation is {spec.observation_space}, not {shape.inputs} float32": (
            len(layout.leaves) != 1 or layout.leaves[0].dtype != "float32" or layout.nbytes != 4 * shape.inputs
        ),
        f"an action is {spec.action_space}, not one of {shape.choices}": getattr(spec.action_space, "n", None) != shape.choices,
    }
    for reason, applies in faults.items():
        if applies:
            raise ConfigError(f"{spec.name} cannot be played in one kernel: {reason}")


SOURCE = """{environment}#include <fugu/cuda/mlp_rollout.h>
using namespace fugu::mlp;
using E = FuguEnvironment;
using N = {network};
using D = {division};
static_assert(4 * N::shared_words(D::kRows) == {shared} && sizeof(RolloutArguments) == {bytes});
extern "C" __global__ void __launch_bounds__({threads}, {blocks}) mlp_rollout(RolloutArguments a, E::Params params) {{
  rollout_kernel<E, N, D>(a, params);
}}
FUGU_KERNEL(mlp_rollout)
"""


def rollout_source(shape: MlpShape, plan: Plan, environment: KernelSource) -> str:
    return SOURCE.format(
        environment=environment.text,
        network=shape.network,
        division=plan.division,
        shared=plan.shared,
        bytes=ctypes.sizeof(_Rollout),
        threads=plan.threads,
        blocks=plan.blocks_each,
    )


@functools.cache
def _kernel(shape: MlpShape, plan: Plan, environment: KernelSource, device: torch.device) -> Kernel:
    source = rollout_source(shape, plan, environment)
    what = f"the rollout of {environment.name}"
    return compile_module(source, device, options=EXACT, sources=environment.files, what=what).kernel("mlp_rollout", "ss")


class _Rollout(ctypes.Structure):
    """RolloutArguments of mlp_rollout.h; the slabs are in the order of ``RolloutSlabs``."""

    _fields_ = (
        ("parameters", ParameterPointers),
        *((name, ctypes.c_void_p) for name in ("words", "logs", *(field.name for field in fields(RolloutSlabs)))),
        ("values", MomentPointers),
        *((name, ctypes.c_int32) for name in ("worlds", "steps", "time_limit", "carry")),
    )


def _forms(shape: MlpShape, worlds: int, steps: int) -> dict[str, tuple[tuple[int, ...], torch.dtype]]:
    flag, real = torch.bool, torch.float32
    return {
        "obs": ((steps + 1, worlds, shape.inputs), real),
        "first": ((steps + 1, worlds), flag),
        "mask": ((steps + 1, worlds), flag),
        "action": ((steps, worlds), torch.int64),
        **dict.fromkeys(("logprob", "value", "reward"), ((steps, worlds), real)),
        **dict.fromkeys(("terminated", "truncated"), ((steps, worlds), flag)),
        "uniform": ((steps, worlds), real),
        "bootstrap": ((worlds,), real),
    }


def _check(shape: MlpShape, slabs: RolloutSlabs, worlds: int, steps: int) -> None:
    """Refuse slabs that do not fit: the kernel takes addresses and would write over something else."""
    for name, (form, dtype) in _forms(shape, worlds, steps).items():
        slab = getattr(slabs, name)
        fits = slab.shape in (form, (*form, 1)) if name == "action" else slab.shape == form
        if not fits or slab.dtype != dtype or not slab.is_contiguous() or slab.device != slabs.obs.device:
            got = f"{slab.dtype}{list(slab.shape)}, strides {list(slab.stride())}, on {slab.device}"
            raise TypeError(f"{name}: expected {dtype}{list(form)}, contiguous, on {slabs.obs.device}, got {got}")
    if slabs.obs.data_ptr() % 16:
        raise TypeError("obs must start at a multiple of 16 bytes; give a whole slab")
