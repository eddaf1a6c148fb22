// Worlds on a GPU, one thread each: what the kernels of worlds_kernels.h, and others that step worlds, are made of.
//
// Blocks are whole warps; every thread of a warp takes part in everything here that says so, worlds beyond the last included.
// What a thread writes alone it writes with one store; rows that are too long for that are put together in shared memory, each
// warp for itself, and written out by all its lanes, 16 bytes at a time.
#pragma once

#include "kernel.h"

#include "../world.h"

namespace fugu {

// Bytes of the rows of one world.
template <typename E>
constexpr int kObsBytes = static_cast<int>(sizeof(typename E::Obs)) * E::agents;
template <typename E>
constexpr int kMaskBytes = Traits<E>::kMasks ? Traits<E>::kChoices * E::agents : 0;

// Rows of these sizes are one store of one thread.
template <typename E>
constexpr bool kOneStore = kObsBytes<E> == 4 || kObsBytes<E> == 8 || kObsBytes<E> == 16;

// Shared memory of a warp, and of a block with this many threads. Python asks for as much: vector/device_worlds.py.
template <typename E>
constexpr int kStagedBytes = 32 * ((kOneStore<E> ? 0 : kObsBytes<E>) + kMaskBytes<E>);

// Whether there are bytes between the fields of a row, which nobody writes.
template <typename E>
FUGU_HD constexpr bool has_gaps() {
  size_t bytes = 0;
  for (const Field& field : E::observation) {
    size_t count = field.type == 'l' ? 8 : field.type == 'f' ? 4 : 1;
    for (int d = 0; d < field.rank; ++d) count *= static_cast<size_t>(field.shape[d]);
    bytes += count;
  }
  return bytes != sizeof(typename E::Obs);
}

// Where the rows of all worlds go.
template <typename E>
struct DeviceRows {
  char* obs;
  bool *first, *mask, *action_mask;
  float* reward;
  bool *terminated, *truncated;
  float* cost;
};

// Bytes from `from`, which is aligned to 16, by all lanes of a warp.
__device__ inline void copy_by_warp(char* to, const char* from, int bytes) {
  const uint64_t address = reinterpret_cast<uint64_t>(to);
  int done = 0;
  if (address % 16 == 0) {
    done = bytes / 16 * 16;
    for (int i = 16 * lane_of_thread(); i < done; i += 16 * 32)
      *reinterpret_cast<uint4*>(to + i) = *reinterpret_cast<const uint4*>(from + i);
  } else if (address % 4 == 0) {
    done = bytes / 4 * 4;
    for (int i = 4 * lane_of_thread(); i < done; i += 4 * 32)
      *reinterpret_cast<uint32_t*>(to + i) = *reinterpret_cast<const uint32_t*>(from + i);
  }
  for (int i = done + lane_of_thread(); i < bytes; i += 32) to[i] = from[i];
}

// The same bytes by one thread, as one store.
template <int Bytes>
__device__ inline void store_row(char* to, const void* from) {
  static_assert(Bytes == 4 || Bytes == 8 || Bytes == 16);
  uint32_t words[4] = {};
  memcpy(words, from, Bytes);
  if constexpr (Bytes == 16)
    *reinterpret_cast<uint4*>(to) = make_uint4(words[0], words[1], words[2], words[3]);
  else if constexpr (Bytes == 8)
    *reinterpret_cast<uint2*>(to) = make_uint2(words[0], words[1]);
  else
    *reinterpret_cast<uint32_t*>(to) = words[0];
}

// Calls act(rows) for world w, with where it is to write, and sees to it that all rows of the warp arrive. All lanes must call it;
// `here` is false where there is no world w. `staged` is the warp's own share of shared memory.
template <typename E, typename Act>
__device__ inline void write_rows(const DeviceRows<E>& out, int worlds, int w, bool here, char* staged, const Act& act) {
  const int lane = lane_of_thread(), begin = w - lane, left = worlds - begin;
  const int count = left < 0 ? 0 : left < 32 ? left : 32;  // worlds of this warp
  const size_t agent = static_cast<size_t>(w) * E::agents, world = static_cast<size_t>(w), first_world = static_cast<size_t>(begin);
  char* const staged_masks = staged + kStagedBytes<E> - 32 * kMaskBytes<E>;
  if (here) {
    WorldRows<E> rows{nullptr,           out.reward + agent, out.terminated + agent, out.truncated + agent,
                      out.first + agent, out.mask + agent,   nullptr,                nullptr};
    if constexpr (Traits<E>::kCosts > 0) rows.cost = out.cost + agent * Traits<E>::kCosts;
    if constexpr (kMaskBytes<E> > 0) rows.action_mask = reinterpret_cast<bool*>(staged_masks + lane * kMaskBytes<E>);
    if constexpr (kOneStore<E>) {
      typename E::Obs own[E::agents] = {};
      rows.obs = own;
      act(rows);
      store_row<kObsBytes<E>>(out.obs + world * kObsBytes<E>, own);
    } else {
      rows.obs = reinterpret_cast<typename E::Obs*>(staged + lane * kObsBytes<E>);
      if constexpr (has_gaps<E>()) memset(rows.obs, 0, kObsBytes<E>);
      act(rows);
    }
  }
  if constexpr (kStagedBytes<E> > 0) {
    __syncwarp();
    if constexpr (!kOneStore<E>) copy_by_warp(out.obs + first_world * kObsBytes<E>, staged, count * kObsBytes<E>);
    if constexpr (kMaskBytes<E> > 0)
      copy_by_warp(reinterpret_cast<char*>(out.action_mask) + first_world * kMaskBytes<E>, staged_masks, count * kMaskBytes<E>);
    __syncwarp();  // before the next step writes there
  }
}

// Calls act(world) for world w, wherever it is kept.
template <typename E, typename Act>
__device__ inline void with_world(uint32_t* words, int worlds, int w, const Act& act) {
  if constexpr (kInPlace<E>) {
    act(reinterpret_cast<World<E>*>(words)[w]);
  } else {
    World<E> world = load_world<E>(words, static_cast<size_t>(worlds), static_cast<size_t>(w));
    act(world);
    store_world<E>(words, static_cast<size_t>(worlds), static_cast<size_t>(w), world);
  }
}

// Adds the episodes that ended in the worlds of a warp to the warp's own sum, always in the same order. All lanes must call it.
template <typename E>
__device__ inline void add_logs(const LogSum& own, LogSum* sum) {
  if (!__any_sync(kAllLanes, own.episodes != 0)) return;
  int episodes = static_cast<int>(own.episodes);
  double totals[2 + kMaxLogs] = {own.returns, own.lengths};
  constexpr int kTotals = 2 + Traits<E>::log_count();
  for (int i = 2; i < kTotals; ++i) totals[i] = own.values[i - 2];
  for (int step = 16; step > 0; step >>= 1) {
    episodes += __shfl_xor_sync(kAllLanes, episodes, step);
    for (int i = 0; i < kTotals; ++i) totals[i] += __shfl_xor_sync(kAllLanes, totals[i], step);
  }
  if (lane_of_thread() != 0) return;
  sum->episodes += episodes;
  sum->returns += totals[0];
  sum->lengths += totals[1];
  for (int i = 2; i < kTotals; ++i) sum->values[i - 2] += totals[i];
}

// A choice outside its space becomes the nearest inside: a kernel cannot raise, and must not write outside its memory.
template <typename E>
__device__ inline typename E::Action clamp_action(typename E::Action action) {
  char* const start = reinterpret_cast<char*>(&action);
  int at = 0;
  for (const Field& field : E::action) {  // in their order, each aligned to its own size: see Layout
    const int size = field.type == 'l' ? 8 : field.type == 'f' ? 4 : 1;
    int count = 1;
    for (int d = 0; d < field.rank; ++d) count *= field.shape[d];
    at = (at + size - 1) / size * size;
    for (int k = 0; k < count; ++k, at += size) {
      if (field.type == 'l') {
        int64_t choice;
        memcpy(&choice, start + at, sizeof choice);
        const int64_t highest = field.choices - 1;
        choice = choice < 0 ? 0 : choice > highest ? highest : choice;
        memcpy(start + at, &choice, sizeof choice);
      } else if (field.kind == Field::kMultiBinary) {
        start[at] = start[at] != 0;
      }
    }
  }
  return action;
}

}  // namespace fugu
