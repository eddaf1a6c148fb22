// The part of an LSTM that is not a product of matrices, one step at a time: a thread per row and channel. Reference: ops/lstm.py.
//
// `gates` [rows, 4 size] hold i, f, g, o before their activations, which are computed again on the way back: that is cheaper than
// keeping them. `Number` is the type of gates, h and their gradients; cells are float32. Before a row with `first` h and c are 0.
#pragma once

#include "sequence.h"

using namespace fugu;

namespace fugu {

struct Gates {
  float i, f, g, o;
};
__device__ inline Gates gates_of(const Number* at, int size) {
  return {sigmoid(number_of(at[0])), sigmoid(number_of(at[size])), tanh_of(number_of(at[2 * size])), sigmoid(number_of(at[3 * size]))};
}

}  // namespace fugu

// h [rows, size] (a row every `h_row` numbers) -> `out`: 0 where first.
extern "C" __global__ void lstm_enter(const float* h, int64_t h_row, const bool* first, int64_t first_row, Number* out, int rows, int size) {
  const auto [row, channel] = place_of(size);
  if (row >= rows) return;
  const int64_t i = static_cast<int64_t>(row) * size + channel;
  store_number(out + i, first[row * first_row] ? 0.0f : h[row * h_row + channel]);
}
FUGU_KERNEL(lstm_enter)

// Written: `out` and `next` (each if given): h, and h as the next step takes it, 0 where `next_first`; `c`; and `state` if given: h and
// c side by side.
extern "C" __global__ void lstm_forward(const Number* gates, const float* before, int64_t before_row, const bool* first,
                                        const bool* next_first, int64_t first_row, Number* out, Number* next, float* c, float* state,
                                        int rows, int size) {
  const auto [row, channel] = place_of(size);
  if (row >= rows) return;
  const int64_t i = static_cast<int64_t>(row) * size + channel;
  const Gates gate = gates_of(gates + static_cast<int64_t>(row) * 4 * size + channel, size);
  const float kept = first[row * first_row] ? 0.0f : before[row * before_row + channel];
  const float cell = gate.f * kept + gate.i * gate.g, h = gate.o * tanh_of(cell);
  if (out) store_number(out + i, h);
  if (next) store_number(next + i, next_first[row * first_row] ? 0.0f : h);
  if (c) c[i] = cell;
  if (state) {
    state[static_cast<int64_t>(row) * 2 * size + channel] = h;
    state[static_cast<int64_t>(row) * 2 * size + size + channel] = cell;
  }
}
FUGU_KERNEL(lstm_forward)

// `dh` (of the next step's h; null at the last one) and `dc` (of this step's c, from the next one; written: of the one before) count
// only where the next step has no `first`. `d_state` is what comes from the last state, at the last step.
extern "C" __global__ void lstm_backward(const Number* gates, const float* cells, const float* before, int64_t before_row,
                                         const bool* first, const bool* next_first, int64_t first_row, const Number* d_out,
                                         int64_t d_out_row, const Number* dh, const float* d_state, float* dc, Number* d_gates,
                                         int rows, int size) {
  const auto [row, channel] = place_of(size);
  if (row >= rows) return;
  const int64_t i = static_cast<int64_t>(row) * size + channel;
  const int64_t at = static_cast<int64_t>(row) * 4 * size + channel;
  const Gates gate = gates_of(gates + at, size);
  const float cell = tanh_of(cells[i]), kept = first[row * first_row] ? 0.0f : before[row * before_row + channel];
  float from_h = d_out ? number_of(d_out[row * d_out_row + channel]) : 0.0f, from_c = 0;
  if (dh && !next_first[row * first_row]) from_h += number_of(dh[i]), from_c = dc[i];
  if (d_state) {
    from_h += d_state[static_cast<int64_t>(row) * 2 * size + channel];
    from_c = d_state[static_cast<int64_t>(row) * 2 * size + size + channel];
  }
  const float d = from_c + from_h * gate.o * (1 - cell * cell);
  store_number(d_gates + at, d * gate.g * gate.i * (1 - gate.i));
  store_number(d_gates + at + size, d * kept * gate.f * (1 - gate.f));
  store_number(d_gates + at + 2 * size, d * gate.i * (1 - gate.g * gate.g));
  store_number(d_gates + at + 3 * size, from_h * cell * gate.o * (1 - gate.o));
  dc[i] = d * gate.f;
}
FUGU_KERNEL(lstm_backward)

// What flows out at the start: 0 where first.
extern "C" __global__ void lstm_leave(const Number* dh, const float* dc, const bool* first, int64_t first_row, float* d_state, int rows,
                                      int size) {
  const auto [row, channel] = place_of(size);
  if (row >= rows) return;
  const int64_t i = static_cast<int64_t>(row) * size + channel;
  const bool forgets = first[row * first_row];
  d_state[static_cast<int64_t>(row) * 2 * size + channel] = forgets ? 0.0f : number_of(dh[i]);
  d_state[static_cast<int64_t>(row) * 2 * size + size + channel] = forgets ? 0.0f : dc[i];
}
FUGU_KERNEL(lstm_leave)
