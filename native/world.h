// What one world does in a reset and in a step, for the CPU's engine (engine.h) and for kernels (cuda/worlds.h) alike: auto-reset,
// time limit, statistics, and writing the rows of its agents.
//
// The row convention is that of src/fugu/emulation/env.py: the row after an ending holds the final observation with mask=false; the
// step on it resets the world and writes its first row.
//
// A world is a World<E>, or anything with members of the same names (the engine's are references into columns). A thread that
// holds one in registers steps it by
//   World<E> world = load_world<E>(words, worlds, w);
//   step_world<E>(world, params, time_limit, actions, rows, sum);      // actions[agent]; begins a new episode where one has ended
//   store_world<E>(words, worlds, w, world);
// where `rows` points to where the row of the world's first agent goes, column by column, wherever that is, and `sum` gets what
// the episodes that ended come to.
#pragma once

#include "env.h"

#define FUGU_INLINE __attribute__((always_inline)) inline

namespace fugu {

constexpr int kMaxLogs = 8;

// The time limit of an environment that has none: no counter of steps ever overflows.
constexpr int32_t kNoLimit = 2147483646;

struct LogSum {
  int64_t episodes = 0;  // of agents
  double returns = 0, lengths = 0, values[kMaxLogs] = {};
};

template <typename T, size_t N>
FUGU_HD constexpr int count_of(const T (&)[N]) { return static_cast<int>(N); }

// What an environment is, as constants.
template <typename E>
struct Traits {
  using Obs = typename E::Obs;
  using Action = typename E::Action;
  using State = typename E::State;
  using Params = typename E::Params;
  static constexpr int kAgents = E::agents;
  static constexpr bool kIndependent = requires { requires E::independent; };
  static constexpr bool kMasks = requires(const State& s, const Params& p, bool* m) { E::action_mask(s, p, 0, m); };
  static constexpr bool kTurns = requires(const State& s) { E::acting(s, 0); };
  static constexpr bool kLanes = requires { requires E::lanes; };
  static constexpr bool kLogs = requires { E::logs; };
  static constexpr bool kValid = requires { &E::valid; };

  FUGU_HD static constexpr int cost_count() {
    if constexpr (requires { E::costs; })
      return count_of(E::costs);
    else
      return 0;
  }
  static constexpr int kCosts = cost_count();
  static_assert(!kLanes || (kAgents == 1 && !kIndependent && !kMasks && !kTurns),
                "lanes are for environments of one agent that always acts, without action masks");

  // Where agents end one by one each has its own clock; otherwise the first stands for all.
  static constexpr int kClocks = kIndependent ? kAgents : 1;
  FUGU_HD static constexpr int clock(int agent) { return kIndependent ? agent : 0; }

  // Columns of an action mask: the choices of all discrete leaves, side by side.
  FUGU_HD static constexpr int choices() {
    int total = 0;
    for (const Field& field : E::action) {
      if (field.kind != Field::kDiscrete && field.kind != Field::kMultiDiscrete) continue;
      int count = field.choices;
      for (int d = 0; d < field.rank; ++d) count *= field.shape[d];
      total += count;
    }
    return total;
  }
  static constexpr int kChoices = choices();

  // Values that are summed when an episode ends: the environment's own, then what it cost.
  FUGU_HD static constexpr int own_logs() {
    if constexpr (kLogs)
      return count_of(E::logs);
    else
      return 0;
  }
  FUGU_HD static constexpr int log_count() { return own_logs() + kCosts; }
  static_assert(log_count() <= kMaxLogs, "at most 8 logs and costs together");
};

// What the running episodes of `Agents` agents have cost so far; nothing, and no bytes, where there are no costs.
template <int Agents, int Costs>
struct CostSums {
  double costs[Agents * Costs];
};
template <int Agents>
struct CostSums<Agents, 0> {};

// On how many rows of their running episodes `Agents` agents have acted; nothing where all act always, for then it is the length.
template <int Agents, bool Turns>
struct Acted {
  int32_t acted[Agents];
};
template <int Agents>
struct Acted<Agents, false> {};

template <typename E>
struct World : CostSums<Traits<E>::kAgents, Traits<E>::kCosts>, Acted<Traits<E>::kAgents, Traits<E>::kTurns> {
  typename E::State state;
  Rng rng;
  double returns[Traits<E>::kAgents];
  int32_t length[Traits<E>::kClocks];
  bool ended[Traits<E>::kClocks];
};

// Where the rows of a world go: agent a's at obs[a], reward[a], ..., action_mask[a * kChoices], cost[a * kCosts].
template <typename E>
struct WorldRows {
  typename E::Obs* obs;
  float* reward;
  bool *terminated, *truncated, *first, *mask;
  bool* action_mask;  // only if the environment offers one
  float* cost;        // only if it has costs
};

template <typename E, typename W>
FUGU_HD FUGU_INLINE void write_row(const W& world, const typename E::Params& params, const WorldRows<E>& out, int a, float reward,
                                   [[maybe_unused]] const float* costs, bool terminated, bool truncated, bool first) {
  using T = Traits<E>;
  E::observe(world.state, params, a, out.obs + a);
  out.reward[a] = reward;
  if constexpr (T::kCosts > 0)
    for (int k = a * T::kCosts; k < (a + 1) * T::kCosts; ++k) out.cost[k] = costs == nullptr ? 0.0f : costs[k];
  out.terminated[a] = terminated;
  out.truncated[a] = truncated;
  out.first[a] = first;
  bool acts = !world.ended[T::clock(a)];
  if constexpr (T::kTurns) acts = acts && E::acting(world.state, a);
  out.mask[a] = acts;
  if constexpr (T::kMasks) {
    bool* mask = out.action_mask + a * T::kChoices;
    if (acts)
      E::action_mask(world.state, params, a, mask);
    else
      memset(mask, 1, static_cast<size_t>(T::kChoices));  // a row that does not act has all choices open
  }
}

// Adds the episode of agent a, which has just ended.
template <typename E, typename W>
FUGU_HD FUGU_INLINE void log_episode(const W& world, const typename E::Params& params, int a, LogSum& sum) {
  using T = Traits<E>;
  ++sum.episodes;
  sum.returns += world.returns[a];
  if constexpr (T::kTurns)
    sum.lengths += world.acted[a];
  else
    sum.lengths += world.length[T::clock(a)];
  if constexpr (T::kLogs) {
    float values[kMaxLogs] = {};
    E::log(world.state, params, a, values);
    for (int i = 0; i < T::own_logs(); ++i) sum.values[i] += values[i];
  }
  if constexpr (T::kCosts > 0)
    for (int k = 0; k < T::kCosts; ++k) sum.values[T::own_logs() + k] += world.costs[a * T::kCosts + k];
}

// Nothing of what agent a's episode has cost, nor of how often it has acted, counts any longer.
template <typename E, typename W>
FUGU_HD FUGU_INLINE void forget([[maybe_unused]] W& world, [[maybe_unused]] int a) {
  if constexpr (Traits<E>::kTurns) world.acted[a] = 0;
  if constexpr (Traits<E>::kCosts > 0)
    for (int k = 0; k < Traits<E>::kCosts; ++k) world.costs[a * Traits<E>::kCosts + k] = 0;
}

// Before a step: who acts in it.
template <typename E, typename W>
FUGU_HD FUGU_INLINE void count_acting([[maybe_unused]] W& world, [[maybe_unused]] int a) {
  if constexpr (Traits<E>::kTurns) world.acted[a] += E::acting(world.state, a);
}

template <typename E, typename W>
FUGU_HD FUGU_INLINE void add_costs([[maybe_unused]] W& world, [[maybe_unused]] int a, [[maybe_unused]] const float* costs) {
  if constexpr (Traits<E>::kCosts > 0)
    for (int k = a * Traits<E>::kCosts; k < (a + 1) * Traits<E>::kCosts; ++k) world.costs[k] += static_cast<double>(costs[k]);
}

// Room for the costs of one step; an array of none is not allowed.
template <typename E>
constexpr int kCostRoom = Traits<E>::kCosts > 0 ? Traits<E>::kCosts * Traits<E>::kAgents : 1;

// Starts a new episode of all agents.
template <typename E, typename W>
FUGU_HD FUGU_INLINE void begin_world(W& world, const typename E::Params& params, const WorldRows<E>& out) {
  using T = Traits<E>;
  E::reset(world.state, params, world.rng);
  for (int c = 0; c < T::kClocks; ++c) {
    world.length[c] = 0;
    world.ended[c] = false;
  }
  for (int a = 0; a < T::kAgents; ++a) {
    world.returns[a] = 0;
    forget<E>(world, a);
    write_row<E>(world, params, out, a, 0.0f, nullptr, false, false, true);
  }
}

// A step of a world that has not ended, whose agents start and end together.
template <typename E, typename W>
FUGU_HD FUGU_INLINE void go_on(W& world, const typename E::Params& params, int time_limit, const typename E::Action* action,
                               const WorldRows<E>& out, LogSum& sum) {
  using T = Traits<E>;
  float reward[T::kAgents];
  [[maybe_unused]] float costs[kCostRoom<E>];
  bool terminated;
  for (int a = 0; a < T::kAgents; ++a) count_acting<E>(world, a);
  if constexpr (T::kLanes && T::kCosts > 0)
    terminated = E::step(world.state, params, action, reward, costs);
  else if constexpr (T::kLanes)
    terminated = E::step(world.state, params, action, reward);
  else if constexpr (T::kCosts > 0)
    terminated = E::step(world.state, params, world.rng, action, reward, costs);
  else
    terminated = E::step(world.state, params, world.rng, action, reward);
  const bool truncated = !terminated && world.length[0] + 1 >= time_limit;
  ++world.length[0];
  world.ended[0] = terminated || truncated;
  for (int a = 0; a < T::kAgents; ++a) {
    world.returns[a] += reward[a];
    add_costs<E>(world, a, costs);
    write_row<E>(world, params, out, a, reward[a], costs, terminated, truncated, false);
    if (world.ended[0]) log_episode<E>(world, params, a, sum);
  }
}

// A step of a world whose agents end one by one.
template <typename E, typename W>
FUGU_HD FUGU_INLINE void go_on_one_by_one(W& world, const typename E::Params& params, int time_limit,
                                          const typename E::Action* action, const WorldRows<E>& out, LogSum& sum) {
  using T = Traits<E>;
  float reward[T::kAgents] = {};
  [[maybe_unused]] float costs[kCostRoom<E>] = {};
  bool terminated[T::kAgents] = {}, fresh[T::kAgents];
  for (int a = 0; a < T::kAgents; ++a) {
    fresh[a] = world.ended[a];
    if (fresh[a])
      world.length[a] = 0, world.returns[a] = 0, forget<E>(world, a);
    else
      count_acting<E>(world, a);
  }
  if constexpr (T::kCosts > 0)
    E::step(world.state, params, world.rng, action, fresh, reward, terminated, costs);
  else
    E::step(world.state, params, world.rng, action, fresh, reward, terminated);
  for (int a = 0; a < T::kAgents; ++a) {
    const bool truncated = !fresh[a] && !terminated[a] && world.length[a] + 1 >= time_limit;
    world.length[a] += !fresh[a];
    world.ended[a] = !fresh[a] && (terminated[a] || truncated);
    world.returns[a] += fresh[a] ? 0.0f : reward[a];
    if (!fresh[a]) add_costs<E>(world, a, costs);
    write_row<E>(world, params, out, a, fresh[a] ? 0.0f : reward[a], fresh[a] ? nullptr : costs, terminated[a] && !fresh[a],
                 truncated, fresh[a]);
    if (world.ended[a]) log_episode<E>(world, params, a, sum);
  }
}

// A step, whatever the world is at.
template <typename E, typename W>
FUGU_HD FUGU_INLINE void step_world(W& world, const typename E::Params& params, int time_limit, const typename E::Action* action,
                                    const WorldRows<E>& out, LogSum& sum) {
  if constexpr (Traits<E>::kIndependent) {
    go_on_one_by_one<E>(world, params, time_limit, action, out, sum);
  } else {
    if (world.ended[0])
      begin_world<E>(world, params, out);
    else
      go_on<E>(world, params, time_limit, action, out, sum);
  }
}

// Whether a world of bytes that may come from anybody can be gone on with.
template <typename E, typename W>
FUGU_HD bool is_sound(const W& world, const typename E::Params& params, int time_limit) {
  using T = Traits<E>;
  bool over[T::kClocks];
  for (int c = 0; c < T::kClocks; ++c) {
    if (!is_bool(world.ended[c])) return false;
    over[c] = world.ended[c];
    if (!between(world.length[c], 0, over[c] ? time_limit : time_limit - 1)) return false;
  }
  for (int a = 0; a < T::kAgents; ++a) {
    if (!is_finite(world.returns[a])) return false;
    if constexpr (T::kTurns)
      if (!between(world.acted[a], 0, world.length[T::clock(a)])) return false;
    if constexpr (T::kCosts > 0)
      for (int k = a * T::kCosts; k < (a + 1) * T::kCosts; ++k)
        if (!is_finite(world.costs[k])) return false;
  }
  if constexpr (T::kIndependent)
    return E::valid(world.state, params, over);
  else
    return E::valid(world.state, params, over[0]);
}

// Worlds as words, [word][world]: threads of neighbouring worlds then read and write neighbouring words.
template <typename E>
constexpr int kWorldWords = static_cast<int>(sizeof(World<E>) / sizeof(uint32_t));

// A large state stays where it is and is changed in place, world after world in memory; others are loaded into registers.
template <typename E>
constexpr bool kInPlace = sizeof(typename E::State) > 256;

template <typename E>
FUGU_HD FUGU_INLINE World<E> load_world(const uint32_t* words, size_t worlds, size_t w) {
  static_assert(sizeof(World<E>) % sizeof(uint32_t) == 0);
  uint32_t own[kWorldWords<E>];
  for (int i = 0; i < kWorldWords<E>; ++i) own[i] = words[static_cast<size_t>(i) * worlds + w];
  World<E> world;
  memcpy(&world, own, sizeof world);
  return world;
}

template <typename E>
FUGU_HD FUGU_INLINE void store_world(uint32_t* words, size_t worlds, size_t w, const World<E>& world) {
  uint32_t own[kWorldWords<E>];
  memcpy(own, &world, sizeof world);
  for (int i = 0; i < kWorldWords<E>; ++i) words[static_cast<size_t>(i) * worlds + w] = own[i];
}

}  // namespace fugu
