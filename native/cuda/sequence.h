// What the recurrent kernels share: rows of channels, one for each step and segment, in either order in memory.
#pragma once

#include "kernel.h"

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

__device__ inline float sigmoid(float x) { return __fdividef(1.0f, 1.0f + __expf(-x)); }

}  // namespace fugu
