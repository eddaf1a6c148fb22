// Runs many worlds of one environment: auto-reset, time limit, statistics, masks and buffers, once for all environments.
//
// Worlds lie in one array and write straight into the columns they are bound to (the two slots of vector/buffers.py). The row
// convention is that of src/fugu/emulation/env.py: the row after an ending holds the final observation with mask=false; the step
// on it resets the world and writes its first row. A step of a range of worlds depends on nothing outside the range, so the
// result is the same for any number of threads.
#pragma once

#include <cstring>
#include <iterator>
#include <type_traits>
#include <vector>

#include "canvas.h"
#include "env.h"
#include "pool.h"

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
constexpr uint32_t kAbi = 2;

struct EngineApi {
  uint32_t abi;
  const char* name;
  int agents, time_limit, width, height, observations, actions, params, logs;
  const Field *observation, *action;
  const ParamInfo* param;
  const char* const* log;
  size_t obs_bytes, action_bytes;
  bool masks_actions;

  enum Command { kReset = 1, kStep = 2 };
  void* (*create)(size_t worlds, const double* params, int time_limit);
  void (*destroy)(void*);
  void (*bind)(void*, const Columns slots[2], const void* action, const int64_t* seeds);
  void (*run)(void*, int command, size_t low, size_t high, int slot);
  int64_t (*bad_action)(void*, size_t low, size_t high);
  char* (*state)(void*);
  size_t (*state_bytes)(void*);
  void (*drain)(void*, LogSum*);
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
  static_assert(std::is_trivially_copyable_v<State> && std::is_trivially_copyable_v<Obs> && std::is_trivially_copyable_v<Action>);

  Engine(size_t worlds, const double* settings, int time_limit)
      : time_limit_(time_limit), worlds_(worlds), logs_((worlds + kBlock - 1) / kBlock) {
    int i = 0;
    for (const auto& param : E::params) {
      if (param.real)
        params_.*param.real = static_cast<float>(settings[i++]);
      else
        params_.*param.whole = static_cast<int32_t>(settings[i++]);
    }
  }

  static const EngineApi* api() {
    static const std::vector<ParamInfo> params = [] {
      std::vector<ParamInfo> out;
      const Params defaults{};
      for (const auto& param : E::params)
        out.push_back({param.name, param.real ? defaults.*param.real : static_cast<double>(defaults.*param.whole), !param.real,
                       param.low, param.high});
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
      out.run = [](void* self, int command, size_t low, size_t high, int slot) {
        static_cast<Engine*>(self)->run(command, low, high, slot);
      };
      out.bad_action = [](void* self, size_t low, size_t high) { return static_cast<Engine*>(self)->bad_action(low, high); };
      out.state = [](void* self) { return reinterpret_cast<char*>(static_cast<Engine*>(self)->worlds_.data()); };
      out.state_bytes = [](void* self) { return static_cast<Engine*>(self)->worlds_.size() * sizeof(World); };
      out.drain = [](void* self, LogSum* sum) { static_cast<Engine*>(self)->drain(*sum); };
      if constexpr (requires { E::width; }) {
        out.width = E::width;
        out.height = E::height;
        out.render = [](void* self, size_t world, uint8_t* pixels) {
          auto& engine = *static_cast<Engine*>(self);
          Canvas canvas(pixels, E::width, E::height);
          E::render(engine.worlds_[world].state, engine.params_, canvas);
        };
      }
      return out;
    }();
    return &api;
  }

 private:
  // Where agents end one by one each has its own clock; otherwise the first stands for all.
  static constexpr size_t kClocks = kIndependent ? A : 1;

  struct World {
    State state{};
    Rng rng{};
    double returns[A] = {};
    int32_t length[kClocks] = {};
    bool ended[kClocks] = {};
  };

  void run(int command, size_t low, size_t high, int slot) {
    const Columns& out = slots_[slot];
    if (command == EngineApi::kReset) {
      for (size_t w = low; w < high; ++w) {
        if (seeds_[w] >= 0) worlds_[w].rng = Rng::of(static_cast<uint64_t>(seeds_[w]));
        begin(w, out);
      }
    } else {
      for (size_t w = low; w < high; ++w) {
        if constexpr (kIndependent)
          go_on_one_by_one(w, out);
        else
          worlds_[w].ended[0] ? begin(w, out) : go_on(w, out);
      }
    }
  }

  void begin(size_t w, const Columns& out) {
    World& world = worlds_[w];
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

  void go_on(size_t w, const Columns& out) {
    World& world = worlds_[w];
    float reward[A];
    const bool terminated = E::step(world.state, params_, world.rng, action_ + w * A, reward);
    const bool truncated = !terminated && time_limit_ > 0 && world.length[0] + 1 >= time_limit_;
    ++world.length[0];
    world.ended[0] = terminated || truncated;
    for (size_t a = 0; a < A; ++a) {
      world.returns[a] += reward[a];
      write(w, a, out, reward[a], terminated, truncated, false);
      if (world.ended[0]) log(w, a);
    }
  }

  void go_on_one_by_one(size_t w, const Columns& out) {
    World& world = worlds_[w];
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
      if (world.ended[a]) log(w, a);
    }
  }

  void log(size_t w, size_t a) {
    const World& world = worlds_[w];
    LogSum& sum = logs_[w / kBlock];
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
    const World& world = worlds_[w];
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
    for (size_t i = low * A; i < high * A; ++i)
      if (!valid(action_[i])) return static_cast<int64_t>(i);
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

  // What the episodes that ended since the last call add up to, in an order that does not depend on threads.
  void drain(LogSum& sum) {
    for (LogSum& block : logs_) {
      sum.episodes += block.episodes;
      sum.returns += block.returns;
      sum.lengths += block.lengths;
      for (int i = 0; i < kMaxLogs; ++i) sum.values[i] += block.values[i];
      block = {};
    }
  }

  Params params_{};
  int time_limit_;
  std::vector<World> worlds_;
  std::vector<LogSum> logs_;
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
    chunks = (high - low + size_ - 1) / size_;
  }

  int command = EngineApi::kStep, slot = 0;
  bool running = false;

  void run(size_t chunk) override {
    const size_t low = low_ + chunk * size_;
    api_.run(engine_, command, low, std::min(low + size_, high_), slot);
  }
  size_t low() const { return low_; }
  size_t high() const { return high_; }

 private:
  const EngineApi& api_;
  void* engine_;
  size_t low_, high_, size_;
};

}  // namespace fugu
