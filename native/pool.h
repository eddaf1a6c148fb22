// Persistent threads that share out the chunks of a job. Each has a share of its own, the same every time, so that what they work
// on stays in its core's cache; whoever is done with that takes half of what another has left. The caller of finish() is one of
// them, so a job needs no thread but the caller's. Nothing is allocated when a job starts. Idle threads spin briefly, then sleep.
//
// How long a job of a few microseconds takes is decided by the cache lines that go from core to core. So each thread takes its
// chunks from a line of its own and counts those done on another, and neighbours work away from the border between them: a core
// that works towards it fetches ahead what the other has written, and takes it away from it.
#pragma once

#include <array>
#include <memory>
#include <thread>
#include <vector>

#include "control.h"

namespace fugu {

struct Job {
  virtual ~Job() = default;
  virtual void run(size_t first, size_t end, bool downwards) = 0;  // the chunks [first, end); downwards: from the last on

  // How many chunks there are, and threads; once, before the first start.
  void divide(size_t chunks, size_t threads) {
    chunks_ = static_cast<uint32_t>(chunks);
    threads_ = threads;
    shares_ = std::make_unique<Share[]>(threads);
  }

  // Everything that run() reads must be in place.
  void begin() {
    due_.store(due_.load(std::memory_order_relaxed) + chunks_, std::memory_order_relaxed);
    for (size_t t = 0; t < threads_; ++t)
      shares_[t].left.store(pack(t * chunks_ / threads_, (t + 1) * chunks_ / threads_), std::memory_order_release);
  }

  // Works as thread `index` until no chunk is left to be taken: of its own share, then of the others' from where they will come to
  // last. Leaves the others what they will be done with soon, or if `elsewhere()` says that there is more to do. A thread that comes
  // late, when another round has begun, helps with that: all it knows of a round is what it takes.
  template <typename Elsewhere>
  void work(size_t index, const Elsewhere& elsewhere) {
    __builtin_prefetch(&shares_[index].left, 1);
    const uint32_t due = due_.load(std::memory_order_relaxed);
    uint32_t ran = 0;
    for (Piece piece; !(piece = take(index, true)).empty(); ran += piece.size())
      run(piece.first, piece.end, downwards(index));
    report(index, ran);
    bool patient = true;
    for (size_t next = index + 1; next < index + threads_; ++next) {
      const size_t other = next % threads_;
      if (patient && begun(other)) {
        if (soon_over(due, elsewhere)) return;
        patient = false;
      }
      for (Piece piece; !(piece = take(other, false)).empty(); report(index, piece.size()))
        run(piece.first, piece.end, downwards(other));
    }
  }

  bool done() const {
    uint32_t done = 0;
    for (size_t t = 0; t < threads_; ++t) done += shares_[t].done.load(std::memory_order_seq_cst);
    return done == due_.load(std::memory_order_relaxed);
  }
  bool wait(Patience& patience, double timeout_us) {
    return wait_until([this] { return done(); }, bell_, parked_, patience, timeout_us);
  }

 private:
  struct Share {
    alignas(kLine) std::atomic<uint64_t> left{0};  // chunks that nobody has taken yet, see pack(); kBegun if its thread has some
    alignas(kLine) std::atomic<uint32_t> done{0};  // chunks that this thread has run, of any share, in all rounds together
  };
  struct Piece {
    uint32_t first, end;
    bool empty() const { return first == end; }
    uint32_t size() const { return end - first; }
  };
  static constexpr uint64_t kBegun = uint64_t{1} << 63;
  static uint64_t pack(uint64_t first, uint64_t end) { return end << 32 | first; }
  bool begun(size_t share) const { return shares_[share].left.load(std::memory_order_relaxed) & kBegun; }
  static bool downwards(size_t share) { return share % 2 == 0; }

  // Half of what is left of a share, so that the last pieces are small and all threads end together. Its own thread takes them
  // from where it begins, others from where it ends.
  Piece take(size_t share, bool own) {
    std::atomic<uint64_t>& left = shares_[share].left;
    uint64_t seen = left.load(std::memory_order_acquire);
    for (;;) {
      const uint32_t first = static_cast<uint32_t>(seen), end = static_cast<uint32_t>((seen & ~kBegun) >> 32);
      const uint32_t half = (end - first + 1) / 2;
      const bool upper = downwards(share) == own;
      const uint32_t cut = upper ? end - half : first + half;
      const uint64_t rest = (upper ? pack(first, cut) : pack(cut, end)) | (own ? kBegun : seen & kBegun);
      if (half == 0 || left.compare_exchange_weak(seen, rest, std::memory_order_acq_rel, std::memory_order_acquire))
        return upper ? Piece{cut, end} : Piece{first, cut};
    }
  }

  // Waits no longer than it takes to fetch a few chunks' memory from the cache of another core, which would cost both of them.
  template <typename Elsewhere>
  bool soon_over(uint32_t due, const Elsewhere& elsewhere) const {
    for (const double start = now_us(); now_us() - start < 2.0;)
      for (int i = 0; i < 4; ++i) {
        if (done() || due_.load(std::memory_order_relaxed) != due || elsewhere()) return true;
        pause_briefly();
      }
    return false;
  }

  // A round ends when all of its chunks are reported, so whoever has taken some is in this round until then.
  void report(size_t index, uint32_t ran) {
    if (ran == 0) return;
    shares_[index].done.fetch_add(ran, std::memory_order_seq_cst);
    if (parked_.load(std::memory_order_seq_cst) && done()) {
      bell_.fetch_add(1, std::memory_order_seq_cst);
      futex_wake(bell_);
    }
  }

  uint32_t chunks_ = 0;
  size_t threads_ = 0;
  std::unique_ptr<Share[]> shares_;
  // On one line, which helpers need once a round: what the caller writes, and what it tells run() if that is what a derived class
  // begins with.
  alignas(kLine) std::atomic<uint32_t> due_{0};  // chunks of all rounds begun so far
  std::atomic<uint32_t> bell_{0};                // rung if the caller sleeps when all is done
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
    job.work(0, [] { return false; });
    while (!job.wait(patience_, 1e5)) {
    }
  }

 private:
  // A helper that falls a whole ring behind meets newer jobs instead of older ones and helps with those: no harm.
  static constexpr size_t kRing = 31;

  struct Helper {
    std::thread thread;
    alignas(kLine) std::atomic<uint32_t> parked{0};
    alignas(kLine) uint32_t seen = 0;  // its own business from here on
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
      if (job != nullptr) job->work(index, news);
    }
  }

  alignas(kLine) std::atomic<uint32_t> posted_{0};
  std::atomic<bool> stop_{false};
  std::array<std::atomic<Job*>, kRing> ring_{};
  alignas(kLine) Patience patience_{200.0};
  std::vector<std::unique_ptr<Helper>> helpers_;
};

}  // namespace fugu
