// PPO's loss and its gradients in one pass over rows. Reference: ops/ppo_loss.py ppo_loss_of, policy/distribution.py.
//
// Each block adds up its rows and writes its sums; `ppo_finish` adds those of all blocks, always in the same order.
#pragma once

#include "rows.h"

using namespace fugu;

namespace fugu {

constexpr int kSums = 6;  // policy, value, entropy, kl, clip_fraction, ratio

struct Columns {
  const float *value, *old_logprob, *advantage, *old_value, *target, *weight;
  const float* entropy_coef;  // on the device, so that a captured graph can follow a schedule
  float clip, value_clip, value_coef;
};

struct RowLoss {
  float sums[kSums];
  float d_logprob, d_entropy, d_value;  // of the loss
};

__device__ inline float clamped(float x, float low, float high) { return x < low ? low : x > high ? high : x; }  // NaN stays

__device__ inline RowLoss row_loss(const Columns& c, int64_t row, float logprob, float entropy) {
  const float weight = c.weight[row], advantage = c.advantage[row], log_ratio = logprob - c.old_logprob[row];
  const float ratio = expf(log_ratio), free = ratio * advantage, held = clamped(ratio, 1 - c.clip, 1 + c.clip) * advantage;
  const float value = c.value[row], error = value - c.target[row], change = value - c.old_value[row];
  const float held_value = c.old_value[row] + clamped(change, -c.value_clip, c.value_clip) - c.target[row];
  const float near = c.value_clip < kInf ? held_value : error;
  const float first = error * error, second = near * near;
  // Where both errors are equal torch gives half of the gradient to each; the bounded one passes it on only inside its bounds.
  const bool inside = !(fabsf(change) > c.value_clip);
  const float slope = first > second ? error : inside ? near : first < second ? 0.0f : 0.5f * error;
  RowLoss out;
  out.sums[0] = -weight * (free > held ? held : free);
  out.sums[1] = 0.5f * weight * (first > second ? first : second);
  out.sums[2] = weight * entropy;
  out.sums[3] = weight * (ratio - 1 - log_ratio);
  out.sums[4] = fabsf(ratio - 1) > c.clip ? weight : 0.0f;
  out.sums[5] = weight * ratio;
  out.d_logprob = free > held ? 0.0f : -weight * free;  // d ratio / d logprob = ratio
  out.d_entropy = -*c.entropy_coef * weight;
  out.d_value = c.value_coef * weight * slope;
  return out;
}

// `logits` become their gradients; kLowest is one that is not allowed.
struct CategoricalHead {
  const int64_t* action;
  int choices;
  Softmax softmax;
  float entropy;
  __device__ float logprob(const float* logits, int64_t row) {
    softmax = softmax_of(logits, choices);
    entropy = 0;
    for (int i = 0; i < choices; ++i) {
      const float logprob = softmax.logprob(logits[i]);
      entropy -= expf(logprob) * logprob;
    }
    return softmax.logprob(logits[action[row]]);
  }
  __device__ void gradient(float* logits, int64_t row, const RowLoss& loss) {
    const int taken = static_cast<int>(action[row]);
    for (int i = 0; i < choices; ++i) {
      const float logprob = softmax.logprob(logits[i]), p = expf(logprob);
      const float found = loss.d_logprob * ((i == taken ? 1.0f : 0.0f) - p) - loss.d_entropy * p * (logprob + entropy);
      logits[i] = logits[i] == kLowest ? 0.0f : found;
    }
  }
};

struct GaussianHead {
  const float* action;  // of the thread's row, in shared memory
  int dims;
  float entropy;
  __device__ float logprob(const float* params, int64_t) {
    entropy = static_cast<float>(dims) * (0.5f + kHalfLogTau);
    for (int i = 0; i < dims; ++i) entropy += clamped_log_std(params[dims + i]);
    return gaussian_logprob(params, action, dims);
  }
  __device__ void gradient(float* params, int64_t, const RowLoss& loss) {
    for (int i = 0; i < dims; ++i) {
      const float given = params[dims + i], precision = expf(-clamped_log_std(given)), z = (action[i] - params[i]) * precision;
      params[i] = loss.d_logprob * z * precision;
      params[dims + i] = given < kLogStdLow || given > kLogStdHigh ? 0.0f : loss.d_logprob * (z * z - 1) + loss.d_entropy;
    }
  }
};

// What a row without weight holds is not looked at; its gradients are 0.
template <typename Head>
__device__ inline void learn_row(const Columns& c, Head& head, float* params, int width, int64_t row, float* d_value,
                                 float (&sums)[kSums]) {
  if (!(c.weight[row] > 0) && !(c.weight[row] != c.weight[row])) {
    for (int i = 0; i < width; ++i) params[i] = 0;
    d_value[row] = 0;
    return;
  }
  const float logprob = head.logprob(params, row);
  const RowLoss loss = row_loss(c, row, logprob, head.entropy);
  head.gradient(params, row, loss);
  d_value[row] = loss.d_value;
  for (int i = 0; i < kSums; ++i) sums[i] += loss.sums[i];
}

__device__ inline void write_sums(const float (&sums)[kSums], float* memory, float* out) {  // out [kSums][blocks]
  for (int i = 0; i < kSums; ++i) {
    const float sum = warp_sum(sums[i]);
    if (lane_of_thread() == 0) memory[i * 32 + warp_of_thread()] = sum;
  }
  __syncthreads();
  if (threadIdx.x < kSums) {
    float total = 0;
    for (unsigned w = 0; w < blockDim.x / 32; ++w) total += memory[threadIdx.x * 32 + w];
    out[threadIdx.x * gridDim.x + blockIdx.x] = total;
  }
}

}  // namespace fugu

extern "C" __global__ void ppo_categorical(Columns c, const float* logits, const bool* allowed, const int64_t* action,
                                           float* d_logits, float* d_value, float* partial, int choices, int64_t count) {
  __shared__ float totals[kSums * 32];
  FUGU_SHARED(float, memory);
  float sums[kSums] = {};
  const int64_t all = static_cast<int64_t>(gridDim.x) * blockDim.x;
  for (int64_t from = static_cast<int64_t>(blockIdx.x) * blockDim.x; from < count; from += all) {
    const int64_t left = count - from;
    const Rows rows{memory, choices, from, static_cast<int>(left < blockDim.x ? left : blockDim.x)};
    fetch_rows(rows, logits, allowed);
    __syncthreads();
    if (static_cast<int>(threadIdx.x) < rows.count) {
      CategoricalHead head{action, choices, {}, 0};
      learn_row(c, head, row_of_thread(rows), choices, from + threadIdx.x, d_value, sums);
    }
    __syncthreads();
    bring_rows(rows, d_logits);
    __syncthreads();
  }
  write_sums(sums, totals, partial);
}
FUGU_KERNEL(ppo_categorical)

extern "C" __global__ void ppo_gaussian(Columns c, const float* params, const float* action, float* d_params, float* d_value,
                                        float* partial, int dims, int64_t count) {
  __shared__ float totals[kSums * 32];
  FUGU_SHARED(float, memory);
  float sums[kSums] = {};
  const int64_t all = static_cast<int64_t>(gridDim.x) * blockDim.x;
  for (int64_t from = static_cast<int64_t>(blockIdx.x) * blockDim.x; from < count; from += all) {
    const int64_t left = count - from;
    const int here = static_cast<int>(left < blockDim.x ? left : blockDim.x);
    const Rows rows{memory, 2 * dims, from, here};
    const Rows actions{memory + blockDim.x * words_of_row(2 * dims), dims, from, here};
    fetch_rows(rows, params, nullptr);
    fetch_rows(actions, action, nullptr);
    __syncthreads();
    if (static_cast<int>(threadIdx.x) < here) {
      GaussianHead head{row_of_thread(actions), dims, 0};
      learn_row(c, head, row_of_thread(rows), 2 * dims, from + threadIdx.x, d_value, sums);
    }
    __syncthreads();
    bring_rows(rows, d_params);
    __syncthreads();
  }
  write_sums(sums, totals, partial);
}
FUGU_KERNEL(ppo_gaussian)

// One block: `partial` [kSums][blocks] -> `sums` [kSums] and `loss`.
extern "C" __global__ void ppo_finish(const float* partial, const float* entropy_coef, float* sums, float* loss, float value_coef,
                                      int blocks) {
  __shared__ float totals[kSums * 32];
  float mine[kSums] = {};
  for (int b = threadIdx.x; b < blocks; b += blockDim.x)
    for (int i = 0; i < kSums; ++i) mine[i] += partial[i * blocks + b];
  write_sums(mine, totals, sums);  // the only block: [kSums][1]
  __syncthreads();
  if (threadIdx.x == 0) *loss = sums[0] + value_coef * sums[1] - *entropy_coef * sums[2];
}
FUGU_KERNEL(ppo_finish)

// Gradients are for a loss that is the end of all; one that is a part of something larger is rarely met, and costs a pass more.
extern "C" __global__ void scale_unless_one(const float* by, float* a, int64_t a_count, float* b, int64_t b_count) {
  const float factor = *by;
  if (factor == 1.0f) return;
  const int64_t all = static_cast<int64_t>(gridDim.x) * blockDim.x, first = static_cast<int64_t>(blockIdx.x) * blockDim.x + threadIdx.x;
  for (int64_t i = first; i < a_count; i += all) a[i] *= factor;
  for (int64_t i = first; i < b_count; i += all) b[i] *= factor;
}
FUGU_KERNEL(scale_unless_one)
