// Weights of rows that sum to 1, and advantages with mean 0 and deviation 1. Reference: ops/ppo_loss.py row_weight, normalized.
#pragma once

#include "kernel.h"

using namespace fugu;

namespace fugu {

constexpr int kMomentBlocks = 256;  // at most; as many as a block of `weigh` has threads

// Count, mean and sum of squared deviations of some numbers; two such together (Chan et al. 1979) lose nothing to cancellation.
struct Moments {
  float count, mean, squares;
};
__device__ inline Moments merged(const Moments& a, const Moments& b) {
  const float count = a.count + b.count;
  if (count == 0) return a;
  const float gap = b.mean - a.mean, share = b.count / count;
  return {count, a.mean + gap * share, a.squares + b.squares + gap * gap * a.count * share};
}
// Over the threads of a block, in thread 0.
__device__ inline Moments block_moments(Moments mine, Moments* memory) {
  for (int step = 16; step > 0; step >>= 1) {
    const Moments other{__shfl_xor_sync(kAllLanes, mine.count, step), __shfl_xor_sync(kAllLanes, mine.mean, step),
                        __shfl_xor_sync(kAllLanes, mine.squares, step)};
    mine = merged(mine, other);
  }
  if (lane_of_thread() == 0) memory[warp_of_thread()] = mine;
  __syncthreads();
  if (threadIdx.x == 0)
    for (unsigned w = 1; w < blockDim.x / 32; ++w) mine = merged(mine, memory[w]);
  return mine;
}

}  // namespace fugu

// partial [blocks]
extern "C" __global__ void moments(const float* x, const bool* mask, Moments* partial, int64_t rows) {
  __shared__ Moments memory[32];
  Moments mine{0, 0, 0};
  const int64_t all = static_cast<int64_t>(gridDim.x) * blockDim.x;
  for (int64_t i = static_cast<int64_t>(blockIdx.x) * blockDim.x + threadIdx.x; i < rows; i += all)
    if (!mask || mask[i]) {
      const float gap = x[i] - mine.mean;
      mine.count += 1;
      mine.mean += gap / mine.count;
      mine.squares += gap * (x[i] - mine.mean);
    }
  mine = block_moments(mine, memory);
  if (threadIdx.x == 0) partial[blockIdx.x] = mine;
}
FUGU_KERNEL(moments)

// `out` (where not null): x normalised, 0 where masked. `weight`: 1 / count, 0 where masked.
extern "C" __global__ void weigh(const float* x, const bool* mask, const Moments* partial, int blocks, float* out, float* weight,
                                 int64_t rows) {
  __shared__ Moments memory[32];
  __shared__ float found[3];
  const Moments mine = static_cast<int>(threadIdx.x) < blocks ? partial[threadIdx.x] : Moments{0, 0, 0};
  const Moments total = block_moments(mine, memory);
  if (threadIdx.x == 0) {
    const float count = total.count < 1 ? 1.0f : total.count;
    found[0] = 1 / count, found[1] = total.mean, found[2] = 1 / (sqrtf(total.squares / count) + 1e-8f);
  }
  __syncthreads();
  const float share = found[0], mean = found[1], scale = found[2];
  const int64_t all = static_cast<int64_t>(gridDim.x) * blockDim.x;
  for (int64_t i = static_cast<int64_t>(blockIdx.x) * blockDim.x + threadIdx.x; i < rows; i += all) {
    const bool counts = !mask || mask[i];
    weight[i] = counts ? share : 0.0f;
    if (out) out[i] = counts ? (x[i] - mean) * scale : 0.0f;
  }
}
FUGU_KERNEL(weigh)
