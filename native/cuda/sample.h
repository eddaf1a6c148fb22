// Actions and their log-probabilities. Reference: ops/sample.py sample_categorical_reference, policy/distribution.py.
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

// What a network puts out for a choice, `head` [count, choices + 1], logits and then the value, -> action, log-probability and value,
// each where it is kept. With `mean` and `variance` the value is in units of those (algorithm/scale.py) and is kept as it really is.
template <typename Number>
__device__ void choose(const Number* head, int64_t head_row, const bool* allowed, const float* uniform, const double* mean,
                       const double* variance, int64_t* action, float* logprob, float* value, int choices, int64_t count) {
  const int64_t i = static_cast<int64_t>(blockIdx.x) * blockDim.x + threadIdx.x;
  if (i >= count) return;
  const Number* row = head + i * head_row;
  const bool* may = allowed ? allowed + i * choices : nullptr;
  const auto logit = [&](int c) { return may && !may[c] ? kLowest : number_of(row[c]); };
  float highest = logit(0), total = 0;
  for (int c = 1; c < choices; ++c) highest = logit(c) > highest ? logit(c) : highest;
  for (int c = 0; c < choices; ++c) total += expf(logit(c) - highest);
  const float point = uniform[i] * total;
  float before = 0;
  int chosen = 0;
  for (int c = 0; c < choices; ++c) {
    const float weight = expf(logit(c) - highest);
    if (before <= point && weight > 0) chosen = c;
    before += weight;
  }
  action[i] = chosen;
  logprob[i] = logit(chosen) - highest - logf(total);
  float v = number_of(row[choices]);
  if (mean) {
    const double deviation = sqrt(*variance);
    v = v * static_cast<float>(deviation > 1e-4 ? deviation : 1e-4) + static_cast<float>(*mean);
  }
  value[i] = v;
}

extern "C" __global__ void choose_float32(const float* head, int64_t head_row, const bool* allowed, const float* uniform, const double* mean,
                                          const double* variance, int64_t* action, float* logprob, float* value, int choices,
                                          int64_t count) {
  choose(head, head_row, allowed, uniform, mean, variance, action, logprob, value, choices, count);
}
FUGU_KERNEL(choose_float32)
extern "C" __global__ void choose_bfloat16(const Bf16* head, int64_t head_row, const bool* allowed, const float* uniform, const double* mean,
                                           const double* variance, int64_t* action, float* logprob, float* value, int choices,
                                           int64_t count) {
  choose(head, head_row, allowed, uniform, mean, variance, action, logprob, value, choices, count);
}
FUGU_KERNEL(choose_bfloat16)

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
