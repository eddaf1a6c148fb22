// GAE and V-trace over [segments, horizon] columns, on any number of threads with the same bits.
//
// The formula and its readable reference are in src/fugu/ops/advantage.py, the arithmetic in advantage_kernel.h. This file
// chooses the instruction set at run time, so that one wheel runs everywhere, and shares the segments out among threads.
#pragma once

#include <algorithm>
#include <cstdint>

#include "crew.h"

namespace fugu::advantage {

struct Columns {  // all [segments, horizon], rows without gaps
  const float* value;
  const float* reward;
  const uint8_t* terminated;
  const uint8_t* truncated;
  const float* bootstrap;  // [segments]
  const float* ratio;      // null: GAE
  const uint8_t* mask;     // null: every row counts
  float* out;              // may be `reward` or `ratio`, else apart from all inputs
  int64_t segments;
  int64_t horizon;
};

struct Weights {
  float gamma;
  float gamma_lambda;
  float rho_clip;
  float c_clip;
};

inline constexpr int kLanes = 8;         // segments side by side
inline constexpr int64_t kBlock = 256;  // columns whose endings are looked up in one go

struct Tile {
  const float* value;
  const float* reward;
  const float* ratio;
  const float* beyond;  // per segment, the value after the last column of the last tile
  const uint8_t* terminated;
  const uint8_t* cut;  // per column, bit s: segment s ended there
  const uint8_t* mask;
  float* out;
  int64_t stride;  // from one segment to the next
};

// For every `cut` byte, all bits of the lanes that go on.
struct Kept {
  alignas(4 * kLanes) int32_t lanes[1 << kLanes][kLanes];
};

inline constexpr Kept kKept = [] {
  Kept kept{};
  for (int cut = 0; cut < 1 << kLanes; ++cut)
    for (int s = 0; s < kLanes; ++s) kept.lanes[cut][s] = (cut >> s & 1) != 0 ? 0 : -1;
  return kept;
}();

namespace portable {
#include "advantage_kernel.h"
}

// Under the pragma a function may use instructions that the rest of the file must not. Attributes that clone a finished function come
// too late: generic vectors have been taken apart for the lesser instruction set by then.
#if defined(__x86_64__) && defined(__clang__)
#define FUGU_AVX2 1
#pragma clang attribute push(__attribute__((target("avx2,fma"))), apply_to = function)
namespace avx2 {
#include "advantage_kernel.h"
}
#pragma clang attribute pop
#elif defined(__x86_64__) && defined(__GNUC__)
#define FUGU_AVX2 1
#pragma GCC push_options
#pragma GCC target("avx2,fma")
namespace avx2 {
#include "advantage_kernel.h"
}
#pragma GCC pop_options
#endif

using Kernel = void (*)(const Columns&, const Weights&, int64_t low, int64_t high);

inline Kernel best_kernel() {
#ifdef FUGU_AVX2
  if (__builtin_cpu_supports("avx2") && __builtin_cpu_supports("fma")) return &avx2::run;
#endif
  return &portable::run;
}

// A row takes about a third of a nanosecond, waking a thread some 30 microseconds: fewer rows than this per thread are not worth it.
inline constexpr int64_t kThreadRows = 1 << 17;
inline constexpr int64_t kShareRows = 1 << 15;

inline void compute(const Columns& columns, const Weights& weights, int threads, Kernel kernel) {
  if (columns.segments == 0 || columns.horizon == 0) return;
  const int64_t share_segments = (kShareRows / columns.horizon / kLanes + 1) * kLanes;
  const int64_t shares = (columns.segments + share_segments - 1) / share_segments;
  const auto work = [&](int64_t share) {
    const int64_t low = share * share_segments;
    kernel(columns, weights, low, std::min(columns.segments, low + share_segments));
  };
  const int64_t worth = std::min<int64_t>(threads, columns.segments * columns.horizon / kThreadRows);
  if (worth <= 1) {
    for (int64_t share = 0; share < shares; ++share) work(share);
  } else {
    Crew::instance().run(shares, static_cast<int>(worth), work);
  }
}

}  // namespace fugu::advantage
