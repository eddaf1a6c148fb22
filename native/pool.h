// Persistent threads that share out the chunks of a job. Each has chunks of its own, the same every time, so that what they work
// on stays in its core's cache; whoever is done with those takes what is left of the others'. The caller of finish() is one of
// them, so a job needs no thread but the caller's. Nothing is allocated when a job starts. Idle threads spin briefly, then sleep.
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

  // How many chunks there are; once, before the first start.
  void divide(size_t chunks) {
    chunks_ = chunks;
    claims_ = std::make_unique<Claim[]>(chunks);
  }

  // Everything that run() reads must be in place.
  void begin() {
    done_.store(0, std::memory_order_relaxed);
    round_.store(round_.load(std::memory_order_relaxed) + 1, std::memory_order_release);
  }

  // Works as thread `index` of `threads` until no chunk is left to be taken: its own from the first on, then those of the others
  // from the last on, where they will come to last. A thread that comes late, when another round has begun, finds nothing to take.
  void work(size_t index, size_t threads) {
    const uint32_t round = round_.load(std::memory_order_acquire);
    const size_t first = index * chunks_ / threads, end = (index + 1) * chunks_ / threads;
    uint32_t taken = 0;
    for (size_t chunk = first; chunk < end; ++chunk) taken += take(chunk, round);
    report(taken);
    for (size_t chunk = first; chunk-- > 0;) report(take(chunk, round));
    for (size_t chunk = chunks_; chunk-- > end;) report(take(chunk, round));
  }

  bool done() const { return done_.load(std::memory_order_acquire) == chunks_; }
  bool wait(Patience& patience, double timeout_us) {
    return wait_until([this] { return done(); }, done_, parked_, patience, timeout_us);
  }

 private:
  struct alignas(kLine) Claim {
    std::atomic<uint32_t> round{0};  // the last in which the chunk was taken
  };

  bool take(size_t chunk, uint32_t round) {
    uint32_t before = round - 1;
    std::atomic<uint32_t>& claim = claims_[chunk].round;
    if (claim.load(std::memory_order_relaxed) != before) return false;
    if (!claim.compare_exchange_strong(before, round, std::memory_order_acq_rel)) return false;
    run(chunk);
    return true;
  }

  // A round ends when all that were taken are reported, so whoever has taken some is in this round until then.
  void report(uint32_t taken) {
    if (taken == 0) return;
    const uint32_t done = done_.fetch_add(taken, std::memory_order_seq_cst) + taken;
    if (done == chunks_ && parked_.load(std::memory_order_seq_cst)) futex_wake(done_);
  }

  size_t chunks_ = 0;
  std::unique_ptr<Claim[]> claims_;
  alignas(kLine) std::atomic<uint32_t> round_{0};
  alignas(kLine) std::atomic<uint32_t> done_{0};  // chunks finished in this round
  std::atomic<uint32_t> parked_{0};
};

class Pool {
 public:
  explicit Pool(size_t helpers) {
    for (size_t i = 0; i < helpers; ++i) helpers_.push_back(std::make_unique<Helper>());
    for (size_t i = 0; i < helpers; ++i) helpers_[i]->thread = std::thread([this, i] { serve(*helpers_[i], i + 1); });
  }
  ~Pool() {
    stop_.store(true, std::memory_order_seq_cst);
    announce();
    for (auto& helper : helpers_) helper->thread.join();
  }

  // Everything the job reads must be in place. The same job may be started again after finish().
  void start(Job& job) {
    job.begin();
    if (helpers_.empty()) return;
    ring_[posted_.load(std::memory_order_relaxed) % kRing].store(&job, std::memory_order_release);
    announce();
  }

  // Helps, then waits until every chunk is done.
  void finish(Job& job) {
    job.work(0, helpers_.size() + 1);
    while (!job.wait(patience_, 1e5)) {
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

  void serve(Helper& helper, size_t index) {
    while (!stop_.load(std::memory_order_acquire)) {
      const auto news = [&] { return posted_.load(std::memory_order_acquire) != helper.seen; };
      if (!wait_until(news, posted_, helper.parked, helper.patience, 1e6)) continue;
      Job* job = ring_[helper.seen++ % kRing].load(std::memory_order_acquire);
      if (job != nullptr) job->work(index, helpers_.size() + 1);
    }
  }

  std::vector<std::unique_ptr<Helper>> helpers_;
  std::array<std::atomic<Job*>, kRing> ring_{};
  alignas(kLine) std::atomic<uint32_t> posted_{0};
  std::atomic<bool> stop_{false};
  Patience patience_{200.0};
};

}  // namespace fugu
