// Runs many worlds of one environment: auto-reset, time limit, statistics, masks and buffers, once for all environments.
//
// Worlds lie in one array and write straight into the columns they are given (those of vector/buffers.py). What each of them does,
// and the row convention, is in world.h. A step of a range of worlds depends on nothing outside the range, so the
// result is the same for any number of threads.
//
// An environment with lanes (env.h) is stepped a block of worlds at a time: first all of them by loops that the compiler turns
// into vector instructions, then one by one those few that end or begin. Which instructions there are is asked at run time; the
// arithmetic is the same to the bit, since nothing may be contracted or reordered (-ffp-contract=off, no -ffast-math).
#pragma once

#include <algorithm>
#include <cstring>
#include <iterator>
#include <type_traits>
#include <vector>

#include "actions.h"
#include "avx2.h"
#include "canvas.h"
#include "engine_api.h"
#include "env.h"
#include "world.h"

namespace fugu {

// What the running episodes of some worlds have cost, and where that of one of them is; nothing where there are no costs.
template <size_t Worlds, int Numbers>
struct BlockCosts {
  double costs[Worlds][Numbers] = {};
};
template <size_t Worlds>
struct BlockCosts<Worlds, 0> {};
template <int Numbers>
struct PlaceCosts {
  double (&costs)[Numbers];
};
template <>
struct PlaceCosts<0> {};

// The same for how often agents have acted, where they take turns.
template <size_t Worlds, int Numbers, bool Turns>
struct BlockActed {
  int32_t acted[Worlds][Numbers] = {};
};
template <size_t Worlds, int Numbers>
struct BlockActed<Worlds, Numbers, false> {};
template <int Numbers, bool Turns>
struct PlaceActed {
  int32_t (&acted)[Numbers];
};
template <int Numbers>
struct PlaceActed<Numbers, false> {};

template <typename E>
class Engine {
 public:
  using Obs = typename E::Obs;
  using Action = typename E::Action;
  using State = typename E::State;
  using Params = typename E::Params;
  static constexpr size_t A = E::agents;
  static constexpr bool kLanes = Traits<E>::kLanes, kMasks = Traits<E>::kMasks, kTurns = Traits<E>::kTurns;
  static constexpr int kCosts = Traits<E>::kCosts;
  static_assert(std::is_trivially_copyable_v<State> && std::is_trivially_copyable_v<Obs> && std::is_trivially_copyable_v<Action>);

  Engine(size_t worlds, const double* settings, int time_limit)
      : params_(params_of(settings)), time_limit_(time_limit), worlds_(worlds), blocks_((worlds + kPerBlock - 1) / kPerBlock) {}

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
        out.log = E::logs;
        out.logs = std::size(E::logs);
      }
      if constexpr (kCosts > 0) {
        out.cost = E::costs;
        out.costs = kCosts;
      }
      out.obs_bytes = sizeof(Obs);
      out.action_bytes = sizeof(Action);
      out.params_bytes = sizeof(Params);
      out.world_bytes = sizeof(World<E>);
      out.masks_actions = kMasks;
      out.choices = Traits<E>::kChoices;
      out.create = [](size_t worlds, const double* settings, int limit) -> void* { return new Engine(worlds, settings, limit); };
      out.destroy = [](void* self) { delete static_cast<Engine*>(self); };
      out.bind = [](void* self, void* action, const int64_t* seeds) {
        auto& engine = *static_cast<Engine*>(self);
        engine.action_ = static_cast<Action*>(action);
        engine.seeds_ = seeds;
      };
      out.run = [](void* self, int command, size_t low, size_t high, bool downwards, const Columns* columns, LogSum* logs) {
        static_cast<Engine*>(self)->run(command, low, high, downwards, *columns, logs);
      };
      out.take = [](void* self, const void* given, size_t low, size_t high) {
        return static_cast<Engine*>(self)->take(static_cast<const Action*>(given), low, high);
      };
      out.state = [](void* self) { return reinterpret_cast<char*>(static_cast<Engine*>(self)->blocks_.data()); };
      out.state_bytes = [](void* self) { return static_cast<Engine*>(self)->blocks_.size() * sizeof(Block); };
      if constexpr (Traits<E>::kValid) {
        out.restore = [](void* self, const char* bytes) { return static_cast<Engine*>(self)->restore(bytes); };
        out.first_unsound = &first_unsound;
      }
      out.pack_params = [](const double* settings, void* params) {
        const Params packed = params_of(settings);
        std::memcpy(params, &packed, sizeof packed);
      };
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
  static constexpr size_t kClocks = Traits<E>::kClocks;

  static Params params_of([[maybe_unused]] const double* settings) {
    Params params{};
    if constexpr (requires { E::params; }) {
      for (const auto& param : E::params) {
        if (param.real)
          params.*param.real = static_cast<float>(*settings++);
        else
          params.*param.whole = static_cast<int32_t>(*settings++);
      }
    }
    return params;
  }

  // Worlds lie one after the other, or, with lanes, a block of them side by side, so that loops run over each column of it.
  static constexpr size_t kPerBlock = kLanes ? kBlock : 1;

  struct alignas(kLanes ? 64 : alignof(double)) Block : BlockCosts<kPerBlock, static_cast<int>(A) * kCosts>,
                                                        BlockActed<kPerBlock, static_cast<int>(A), kTurns> {
    State state[kPerBlock]{};
    Rng rng[kPerBlock]{};
    double returns[kPerBlock][A] = {};
    int32_t length[kPerBlock][kClocks] = {};
    bool ended[kPerBlock][kClocks] = {};
  };
  struct Place : PlaceCosts<static_cast<int>(A) * kCosts>, PlaceActed<static_cast<int>(A), kTurns> {  // of one world in its block
    State& state;
    Rng& rng;
    double (&returns)[A];
    int32_t (&length)[kClocks];
    bool (&ended)[kClocks];
  };
  Place at(size_t w) { return place(blocks_[w / kPerBlock], w % kPerBlock); }
  static Place place(Block& block, size_t i) {
    const auto costs = [&]() -> PlaceCosts<static_cast<int>(A) * kCosts> {
      if constexpr (kCosts > 0)
        return {block.costs[i]};
      else
        return {};
    };
    const auto acted = [&]() -> PlaceActed<static_cast<int>(A), kTurns> {
      if constexpr (kTurns)
        return {block.acted[i]};
      else
        return {};
    };
    return {costs(), acted(), block.state[i], block.rng[i], block.returns[i], block.length[i], block.ended[i]};
  }

  // `out` is a copy: bytes written to rows could else be bytes of its pointers.
  void run(int command, size_t low, size_t high, bool downwards, const Columns out, LogSum* logs) {
    if (command == EngineApi::kReset) {
      for (size_t w = low; w < high; ++w) {
        if (seeds_[w] == kKeep) continue;
        if (seeds_[w] >= 0) at(w).rng = Rng::of(static_cast<uint64_t>(seeds_[w]));
        begin(w, w - low, out);
      }
    } else if constexpr (kLanes) {
#ifdef FUGU_AVX2
      static const bool wide = __builtin_cpu_supports("avx2");
      if (wide && command == EngineApi::kStep) return go_on_in_lanes_avx2(low, high, downwards, out, logs);
#endif
      go_on_in_lanes(low, high, downwards, out, logs);
    } else {
      if (!downwards) return go_on(low, high, low, out, logs);
      for_each_block(low, high, true, logs, [&](size_t first, size_t end, LogSum& sum) { go_on(first, end, low, out, &sum); });
    }
  }

  // The worlds [first, end), one after the other; the first row of `out` is that of `low`. A copy of it, as above.
  void go_on(size_t first, size_t end, size_t low, const Columns out, LogSum* logs) {
    for (size_t w = first; w < end; ++w) {
      const Place world = at(w);
      step_world<E>(world, params_, time_limit_, action_ + w * A, rows(w - low, out), logs[(w - first) / kBlock]);
    }
  }

  // act(first, end, sum) for the worlds whose statistics are one sum; within them always upwards, so that the sum is the same.
  template <typename Act>
  FUGU_INLINE static void for_each_block(size_t low, size_t high, bool downwards, LogSum* logs, const Act& act) {
    const size_t blocks = (high - low + kBlock - 1) / kBlock;
    for (size_t i = 0; i < blocks; ++i) {
      const size_t block = downwards ? blocks - 1 - i : i, first = low + block * kBlock;
      act(first, std::min(first + kBlock, high), logs[block]);
    }
  }

  void begin(size_t w, size_t row, const Columns& out) {
    const Place world = at(w);
    begin_world<E>(world, params_, rows(row, out));
  }

  static WorldRows<E> rows(size_t row, const Columns& out) {
    const size_t i = row * A;
    return {static_cast<Obs*>(out.obs) + i, out.reward + i, out.terminated + i, out.truncated + i, out.first + i, out.mask + i,
            kMasks ? out.action_mask + i * Traits<E>::kChoices : nullptr, kCosts > 0 ? out.cost + i * kCosts : nullptr};
  }

#ifdef FUGU_AVX2
  FUGU_FOR_AVX2 void go_on_in_lanes_avx2(size_t low, size_t high, bool downwards, const Columns& out, LogSum* logs) {
    all_lanes(low, high, downwards, out, logs);
  }
#endif
  void go_on_in_lanes(size_t low, size_t high, bool downwards, const Columns& out, LogSum* logs) {
    all_lanes(low, high, downwards, out, logs);
  }

  FUGU_INLINE void all_lanes(size_t low, size_t high, bool downwards, const Columns& out, LogSum* logs) {
    for_each_block(low, high, downwards, logs, [&](size_t first, size_t end, LogSum& sum) {
      for (size_t w = first, next; w < end; w = next) {  // to where the block ends that w is in
        next = std::min(w / kPerBlock * kPerBlock + kPerBlock, end);
        some_lanes(w, next - w, w - low, out, sum);
      }
    });
  }

  // The worlds [w, w + n), all of one block, into the rows from `row` on. Steps those that have ended, too: cheaper than to leave
  // them out.
  FUGU_INLINE void some_lanes(size_t w, size_t n, size_t row, const Columns& out, LogSum& sum) {
    Block& block = blocks_[w / kPerBlock];
    const size_t from = w % kPerBlock;
    const Params params = params_;
    const int32_t limit = time_limit_;
    // Flags are bytes of 0 and 1 here: compilers do not vectorise loops over bool.
    alignas(64) uint8_t begins[kBlock] = {}, over[kBlock] = {}, done[kBlock], late[kBlock];
    std::memcpy(begins, &block.ended[from][0], n);

    State* __restrict state = block.state + from;
    const Action* __restrict action = action_ + w;
    float* __restrict reward = out.reward + row;
    for (size_t i = 0; i < n; ++i) {
      State next = state[i];
      float paid;
      if constexpr (kCosts > 0) {
        float costs[kCostRoom<E>];
        done[i] = E::step(next, params, action + i, &paid, costs);
        for (int k = 0; k < kCosts; ++k) {
          out.cost[(row + i) * kCosts + static_cast<size_t>(k)] = costs[k];
          block.costs[from + i][k] += static_cast<double>(costs[k]);
        }
      } else {
        done[i] = E::step(next, params, action + i, &paid);
      }
      state[i] = next;
      reward[i] = paid;
    }

    Obs* __restrict obs = static_cast<Obs*>(out.obs) + row;
    for (size_t i = 0; i < n; ++i) {
      Obs seen;
      E::observe(state[i], params, 0, &seen);
      obs[i] = seen;
    }

    double* __restrict returns = &block.returns[from][0];
    for (size_t i = 0; i < n; ++i) returns[i] += static_cast<double>(reward[i]);

    int32_t* __restrict length = &block.length[from][0];
    for (size_t i = 0; i < n; ++i) {
      ++length[i];
      late[i] = length[i] >= limit;
    }

    auto* __restrict terminated = reinterpret_cast<uint8_t*>(out.terminated + row);
    auto* __restrict truncated = reinterpret_cast<uint8_t*>(out.truncated + row);
    auto* __restrict mask = reinterpret_cast<uint8_t*>(out.mask + row);
    auto* __restrict ended = reinterpret_cast<uint8_t*>(&block.ended[from][0]);
    for (size_t i = 0; i < n; ++i) {
      const uint8_t end = done[i] | late[i];
      terminated[i] = done[i];
      truncated[i] = end ^ done[i];
      mask[i] = end ^ 1;
      ended[i] = end;
      over[i] = end & (begins[i] ^ 1);
    }
    std::memset(out.first + row, 0, n);

    for_each_set(over, [&](size_t i) { log_episode<E>(at(w + i), params_, 0, sum); });
    for_each_set(begins, [&](size_t i) { begin(w + i, row + i, out); });
  }

  template <typename Do>
  FUGU_INLINE static void for_each_set(const uint8_t (&flags)[kBlock], const Do& act) {
    for (size_t i = 0; i < kBlock; i += 8) {
      uint64_t eight;
      std::memcpy(&eight, flags + i, 8);
      for (; eight != 0; eight &= eight - 1) act(i + static_cast<size_t>(__builtin_ctzll(eight)) / 8);
    }
  }

  int64_t restore(const char* bytes) {
    for (size_t b = 0; b < blocks_.size(); ++b) {
      Block block;
      std::memcpy(static_cast<void*>(&block), bytes + b * sizeof block, sizeof block);
      const size_t first = b * kPerBlock, end = std::min(first + kPerBlock, worlds_);
      for (size_t w = first; w < end; ++w)
        if (!is_sound<E>(place(block, w - first), params_, time_limit_)) return static_cast<int64_t>(w);
    }
    std::memcpy(static_cast<void*>(blocks_.data()), bytes, blocks_.size() * sizeof(Block));
    return -1;
  }

  static int64_t first_unsound(const double* settings, int time_limit, const uint32_t* words, size_t worlds) {
    const Params params = params_of(settings);
    for (size_t w = 0; w < worlds; ++w) {
      World<E> world;
      if constexpr (kInPlace<E>)
        std::memcpy(static_cast<void*>(&world), words + w * kWorldWords<E>, sizeof world);
      else
        world = load_world<E>(words, worlds, w);
      if (!is_sound<E>(world, params, time_limit)) return static_cast<int64_t>(w);
    }
    return -1;
  }

  int64_t take(const Action* given, size_t low, size_t high) {
    const int64_t bad = take_actions<E>(action_ + low * A, given, (high - low) * A);
    return bad < 0 ? bad : static_cast<int64_t>(low * A) + bad;
  }

  Params params_;
  int time_limit_;
  size_t worlds_;
  std::vector<Block> blocks_;
  Action* action_ = nullptr;
  static constexpr int64_t kKeep = -2;  // as vector/seeds.py has it
  const int64_t* seeds_ = nullptr;      // [worlds]; kKeep: leave the world alone; else negative: go on with the random numbers there are
};

}  // namespace fugu
