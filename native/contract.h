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

// Below 0, 0 or above: how the two compare, byte by byte.
constexpr int compare(const char* one, const char* other) {
  while (*one != 0 && *one == *other) ++one, ++other;
  return static_cast<unsigned char>(*one) - static_cast<unsigned char>(*other);
}

// Whether several parts have names, each after the one before: a Dict is in that order.
template <size_t N>
constexpr bool in_order(const Field (&fields)[N]) {
  for (size_t i = 0; i < N; ++i)
    if (N > 1 && (fields[i].name[0] == 0 || (i > 0 && compare(fields[i - 1].name, fields[i].name) >= 0))) return false;
  return true;
}

template <size_t N>
constexpr bool has_choices(const Field (&fields)[N]) {
  for (const Field& field : fields)
    if ((field.kind == Field::kDiscrete || field.kind == Field::kMultiDiscrete) && field.choices < 1) return false;
  return true;
}

template <typename E>
constexpr bool defaults_in_range() {
  constexpr typename E::Params defaults{};
  for (const auto& param : E::params) {
    const double value = param.real ? static_cast<double>(defaults.*param.real) : static_cast<double>(defaults.*param.whole);
    if (!(value >= param.low && value <= param.high)) return false;
  }
  return true;
}

template <typename E>
constexpr bool free_of_max_steps() {
  for (const auto& param : E::params)
    if (compare(param.name, "max_steps") == 0) return false;
  return true;
}

template <typename E>
constexpr bool logs_differ_from_costs() {
  for (const char* log : E::logs)
    for (const char* cost : E::costs)
      if (compare(log, cost) == 0) return false;
  return true;
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
  static_assert(E::agents >= 1, "agents must be at least 1");
  static_assert(E::time_limit >= 0, "time_limit must not be negative; 0: episodes are never cut");
  if constexpr (requires { E::params; }) {
    static_assert(requires { E::params[0].low; }, "params must be: static constexpr fugu::Param<Params> params[] = {{\"name\", &Params::name}};");
    static_assert(defaults_in_range<E>(), "a default in Params is outside the range that params gives it");
    static_assert(free_of_max_steps<E>(), "every environment has the setting max_steps already, for its time limit: use another name");
  }
  static_assert(requires { row_bytes(E::observation); }, "add: static constexpr fugu::Field observation[] = {...};");
  static_assert(requires { row_bytes(E::action); }, "add: static constexpr fugu::Field action[] = {...};");
  static_assert(in_order(E::observation), "the parts of `observation` need names, in alphabetical order, and Obs has that order too");
  static_assert(in_order(E::action), "the parts of `action` need names, in alphabetical order, and Action has that order too");
  static_assert(has_choices(E::observation) && has_choices(E::action), "a discrete field needs at least one choice");
  static_assert(std::is_trivially_copyable_v<typename E::State>, "State must be plain data: no pointers, no std::vector, no std::string");
  static_assert(sizeof(typename E::Obs) == row_bytes(E::observation), "Obs and the fields in `observation` differ in size");
  static_assert(sizeof(typename E::Action) == row_bytes(E::action), "Action and the fields in `action` differ in size");
  static_assert(requires(typename E::State& s, const typename E::Params& p, Rng& rng) { E::reset(s, p, rng); },
                "add: static void reset(State& state, const Params& params, fugu::Rng& rng)");
  static_assert(requires(const typename E::State& s, const typename E::Params& p, typename E::Obs* row) { E::observe(s, p, 0, row); },
                "add: static void observe(const State& state, const Params& params, int agent, Obs* row)");
  if constexpr (requires { &E::action_mask; })
    static_assert(requires(const typename E::State& s, const typename E::Params& p, bool* mask) { E::action_mask(s, p, 0, mask); },
                  "action_mask must be: static void action_mask(const State& state, const Params& params, int agent, bool* mask)");
  if constexpr (requires { &E::acting; })
    static_assert(requires(const typename E::State& s) { static_cast<bool>(E::acting(s, 0)); },
                  "acting must be: static bool acting(const State& state, int agent)");
  if constexpr (requires { &E::valid; }) {
    if constexpr (requires { requires E::independent; })
      static_assert(requires(const typename E::State& s, const typename E::Params& p, const bool* over) { static_cast<bool>(E::valid(s, p, over)); } &&
                        !requires(const typename E::State& s, const typename E::Params& p, bool over) { E::valid(s, p, over); },
                    "valid must be: static bool valid(const State& state, const Params& params, const bool* over), one `over` per agent");
    else
      static_assert(requires(const typename E::State& s, const typename E::Params& p, bool over) { static_cast<bool>(E::valid(s, p, over)); },
                    "valid must be: static bool valid(const State& state, const Params& params, bool over)");
  }
  if constexpr (requires { E::logs; })
    static_assert(requires(const typename E::State& s, const typename E::Params& p, float* values) { E::log(s, p, 0, values); },
                  "an environment with logs needs: static void log(const State& state, const Params& params, int agent, float* values)");
  if constexpr (requires { E::logs; E::costs; }) static_assert(logs_differ_from_costs<E>(), "a log and a cost have the same name");
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
