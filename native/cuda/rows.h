// Rows of a few numbers each, one thread to a row: the rows of a block are brought to shared memory by all its threads together, so that
// neighbours read neighbouring numbers, worked on there, and brought back the same way. A row takes an odd number of words there:
// threads then meet in different banks.
#pragma once

#include "kernel.h"

namespace fugu {

constexpr float kLowest = -1.7014117e38f;  // half of the lowest float: finite also after the largest logit is subtracted

struct Rows {
  float* at;     // of the block's first row, in shared memory
  int width;     // numbers of a row
  int64_t from;  // the block's first row
  int count;     // how many rows it has
};

__device__ inline int words_of_row(int width) { return width | 1; }
__device__ inline float* row_of_thread(const Rows& rows) { return rows.at + threadIdx.x * words_of_row(rows.width); }

// Where `allowed` is given and false, kLowest stands for the number.
__device__ inline void fetch_rows(const Rows& rows, const float* from, const bool* allowed) {
  const int pad = words_of_row(rows.width) - rows.width;
  from += rows.from * rows.width;
  if (allowed) allowed += rows.from * rows.width;
  for (int i = threadIdx.x; i < rows.count * rows.width; i += blockDim.x)
    rows.at[i + pad * (i / rows.width)] = allowed && !allowed[i] ? kLowest : from[i];
}
__device__ inline void bring_rows(const Rows& rows, float* to) {
  const int pad = words_of_row(rows.width) - rows.width;
  to += rows.from * rows.width;
  for (int i = threadIdx.x; i < rows.count * rows.width; i += blockDim.x) to[i] = rows.at[i + pad * (i / rows.width)];
}

// logits - shift are log-probabilities. One function for sampling and for learning: what acted and what learns agree to the bit.
struct Softmax {
  float highest, log_total;
  __device__ float logprob(float logit) const { return logit - highest - log_total; }
};
__device__ inline Softmax softmax_of(const float* logits, int choices) {
  float highest = logits[0], total = 0;
  for (int i = 1; i < choices; ++i) highest = logits[i] > highest ? logits[i] : highest;
  for (int i = 0; i < choices; ++i) total += expf(logits[i] - highest);
  return {highest, logf(total)};
}

// Gaussians: `row` holds the means and then the logs of the standard deviations.
constexpr float kHalfLogTau = 0.918938533204672742f, kLogStdLow = -10.0f, kLogStdHigh = 4.0f;  // ops/__init__.py LOG_STD_RANGE
__device__ inline float clamped_log_std(float x) { return x < kLogStdLow ? kLogStdLow : x > kLogStdHigh ? kLogStdHigh : x; }
__device__ inline float gaussian_logprob(const float* row, const float* action, int dims) {
  float sum = 0;
  for (int i = 0; i < dims; ++i) {
    const float log_std = clamped_log_std(row[dims + i]), z = (action[i] - row[i]) * expf(-log_std);
    sum += -0.5f * z * z - log_std;
  }
  return sum - static_cast<float>(dims) * kHalfLogTau;
}

}  // namespace fugu
