// GAE and V-trace over [segments, horizon] columns, on any number of threads with the same bits.
//
// The formula and its readable reference are in src/fugu/advantage/gae.py and vtrace.py, the arithmetic in advantage_kernel.h. This file
// chooses the instruction set at run time, so that one wheel runs everywhere, and shares the segments out among threads.
#pragma once

#include <unistd.h>

#include <algorithm>
#include <atomic>
#include <condition_variable>
#include <cstdint>
#include <memory>
#include <mutex>
#include <system_error>
#include <thread>

namespace fugu::advantage {

struct Columns {  // all [segments, horizon], rows without gaps
  const float* value;
  const float* reward;
  const uint8_t* terminated;
  const uint8_t* truncated;
  const float* bootstrap;  // [segments]
  const float* ratio;      // null: GAE
  const uint8_t* mask;     // null: every row counts
  float* out;              // may be `reward` or `ratio`, else apart from all inputs
  int64_t segments;
  int64_t horizon;
};

struct Weights {
  float gamma;
  float gamma_lambda;
  float rho_clip;
  float c_clip;
};

inline constexpr int kLanes = 8;         // segments side by side
inline constexpr int64_t kBlock = 256;  // columns whose endings are looked up in one go

struct Tile {
  const float* value;
  const float* reward;
  const float* ratio;
  const float* beyond;  // per segment, the value after the last column of the last tile
  const uint8_t* terminated;
  const uint8_t* cut;  // per column, bit s: segment s ended there
  const uint8_t* mask;
  float* out;
  int64_t stride;  // from one segment to the next
};

// For every `cut` byte, all bits of the lanes that go on.
struct Kept {
  alignas(4 * kLanes) int32_t lanes[1 << kLanes][kLanes];
};

inline constexpr Kept kKept = [] {
  Kept kept{};
  for (int cut = 0; cut < 1 << kLanes; ++cut)
    for (int s = 0; s < kLanes; ++s) kept.lanes[cut][s] = (cut >> s & 1) != 0 ? 0 : -1;
  return kept;
}();

namespace portable {
#include "advantage_kernel.h"
}

// Under the pragma a function may use instructions that the rest of the file must not. Attributes that clone a finished function come
// too late: generic vectors have been taken apart for the lesser instruction set by then.
#if defined(__x86_64__) && defined(__clang__)
#define FUGU_AVX2 1
#pragma clang attribute push(__attribute__((target("avx2,fma"))), apply_to = function)
namespace avx2 {
#include "advantage_kernel.h"
}
#pragma clang attribute pop
#elif defined(__x86_64__) && defined(__GNUC__)
#define FUGU_AVX2 1
#pragma GCC push_options
#pragma GCC target("avx2,fma")
namespace avx2 {
#include "advantage_kernel.h"
}
#pragma GCC pop_options
#endif

using Kernel = void (*)(const Columns&, const Weights&, int64_t low, int64_t high);

inline Kernel best_kernel() {
#ifdef FUGU_AVX2
  if (__builtin_cpu_supports("avx2") && __builtin_cpu_supports("fma")) return &avx2::run;
#endif
  return &portable::run;
}

// Threads that sleep between jobs. A job is a number of shares; whoever is awake takes the next one, the caller included, so that a
// thread that wakes up late or not at all costs nothing.
class Pool {
 public:
  // Never destroyed: sleeping threads end with the process. A forked child has none of its parent's threads and starts afresh.
  static Pool& instance() {
    static std::atomic<Pool*> current{nullptr};
    Pool* pool = current.load();
    while (pool == nullptr || pool->owner_ != getpid()) {
      auto fresh = std::make_unique<Pool>();
      if (current.compare_exchange_strong(pool, fresh.get())) return *fresh.release();
    }
    return *pool;
  }

  template <typename Work>
  void run(int64_t shares, int threads, const Work& work) {
    const std::unique_lock only(callers_, std::try_to_lock);
    if (threads <= 1 || shares <= 1 || !only.owns_lock()) {
      for (int64_t share = 0; share < shares; ++share) work(share);
      return;
    }
    const int helpers = static_cast<int>(std::min<int64_t>(threads, shares)) - 1;
    {
      const std::lock_guard lock(mutex_);
      start(helpers);
      call_ = [](const void* work, int64_t share) { (*static_cast<const Work*>(work))(share); };
      work_ = &work;
      shares_ = shares;
      next_.store(0, std::memory_order_relaxed);
      invited_ = std::min(helpers, started_);
    }
    wake_.notify_all();
    take_shares();
    std::unique_lock lock(mutex_);
    invited_ = 0;
    idle_.wait(lock, [this] { return active_ == 0; });
  }

 private:
  void start(int helpers) {
    try {
      for (; started_ < helpers; ++started_) std::thread([this] { serve(); }).detach();
    } catch (const std::system_error&) {  // no more threads to be had: those there are do the work
    }
  }

  void take_shares() {
    for (int64_t share; (share = next_.fetch_add(1, std::memory_order_relaxed)) < shares_;) call_(work_, share);
  }

  void serve() {
    std::unique_lock lock(mutex_);
    for (;;) {
      wake_.wait(lock, [this] { return invited_ > 0; });
      --invited_;
      ++active_;
      lock.unlock();
      take_shares();
      lock.lock();
      if (--active_ == 0) idle_.notify_one();
    }
  }

  const pid_t owner_ = getpid();
  std::mutex callers_, mutex_;
  std::condition_variable wake_, idle_;
  int started_ = 0;
  void (*call_)(const void*, int64_t) = nullptr;
  const void* work_ = nullptr;
  int64_t shares_ = 0;
  std::atomic<int64_t> next_{0};
  int invited_ = 0;
  int active_ = 0;
};

// A row takes about a third of a nanosecond, waking a thread some 30 microseconds: fewer rows than this per thread are not worth it.
inline constexpr int64_t kThreadRows = 1 << 17;
inline constexpr int64_t kShareRows = 1 << 15;

inline void compute(const Columns& columns, const Weights& weights, int threads, Kernel kernel) {
  if (columns.segments == 0 || columns.horizon == 0) return;
  const int64_t share_segments = (kShareRows / columns.horizon / kLanes + 1) * kLanes;
  const int64_t shares = (columns.segments + share_segments - 1) / share_segments;
  const auto work = [&](int64_t share) {
    const int64_t low = share * share_segments;
    kernel(columns, weights, low, std::min(columns.segments, low + share_segments));
  };
  const int64_t worth = std::min<int64_t>(threads, columns.segments * columns.horizon / kThreadRows);
  if (worth <= 1) {
    for (int64_t share = 0; share < shares; ++share) work(share);
  } else {
    Pool::instance().run(shares, static_cast<int>(worth), work);
  }
}

}  // namespace fugu::advantage
