// One step of an LSTM without gradients, around one product: a thread per row and kWide channels. Reference: ops/lstm.py.
//
// `Number` is the type of x, gates and out; states are float32. Before a row with `first` h and c are 0.
#pragma once

#include "sequence.h"

using namespace fugu;

// `joined` [rows, inputs + size]: x and h side by side, so that one product has both.
extern "C" __global__ void lstm_join(const Number* x, int64_t x_row, const float* h, int64_t h_row, const bool* first, int64_t first_row,
                                     Number* joined, int rows, int inputs, int size) {
  const auto [row, channel] = place_of(inputs + size);
  if (row >= rows) return;
  float some[kWide] = {};
  if (channel < inputs) {
    const Some<Number> from = load_some(x + row * x_row + channel);
#pragma unroll
    for (int e = 0; e < kWide; ++e) some[e] = number_at(from, e);
  } else if (!first[row * first_row]) {
    const Some<float> from = load_some(h + row * h_row + channel - inputs);
#pragma unroll
    for (int e = 0; e < kWide; ++e) some[e] = number_at(from, e);
  }
  store_some(joined + static_cast<int64_t>(row) * (inputs + size) + channel, some);
}
FUGU_KERNEL(lstm_join)

// `gates` [rows, 4 size]: i, f, g, o before their activations; `c`: what was before, a row every `c_row` numbers. Written: `out`
// [rows, size] and `state` [rows, 2 size], h and c side by side.
extern "C" __global__ void lstm_cell(const Number* gates, const float* c, int64_t c_row, const bool* first, int64_t first_row, Number* out,
                                     float* state, int rows, int size) {
  const auto [row, channel] = place_of(size);
  if (row >= rows) return;
  const Number* gate = gates + static_cast<int64_t>(row) * 4 * size + channel;
  const Some<Number> in = load_some(gate), keep = load_some(gate + size), candidate = load_some(gate + 2 * size);
  const Some<Number> open = load_some(gate + 3 * size);
  const Some<float> before = load_some(c + row * c_row + channel);
  const bool forgets = first[row * first_row];
  float cell[kWide], h[kWide];
#pragma unroll
  for (int e = 0; e < kWide; ++e) {
    const float kept = forgets ? 0.0f : number_at(before, e);
    cell[e] = sigmoid(number_at(keep, e)) * kept + sigmoid(number_at(in, e)) * tanh_of(number_at(candidate, e));
    h[e] = sigmoid(number_at(open, e)) * tanh_of(cell[e]);
  }
  store_some(out + static_cast<int64_t>(row) * size + channel, h);
  store_some(state + static_cast<int64_t>(row) * 2 * size + channel, h);
  store_some(state + static_cast<int64_t>(row) * 2 * size + size + channel, cell);
}
FUGU_KERNEL(lstm_cell)
