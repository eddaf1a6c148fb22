// Persistent threads that share out the chunks of a job. Whoever comes first takes the next chunk, the caller of finish() too,
// so a job needs no thread but the caller's. Nothing is allocated when a job starts. Idle threads spin briefly, then sleep.
#pragma once

#include <array>
#include <memory>
#include <thread>
#include <vector>

#include "control.h"

namespace fugu {

struct Job {
  virtual ~Job() = default;
  virtual void run(size_t chunk) = 0;

  size_t chunks = 0;
  alignas(kLine) std::atomic<size_t> next{0};      // the chunk to be taken
  alignas(kLine) std::atomic<uint32_t> done{0};    // chunks finished
  std::atomic<uint32_t> parked{0};

  void work() {
    for (size_t chunk; (chunk = next.fetch_add(1, std::memory_order_acq_rel)) < chunks;) {
      run(chunk);
      if (done.fetch_add(1, std::memory_order_seq_cst) + 1 == chunks && parked.load(std::memory_order_seq_cst)) futex_wake(done);
    }
  }
};

class Pool {
 public:
  explicit Pool(size_t helpers) {
    for (size_t i = 0; i < helpers; ++i) helpers_.push_back(std::make_unique<Helper>());
    for (auto& helper : helpers_) helper->thread = std::thread([this, h = helper.get()] { serve(*h); });
  }
  ~Pool() {
    stop_.store(true, std::memory_order_seq_cst);
    announce();
    for (auto& helper : helpers_) helper->thread.join();
  }

  // Everything the job reads must be in place. The same job may be started again after finish().
  void start(Job& job) {
    job.done.store(0, std::memory_order_relaxed);
    job.next.store(0, std::memory_order_release);
    if (helpers_.empty()) return;
    ring_[posted_.load(std::memory_order_relaxed) % kRing].store(&job, std::memory_order_release);
    announce();
  }

  // Helps, then waits until every chunk is done.
  void finish(Job& job) {
    job.work();
    const auto all = static_cast<uint32_t>(job.chunks);
    while (!wait_until([&] { return job.done.load(std::memory_order_acquire) == all; }, job.done, job.parked, patience_, 1e5)) {
    }
  }

 private:
  // A helper that falls a whole ring behind meets newer jobs instead of older ones and helps with those: no harm.
  static constexpr size_t kRing = 64;

  struct alignas(kLine) Helper {
    std::thread thread;
    std::atomic<uint32_t> parked{0};
    uint32_t seen = 0;
    Patience patience{100.0};
  };

  void announce() {
    posted_.fetch_add(1, std::memory_order_seq_cst);
    for (auto& helper : helpers_)
      if (helper->parked.load(std::memory_order_seq_cst)) {
        futex_wake(posted_);
        return;
      }
  }

  void serve(Helper& helper) {
    while (!stop_.load(std::memory_order_acquire)) {
      const auto news = [&] { return posted_.load(std::memory_order_acquire) != helper.seen; };
      if (!wait_until(news, posted_, helper.parked, helper.patience, 1e6)) continue;
      Job* job = ring_[helper.seen++ % kRing].load(std::memory_order_acquire);
      if (job != nullptr) job->work();
    }
  }

  std::vector<std::unique_ptr<Helper>> helpers_;
  std::array<std::atomic<Job*>, kRing> ring_{};
  alignas(kLine) std::atomic<uint32_t> posted_{0};
  std::atomic<bool> stop_{false};
  Patience patience_{200.0};
};

}  // namespace fugu
