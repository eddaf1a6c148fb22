// A whole LSTM sequence in one launch each way, in bfloat16 with sums in float32. Reference: ops/lstm.py; lstm.h does it in steps.
//
// A block takes 16 segments through all steps. Warp w has channels 16 w to 16 w + 15 of all four gates and keeps their recurrent
// weights in registers, so a step reads from memory only what the input adds to the gates. What the warps tell each other is h (or, on
// the way back, the gradients of the gates), through shared memory. Of a product's result a lane holds the same rows and channels in
// all gates, so the cell is computed where its gates are, and c stays in registers.
//
// FUGU_SIZE: channels, a multiple of 16 up to 128.
#pragma once

#ifndef FUGU_SIZE
#define FUGU_SIZE 128
#endif

#define FUGU_BF16 1
#include "sequence.h"

using namespace fugu;

namespace fugu {

constexpr int kSize = FUGU_SIZE, kRows = 16, kThreads = 2 * kSize;
constexpr int kLine = kSize / 2 + 4;      // words of a row of h in shared memory: lanes that read a fragment meet in different banks
constexpr int kGateLine = 2 * kSize + 4;  // the same for gates

// Lane 4 g + t has rows g and g + 8 and four neighbouring channels. In the products these are columns 2t and 2t + 1 of two tiles:
// column n of tile p is channel 4 (n / 2) + 2 p + n % 2 of the warp.
__device__ inline int channel_of_column(int p, int n) { return 16 * warp_of_thread() + 4 * (n / 2) + 2 * p + n % 2; }

struct Place {
  int channel;         // the first of four
  int row[2];          // within the tile
  int64_t segment[2];
  bool here[2];
};
__device__ inline Place place_of_thread(int tile, int rows) {
  Place place;
  place.channel = channel_of_column(0, 2 * (lane_of_thread() % 4));
#pragma unroll
  for (int r = 0; r < 2; ++r) {
    place.row[r] = lane_of_thread() / 4 + 8 * r;
    place.segment[r] = static_cast<int64_t>(tile) * kRows + place.row[r];
    place.here[r] = place.segment[r] < rows;
  }
  return place;
}

// Four bfloat16 from or to memory, number e of four, and where it is in the fragments of a product.
__device__ inline uint2 load_four(const Bf16* at) { return *reinterpret_cast<const uint2*>(at); }
__device__ inline void store_four(Bf16* at, uint2 four) { *reinterpret_cast<uint2*>(at) = four; }
__device__ inline uint2 four_of(float a, float b, float c, float d) { return make_uint2(to_bf16x2(a, b), to_bf16x2(c, d)); }
__device__ inline float number_of(uint2 four, int e) {
  const uint32_t word = e < 2 ? four.x : four.y;
  return __uint_as_float(e % 2 ? word & 0xffff0000u : word << 16);
}
__device__ inline float& at_place(float (&sums)[2][4], int r, int e) { return sums[e / 2][2 * r + e % 2]; }

// A fragment of 16 rows and 16 columns from column `k` on, of rows in shared memory.
__device__ inline void load_fragment(uint32_t (&a)[4], const uint32_t* rows, int line, int k) {
  const uint32_t* at = rows + lane_of_thread() / 4 * line + k / 2 + lane_of_thread() % 4;
  a[0] = at[0], a[1] = at[8 * line], a[2] = at[4], a[3] = at[8 * line + 4];
}

__device__ inline void load_gates(uint2 (&gate)[2][4], const Bf16* gates, const Place& place, int step, int rows) {
#pragma unroll
  for (int r = 0; r < 2; ++r)
#pragma unroll
    for (int q = 0; q < 4; ++q) {
      const int64_t row = static_cast<int64_t>(step) * rows + place.segment[r];
      gate[r][q] = place.here[r] ? load_four(gates + row * 4 * kSize + q * kSize + place.channel) : make_uint2(0, 0);
    }
}

}  // namespace fugu

// `gates` [steps, rows, 4 size]: in, what the input adds; out (if `keeps`), before their activations. Written too: `out`
// [steps, rows, size]; where `keeps` `h_in`, h as each step takes it, and `cells`, both of that shape; `last` [rows, 2 size].
extern "C" __global__ void __launch_bounds__(kThreads, 1)
    lstm_scan_forward(Bf16* gates, const Bf16* weight, const float* start, Sequence<const bool> first, Bf16* out, Bf16* h_in,
                      float* cells, float* last, int keeps, int steps, int rows) {
  __shared__ __align__(16) uint32_t h_tile[2][kRows * kLine];
  const int g = lane_of_thread() / 4, t = lane_of_thread() % 4;
  uint32_t w[kSize / 16][4][2][2];
#pragma unroll
  for (int k = 0; k < kSize / 16; ++k)
#pragma unroll
    for (int q = 0; q < 4; ++q)
#pragma unroll
      for (int p = 0; p < 2; ++p) {
        const Bf16* at = weight + (q * kSize + channel_of_column(p, g)) * kSize + 16 * k + 2 * t;
        w[k][q][p][0] = *reinterpret_cast<const uint32_t*>(at), w[k][q][p][1] = *reinterpret_cast<const uint32_t*>(at + 8);
      }
  for (int tile = blockIdx.x; tile * kRows < rows; tile += gridDim.x) {
    const Place place = place_of_thread(tile, rows);
    float c[2][4];
    uint2 coming[2][4];  // what the input adds to the gates of the next step
    load_gates(coming, gates, place, 0, rows);
#pragma unroll
    for (int r = 0; r < 2; ++r) {
      const bool forgets = !place.here[r] || *first.row(0, static_cast<int>(place.segment[r]));
      const float* state = start + place.segment[r] * 2 * kSize + place.channel;
      uint2 h = make_uint2(0, 0);
      if (!forgets) h = four_of(state[0], state[1], state[2], state[3]);
#pragma unroll
      for (int e = 0; e < 4; ++e) c[r][e] = forgets ? 0.0f : state[kSize + e];
      *reinterpret_cast<uint2*>(&h_tile[0][place.row[r] * kLine + place.channel / 2]) = h;
      if (keeps && place.here[r]) store_four(h_in + place.segment[r] * kSize + place.channel, h);
    }
    __syncthreads();
    for (int step = 0; step < steps; ++step) {
      float sum[4][2][4];  // [gate][tile of columns][...]
#pragma unroll
      for (int q = 0; q < 4; ++q)
#pragma unroll
        for (int e = 0; e < 8; ++e) at_place(sum[q], e / 4, e % 4) = number_of(coming[e / 4][q], e % 4);
      if (step + 1 < steps) load_gates(coming, gates, place, step + 1, rows);  // arrives while the products are computed
#pragma unroll
      for (int k = 0; k < kSize / 16; ++k) {
        uint32_t a[4];
        load_fragment(a, h_tile[step & 1], kLine, 16 * k);
#pragma unroll
        for (int q = 0; q < 4; ++q) multiply_bf16(sum[q][0], a, w[k][q][0]), multiply_bf16(sum[q][1], a, w[k][q][1]);
      }
      const bool end = step + 1 == steps;
#pragma unroll
      for (int r = 0; r < 2; ++r) {
        float h[4];
#pragma unroll
        for (int e = 0; e < 4; ++e) {
          c[r][e] = sigmoid(at_place(sum[1], r, e)) * c[r][e] + sigmoid(at_place(sum[0], r, e)) * tanh_of(at_place(sum[2], r, e));
          h[e] = sigmoid(at_place(sum[3], r, e)) * tanh_of(c[r][e]);
        }
        const bool forgets = !end && (!place.here[r] || *first.row(step + 1, static_cast<int>(place.segment[r])));
        const uint2 four = four_of(h[0], h[1], h[2], h[3]), next = forgets ? make_uint2(0, 0) : four;
        if (!end) *reinterpret_cast<uint2*>(&h_tile[(step + 1) & 1][place.row[r] * kLine + place.channel / 2]) = next;
        if (place.here[r]) {
          const int64_t row = static_cast<int64_t>(step) * rows + place.segment[r];
          store_four(out + row * kSize + place.channel, four);
          if (keeps) {
            if (!end) store_four(h_in + (row + rows) * kSize + place.channel, next);
            *reinterpret_cast<float4*>(cells + row * kSize + place.channel) = make_float4(c[r][0], c[r][1], c[r][2], c[r][3]);
#pragma unroll
            for (int q = 0; q < 4; ++q)
              store_four(gates + row * 4 * kSize + q * kSize + place.channel,
                         four_of(at_place(sum[q], r, 0), at_place(sum[q], r, 1), at_place(sum[q], r, 2), at_place(sum[q], r, 3)));
          }
          if (end) {
            float* state = last + place.segment[r] * 2 * kSize + place.channel;
#pragma unroll
            for (int e = 0; e < 4; ++e) state[e] = h[e], state[kSize + e] = c[r][e];
          }
        }
#pragma unroll
        for (int e = 0; e < 4; ++e) c[r][e] = forgets ? 0.0f : c[r][e];
      }
      __syncthreads();
    }
  }
}
FUGU_KERNEL(lstm_scan_forward)

// `gates` as the forward pass left them; `d_out` and `d_last` may be null. Written: `d_gates`, and `d_start` if not null.
extern "C" __global__ void __launch_bounds__(kThreads, 1)
    lstm_scan_backward(const Bf16* gates, const float* cells, const float* start, const Bf16* weight, Sequence<const bool> first,
                       const Bf16* d_out, const float* d_last, Bf16* d_gates, float* d_start, int steps, int rows) {
  __shared__ __align__(16) uint32_t d_tile[2][kRows * kGateLine];
  const int g = lane_of_thread() / 4, t = lane_of_thread() % 4;
  uint32_t w[kSize / 4][2][2];
#pragma unroll
  for (int k = 0; k < kSize / 4; ++k)
#pragma unroll
    for (int p = 0; p < 2; ++p)
#pragma unroll
      for (int half = 0; half < 2; ++half) {
        const Bf16* at = weight + (16 * k + 2 * t + 8 * half) * kSize + channel_of_column(p, g);
        w[k][p][half] = at[0].bits | static_cast<uint32_t>(at[kSize].bits) << 16;
      }
  for (int tile = blockIdx.x; tile * kRows < rows; tile += gridDim.x) {
    const Place place = place_of_thread(tile, rows);
    float dc[2][4], c[2][4], dh[2][4];
#pragma unroll
    for (int r = 0; r < 2; ++r) {
      const float* given = d_last && place.here[r] ? d_last + place.segment[r] * 2 * kSize + place.channel : nullptr;
      const float* cell = cells + (static_cast<int64_t>(steps - 1) * rows + place.segment[r]) * kSize + place.channel;
#pragma unroll
      for (int e = 0; e < 4; ++e) {
        at_place(dh, r, e) = given ? given[e] : 0.0f;
        dc[r][e] = given ? given[kSize + e] : 0.0f;
        c[r][e] = place.here[r] ? cell[e] : 0.0f;
      }
    }
    for (int step = steps - 1; step >= 0; --step) {
      uint2 gate[2][4];
      load_gates(gate, gates, place, step, rows);
      uint32_t* tile_now = d_tile[step & 1];
#pragma unroll
      for (int r = 0; r < 2; ++r) {
        const int64_t row = static_cast<int64_t>(step) * rows + place.segment[r];
        const bool forgets = !place.here[r] || *first.row(step, static_cast<int>(place.segment[r]));
        const uint2 from_out = d_out && place.here[r] ? load_four(d_out + row * kSize + place.channel) : make_uint2(0, 0);
        float4 stored = make_float4(0, 0, 0, 0);
        if (place.here[r])
          stored = *reinterpret_cast<const float4*>(step > 0 ? cells + (row - rows) * kSize + place.channel
                                                            : start + place.segment[r] * 2 * kSize + kSize + place.channel);
        const float before[4] = {stored.x, stored.y, stored.z, stored.w};
        float d_gate[4][4];
#pragma unroll
        for (int e = 0; e < 4; ++e) {
          const float in = sigmoid(number_of(gate[r][0], e)), keep = sigmoid(number_of(gate[r][1], e));
          const float candidate = tanh_of(number_of(gate[r][2], e)), open = sigmoid(number_of(gate[r][3], e)), shown = tanh_of(c[r][e]);
          const float from_h = at_place(dh, r, e) + number_of(from_out, e);
          const float d = dc[r][e] + from_h * open * (1 - shown * shown);
          d_gate[0][e] = d * candidate * in * (1 - in);
          d_gate[1][e] = d * (forgets ? 0.0f : before[e]) * keep * (1 - keep);
          d_gate[2][e] = d * in * (1 - candidate * candidate);
          d_gate[3][e] = from_h * shown * open * (1 - open);
          dc[r][e] = forgets ? 0.0f : d * keep;
          c[r][e] = before[e];
        }
#pragma unroll
        for (int q = 0; q < 4; ++q) {
          const uint2 four = four_of(d_gate[q][0], d_gate[q][1], d_gate[q][2], d_gate[q][3]);
          *reinterpret_cast<uint2*>(&tile_now[place.row[r] * kGateLine + (q * kSize + place.channel) / 2]) = four;
          if (place.here[r]) store_four(d_gates + row * 4 * kSize + q * kSize + place.channel, four);
        }
        if (step > 0 && place.here[r] && t == 0) {  // one lane for each 32 bytes: no registers are left to load ahead
          const int64_t next = row - rows;
#pragma unroll
          for (int q = 0; q < 4; ++q) prefetch(gates + next * 4 * kSize + q * kSize + place.channel);
          if (d_out) prefetch(d_out + next * kSize + place.channel);
          if (step > 1) prefetch(cells + (next - rows) * kSize + place.channel), prefetch(cells + (next - rows) * kSize + place.channel + 8);
        }
      }
      __syncthreads();
      float sum[2][2][4] = {};  // two of each, as a product waits for the one it adds to
#pragma unroll
      for (int k = 0; k < kSize / 4; ++k) {
        uint32_t a[4];
        load_fragment(a, tile_now, kGateLine, 16 * k);
        multiply_bf16(sum[k % 2][0], a, w[k][0]), multiply_bf16(sum[k % 2][1], a, w[k][1]);
      }
#pragma unroll
      for (int r = 0; r < 2; ++r) {
        const bool forgets = !place.here[r] || *first.row(step, static_cast<int>(place.segment[r]));
#pragma unroll
        for (int e = 0; e < 4; ++e) at_place(dh, r, e) = forgets ? 0.0f : at_place(sum[0], r, e) + at_place(sum[1], r, e);
      }
    }
    if (d_start) {
#pragma unroll
      for (int r = 0; r < 2; ++r)
        if (place.here[r]) {
          float* state = d_start + place.segment[r] * 2 * kSize + place.channel;
#pragma unroll
          for (int e = 0; e < 4; ++e) state[e] = at_place(dh, r, e), state[kSize + e] = dc[r][e];
        }
    }
    __syncthreads();  // before the next tile writes where this one may still be read
  }
}
FUGU_KERNEL(lstm_scan_backward)
