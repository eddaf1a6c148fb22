// Runs many worlds of one environment: auto-reset, time limit, statistics, masks and buffers, once for all environments.
//
// Worlds lie in one array and write straight into the columns they are bound to (the two slots of vector/buffers.py). The row
// convention is that of src/fugu/emulation/env.py: the row after an ending holds the final observation with mask=false; the step
// on it resets the world and writes its first row. A step of a range of worlds depends on nothing outside the range, so the
// result is the same for any number of threads.
//
// An environment with lanes (env.h) is stepped a block of worlds at a time: first all of them by loops that the compiler turns
// into vector instructions, then one by one those few that end or begin. Which instructions there are is asked at run time; the
// arithmetic is the same to the bit, since nothing may be contracted or reordered (-ffp-contract=off, no -ffast-math).
#pragma once

#include <algorithm>
#include <cmath>
#include <cstring>
#include <iterator>
#include <type_traits>
#include <vector>

#include "canvas.h"
#include "env.h"
#include "pool.h"

// A function compiled a second time, for machines with wider vectors than the least. Everything it calls becomes part of it.
#if defined(__x86_64__) && defined(__GNUC__)
#define FUGU_AVX2 1
#define FUGU_FOR_AVX2 __attribute__((target("avx2"), flatten))
#endif
#define FUGU_INLINE __attribute__((always_inline)) inline

namespace fugu {

constexpr size_t kBlock = 64;  // worlds whose statistics are summed together; chunks are whole blocks

struct Columns {
  void* obs = nullptr;
  float* reward = nullptr;
  bool *terminated = nullptr, *truncated = nullptr, *first = nullptr, *mask = nullptr;
  bool* action_mask = nullptr;  // null: the environment offers none
  size_t choices = 0;
};

constexpr int kMaxLogs = 8;

struct LogSum {
  int64_t episodes = 0;  // of agents
  double returns = 0, lengths = 0, values[kMaxLogs] = {};
};

struct ParamInfo {
  const char* name;
  double value;  // the default
  bool whole;
  double low, high;
};

// An environment and its engine behind plain functions, so that one compiled elsewhere (`fugu build`) can be loaded at run time.
// Its first member says which version of this struct it was compiled against.
constexpr uint32_t kAbi = 3;

struct EngineApi {
  uint32_t abi;
  const char* name;
  int agents, time_limit, width, height, observations, actions, params, logs;
  const Field *observation, *action;
  const ParamInfo* param;
  const char* const* log;
  size_t obs_bytes, action_bytes;
  bool masks_actions;

  enum Command { kReset = 1, kStep = 2, kStepNarrow = 3 };  // the last: with no more than every machine has, for comparison
  void* (*create)(size_t worlds, const double* params, int time_limit);
  void (*destroy)(void*);
  void (*bind)(void*, const Columns slots[2], const void* action, const int64_t* seeds);
  // Resets or steps the worlds [low, high); `logs` has a sum for each kBlock of them.
  void (*run)(void*, int command, size_t low, size_t high, int slot, LogSum* logs);
  int64_t (*bad_action)(void*, size_t low, size_t high);
  char* (*state)(void*);
  size_t (*state_bytes)(void*);
  void (*render)(void*, size_t world, uint8_t* pixels);
};

template <typename E>
class Engine {
 public:
  using Obs = typename E::Obs;
  using Action = typename E::Action;
  using State = typename E::State;
  using Params = typename E::Params;
  static constexpr size_t A = E::agents;
  static constexpr bool kIndependent = requires { requires E::independent; };
  static constexpr bool kMasks = requires(const State& s, const Params& p, bool* m) { E::action_mask(s, p, 0, m); };
  static constexpr bool kLanes = requires { requires E::lanes; };
  static_assert(!kLanes || (A == 1 && !kIndependent && !kMasks && !requires(const State& s) { E::acting(s, 0); }),
                "lanes are for environments of one agent that always acts, without action masks");
  static_assert(std::is_trivially_copyable_v<State> && std::is_trivially_copyable_v<Obs> && std::is_trivially_copyable_v<Action>);

  Engine(size_t worlds, const double* settings, int time_limit)
      : time_limit_(time_limit), blocks_((worlds + kPerBlock - 1) / kPerBlock) {
    if constexpr (requires { E::params; }) {
      for (const auto& param : E::params) {
        if (param.real)
          params_.*param.real = static_cast<float>(*settings++);
        else
          params_.*param.whole = static_cast<int32_t>(*settings++);
      }
    }
  }

  static const EngineApi* api() {
    static const std::vector<ParamInfo> params = [] {
      std::vector<ParamInfo> out;
      if constexpr (requires { E::params; }) {
        const Params defaults{};
        for (const auto& param : E::params)
          out.push_back({param.name, param.real ? defaults.*param.real : static_cast<double>(defaults.*param.whole), !param.real,
                         param.low, param.high});
      }
      return out;
    }();
    static const EngineApi api = [] {
      EngineApi out{};
      out.abi = kAbi;
      out.name = E::name;
      out.agents = E::agents;
      out.time_limit = E::time_limit;
      out.observation = E::observation;
      out.observations = std::size(E::observation);
      out.action = E::action;
      out.actions = std::size(E::action);
      out.param = params.data();
      out.params = static_cast<int>(params.size());
      if constexpr (requires { E::logs; }) {
        static_assert(std::size(E::logs) <= kMaxLogs);
        out.log = E::logs;
        out.logs = std::size(E::logs);
      }
      out.obs_bytes = sizeof(Obs);
      out.action_bytes = sizeof(Action);
      out.masks_actions = kMasks;
      out.create = [](size_t worlds, const double* settings, int limit) -> void* { return new Engine(worlds, settings, limit); };
      out.destroy = [](void* self) { delete static_cast<Engine*>(self); };
      out.bind = [](void* self, const Columns slots[2], const void* action, const int64_t* seeds) {
        auto& engine = *static_cast<Engine*>(self);
        engine.slots_[0] = slots[0];
        engine.slots_[1] = slots[1];
        engine.action_ = static_cast<const Action*>(action);
        engine.seeds_ = seeds;
      };
      out.run = [](void* self, int command, size_t low, size_t high, int slot, LogSum* logs) {
        static_cast<Engine*>(self)->run(command, low, high, slot, logs);
      };
      out.bad_action = [](void* self, size_t low, size_t high) { return static_cast<Engine*>(self)->bad_action(low, high); };
      out.state = [](void* self) { return reinterpret_cast<char*>(static_cast<Engine*>(self)->blocks_.data()); };
      out.state_bytes = [](void* self) { return static_cast<Engine*>(self)->blocks_.size() * sizeof(Block); };
      if constexpr (requires { E::width; }) {
        out.width = E::width;
        out.height = E::height;
        out.render = [](void* self, size_t world, uint8_t* pixels) {
          auto& engine = *static_cast<Engine*>(self);
          Canvas canvas(pixels, E::width, E::height);
          E::render(engine.at(world).state, engine.params_, canvas);
        };
      }
      return out;
    }();
    return &api;
  }

 private:
  // Where agents end one by one each has its own clock; otherwise the first stands for all.
  static constexpr size_t kClocks = kIndependent ? A : 1;

  // Worlds lie one after the other, or, with lanes, a block of them side by side, so that loops run over each column of it.
  static constexpr size_t kPerBlock = kLanes ? kBlock : 1;

  struct Block {
    State state[kPerBlock]{};
    Rng rng[kPerBlock]{};
    double returns[kPerBlock][A] = {};
    int32_t length[kPerBlock][kClocks] = {};
    bool ended[kPerBlock][kClocks] = {};
  };
  struct World {
    State& state;
    Rng& rng;
    double (&returns)[A];
    int32_t (&length)[kClocks];
    bool (&ended)[kClocks];
  };
  World at(size_t w) {
    Block& block = blocks_[w / kPerBlock];
    const size_t i = w % kPerBlock;
    return {block.state[i], block.rng[i], block.returns[i], block.length[i], block.ended[i]};
  }

  void run(int command, size_t low, size_t high, int slot, LogSum* logs) {
    const Columns out = slots_[slot];  // a copy: bytes written to rows could else be bytes of these pointers
    if (command == EngineApi::kReset) {
      for (size_t w = low; w < high; ++w) {
        if (seeds_[w] >= 0) at(w).rng = Rng::of(static_cast<uint64_t>(seeds_[w]));
        begin(w, out);
      }
    } else if constexpr (kLanes) {
#ifdef FUGU_AVX2
      static const bool wide = __builtin_cpu_supports("avx2");
      if (wide && command == EngineApi::kStep) return go_on_in_lanes_avx2(low, high, out, logs);
#endif
      go_on_in_lanes(low, high, out, logs);
    } else {
      for (size_t w = low; w < high; ++w) {
        LogSum& sum = logs[(w - low) / kBlock];
        if constexpr (kIndependent)
          go_on_one_by_one(w, out, sum);
        else
          at(w).ended[0] ? begin(w, out) : go_on(w, out, sum);
      }
    }
  }

  void begin(size_t w, const Columns& out) {
    const World world = at(w);
    E::reset(world.state, params_, world.rng);
    for (size_t c = 0; c < kClocks; ++c) {
      world.length[c] = 0;
      world.ended[c] = false;
    }
    for (size_t a = 0; a < A; ++a) {
      world.returns[a] = 0;
      write(w, a, out, 0.0f, false, false, true);
    }
  }

  void go_on(size_t w, const Columns& out, LogSum& sum) {
    const World world = at(w);
    float reward[A];
    const bool terminated = E::step(world.state, params_, world.rng, action_ + w * A, reward);
    const bool truncated = !terminated && time_limit_ > 0 && world.length[0] + 1 >= time_limit_;
    ++world.length[0];
    world.ended[0] = terminated || truncated;
    for (size_t a = 0; a < A; ++a) {
      world.returns[a] += reward[a];
      write(w, a, out, reward[a], terminated, truncated, false);
      if (world.ended[0]) log(world, a, sum);
    }
  }

  void go_on_one_by_one(size_t w, const Columns& out, LogSum& sum) {
    const World world = at(w);
    float reward[A] = {};
    bool terminated[A] = {}, fresh[A];
    for (size_t a = 0; a < A; ++a) {
      fresh[a] = world.ended[a];
      if (fresh[a]) world.length[a] = 0, world.returns[a] = 0;
    }
    E::step(world.state, params_, world.rng, action_ + w * A, fresh, reward, terminated);
    for (size_t a = 0; a < A; ++a) {
      const bool truncated = !fresh[a] && !terminated[a] && time_limit_ > 0 && world.length[a] + 1 >= time_limit_;
      world.length[a] += !fresh[a];
      world.ended[a] = !fresh[a] && (terminated[a] || truncated);
      world.returns[a] += fresh[a] ? 0.0f : reward[a];
      write(w, a, out, fresh[a] ? 0.0f : reward[a], terminated[a] && !fresh[a], truncated, fresh[a]);
      if (world.ended[a]) log(world, a, sum);
    }
  }

#ifdef FUGU_AVX2
  FUGU_FOR_AVX2 void go_on_in_lanes_avx2(size_t low, size_t high, const Columns& out, LogSum* logs) {
    all_lanes(low, high, out, logs);
  }
#endif
  void go_on_in_lanes(size_t low, size_t high, const Columns& out, LogSum* logs) { all_lanes(low, high, out, logs); }

  FUGU_INLINE void all_lanes(size_t low, size_t high, const Columns& out, LogSum* logs) {
    for (size_t w = low, end; w < high; w = end) {  // to where the block ends that w is in, or those whose statistics are one sum
      const size_t block = w / kPerBlock * kPerBlock + kPerBlock, sum = low + ((w - low) / kBlock + 1) * kBlock;
      end = std::min({block, sum, high});
      some_lanes(w, end - w, out, logs[(w - low) / kBlock]);
    }
  }

  // The worlds [w, w + n), all of one block. Steps those that have ended, too: cheaper than to leave them out.
  FUGU_INLINE void some_lanes(size_t w, size_t n, const Columns& out, LogSum& sum) {
    Block& block = blocks_[w / kPerBlock];
    const size_t from = w % kPerBlock;
    const Params params = params_;
    const int32_t limit = time_limit_ > 0 ? time_limit_ : INT32_MAX;
    // Flags are bytes of 0 and 1 here: compilers do not vectorise loops over bool.
    alignas(64) uint8_t begins[kBlock] = {}, over[kBlock] = {}, done[kBlock], late[kBlock];
    std::memcpy(begins, &block.ended[from][0], n);

    State* __restrict state = block.state + from;
    const Action* __restrict action = action_ + w;
    float* __restrict reward = out.reward + w;
    for (size_t i = 0; i < n; ++i) {
      State next = state[i];
      float paid;
      done[i] = E::step(next, params, action + i, &paid);
      state[i] = next;
      reward[i] = paid;
    }

    Obs* __restrict obs = static_cast<Obs*>(out.obs) + w;
    for (size_t i = 0; i < n; ++i) {
      Obs row;
      E::observe(state[i], params, 0, &row);
      obs[i] = row;
    }

    double* __restrict returns = &block.returns[from][0];
    for (size_t i = 0; i < n; ++i) returns[i] += static_cast<double>(reward[i]);

    int32_t* __restrict length = &block.length[from][0];
    for (size_t i = 0; i < n; ++i) {
      ++length[i];
      late[i] = length[i] >= limit;
    }

    auto* __restrict terminated = reinterpret_cast<uint8_t*>(out.terminated + w);
    auto* __restrict truncated = reinterpret_cast<uint8_t*>(out.truncated + w);
    auto* __restrict mask = reinterpret_cast<uint8_t*>(out.mask + w);
    auto* __restrict ended = reinterpret_cast<uint8_t*>(&block.ended[from][0]);
    for (size_t i = 0; i < n; ++i) {
      const uint8_t end = done[i] | late[i];
      terminated[i] = done[i];
      truncated[i] = end ^ done[i];
      mask[i] = end ^ 1;
      ended[i] = end;
      over[i] = end & (begins[i] ^ 1);
    }
    std::memset(out.first + w, 0, n);

    for_each_set(over, [&](size_t i) { log(at(w + i), 0, sum); });
    for_each_set(begins, [&](size_t i) { begin(w + i, out); });
  }

  template <typename Do>
  FUGU_INLINE static void for_each_set(const uint8_t (&flags)[kBlock], const Do& act) {
    for (size_t i = 0; i < kBlock; i += 8) {
      uint64_t eight;
      std::memcpy(&eight, flags + i, 8);
      for (; eight != 0; eight &= eight - 1) act(i + static_cast<size_t>(__builtin_ctzll(eight)) / 8);
    }
  }

  void log(const World& world, size_t a, LogSum& sum) {
    ++sum.episodes;
    sum.returns += world.returns[a];
    sum.lengths += world.length[kIndependent ? a : 0];
    if constexpr (requires { E::logs; }) {
      float values[kMaxLogs] = {};
      E::log(world.state, params_, static_cast<int>(a), values);
      for (size_t i = 0; i < std::size(E::logs); ++i) sum.values[i] += values[i];
    }
  }

  void write(size_t w, size_t a, const Columns& out, float reward, bool terminated, bool truncated, bool first) {
    const World world = at(w);
    const size_t i = w * A + a;
    E::observe(world.state, params_, static_cast<int>(a), static_cast<Obs*>(out.obs) + i);
    out.reward[i] = reward;
    out.terminated[i] = terminated;
    out.truncated[i] = truncated;
    out.first[i] = first;
    bool acts = !world.ended[kIndependent ? a : 0];
    if constexpr (requires { E::acting(world.state, 0); }) acts = acts && E::acting(world.state, static_cast<int>(a));
    out.mask[i] = acts;
    if constexpr (kMasks) {
      bool* mask = out.action_mask + i * out.choices;
      if (acts)
        E::action_mask(world.state, params_, static_cast<int>(a), mask);
      else
        std::memset(mask, 1, out.choices);  // a row that does not act has all choices open
    }
  }

  // The first agent of the worlds [low, high) whose action is not in its space, or -1.
  int64_t bad_action(size_t low, size_t high) const {
    for (size_t from = low * A, to; from < high * A; from = to) {
      to = std::min(from + 256, high * A);
      bool bad = false;  // of any: a loop without an exit can be vectorised
      if constexpr (std::is_same_v<Action, int64_t>) {  // in halves, as not all machines compare 64 bits at once
        uint32_t above = 0, beyond = 0;
        for (size_t i = from; i < to; ++i) {
          above |= static_cast<uint32_t>(static_cast<uint64_t>(action_[i]) >> 32);
          beyond |= static_cast<uint32_t>(action_[i]) >= static_cast<uint32_t>(E::action[0].choices);
        }
        bad = above | beyond;
      } else {
        for (size_t i = from; i < to; ++i) bad |= !valid(action_[i]);
      }
      if (!bad) continue;
      while (valid(action_[from])) ++from;
      return static_cast<int64_t>(from);
    }
    return -1;
  }

  static bool valid(const Action& action) {
    if constexpr (std::is_integral_v<Action>) {
      return action >= 0 && action < E::action[0].choices;
    } else {  // a struct of the leaves in their order, aligned as they are: see Layout
      const char *start = reinterpret_cast<const char*>(&action), *at = start;
      for (const Field& field : E::action) {
        int count = 1;
        for (int d = 0; d < field.rank; ++d) count *= field.shape[d];
        const size_t size = field.type == 'l' ? 8 : field.type == 'f' ? 4 : 1;
        at = start + (static_cast<size_t>(at - start) + size - 1) / size * size;
        for (int k = 0; k < count; ++k, at += size) {
          if (field.type == 'f') {
            float number;
            std::memcpy(&number, at, sizeof number);
            if (!std::isfinite(number)) return false;
          } else if (field.type == 'l') {
            int64_t number;
            std::memcpy(&number, at, sizeof number);
            if (number < 0 || number >= field.choices) return false;
          } else if (*at != 0 && *at != 1) {
            return false;
          }
        }
      }
      return true;
    }
  }

  Params params_{};
  int time_limit_;
  std::vector<Block> blocks_;
  Columns slots_[2];
  const Action* action_ = nullptr;
  const int64_t* seeds_ = nullptr;  // [worlds]; negative: go on with the random numbers there are
};

// A contiguous range of worlds that is stepped as one job.
class Group final : public Job {
 public:
  Group(const EngineApi& api, void* engine, size_t low, size_t high, size_t threads)
      : api_(api), engine_(engine), low_(low), high_(high) {
    const size_t pieces = threads > 1 ? 4 * threads : 1;
    size_ = ((high - low + pieces - 1) / pieces + kBlock - 1) / kBlock * kBlock;
    divide((high - low + size_ - 1) / size_);
    logs_.resize((high - low + kBlock - 1) / kBlock);
  }

  int command = EngineApi::kStep, slot = 0;
  bool running = false;

  void run(size_t chunk) override {
    const size_t low = low_ + chunk * size_;
    api_.run(engine_, command, low, std::min(low + size_, high_), slot, &logs_[chunk * size_ / kBlock]);
  }

  // Adds what the episodes that ended since the last call come to, in an order that does not depend on threads.
  void drain(LogSum& sum) {
    for (LogSum& block : logs_) {
      sum.episodes += block.episodes;
      sum.returns += block.returns;
      sum.lengths += block.lengths;
      for (int i = 0; i < kMaxLogs; ++i) sum.values[i] += block.values[i];
      block = {};
    }
  }
  size_t low() const { return low_; }
  size_t high() const { return high_; }

 private:
  const EngineApi& api_;
  void* engine_;
  size_t low_, high_, size_;
  std::vector<LogSum> logs_;
};

}  // namespace fugu
