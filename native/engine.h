// Runs many worlds of one environment: auto-reset, time limit, statistics, masks and buffers, once for all environments.
//
// Worlds lie in one array and write straight into the columns they are bound to (the two slots of vector/buffers.py). The row
// convention is that of src/fugu/emulation/env.py: the row after an ending holds the final observation with mask=false; the step
// on it resets the world and writes its first row. A step of a range of worlds depends on nothing outside the range, so the
// result is the same for any number of threads.
#pragma once

#include <cstring>
#include <string>
#include <type_traits>
#include <vector>

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

struct LogSum {
  int64_t episodes = 0;  // of agents
  double returns = 0, lengths = 0;
};

class EngineBase {
 public:
  enum Command { kReset = 1, kStep = 2 };

  EngineBase(size_t worlds, size_t agents, size_t obs_bytes, size_t action_bytes)
      : worlds(worlds), agents(agents), obs_bytes(obs_bytes), action_bytes(action_bytes), logs_((worlds + kBlock - 1) / kBlock) {}
  virtual ~EngineBase() = default;

  const size_t worlds, agents, obs_bytes, action_bytes;
  Columns slots[2];
  void* action = nullptr;
  const int64_t* seeds = nullptr;  // [worlds]; negative: go on with the random numbers there are

  virtual void run(Command command, size_t low, size_t high, int slot) = 0;
  // The first agent of the worlds [low, high) whose action is not in its space, or -1.
  virtual int64_t bad_action(size_t low, size_t high) const = 0;
  virtual char* state() = 0;
  virtual size_t state_bytes() const = 0;

  // What the episodes that ended since the last call add up to, in an order that does not depend on threads.
  LogSum drain() {
    LogSum sum;
    for (LogSum& block : logs_) {
      sum.episodes += block.episodes;
      sum.returns += block.returns;
      sum.lengths += block.lengths;
      block = {};
    }
    return sum;
  }

 protected:
  std::vector<LogSum> logs_;
};

template <typename E>
class Engine final : public EngineBase {
 public:
  using Obs = typename E::Obs;
  using Action = typename E::Action;
  static constexpr size_t A = E::agents;
  static_assert(std::is_trivially_copyable_v<typename E::State> && std::is_trivially_copyable_v<Obs>);

  Engine(size_t worlds, const typename E::Params& params, int time_limit)
      : EngineBase(worlds, A, sizeof(Obs), sizeof(Action)), params_(params), time_limit_(time_limit), worlds_(worlds) {}

  void run(Command command, size_t low, size_t high, int slot) override {
    if (command == kReset)
      for (size_t w = low; w < high; ++w) {
        if (seeds != nullptr && seeds[w] >= 0) worlds_[w].rng = Rng::of(static_cast<uint64_t>(seeds[w]));
        begin(w, slots[slot]);
      }
    else
      for (size_t w = low; w < high; ++w) worlds_[w].ended ? begin(w, slots[slot]) : go_on(w, slots[slot]);
  }

  int64_t bad_action(size_t low, size_t high) const override {
    const auto* actions = static_cast<const Action*>(action);
    for (size_t i = low * A; i < high * A; ++i)
      if (!valid(actions[i])) return static_cast<int64_t>(i);
    return -1;
  }

  char* state() override { return reinterpret_cast<char*>(worlds_.data()); }
  size_t state_bytes() const override { return worlds_.size() * sizeof(World); }

 private:
  struct World {
    typename E::State state{};
    Rng rng{};
    double returns[A] = {};
    int32_t length = 0;
    bool ended = true;
  };

  void begin(size_t w, const Columns& out) {
    World& world = worlds_[w];
    E::reset(world.state, params_, world.rng);
    world.length = 0;
    world.ended = false;
    for (size_t a = 0; a < A; ++a) {
      world.returns[a] = 0;
      write(w, a, out, 0.0f, false, false, true);
    }
  }

  void go_on(size_t w, const Columns& out) {
    World& world = worlds_[w];
    float reward[A];
    const bool terminated = E::step(world.state, params_, world.rng, static_cast<const Action*>(action) + w * A, reward);
    ++world.length;
    const bool truncated = !terminated && time_limit_ > 0 && world.length >= time_limit_;
    world.ended = terminated || truncated;
    for (size_t a = 0; a < A; ++a) {
      world.returns[a] += reward[a];
      write(w, a, out, reward[a], terminated, truncated, false);
    }
    if (world.ended) {
      LogSum& log = logs_[w / kBlock];
      log.episodes += A;
      for (size_t a = 0; a < A; ++a) log.returns += world.returns[a];
      log.lengths += static_cast<double>(world.length) * A;
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
    bool acts = !world.ended;
    if constexpr (requires { E::acting(world.state, 0); }) acts = acts && E::acting(world.state, static_cast<int>(a));
    out.mask[i] = acts;
    if constexpr (requires(bool* m) { E::action_mask(world.state, params_, 0, m); }) {
      bool* mask = out.action_mask + i * out.choices;
      if (acts)
        E::action_mask(world.state, params_, static_cast<int>(a), mask);
      else
        std::memset(mask, 1, out.choices);  // a row that does not act has all choices open
    }
  }

  static bool valid(const Action& action) {
    if constexpr (std::is_integral_v<Action>) {
      return action >= 0 && action < E::action[0].choices;
    } else {  // a struct of the leaves in their order, aligned as they are: see Layout
      const char* at = reinterpret_cast<const char*>(&action);
      for (const Field& field : E::action) {
        int count = 1;
        for (int d = 0; d < field.rank; ++d) count *= field.shape[d];
        const size_t size = field.type == 'l' ? 8 : field.type == 'f' ? 4 : 1;
        at += (size - reinterpret_cast<uintptr_t>(at) % size) % size;
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

  typename E::Params params_;
  int time_limit_;
  std::vector<World> worlds_;
};

// A contiguous range of worlds that is stepped as one job.
class Group final : public Job {
 public:
  Group(EngineBase& engine, size_t low, size_t high, size_t threads) : engine_(engine), low_(low), high_(high) {
    const size_t pieces = threads > 1 ? 4 * threads : 1;
    size_ = ((high - low + pieces - 1) / pieces + kBlock - 1) / kBlock * kBlock;
    chunks = (high - low + size_ - 1) / size_;
  }

  EngineBase::Command command = EngineBase::kStep;
  int slot = 0;
  bool running = false;

  void run(size_t chunk) override {
    const size_t low = low_ + chunk * size_;
    engine_.run(command, low, std::min(low + size_, high_), slot);
  }
  size_t low() const { return low_; }
  size_t high() const { return high_; }

 private:
  EngineBase& engine_;
  size_t low_, high_, size_;
};

}  // namespace fugu
