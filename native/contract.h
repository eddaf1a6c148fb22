// What is asked of an environment before the engine compiles it, in words: `fugu build` includes this ahead of engine.h.
#pragma once

#include <cstddef>
#include <iterator>
#include <type_traits>

#include "env.h"

namespace fugu {

// Bytes of a row with these fields: each aligned to its own size, the end to the largest (as Layout in spaces/layout.py).
template <size_t N>
constexpr size_t row_bytes(const Field (&fields)[N]) {
  size_t end = 0, largest = 1;
  for (const Field& field : fields) {
    const size_t size = field.type == 'l' ? 8 : field.type == 'f' ? 4 : 1;
    size_t count = 1;
    for (int d = 0; d < field.rank; ++d) count *= static_cast<size_t>(field.shape[d]);
    end = (end + size - 1) / size * size + size * count;
    largest = size > largest ? size : largest;
  }
  return (end + largest - 1) / largest * largest;
}

// Whether step takes `costs` after whatever else it takes.
template <typename E>
constexpr bool takes_costs() {
  using S = typename E::State;
  using P = typename E::Params;
  using A = typename E::Action;
  return requires(S& s, const P& p, Rng& rng, const A* a, float* x) { static_cast<bool>(E::step(s, p, rng, a, x, x)); } ||
         requires(S& s, const P& p, const A* a, float* x) { static_cast<bool>(E::step(s, p, a, x, x)); } ||
         requires(S& s, const P& p, Rng& rng, const A* a, const bool* fresh, float* x, bool* terminated) {
           E::step(s, p, rng, a, fresh, x, terminated, x);
         };
}

template <typename E>
constexpr bool is_environment() {
  static_assert(requires { E::name; }, "add: static constexpr const char* name = \"...\";");
  static_assert(requires { E::agents; }, "add: static constexpr int agents = 1;");
  static_assert(requires { E::time_limit; }, "add: static constexpr int time_limit = 0;  (steps after which an episode is cut; 0: never)");
  static_assert(requires { sizeof(typename E::Obs); }, "add: struct Obs, what one agent sees");
  static_assert(requires { sizeof(typename E::Action); }, "add: Action, what one agent does, for example using Action = int64_t;");
  static_assert(requires { sizeof(typename E::State); }, "add: struct State, plain data, all that a world remembers");
  static_assert(requires { sizeof(typename E::Params); }, "add: struct Params, the settings with their defaults");
  static_assert(requires { E::params[0]; }, "add: static constexpr fugu::Param<Params> params[] = {{\"name\", &Params::name}};");
  static_assert(requires { row_bytes(E::observation); }, "add: static constexpr fugu::Field observation[] = {...};");
  static_assert(requires { row_bytes(E::action); }, "add: static constexpr fugu::Field action[] = {...};");
  static_assert(std::is_trivially_copyable_v<typename E::State>, "State must be plain data: no pointers, no std::vector, no std::string");
  static_assert(sizeof(typename E::Obs) == row_bytes(E::observation), "Obs and the fields in `observation` differ in size");
  static_assert(sizeof(typename E::Action) == row_bytes(E::action), "Action and the fields in `action` differ in size");
  static_assert(requires(typename E::State& s, const typename E::Params& p, Rng& rng) { E::reset(s, p, rng); },
                "add: static void reset(State& state, const Params& params, fugu::Rng& rng)");
  static_assert(requires(const typename E::State& s, const typename E::Params& p, typename E::Obs* row) { E::observe(s, p, 0, row); },
                "add: static void observe(const State& state, const Params& params, int agent, Obs* row)");
  if constexpr (requires { E::costs; })
    static_assert(takes_costs<E>(), "an environment with costs needs a step with a last argument float* costs");
  else if constexpr (requires { requires E::independent; })
    static_assert(requires(typename E::State& s, const typename E::Params& p, Rng& rng, const typename E::Action* a, const bool* fresh,
                           float* reward, bool* terminated) { E::step(s, p, rng, a, fresh, reward, terminated); },
                  "independent agents need: static void step(State&, const Params&, fugu::Rng&, const Action* actions, "
                  "const bool* fresh, float* rewards, bool* terminated)");
  else if constexpr (requires { requires E::lanes; })
    static_assert(requires(typename E::State& s, const typename E::Params& p, const typename E::Action* a,
                           float* reward) { static_cast<bool>(E::step(s, p, a, reward)); },
                  "lanes need: static bool step(State& state, const Params& params, const Action* actions, float* rewards)");
  else
    static_assert(requires(typename E::State& s, const typename E::Params& p, Rng& rng, const typename E::Action* a,
                           float* reward) { static_cast<bool>(E::step(s, p, rng, a, reward)); },
                  "add: static bool step(State& state, const Params& params, fugu::Rng& rng, const Action* actions, float* rewards), "
                  "which says whether the episode is over");
  return true;
}

}  // namespace fugu
