// Actions and their log-probabilities. Reference: policy/kernels.py sample_categorical_reference, policy/distribution.py.
#pragma once

#include "rows.h"

using namespace fugu;

extern "C" __global__ void sample_categorical(const float* logits, const bool* allowed, const float* uniform, int64_t* action,
                                              float* logprob, int choices, int64_t count) {
  FUGU_SHARED(float, memory);
  const int64_t from = static_cast<int64_t>(blockIdx.x) * blockDim.x, left = count - from;
  const Rows rows{memory, choices, from, static_cast<int>(left < blockDim.x ? left : blockDim.x)};
  fetch_rows(rows, logits, allowed);
  __syncthreads();
  if (static_cast<int>(threadIdx.x) >= rows.count) return;
  const float* row = row_of_thread(rows);
  const Softmax softmax = softmax_of(row, choices);
  float total = 0;
  for (int i = 0; i < choices; ++i) total += expf(row[i] - softmax.highest);
  // The last possible choice at or below the point: also where rounding puts the point past the end.
  const float point = uniform[from + threadIdx.x] * total;
  float before = 0;
  int chosen = 0;
  for (int i = 0; i < choices; ++i) {
    const float weight = expf(row[i] - softmax.highest);
    if (before <= point && weight > 0) chosen = i;
    before += weight;
  }
  action[from + threadIdx.x] = chosen;
  logprob[from + threadIdx.x] = softmax.logprob(row[chosen]);
}
FUGU_KERNEL(sample_categorical)

// `params` [count, 2 dims] and `noise` [count, dims] -> `action` [count, dims], `logprob` [count].
extern "C" __global__ void sample_gaussian(const float* params, const float* noise, float* action, float* logprob, int dims,
                                           int64_t count) {
  FUGU_SHARED(float, memory);
  const int64_t from = static_cast<int64_t>(blockIdx.x) * blockDim.x, left = count - from;
  const int here = static_cast<int>(left < blockDim.x ? left : blockDim.x);
  const Rows rows{memory, 2 * dims, from, here};
  const Rows actions{memory + blockDim.x * words_of_row(2 * dims), dims, from, here};
  fetch_rows(rows, params, nullptr);
  fetch_rows(actions, noise, nullptr);
  __syncthreads();
  if (static_cast<int>(threadIdx.x) < here) {
    const float* row = row_of_thread(rows);
    float* mine = row_of_thread(actions);
    for (int i = 0; i < dims; ++i) mine[i] = row[i] + mine[i] * expf(clamped_log_std(row[dims + i]));
    logprob[from + threadIdx.x] = gaussian_logprob(row, mine, dims);
  }
  __syncthreads();
  bring_rows(actions, action);
}
FUGU_KERNEL(sample_gaussian)
