// What the recurrent kernels share: rows of channels, one for each step and segment, in either order in memory.
//
// FUGU_WIDE: how many neighbouring channels a thread has, 1 or 4. With 4, rows begin at multiples of 4 numbers.
#pragma once

#include "kernel.h"

#ifndef FUGU_WIDE
#define FUGU_WIDE 1
#endif

namespace fugu {

#ifdef FUGU_BF16
using Number = Bf16;
#else
using Number = float;
#endif

template <typename T>
struct Sequence {  // channel c of (t, row) is at[t * step + row * segment + c]
  T* at;
  int64_t step, segment;
  __device__ T* row(int t, int row) const { return at + t * step + row * segment; }
};

constexpr int kWide = FUGU_WIDE;
static_assert(kWide == 1 || kWide == 4);

// kWide numbers as they lie in memory, so that they can be asked for long before they are needed.
struct alignas(8) FourHalves {
  uint32_t low, high;
};
struct alignas(16) FourFloats {
  float at[4];
};
__device__ inline float number_at(const FourFloats& wide, int e) { return wide.at[e]; }
__device__ inline float number_at(const FourHalves& wide, int e) {
  const uint32_t word = e < 2 ? wide.low : wide.high;
  return __uint_as_float(e % 2 ? word & 0xffff0000u : word << 16);
}
__device__ inline float number_at(float x, int) { return x; }
__device__ inline float number_at(Bf16 x, int) { return number_of(x); }

template <typename T, int wide>
struct Packed {
  using Type = T;
};
template <>
struct Packed<float, 4> {
  using Type = FourFloats;
};
template <>
struct Packed<Bf16, 4> {
  using Type = FourHalves;
};
template <typename T>
using Some = typename Packed<T, kWide>::Type;

template <typename T>
__device__ inline Some<T> load_some(const T* at) {
  return *reinterpret_cast<const Some<T>*>(at);
}
__device__ inline void store_some(float* at, const float (&x)[kWide]) {
  Some<float> packed;
  float* parts = reinterpret_cast<float*>(&packed);
#pragma unroll
  for (int e = 0; e < kWide; ++e) parts[e] = x[e];
  *reinterpret_cast<Some<float>*>(at) = packed;
}
__device__ inline void store_some(Bf16* at, const float (&x)[kWide]) {
  if constexpr (kWide == 1) store_number(at, x[0]);
  else *reinterpret_cast<FourHalves*>(at) = {to_bf16x2(x[0], x[1]), to_bf16x2(x[kWide / 2], x[kWide - 1])};
}

// Which row and channel a thread has. Numbers of 32 bits: a division of 64 takes longer than the rest of a short kernel.
struct RowChannel {
  int row, channel;
};
__device__ inline RowChannel place_of(int size) {
  const uint32_t i = blockIdx.x * blockDim.x + threadIdx.x, per_row = static_cast<uint32_t>(size) / kWide, row = i / per_row;
  return {static_cast<int>(row), static_cast<int>((i - row * per_row) * kWide)};
}

__device__ inline float sigmoid(float x) { return __fdividef(1.0f, 1.0f + __expf(-x)); }
// Off by 2e-7 at most; where numbers are rounded to bfloat16 that is nothing, and tanhf takes five times as long.
__device__ inline float tanh_of(float x) {
  if constexpr (sizeof(Number) == 2) return 2.0f * sigmoid(2.0f * x) - 1.0f;
  else return tanhf(x);
}

}  // namespace fugu
