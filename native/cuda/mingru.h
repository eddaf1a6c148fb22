// MinGRU's gates and its walk through time, forwards and backwards: a thread per segment and channel. Reference: policy/recurrent.py.
//
//   h[t] = h[t-1] + sigmoid(gate) (candidate - h[t-1])      out[t] = x[t] + sigmoid(highway) (h[t] - x[t])
//
// with h[t-1] = 0 where first[t]. `Number` is the type of gates, x and out; the state is float32.
#pragma once

#include "sequence.h"

using namespace fugu;

extern "C" __global__ void mingru_forward(Sequence<const Number> gates, Sequence<const Number> x, Sequence<const bool> first,
                                          const float* start, int64_t start_row, Sequence<Number> out, float* h_all, float* last,
                                          int64_t last_row, int steps, int rows, int size) {
  const int64_t i = static_cast<int64_t>(blockIdx.x) * blockDim.x + threadIdx.x;
  const int row = static_cast<int>(i / size), channel = static_cast<int>(i % size);
  if (row >= rows) return;
  float h = start[row * start_row + channel];
  for (int t = 0; t < steps; ++t) {
    const Number* gate = gates.row(t, row) + channel;
    const float candidate = number_of(gate[0]), z = sigmoid(number_of(gate[size])), s = sigmoid(number_of(gate[2 * size]));
    const float in = number_of(x.row(t, row)[channel]);
    if (*first.row(t, row)) h = 0;
    h += z * (candidate - h);
    store_number(out.row(t, row) + channel, in + s * (h - in));
    if (h_all) h_all[(static_cast<int64_t>(t) * rows + row) * size + channel] = h;
  }
  last[row * last_row + channel] = h;
}
FUGU_KERNEL(mingru_forward)

// `d_last` may be null. `d_gates` and `d_x` lie as `gates` and `x`; what flows to x through the gates is not in `d_x`.
extern "C" __global__ void mingru_backward(Sequence<const Number> gates, Sequence<const Number> x, Sequence<const bool> first,
                                           const float* start, int64_t start_row, const float* h_all, Sequence<const Number> d_out,
                                           const float* d_last, Sequence<Number> d_gates, Sequence<Number> d_x, float* d_start,
                                           int steps, int rows, int size) {
  const int64_t i = static_cast<int64_t>(blockIdx.x) * blockDim.x + threadIdx.x;
  const int row = static_cast<int>(i / size), channel = static_cast<int>(i % size);
  if (row >= rows) return;
  float dh = d_last ? d_last[i] : 0.0f;
  float h = h_all[(static_cast<int64_t>(steps - 1) * rows + row) * size + channel];
  for (int t = steps - 1; t >= 0; --t) {
    const Number* gate = gates.row(t, row) + channel;
    const float candidate = number_of(gate[0]), z = sigmoid(number_of(gate[size])), s = sigmoid(number_of(gate[2 * size]));
    const float in = number_of(x.row(t, row)[channel]), d = number_of(d_out.row(t, row)[channel]);
    const bool forgets = *first.row(t, row);
    const float kept = t > 0 ? h_all[(static_cast<int64_t>(t - 1) * rows + row) * size + channel] : start[row * start_row + channel];
    const float before = forgets ? 0.0f : kept;
    dh += d * s;
    Number* d_gate = d_gates.row(t, row) + channel;
    store_number(d_gate, dh * z);
    store_number(d_gate + size, dh * (candidate - before) * z * (1 - z));
    store_number(d_gate + 2 * size, d * (h - in) * s * (1 - s));
    store_number(d_x.row(t, row) + channel, d * (1 - s));
    dh = forgets ? 0.0f : dh * (1 - z);
    h = kept;
  }
  d_start[i] = dh;
}
FUGU_KERNEL(mingru_backward)
