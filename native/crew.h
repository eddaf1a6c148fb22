// Persistent threads for kernels on columns of data. A job is a number of shares; whoever is awake takes the next one, the caller
// included, so that a helper that wakes up late or not at all costs nothing. Which thread does a share never changes a result:
// the cut into shares depends on the sizes of the data alone.
#pragma once

#include <unistd.h>

#include <algorithm>
#include <atomic>
#include <cstdint>
#include <memory>
#include <mutex>
#include <system_error>
#include <thread>

#include "control.h"

namespace fugu {

class Crew {
 public:
  // Never destroyed: sleeping threads end with the process. A forked child has none of its parent's threads and starts afresh.
  static Crew& instance() {
    static std::atomic<Crew*> current{nullptr};
    Crew* crew = current.load();
    while (crew == nullptr || crew->owner_ != getpid()) {
      auto fresh = std::make_unique<Crew>();
      if (current.compare_exchange_strong(crew, fresh.get())) return *fresh.release();
    }
    return *crew;
  }

  // work(share) for every share in [0, shares), on at most `threads` threads.
  template <typename Work>
  void run(int64_t shares, int threads, const Work& work) {
    std::unique_lock only(callers_, std::defer_lock);  // not asked for by work of one thread, which may be within a share
    if (threads <= 1 || shares <= 1 || !only.try_lock()) {
      for (int64_t share = 0; share < shares; ++share) work(share);
      return;
    }
    start(static_cast<int>(std::min<int64_t>(threads, shares)) - 1);
    call_ = [](const void* work, int64_t share) { (*static_cast<const Work*>(work))(share); };
    work_ = &work;
    shares_ = shares;
    next_.store(0);
    invited_.store(static_cast<int>(std::min<int64_t>(std::min(threads, started_ + 1), shares)) - 1);
    invited_.notify_all();
    take_shares();
    invited_.store(0);  // a helper that is not active by now never enters this job
    // On a busy machine the last helper may have lost its core: sleeping lends it this one.
    spin_until([this] { return active_.load() == 0; });
    for (int left; (left = active_.load()) != 0;) active_.wait(left);
  }

 private:
  static constexpr double kSpinMicroseconds = 50;  // about what waking a sleeping thread costs

  void start(int helpers) {
    try {
      for (; started_ < helpers; ++started_) std::thread([this] { serve(); }).detach();
    } catch (const std::system_error&) {  // no more threads to be had: those there are do the work
    }
  }

  void take_shares() {
    for (int64_t share; (share = next_.fetch_add(1)) < shares_;) call_(work_, share);
  }

  void serve() {
    for (;;) {
      spin_until([this] { return invited_.load() != 0; });
      invited_.wait(0);
      // Active first, then the invitation: who holds an invitation has been seen by the caller that withdraws the rest.
      active_.fetch_add(1);
      int left = invited_.load();
      while (left > 0 && !invited_.compare_exchange_weak(left, left - 1)) {
      }
      if (left > 0) take_shares();
      if (active_.fetch_sub(1) == 1) active_.notify_all();
    }
  }

  template <typename Ready>
  static void spin_until(const Ready& ready) {
    const double until = now_us() + kSpinMicroseconds;
    while (!ready() && now_us() < until) pause_briefly();
  }

  const pid_t owner_ = getpid();
  std::mutex callers_;
  int started_ = 0;
  void (*call_)(const void*, int64_t) = nullptr;
  const void* work_ = nullptr;
  int64_t shares_ = 0;
  alignas(kLine) std::atomic<int64_t> next_{0};
  alignas(kLine) std::atomic<int> invited_{0};
  std::atomic<int> active_{0};
};

}  // namespace fugu
