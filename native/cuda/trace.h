// GAE and V-trace on the device. Reference: ops/advantage.py.
//
// The recurrence A[t] = delta[t] + decay[t] A[t+1] runs backwards through time. A block has 32 segments and cuts time into kChunks
// pieces of kSteps columns: a thread loads one piece of one segment into registers, composes it into "what comes out, given what
// comes in", learns through shared memory what comes in, and computes its columns. Longer horizons take several rounds, from the end.
// Columns may lie in memory segment by segment or step by step; neighbouring threads take neighbours in memory.
#pragma once

#include "kernel.h"

using namespace fugu;

namespace fugu {

constexpr int kSegments = 32, kChunks = 8, kSteps = 8;

template <typename T>
struct Column {  // number (s, t) is at[s * segment + t * step]; at may be null
  T* at;
  int64_t segment, step;
};

// kSteps numbers from column t on; those past the horizon are `missing`.
template <typename T, typename Wide>
__device__ inline void load_steps(T (&to)[kSteps], const Column<const T>& column, int64_t s, int t, int horizon, T missing) {
  const T* from = column.at + s * column.segment + t * column.step;
  constexpr int kWide = sizeof(Wide) / sizeof(T);
  if (column.step == 1 && t + kSteps <= horizon && reinterpret_cast<uint64_t>(from) % sizeof(Wide) == 0) {
    for (int i = 0; i < kSteps / kWide; ++i) {
      const Wide wide = reinterpret_cast<const Wide*>(from)[i];
      const T* parts = reinterpret_cast<const T*>(&wide);
      for (int j = 0; j < kWide; ++j) to[i * kWide + j] = parts[j];
    }
    return;
  }
#pragma unroll
  for (int i = 0; i < kSteps; ++i) to[i] = t + i < horizon ? from[i * column.step] : missing;
}
__device__ inline void load_numbers(float (&to)[kSteps], const Column<const float>& column, int64_t s, int t, int horizon) {
  load_steps<float, float4>(to, column, s, t, horizon, 0.0f);
}
__device__ inline void load_flags(uint8_t (&to)[kSteps], const Column<const uint8_t>& column, int64_t s, int t, int horizon,
                                  uint8_t otherwise) {
  if (column.at) return load_steps<uint8_t, uint2>(to, column, s, t, horizon, otherwise);
  for (int i = 0; i < kSteps; ++i) to[i] = otherwise;
}
__device__ inline void store_numbers(const float (&from)[kSteps], const Column<float>& column, int64_t s, int t, int horizon) {
  if (!column.at) return;
  float* to = column.at + s * column.segment + t * column.step;
  if (column.step == 1 && t + kSteps <= horizon && reinterpret_cast<uint64_t>(to) % 16 == 0) {
    for (int i = 0; i < kSteps; i += 4)
      reinterpret_cast<float4*>(to)[i / 4] = make_float4(from[i], from[i + 1], from[i + 2], from[i + 3]);
    return;
  }
#pragma unroll
  for (int i = 0; i < kSteps; ++i)
    if (t + i < horizon) to[i * column.step] = from[i];
}

// The bound, or what is below it; NaN stays NaN.
__device__ inline float bounded(float x, float bound) { return bound < x ? bound : x; }

// What comes out of a piece of time, given what comes in after it: sum + (cut ? 0 : decay * in). A product alone would let NaN
// through a cut.
struct Piece {
  float sum, decay;
  bool cut;
  __device__ float after(float in) const { return cut ? sum : sum + decay * in; }
};

}  // namespace fugu

// Written, each if given: `advantage` (0 where masked), `target` (advantage + value, value where masked), and `surrogate`: what PPO
// multiplies with the ratio, the row's own error before V-trace weighs it plus the corrected future (0 where masked).
// `segment_major`: neighbouring threads take neighbouring pieces of time, not neighbouring segments.
extern "C" __global__ void __launch_bounds__(kSegments* kChunks)
    trace(Column<const float> value, Column<const float> reward, Column<const uint8_t> terminated, Column<const uint8_t> truncated,
          Column<const uint8_t> mask, Column<const float> ratio, const float* bootstrap, Column<float> advantage,
          Column<float> target, Column<float> surrogate, int segments, int horizon, int segment_major, float gamma,
          float gamma_lambda, float rho_clip, float c_clip) {
  __shared__ Piece pieces[kChunks][kSegments + 1];
  const int thread = threadIdx.x;
  const int mine = segment_major ? thread / kChunks : thread % kSegments, chunk = segment_major ? thread % kChunks : thread / kSegments;
  const int s = blockIdx.x * kSegments + mine;
  const bool here = s < segments;
  float carry = 0;  // the advantage of the column after this round's last
  constexpr int kRound = kChunks * kSteps;
  for (int from = (horizon - 1) / kRound * kRound; from >= 0; from -= kRound) {
    const int t = from + chunk * kSteps;  // the first column of this thread
    float now[kSteps], error[kSteps], rho[kSteps], decay[kSteps], out[kSteps];
    uint8_t ended[kSteps], counts[kSteps];
    Piece piece{0, 1, false};  // also what a thread without columns has
    if (here && t < horizon) {
      float rewards[kSteps], ratios[kSteps];
      uint8_t terminal[kSteps];
      load_numbers(now, value, s, t, horizon);
      load_numbers(rewards, reward, s, t, horizon);
      load_flags(terminal, terminated, s, t, horizon, 0);
      load_flags(ended, truncated, s, t, horizon, 0);
      load_flags(counts, mask, s, t, horizon, 1);
      if (ratio.at) load_numbers(ratios, ratio, s, t, horizon);
      const float beyond =
          t + kSteps < horizon ? value.at[s * value.segment + (t + kSteps) * value.step] : bootstrap[s];
#pragma unroll
      for (int i = 0; i < kSteps; ++i) {
        if (t + i >= horizon) {  // passes on what comes in
          error[i] = 0, rho[i] = 1, decay[i] = 1, ended[i] = 0;
          continue;
        }
        const float next = t + i + 1 >= horizon || i + 1 == kSteps ? beyond : now[(i + 1) % kSteps];
        const float weight = ratio.at && counts[i] ? ratios[i] : 1.0f;
        error[i] = rewards[i] + gamma * (terminal[i] ? 0.0f : next) - now[i];
        rho[i] = bounded(weight, rho_clip);
        decay[i] = gamma_lambda * bounded(weight, c_clip);
        ended[i] |= terminal[i];
      }
#pragma unroll
      for (int i = kSteps - 1; i >= 0; --i) {
        const float own = t + i < horizon ? rho[i] * error[i] : 0.0f;
        piece.sum = ended[i] ? own : own + decay[i] * piece.sum;
        piece.decay *= decay[i];
        piece.cut |= ended[i] != 0;
      }
    }
    pieces[chunk][mine] = piece;
    __syncthreads();
    float in = carry;
    for (int later = kChunks - 1; later >= 0; --later) {
      if (later == chunk) out[0] = in;  // what comes into this thread's piece
      in = pieces[later][mine].after(in);
    }
    carry = in;
    if (here && t < horizon) {
      float coming = out[0], ahead[kSteps];
#pragma unroll
      for (int i = kSteps - 1; i >= 0; --i) {
        const float later = ended[i] ? 0.0f : coming;
        if (t + i < horizon) {
          ahead[i] = error[i] + gamma_lambda * later;
          coming = rho[i] * error[i] + decay[i] * later;
        }
        out[i] = coming;
      }
      float targets[kSteps];
#pragma unroll
      for (int i = 0; i < kSteps; ++i) {
        if (!counts[i]) out[i] = ahead[i] = 0.0f;
        targets[i] = out[i] + now[i];
      }
      store_numbers(out, advantage, s, t, horizon);
      store_numbers(targets, target, s, t, horizon);
      store_numbers(ahead, surrogate, s, t, horizon);
    }
    __syncthreads();  // before the next round writes its pieces
  }
}
FUGU_KERNEL(trace)
