// Reset and step of all worlds of FuguEnvironment, which whoever includes this has declared. One thread per world.
//
// State is `words`: [word][world], or World after World where the state is large (kInPlace). A step writes `obs`, `first`, `mask`,
// `action_mask` of the next row and `reward`, `terminated`, `truncated`, `cost` of this one; `logs` has a sum for each warp.
#pragma once

#include "worlds.h"

extern "C" __global__ void reset_worlds(uint32_t* words, int worlds, FuguEnvironment::Params params, const int64_t* seeds, char* obs,
                                        bool* first, bool* mask, bool* action_mask, float* reward, bool* terminated,
                                        bool* truncated, float* cost) {
  using namespace fugu;
  using E = FuguEnvironment;
  FUGU_SHARED(char, shared);
  const int w = static_cast<int>(blockIdx.x * blockDim.x + threadIdx.x);
  write_rows<E>({obs, first, mask, action_mask, reward, terminated, truncated, cost}, worlds, w, w < worlds,
                shared + warp_of_thread() * kStagedBytes<E>, [&](const WorldRows<E>& rows) {
                  with_world<E>(words, worlds, w, [&](World<E>& world) {
                    if (seeds[w] >= 0) world.rng = Rng::of(static_cast<uint64_t>(seeds[w]));
                    begin_world<E>(world, params, rows);
                  });
                });
}
FUGU_KERNEL(reset_worlds)

extern "C" __global__ void step_worlds(uint32_t* words, int worlds, FuguEnvironment::Params params, int time_limit,
                                       const FuguEnvironment::Action* actions, char* obs, bool* first, bool* mask,
                                       bool* action_mask, float* reward, bool* terminated, bool* truncated, float* cost,
                                       fugu::LogSum* logs) {
  using namespace fugu;
  using E = FuguEnvironment;
  FUGU_SHARED(char, shared);
  const int w = static_cast<int>(blockIdx.x * blockDim.x + threadIdx.x);
  LogSum sum;
  write_rows<E>({obs, first, mask, action_mask, reward, terminated, truncated, cost}, worlds, w, w < worlds,
                shared + warp_of_thread() * kStagedBytes<E>, [&](const WorldRows<E>& rows) {
                  E::Action action[E::agents];
                  for (int a = 0; a < E::agents; ++a)
                    action[a] = clamp_action<E>(actions[static_cast<size_t>(w) * E::agents + static_cast<size_t>(a)]);
                  with_world<E>(words, worlds, w, [&](World<E>& world) {
                    step_world<E>(world, params, time_limit, action, rows, sum);
                  });
                });
  add_logs<E>(sum, logs + w / 32);
}
FUGU_KERNEL(step_worlds)
