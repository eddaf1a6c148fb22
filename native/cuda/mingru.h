// MinGRU's gates and its walk through time, forwards and backwards: a thread per segment and kWide channels. Reference:
// ops/mingru.py.
//
//   h[t] = h[t-1] + sigmoid(gate) (candidate - h[t-1])      out[t] = x[t] + sigmoid(highway) (h[t] - x[t])
//
// with h[t-1] = 0 where first[t]. `Number` is the type of gates, x and out; the state is float32. Threads go kSteps steps at a time and
// ask for all that these need at once: a step alone would wait for its numbers longer than it takes. Of the states only those
// before each kSteps steps are kept for the way back, which computes the others again: that is cheaper than reading them.
#pragma once

#include "sequence.h"

using namespace fugu;

namespace fugu {

constexpr int kSteps = 4;
constexpr int kBlocks = sizeof(Number) == 2 ? 2 : 1;  // of a multiprocessor, so that registers suffice: a chunk of float32 takes more

struct GatesOfSteps {
  Some<Number> candidate[kSteps], z[kSteps], highway[kSteps];
  bool forgets[kSteps];
  __device__ void load(const Sequence<const Number>& gates, const Sequence<const bool>& first, int t, int steps, RowChannel place, int size) {
#pragma unroll
    for (int i = 0; i < kSteps; ++i)
      if (t + i < steps) {
        const Number* at = gates.row(t + i, place.row) + place.channel;
        candidate[i] = load_some(at), z[i] = load_some(at + size), highway[i] = load_some(at + 2 * size);
        forgets[i] = *first.row(t + i, place.row);
      }
  }
};

}  // namespace fugu

// `kept` [steps / kSteps rounded up, rows, size], if not null: the state before each kSteps steps.
extern "C" __global__ void __launch_bounds__(256, 2 * kBlocks)
    mingru_forward(Sequence<const Number> gates, Sequence<const Number> x, Sequence<const bool> first, const float* start,
                   int64_t start_row, Sequence<Number> out, float* kept, float* last, int64_t last_row, int steps, int rows, int size) {
  const RowChannel place = place_of(size);
  if (place.row >= rows) return;
  float h[kWide];
  const Some<float> begin = load_some(start + place.row * start_row + place.channel);
#pragma unroll
  for (int e = 0; e < kWide; ++e) h[e] = number_at(begin, e);
  for (int t = 0; t < steps; t += kSteps) {
    GatesOfSteps gate;
    Some<Number> in[kSteps];
    gate.load(gates, first, t, steps, place, size);
#pragma unroll
    for (int i = 0; i < kSteps; ++i)
      if (t + i < steps) in[i] = load_some(x.row(t + i, place.row) + place.channel);
    if (kept) store_some(kept + (static_cast<int64_t>(t / kSteps) * rows + place.row) * size + place.channel, h);
#pragma unroll
    for (int i = 0; i < kSteps; ++i)
      if (t + i < steps) {
        float shown[kWide];
#pragma unroll
        for (int e = 0; e < kWide; ++e) {
          if (gate.forgets[i]) h[e] = 0;
          h[e] += sigmoid(number_at(gate.z[i], e)) * (number_at(gate.candidate[i], e) - h[e]);
          shown[e] = number_at(in[i], e) + sigmoid(number_at(gate.highway[i], e)) * (h[e] - number_at(in[i], e));
        }
        store_some(out.row(t + i, place.row) + place.channel, shown);
      }
  }
  store_some(last + place.row * last_row + place.channel, h);
}
FUGU_KERNEL(mingru_forward)

// `d_last` may be null. `d_gates` and `d_x` lie as `gates` and `x`; what flows to x through the gates is not in `d_x`. `d_bias`
// [rows, 3 size]: the sum of `d_gates` over the steps.
extern "C" __global__ void __launch_bounds__(256, kBlocks)
    mingru_backward(Sequence<const Number> gates, Sequence<const Number> x, Sequence<const bool> first, const float* kept,
                    Sequence<const Number> d_out, const float* d_last, Sequence<Number> d_gates, Sequence<Number> d_x, float* d_start,
                    float* d_bias, int steps, int rows, int size) {
  const RowChannel place = place_of(size);
  if (place.row >= rows) return;
  const int64_t at = static_cast<int64_t>(place.row) * size + place.channel;
  float dh[kWide], sums[3][kWide] = {};
#pragma unroll
  for (int e = 0; e < kWide; ++e) dh[e] = d_last ? d_last[at + e] : 0.0f;
  for (int t = (steps - 1) / kSteps * kSteps; t >= 0; t -= kSteps) {
    GatesOfSteps gate;
    Some<Number> in[kSteps], d_outs[kSteps];
    const Some<float> begin = load_some(kept + static_cast<int64_t>(t / kSteps) * rows * size + at);
    gate.load(gates, first, t, steps, place, size);
#pragma unroll
    for (int i = 0; i < kSteps; ++i)
      if (t + i < steps) {
        in[i] = load_some(x.row(t + i, place.row) + place.channel);
        d_outs[i] = load_some(d_out.row(t + i, place.row) + place.channel);
      }
    float h[kSteps][kWide];  // before each step
#pragma unroll
    for (int e = 0; e < kWide; ++e) {
      float now = number_at(begin, e);
#pragma unroll
      for (int i = 0; i < kSteps; ++i)
        if (t + i < steps) {
          h[i][e] = gate.forgets[i] ? 0.0f : now;
          now = h[i][e] + sigmoid(number_at(gate.z[i], e)) * (number_at(gate.candidate[i], e) - h[i][e]);
        }
    }
#pragma unroll
    for (int i = kSteps - 1; i >= 0; --i)
      if (t + i < steps) {
        float d_gate[3][kWide], d_in[kWide];
#pragma unroll
        for (int e = 0; e < kWide; ++e) {
          const float z = sigmoid(number_at(gate.z[i], e)), s = sigmoid(number_at(gate.highway[i], e)), d = number_at(d_outs[i], e);
          const float gap = number_at(gate.candidate[i], e) - h[i][e], after = h[i][e] + z * gap;
          dh[e] += d * s;
          d_gate[0][e] = dh[e] * z;
          d_gate[1][e] = dh[e] * gap * z * (1 - z);
          d_gate[2][e] = d * (after - number_at(in[i], e)) * s * (1 - s);
          d_in[e] = d * (1 - s);
          dh[e] = gate.forgets[i] ? 0.0f : dh[e] * (1 - z);
#pragma unroll
          for (int q = 0; q < 3; ++q) sums[q][e] += d_gate[q][e];
        }
        Number* to = d_gates.row(t + i, place.row) + place.channel;
#pragma unroll
        for (int q = 0; q < 3; ++q) store_some(to + q * size, d_gate[q]);
        store_some(d_x.row(t + i, place.row) + place.channel, d_in);
      }
  }
  store_some(d_start + at, dh);
#pragma unroll
  for (int q = 0; q < 3; ++q) store_some(d_bias + 3 * static_cast<int64_t>(place.row) * size + q * size + place.channel, sums[q]);
}
FUGU_KERNEL(mingru_backward)
