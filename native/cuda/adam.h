// Adam with decoupled weight decay on one flat vector of parameters, its gradients where autograd left them. Reference:
// ops/adam.py, and trainer/optimizer.py for the bound on the gradient.
//
// Two launches: `adam_norm` adds up squares, block by block; in `adam_step` every block adds those sums in the same order, so all come
// to the same norm, and takes the step. Nothing moves if the norm is not finite.
#pragma once

#include "kernel.h"

using namespace fugu;

namespace fugu {

constexpr int kTensors = 128;    // at most, in one call
constexpr int kTensorAlign = 32;  // a tensor starts at a multiple of this: a warp never meets two of them

struct Gradients {
  const float* at[kTensors];     // null: 0
  int32_t start[kTensors + 1];  // where each tensor starts in the flat vector, which has gaps between them
  int32_t size[kTensors];
  int32_t count;
};

// The gradient of number i of the flat vector, 0 in gaps. All lanes of a warp search for the same tensor.
__device__ inline float gradient_at(const Gradients& g, int i) {
  int low = 0, high = g.count - 1;
  const int first = i & ~(kTensorAlign - 1);
  while (low < high) {
    const int middle = (low + high + 1) / 2;
    if (g.start[middle] <= first) low = middle;
    else high = middle - 1;
  }
  const int within = i - g.start[low];
  return g.at[low] && within < g.size[low] ? g.at[low][within] : 0.0f;
}

// In every thread.
__device__ inline float block_sum(float x, float* memory) {
  x = warp_sum(x);
  if (lane_of_thread() == 0) memory[warp_of_thread()] = x;
  __syncthreads();
  float total = 0;
  for (unsigned w = 0; w < blockDim.x / 32; ++w) total += memory[w];
  return total;
}

}  // namespace fugu

// `steps`: [0] those taken, as `adam_step` reads it; [1] the same after the last `adam_step`, which may not write what it reads.
extern "C" __global__ void adam_norm(const __grid_constant__ Gradients gradients, float* partial, int64_t* steps) {
  __shared__ float memory[32];
  if (blockIdx.x == 0 && threadIdx.x == 0) steps[0] = steps[1];
  float sum = 0;
  const int length = gradients.start[gradients.count], all = gridDim.x * blockDim.x;
  for (int i = blockIdx.x * blockDim.x + threadIdx.x; i < length; i += all) {
    const float gradient = gradient_at(gradients, i);
    sum += gradient * gradient;
  }
  sum = block_sum(sum, memory);
  if (threadIdx.x == 0) partial[blockIdx.x] = sum;
}
FUGU_KERNEL(adam_norm)

// `log_beta`: the logs of both betas, so that 1 - beta^steps keeps its digits.
extern "C" __global__ void adam_step(const __grid_constant__ Gradients gradients, const float* partial, int blocks, int64_t* steps, const float* rate,
                                     float* parameter, float* mean, float* square, float* norm, float max_norm, float beta1,
                                     float beta2, float log_beta1, float log_beta2, float eps, float weight_decay) {
  __shared__ float memory[32];
  float squares = 0;
  for (int b = threadIdx.x; b < blocks; b += blockDim.x) squares += partial[b];
  const float length = sqrtf(block_sum(squares, memory));
  const int64_t step = steps[0] + 1;
  const bool moves = length * 0 == 0;  // neither NaN nor infinite
  if (blockIdx.x == 0 && threadIdx.x == 0) {
    *norm = length;
    steps[1] = moves ? step : step - 1;
  }
  if (!moves) return;
  const float count = static_cast<float>(step);
  const float size = *rate / -expm1f(count * log_beta1), spread = rsqrtf(-expm1f(count * log_beta2));
  const float shrink = 1 - *rate * weight_decay;
  const float clip = length > max_norm ? fminf(max_norm / (length + 1e-6f), 1.0f) : 1.0f;
  const int total = gradients.start[gradients.count], all = gridDim.x * blockDim.x;
  for (int i = blockIdx.x * blockDim.x + threadIdx.x; i < total; i += all) {
    const float gradient = clip * gradient_at(gradients, i);
    const float m = mean[i] + (1 - beta1) * (gradient - mean[i]), v = beta2 * square[i] + (1 - beta2) * gradient * gradient;
    mean[i] = m, square[i] = v;
    parameter[i] = shrink * parameter[i] - size * m / (sqrtf(v) * spread + eps);
  }
}
FUGU_KERNEL(adam_step)
