// Memory for the life of one use, kept by its thread for the next one and aligned to cache lines. One use at a time of each kind:
// a caller's memory stays as it is while the caller works on shares.
#pragma once

#include <cstddef>
#include <memory>
#include <new>
#include <utility>

namespace fugu::learn {

// Shares of `per_share` rows.
inline int64_t shares_of(int64_t rows, int64_t per_share) { return (rows + per_share - 1) / per_share; }

enum class Use { kUpdate, kCall, kShare };

template <Use kUse>
class Scratch {
 public:
  explicit Scratch(size_t floats) {
    if (floats > held().size) {
      held().memory.reset(static_cast<float*>(::operator new[](floats * sizeof(float), std::align_val_t{64})));
      held().size = floats;
    }
    next_ = held().memory.get();
  }
  float* take(size_t floats) { return std::exchange(next_, next_ + round_up(floats)); }
  static size_t round_up(size_t floats) { return (floats + 15) / 16 * 16; }

 private:
  struct Free {
    void operator()(float* memory) const { ::operator delete[](memory, std::align_val_t{64}); }
  };
  struct Held {
    std::unique_ptr<float[], Free> memory;
    size_t size = 0;
  };
  static Held& held() {
    static thread_local Held held;
    return held;
  }
  float* next_;
};

}  // namespace fugu::learn
