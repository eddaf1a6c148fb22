// An environment and its engine (engine.h) behind plain functions: what a library that `fugu build` made is loaded as.
#pragma once

#include <cstddef>
#include <cstdint>

#include "env.h"
#include "world.h"

namespace fugu {

constexpr size_t kBlock = 64;  // worlds whose statistics are summed together; chunks are whole blocks

struct Columns {  // of some worlds; the first row is that of the first of them
  void* obs = nullptr;
  float* reward = nullptr;
  bool *terminated = nullptr, *truncated = nullptr, *first = nullptr, *mask = nullptr;
  bool* action_mask = nullptr;  // null: the environment offers none
  float* cost = nullptr;        // null: it has none
};

struct ParamInfo {
  const char* name;
  double value;  // the default
  bool whole;
  double low, high;
};

// An environment and its engine behind plain functions, so that one compiled elsewhere (`fugu build`) can be loaded at run time.
// Its first member says which version of this struct it was compiled against.
constexpr uint32_t kAbi = 9;

struct EngineApi {
  uint32_t abi;
  const char* name;
  int agents, time_limit, width, height, observations, actions, params, logs, costs;
  const Field *observation, *action;
  const ParamInfo* param;
  const char *const *log, *const *cost;
  size_t obs_bytes, action_bytes, params_bytes, world_bytes;
  bool masks_actions;
  int choices;  // columns of an action mask

  enum Command { kReset = 1, kStep = 2, kStepNarrow = 3 };  // the last: with no more than every machine has, for comparison
  void* (*create)(size_t worlds, const double* params, int time_limit);  // kNoLimit: none
  void (*destroy)(void*);
  void (*bind)(void*, void* action, const int64_t* seeds);
  // Resets or steps the worlds [low, high); `out` begins with the row of `low`, and `logs` has a sum for each kBlock of them.
  // Whether these blocks are taken downwards, from the last on, changes no result.
  void (*run)(void*, int command, size_t low, size_t high, bool downwards, const Columns* out, LogSum* logs);
  // Copies the actions of the worlds [low, high) in, unless `given` is null, and checks them: the first agent whose action is not
  // in its space, or -1.
  int64_t (*take)(void*, const void* given, size_t low, size_t high);
  char* (*state)(void*);
  size_t (*state_bytes)(void*);
  // Puts all worlds into a state of state_bytes that may come from anybody: -1, or the first world that cannot be in it, and then
  // none is changed. Null: the environment has no valid().
  int64_t (*restore)(void*, const char* bytes);
  // The same question of worlds on a GPU: `words` as load_world takes them, or World after World where they stay in place.
  int64_t (*first_unsound)(const double* params, int time_limit, const uint32_t* words, size_t worlds);
  void (*render)(void*, size_t world, uint8_t* pixels);
  void (*pack_params)(const double* settings, void* params);  // as the environment's own struct, of params_bytes
};

}  // namespace fugu
