// Rows of numbers on their way into and out of a fully connected layer in bfloat16. Reference: ops/linear.py.
#pragma once

#include "sequence.h"

using namespace fugu;

namespace fugu {

constexpr int kThreads = 256, kAtOnce = 4, kRelu = 1, kTanh = 2;

}  // namespace fugu

// Row i of `to` [rows, padded] is row (i / inner, i % inner) of `x`, `width` numbers, then zeros. A thread has four numbers of it.
extern "C" __global__ void half_rows(Sequence<const Number> x, Bf16* to, int inner, int rows, int width, int padded) {
  const uint32_t i = blockIdx.x * blockDim.x + threadIdx.x, per_row = static_cast<uint32_t>(padded) / 4, row = i / per_row;
  if (row >= static_cast<uint32_t>(rows)) return;
  const int channel = static_cast<int>(i - row * per_row) * 4, outer = static_cast<int>(row / static_cast<uint32_t>(inner));
  const Number* from = x.row(outer, static_cast<int>(row) - outer * inner) + channel;
  float four[4] = {};
  if constexpr (kWide == 4) {  // then the width is a multiple of 4 too
    if (channel < width) {
      const Some<Number> some = load_some(from);
#pragma unroll
      for (int e = 0; e < 4; ++e) four[e] = number_at(some, e);
    }
  } else {
#pragma unroll
    for (int e = 0; e < 4; ++e)
      if (channel + e < width) four[e] = number_of(from[e]);
  }
  *reinterpret_cast<FourHalves*>(to + static_cast<int64_t>(row) * padded + channel) = {to_bf16x2(four[0], four[1]),
                                                                                      to_bf16x2(four[2], four[3])};
}
FUGU_KERNEL(half_rows)

// partial [gridDim.x, size]: sums of `d` [rows, size] over the rows of each block. With `y`, what an activation put out, `d` is taken
// back through the activation first, and that is written to `before` too.
extern "C" __global__ void __launch_bounds__(kThreads)
    column_sums(const Number* d, const Number* y, int activation, Number* before, float* partial, int rows, int size) {
  __shared__ float memory[kThreads][kWide];
  const int per_row = size / kWide, across = per_row < kThreads ? per_row : kThreads, deep = kThreads / across;
  const int mine = static_cast<int>(threadIdx.x) / across, within = static_cast<int>(threadIdx.x) - mine * across;
  const int channel = (static_cast<int>(blockIdx.y) * across + within) * kWide, stride = static_cast<int>(gridDim.x) * deep;
  float sum[kWide] = {};
  if (mine < deep && channel < size)
    for (int row = static_cast<int>(blockIdx.x) * deep + mine; row < rows; row += kAtOnce * stride) {
      Some<Number> given[kAtOnce], shown[kAtOnce];
#pragma unroll
      for (int k = 0; k < kAtOnce; ++k)
        if (row + k * stride < rows) {
          const int64_t at = static_cast<int64_t>(row + k * stride) * size + channel;
          given[k] = load_some(d + at);
          if (y) shown[k] = load_some(y + at);
        }
#pragma unroll
      for (int k = 0; k < kAtOnce; ++k)
        if (row + k * stride < rows) {
          float back[kWide];
#pragma unroll
          for (int e = 0; e < kWide; ++e) {
            back[e] = number_at(given[k], e);
            if (y) {
              const float out = number_at(shown[k], e);
              back[e] = activation == kTanh ? back[e] * (1 - out * out) : out > 0 ? back[e] : 0.0f;
            }
            sum[e] += back[e];
          }
          if (y) store_some(before + static_cast<int64_t>(row + k * stride) * size + channel, back);
        }
    }
#pragma unroll
  for (int e = 0; e < kWide; ++e) memory[threadIdx.x][e] = sum[e];
  __syncthreads();
  if (mine == 0 && channel < size) {
    for (int other = 1; other < deep; ++other)
#pragma unroll
      for (int e = 0; e < kWide; ++e) sum[e] += memory[other * across + within][e];
    store_some(partial + static_cast<int64_t>(blockIdx.x) * size + channel, sum);
  }
}
FUGU_KERNEL(column_sums)

// `out` [size]: the sum of `partial` [count, size]. A block has 32 columns, each of its warps a share of the rows.
extern "C" __global__ void __launch_bounds__(kThreads) add_partials(const float* partial, float* out, int count, int size) {
  __shared__ float memory[kThreads / 32][32];
  const int column = static_cast<int>(blockIdx.x) * 32 + lane_of_thread();
  float sum = 0;
  if (column < size)
#pragma unroll 8
    for (int i = warp_of_thread(); i < count; i += kThreads / 32) sum += partial[static_cast<int64_t>(i) * size + column];
  memory[warp_of_thread()][lane_of_thread()] = sum;
  __syncthreads();
  if (warp_of_thread() == 0 && column < size) {
    for (int other = 1; other < kThreads / 32; ++other) sum += memory[other][lane_of_thread()];
    out[column] = sum;
  }
}
FUGU_KERNEL(add_partials)
