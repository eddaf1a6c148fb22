// What every CUDA kernel of ours starts from. Compiled by NVRTC at run time for a GPU, or by a C++ compiler for the CPU, where
// emulate.h stands in for the card: slow, but every kernel can be tested where there is none.
//
// A kernel is `extern "C" __global__ void name(...)`, followed by FUGU_KERNEL(name). Blocks have a multiple of 32 threads, in one
// dimension. Dynamic shared memory is declared by FUGU_SHARED.
#pragma once

#ifdef __CUDACC_RTC__
#define FUGU_KERNEL(name)
#define FUGU_SHARED(Type, name)                         \
  extern __shared__ __align__(128) char fugu_shared[]; \
  Type* const name = reinterpret_cast<Type*>(fugu_shared)
#else
#include "emulate.h"
#endif

#include "../env.h"

namespace fugu {

constexpr unsigned kAllLanes = 0xffffffffu;

__device__ inline int lane_of_thread() { return static_cast<int>(threadIdx.x) & 31; }
__device__ inline int warp_of_thread() { return static_cast<int>(threadIdx.x) >> 5; }

// The sum over the lanes of a warp, in every lane; always added in the same order.
__device__ inline float warp_sum(float x) {
  for (int step = 16; step > 0; step >>= 1) x += __shfl_xor_sync(kAllLanes, x, step);
  return x;
}
__device__ inline float warp_max(float x) {
  for (int step = 16; step > 0; step >>= 1) x = fmaxf(x, __shfl_xor_sync(kAllLanes, x, step));
  return x;
}

// Asks for what will be read soon, without a register to hold it.
__device__ inline void prefetch(const void* at) {
#ifdef __CUDACC_RTC__
  asm volatile("prefetch.global.L2 [%0];" : : "l"(at));
#else
  static_cast<void>(at);
#endif
}

// Uniform in [0, 1), a hash of (key, row): no state, so that what was drawn can be drawn again.
__device__ inline float uniform_of(uint64_t key, uint64_t row) {
  return static_cast<float>(static_cast<uint32_t>(Rng::mix(key + 0x9e3779b97f4a7c15ull * (row + 1)) >> 32) >> 8) * 0x1p-24f;
}

// Matrix products of a warp. D = A B + D, A 16 x 8, B 8 x 8, D 16 x 8, in tf32 (numbers rounded to 10 bits of mantissa, sums in
// float32). With g = lane / 4 and t = lane % 4 a lane holds
//   a = A[g][t], A[g + 8][t], A[g][t + 4], A[g + 8][t + 4]     b = B[t][g], B[t + 4][g]
//   d = D[g][2t], D[g][2t + 1], D[g + 8][2t], D[g + 8][2t + 1]
__device__ inline uint32_t to_tf32(float x) {
#ifdef __CUDACC_RTC__
  uint32_t out;
  asm("cvt.rna.tf32.f32 %0, %1;" : "=r"(out) : "f"(x));
  return out;
#else
  return emulate::to_tf32(x);
#endif
}
__device__ inline void multiply_tf32(float (&d)[4], const uint32_t (&a)[4], const uint32_t (&b)[2]) {
#ifdef __CUDACC_RTC__
  asm volatile(
      "mma.sync.aligned.m16n8k8.row.col.f32.tf32.tf32.f32 {%0, %1, %2, %3}, {%4, %5, %6, %7}, {%8, %9}, {%0, %1, %2, %3};"
      : "+f"(d[0]), "+f"(d[1]), "+f"(d[2]), "+f"(d[3])
      : "r"(a[0]), "r"(a[1]), "r"(a[2]), "r"(a[3]), "r"(b[0]), "r"(b[1]));
#else
  emulate::multiply_tf32(d, a, b);
#endif
}

// bfloat16, for what is stored: the upper half of a float.
struct Bf16 {
  uint16_t bits;
};
// The same in bfloat16, two numbers to a word (the first in the low half): A 16 x 16, B 16 x 8.
//   a = A[g][2t, 2t + 1], A[g + 8][2t, 2t + 1], A[g][2t + 8, 2t + 9], A[g + 8][2t + 8, 2t + 9]
//   b = B[2t, 2t + 1][g], B[2t + 8, 2t + 9][g]                  d as above
__device__ inline uint32_t to_bf16x2(float low, float high) {
#ifdef __CUDACC_RTC__
  uint32_t out;
  asm("cvt.rn.bf16x2.f32 %0, %1, %2;" : "=r"(out) : "f"(high), "f"(low));
  return out;
#else
  return emulate::to_bf16(low) | emulate::to_bf16(high) << 16;
#endif
}
__device__ inline float number_of(float x) { return x; }
__device__ inline float number_of(Bf16 x) { return __uint_as_float(static_cast<uint32_t>(x.bits) << 16); }
__device__ inline void store_number(float* at, float x) { *at = x; }
__device__ inline void store_number(Bf16* at, float x) { at->bits = static_cast<uint16_t>(to_bf16x2(x, 0.0f)); }

__device__ inline void multiply_bf16(float (&d)[4], const uint32_t (&a)[4], const uint32_t (&b)[2]) {
#ifdef __CUDACC_RTC__
  asm volatile(
      "mma.sync.aligned.m16n8k16.row.col.f32.bf16.bf16.f32 {%0, %1, %2, %3}, {%4, %5, %6, %7}, {%8, %9}, {%0, %1, %2, %3};"
      : "+f"(d[0]), "+f"(d[1]), "+f"(d[2]), "+f"(d[3])
      : "r"(a[0]), "r"(a[1]), "r"(a[2]), "r"(a[3]), "r"(b[0]), "r"(b[1]));
#else
  emulate::multiply_bf16(d, a, b);
#endif
}

}  // namespace fugu
