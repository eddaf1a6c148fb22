// Segments of a rollout, picked by number, all columns in one launch. Reference: ops/gather.py pick.
//
// A column lies in memory step by step: [steps][segments][bytes of a row]. Segments are picked in runs of neighbours, so that
// columns of a few bytes are read in one piece too.
#pragma once

#include "kernel.h"

using namespace fugu;

namespace fugu {

constexpr int kColumns = 32;  // at most, in one call

struct Picked {
  const char* from;
  char* to;
  int64_t from_step, to_step;  // bytes from one step to the next
  int32_t steps;               // 1 for what a segment has once
  int32_t run;                 // bytes of a run within a step
  int32_t unit;                // bytes copied at once: 16, 4 or 1; divides all of the above
  int32_t unused;
};
struct PickedColumns {
  Picked column[kColumns];
};

template <typename Unit>
__device__ inline void copy_runs(const Picked& c, const int64_t* index, uint32_t runs) {
  // Numbers of 32 bits: divisions of 64 would take longer than the copy. The caller sees to it that they suffice.
  const uint32_t per_run = static_cast<uint32_t>(c.run) / sizeof(Unit), count = static_cast<uint32_t>(c.steps) * runs * per_run;
  for (uint32_t i = blockIdx.x * blockDim.x + threadIdx.x; i < count; i += gridDim.x * blockDim.x) {
    const uint32_t piece = i / per_run, within = i - piece * per_run, step = piece / runs, run = piece - step * runs;
    const Unit* from = reinterpret_cast<const Unit*>(c.from + step * c.from_step + index[run] * c.run) + within;
    reinterpret_cast<Unit*>(c.to + step * c.to_step + static_cast<int64_t>(run) * c.run)[within] = *from;
  }
}

template <typename Unit>
__device__ inline void copy_column(const Picked& c) {
  const uint32_t count = static_cast<uint32_t>(c.run) / sizeof(Unit);
  for (uint32_t i = blockIdx.x * blockDim.x + threadIdx.x; i < count; i += gridDim.x * blockDim.x)
    reinterpret_cast<Unit*>(c.to)[i] = reinterpret_cast<const Unit*>(c.from)[i];
}

}  // namespace fugu

// Blocks (x, column). `index` [runs]: which run of the source each run is.
extern "C" __global__ void gather(const __grid_constant__ PickedColumns columns, const int64_t* index, uint32_t runs) {
  const Picked& c = columns.column[blockIdx.y];
  if (c.unit == 16) copy_runs<uint4>(c, index, runs);
  else if (c.unit == 4) copy_runs<uint32_t>(c, index, runs);
  else copy_runs<uint8_t>(c, index, runs);
}
FUGU_KERNEL(gather)

// Blocks (x, column): a run of each column, from one place to another. Reference: Tensor.copy_.
extern "C" __global__ void copy_all(const __grid_constant__ PickedColumns columns) {
  const Picked& c = columns.column[blockIdx.y];
  if (c.unit == 16) copy_column<uint4>(c);
  else if (c.unit == 4) copy_column<uint32_t>(c);
  else copy_column<uint8_t>(c);
}
FUGU_KERNEL(copy_all)
