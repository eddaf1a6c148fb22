"""The stand-in for a card, and compiling: what kernels rely on, checked against torch."""

from __future__ import annotations

import subprocess
import sys

import pytest
import torch

from fugu.errors import ConfigError
from fugu.gpu.module import compile_module

SOURCE = """
#include <fugu/cuda/kernel.h>
using namespace fugu;

extern "C" __global__ void block_sums(const float* x, float* out, int n) {
  FUGU_SHARED(float, sums);
  const int i = blockIdx.x * blockDim.x + threadIdx.x;
  const float sum = warp_sum(i < n ? x[i] : 0.0f);
  if (lane_of_thread() == 0) sums[warp_of_thread()] = sum;
  __syncthreads();
  if (threadIdx.x == 0) {
    float total = 0;
    for (unsigned w = 0; w < blockDim.x / 32; ++w) total += sums[w];
    out[blockIdx.x] = total;
  }
}
FUGU_KERNEL(block_sums)

extern "C" __global__ void product_tf32(const float* a, const float* b, float* d) {
  const int g = lane_of_thread() / 4, t = lane_of_thread() % 4;
  const uint32_t left[4] = {to_tf32(a[g * 8 + t]), to_tf32(a[(g + 8) * 8 + t]),
                            to_tf32(a[g * 8 + t + 4]), to_tf32(a[(g + 8) * 8 + t + 4])};
  const uint32_t right[2] = {to_tf32(b[t * 8 + g]), to_tf32(b[(t + 4) * 8 + g])};
  float out[4] = {};
  multiply_tf32(out, left, right);
  d[g * 8 + 2 * t] = out[0], d[g * 8 + 2 * t + 1] = out[1], d[(g + 8) * 8 + 2 * t] = out[2], d[(g + 8) * 8 + 2 * t + 1] = out[3];
}
FUGU_KERNEL(product_tf32)

extern "C" __global__ void product_bf16(const float* a, const float* b, float* d) {
  const int g = lane_of_thread() / 4, t = lane_of_thread() % 4, k = 2 * t;
  const uint32_t left[4] = {to_bf16x2(a[g * 16 + k], a[g * 16 + k + 1]), to_bf16x2(a[(g + 8) * 16 + k], a[(g + 8) * 16 + k + 1]),
                            to_bf16x2(a[g * 16 + k + 8], a[g * 16 + k + 9]),
                            to_bf16x2(a[(g + 8) * 16 + k + 8], a[(g + 8) * 16 + k + 9])};
  const uint32_t right[2] = {to_bf16x2(b[k * 8 + g], b[(k + 1) * 8 + g]), to_bf16x2(b[(k + 8) * 8 + g], b[(k + 9) * 8 + g])};
  float out[4] = {};
  multiply_bf16(out, left, right);
  d[g * 8 + 2 * t] = out[0], d[g * 8 + 2 * t + 1] = out[1], d[(g + 8) * 8 + 2 * t] = out[2], d[(g + 8) * 8 + 2 * t + 1] = out[3];
}
FUGU_KERNEL(product_bf16)

extern "C" __global__ void reversed_without_a_barrier(int* out) {
  FUGU_SHARED(int, row);
  __syncthreads();
  row[threadIdx.x] = static_cast<int>(threadIdx.x);
  out[threadIdx.x] = row[blockDim.x - 1 - threadIdx.x];
}
FUGU_KERNEL(reversed_without_a_barrier)

extern "C" __global__ void half_a_barrier() { if (threadIdx.x < 32) __syncthreads(); }
FUGU_KERNEL(half_a_barrier)
"""

DEVICES = ["cpu", pytest.param("cuda", marks=pytest.mark.gpu)]


@pytest.mark.parametrize("device", DEVICES)
def test_a_kernel_sums_over_warps_and_blocks(device: str) -> None:
    kernel = compile_module(SOURCE, torch.device(device)).kernel("block_sums", "ppi")
    x, out = torch.randn(1000, device=device), torch.zeros(8, device=device)
    kernel(8, 128, x, out, 1000, shared=16)
    padded = torch.nn.functional.pad(x, (0, 24)).reshape(8, 128)
    torch.testing.assert_close(out, padded.sum(1), atol=1e-4, rtol=0)


@pytest.mark.parametrize("device", DEVICES)
@pytest.mark.parametrize(("name", "inner", "error"), [("tf32", 8, 5e-3), ("bf16", 16, 5e-2)])
def test_products_of_a_warp_are_those_of_torch(device: str, name: str, inner: int, error: float) -> None:
    kernel = compile_module(SOURCE, torch.device(device)).kernel(f"product_{name}", "ppp")
    generator = torch.Generator().manual_seed(0)
    a, b = (torch.randn(shape, generator=generator).to(device) for shape in ((16, inner), (inner, 8)))
    d = torch.zeros(16, 8, device=device)
    kernel(1, 32, a, b, d)
    torch.testing.assert_close(d, a @ b, atol=error, rtol=0)
    assert (d - a @ b).abs().max() > 1e-6  # less precise than float32, as said


def test_a_barrier_that_some_threads_miss_is_found() -> None:
    code = f"""
import torch
from fugu.gpu.module import compile_module
compile_module({SOURCE!r}, torch.device("cpu")).kernel("half_a_barrier", "")(1, 64)
"""
    done = subprocess.run([sys.executable, "-c", code], capture_output=True, text=True)
    assert done.returncode != 0
    assert "not all threads reach" in done.stderr


def test_threads_that_do_not_wait_for_each_other_read_what_is_not_there() -> None:
    kernel = compile_module(SOURCE, torch.device("cpu")).kernel("reversed_without_a_barrier", "p")
    out = torch.zeros(64, dtype=torch.int32)
    kernel(1, 64, out, shared=256)
    right = out == torch.arange(63, -1, -1)
    assert right[:32].all() and not right[32:].any()  # after a barrier the last thread runs first


def test_the_wrong_number_of_arguments_is_refused() -> None:
    kernel = compile_module(SOURCE, torch.device("cpu")).kernel("block_sums", "ppi")
    with pytest.raises(TypeError, match="takes 3 arguments, got 2"):
        kernel(1, 32, None, None)


def test_what_does_not_compile_says_where() -> None:
    with pytest.raises(ConfigError, match=r"my kernel does not compile(.|\n)*nonsense"):
        compile_module("nonsense", torch.device("cpu"), what="my kernel")
