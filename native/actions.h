// Actions on their way to the worlds: copied into the buffers and checked against their space, in one pass.
#pragma once

#include <algorithm>
#include <cmath>
#include <cstring>
#include <type_traits>

#include "avx2.h"
#include "env.h"
#include "world.h"

namespace fugu {

template <typename E>
inline bool valid(const typename E::Action& action) {
  if constexpr (std::is_same_v<typename E::Action, int64_t>) {
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
        } else {
          const double number = field.type == 'B' ? static_cast<unsigned char>(*at) : static_cast<signed char>(*at);
          const bool binary = field.kind == Field::kMultiBinary;
          if (number < (binary ? 0 : field.low) || number > (binary ? 1 : field.high)) return false;
        }
      }
    }
    return true;
  }
}

// Reads what is given once: another thread of the program may be changing it.
template <typename E>
FUGU_INLINE int64_t copy_and_check(typename E::Action* const held, const typename E::Action* given, size_t count) {
  using Action = typename E::Action;
  if (given == nullptr) given = held;
  for (size_t from = 0, to; from < count; from = to) {
    to = std::min(from + 256, count);
    bool bad = false;  // any: a loop without an exit can be vectorised
    if constexpr (std::is_same_v<Action, int64_t>) {
      uint64_t signs = 0;  // the highest bit: an action is negative, or above the last (not all machines compare 64 bits)
      for (size_t i = from; i < to; ++i) {
        const uint64_t action = static_cast<uint64_t>(given[i]);
        held[i] = static_cast<int64_t>(action);
        signs |= action | (static_cast<uint64_t>(E::action[0].choices - 1) - action);
      }
      bad = signs >> 63;
    } else {
      std::memmove(held + from, given + from, (to - from) * sizeof(Action));
      for (size_t i = from; i < to; ++i) bad |= !valid<E>(held[i]);
    }
    if (!bad) continue;
    while (valid<E>(held[from])) ++from;
    return static_cast<int64_t>(from);
  }
  return -1;
}

#ifdef FUGU_AVX2
template <typename E>
FUGU_FOR_AVX2 int64_t copy_and_check_avx2(typename E::Action* held, const typename E::Action* given, size_t count) {
  return copy_and_check<E>(held, given, count);
}
#endif

// Copies `count` agents' actions to where they are held, unless `given` is null, and checks them: the first agent whose action is not
// in its space, or -1.
template <typename E>
int64_t take_actions(typename E::Action* held, const typename E::Action* given, size_t count) {
#ifdef FUGU_AVX2
  static const bool wide = __builtin_cpu_supports("avx2");
  if (wide) return copy_and_check_avx2<E>(held, given, count);
#endif
  return copy_and_check<E>(held, given, count);
}

}  // namespace fugu
