// A contiguous range of worlds that is reset or stepped as one job of the threads.
#pragma once

#include <algorithm>
#include <atomic>
#include <vector>

#include "engine.h"
#include "pool.h"

namespace fugu {

class Group final : public Job {
 public:
  Group(const EngineApi& api, void* engine, size_t low, size_t high, size_t threads)
      : api_(api), engine_(engine), low_(low), high_(high), row_(static_cast<size_t>(api.agents) * api.action_bytes) {
    const size_t pieces = threads > 1 ? std::min<size_t>(kPerThread * threads, kMostChunks) : 1;
    size_ = ((high - low + pieces - 1) / pieces + kBlock - 1) / kBlock * kBlock;
    divide((high - low + size_ - 1) / size_, threads);
    logs_.resize((high - low + kBlock - 1) / kBlock);
  }

  int command = EngineApi::kStep, slot = 0;
  // Preparing worlds is to take their actions: a thread that copies and checks those of its own worlds has them at hand when it
  // steps them.
  const char* given = nullptr;

  alignas(kLine) bool running = false;  // on a line that only callers write and read
  bool held = false;                    // it runs, and whoever started it waits for it

  alignas(kLine) Columns slots[2];  // where its worlds write to

  void run(Phase phase, size_t first, size_t end, bool downwards) override {
    if (phase == kPrepare) return take(first, end);
    const Columns out = after(slots[slot], first * size_);
    const size_t low = low_ + first * size_, high = std::min(low_ + end * size_, high_);
    api_.run(engine_, command, low, high, downwards, &out, &logs_[first * size_ / kBlock]);
  }

  bool goes_on() const override { return bad_.load(std::memory_order_acquire) == kNobody; }

  // The first agent of those taken last whose action is outside its space, or -1.
  int64_t bad_action() {
    return bad_.load(std::memory_order_relaxed) == kNobody ? -1 : bad_.exchange(kNobody, std::memory_order_acq_rel);
  }

  // Adds what the episodes that ended since the last call come to, in an order that does not depend on threads.
  void drain(LogSum& sum) {
    for (LogSum& block : logs_) {
      sum.episodes += block.episodes;
      sum.returns += block.returns;
      sum.lengths += block.lengths;
      for (int i = 0; i < kMaxLogs; ++i) sum.values[i] += block.values[i];
      block = {};
    }
  }
  size_t low() const { return low_; }
  size_t high() const { return high_; }

 private:
  static constexpr size_t kPerThread = 32;  // chunks, at most
  static constexpr int64_t kNobody = INT64_MAX;

  // The same columns without the rows of the first `worlds`.
  Columns after(const Columns& all, size_t worlds) const {
    const size_t i = worlds * static_cast<size_t>(api_.agents);
    return {static_cast<char*>(all.obs) + i * api_.obs_bytes,
            all.reward + i,
            all.terminated + i,
            all.truncated + i,
            all.first + i,
            all.mask + i,
            all.action_mask == nullptr ? nullptr : all.action_mask + i * static_cast<size_t>(api_.choices),
            all.cost == nullptr ? nullptr : all.cost + i * static_cast<size_t>(api_.costs)};
  }
  void take(size_t first, size_t end) {
    const size_t low = low_ + first * size_, high = std::min(low_ + end * size_, high_);
    const int64_t bad = api_.take(engine_, given + (low - low_) * row_, low, high);
    if (bad < 0) return;
    int64_t before = bad_.load(std::memory_order_relaxed);
    while (bad < before && !bad_.compare_exchange_weak(before, bad, std::memory_order_relaxed)) {
    }
  }

  const EngineApi& api_;
  void* engine_;
  size_t low_, high_, row_, size_;
  std::vector<LogSum> logs_;
  std::atomic<int64_t> bad_{kNobody};
};

}  // namespace fugu
