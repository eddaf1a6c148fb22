// Persistent threads that share out the chunks of a job. Each has a share of its own, nearly the same every time, so that what they
// work on stays in its core's cache; whoever is done with that takes half of what another has not taken yet. Cores differ in speed
// (they are of two kinds, or one is also used by others), so the borders follow it, a chunk at a time. The caller of finish() is
// one of the threads, so a job needs no thread but the caller's. Nothing is allocated when a job starts. Idle threads spin briefly,
// then sleep.
//
// How long a job of a few microseconds takes is decided by the cache lines that go from core to core. So few do: what there is to
// do (Pool::Post), how (Job, and what a derived class begins with), and how much is done. Nobody deals out shares, each says of
// which round it is; nobody looks at what another works with unless that one is late; all threads see by themselves when a job's
// first phase is over. And neighbours work away from the border between them: a core that works towards it fetches ahead what the
// other has written, and takes it away from it.
#pragma once

#include <algorithm>
#include <array>
#include <memory>
#include <thread>
#include <vector>

#include "control.h"

#ifndef FUGU_MAY_STALL
#define FUGU_MAY_STALL()  // where it would be worst if a thread lost its core: tests let that happen
#endif

namespace fugu {

constexpr uint32_t kMostChunks = UINT16_MAX;

class Job {
 public:
  virtual ~Job() = default;

  // How many chunks there are, and threads; once, before the first start.
  void divide(size_t chunks, size_t threads) {
    chunks_ = static_cast<uint32_t>(chunks);
    threads_ = threads;
    shares_ = std::make_unique<Share[]>(threads);
    for (size_t t = 0; t < threads; ++t) {
      shares_[t].begin.store(static_cast<uint32_t>(t * chunks / threads), std::memory_order_relaxed);
      shares_[t].end.store(static_cast<uint32_t>((t + 1) * chunks / threads), std::memory_order_relaxed);
    }
  }

  // What a job may consist of: something short that prepares all chunks, and the work on them.
  enum Phase : uint32_t { kPrepare = 0, kWork = 1 };

 protected:
  // The chunks [first, end) in a phase of the job; downwards: from the last on.
  virtual void run(Phase phase, size_t first, size_t end, bool downwards) = 0;
  // Whether the work takes place, once all chunks are prepared; the same for all threads until the job is finished.
  virtual bool goes_on() const = 0;

 private:
  friend class Pool;
  struct Share {
    alignas(kLine) std::atomic<uint64_t> left{0};  // chunks that nobody has taken yet: see Left
    std::atomic<uint32_t> begin{0}, end{0};        // of what is left at the start of a round; changed between jobs
    alignas(kLine) std::atomic<uint32_t> done{0};  // chunks that this thread has run, of any share, in all rounds together
    std::atomic<float> each_us{0};                 // how long it has lately worked on one of its own; 0: not known
  };
  struct Piece {
    uint32_t first, end;
    bool empty() const { return first == end; }
    uint32_t size() const { return end - first; }
  };
  // What is left of a share in a round, in one word: whoever finds an older round there knows that all of it is left.
  struct Left {
    uint32_t round, first, end;
    static Left of(uint64_t word) {
      return {static_cast<uint32_t>(word >> 32), static_cast<uint32_t>(word & kMostChunks),
              static_cast<uint32_t>(word >> 16 & kMostChunks)};
    }
    uint64_t word() const { return uint64_t{round} << 32 | uint64_t{end} << 16 | first; }
  };
  bool downwards(size_t share) const { return threads_ > 1 && share % 2 == 0; }
  static bool before(uint32_t number, uint32_t other) { return static_cast<int32_t>(number - other) < 0; }  // of those that wrap

  // Moves borders between shares towards where all would end together, before a job starts. Each share keeps a chunk: who comes
  // late, when a round is over, must not meet a share that nobody has taken from in it. It may meet borders of later rounds, even
  // one old and one new, but then somebody has taken from the share since, and it takes nothing.
  void balance() {
    if (chunks_ < 4 * threads_ || !timed(next_)) return;  // a chunk is much of a share; or not yet
    float all = 0, sum = 0;                               // chunks a microsecond
    for (size_t t = 0; t < threads_; ++t) {
      if (shares_[t].each_us.load(std::memory_order_relaxed) <= 0) return;
      all += speed(t);
    }
    for (size_t t = 1; t < threads_; ++t) {
      sum += speed(t - 1);
      Share &one = shares_[t - 1], &other = shares_[t];
      const uint32_t border = other.begin.load(std::memory_order_relaxed);
      const float off = static_cast<float>(border) - static_cast<float>(chunks_) * sum / all;
      uint32_t moved = border;
      if (off > 1 && border - one.begin.load(std::memory_order_relaxed) > 1) --moved;
      if (off < -1 && other.end.load(std::memory_order_relaxed) - border > 1) ++moved;
      if (moved == border) continue;
      one.end.store(moved, std::memory_order_relaxed);
      other.begin.store(moved, std::memory_order_relaxed);
    }
  }
  // Threads are timed in two rounds of eight, and borders move before them: both cost time. Not in the first, which is a reset.
  static bool timed(uint32_t round) { return round % 8 / 2 == 2; }
  float speed(size_t share) const { return 1 / shares_[share].each_us.load(std::memory_order_relaxed); }

  // Only the thread that starts the job; everything that run() reads must be in place. Each phase is a round.
  void begin(Phase first, Phase last) {
    due_.store(due_.load(std::memory_order_relaxed) + rounds_ * chunks_, std::memory_order_relaxed);
    rounds_ = last - first + 1;
    phases_.store(first << 1 | last, std::memory_order_release);  // who sees them sees what is due before them
    round_.store(next_, std::memory_order_release);
    next_ += rounds_;
  }

  // Works as thread `index` on all phases. `wait(due)` is called where the other threads have to come to the end of a phase and
  // says whether they have, and `enough()` whether there is something better to do. A thread that comes late, when a round is
  // over, finds nothing left of it.
  template <typename Enough, typename Wait>
  void work(size_t index, const Enough& enough, const Wait& wait) {
    uint32_t round = round_.load(std::memory_order_acquire);
    FUGU_MAY_STALL();
    const uint32_t phases = phases_.load(std::memory_order_acquire);
    uint32_t due = due_.load(std::memory_order_relaxed) + chunks_;
    for (uint32_t phase = phases >> 1;; ++phase, ++round, due += chunks_) {
      const bool last = phase == (phases & 1);
      // In the last phase helpers need not know when it is over, and looking would cost the caller.
      work_on(static_cast<Phase>(phase), round, index, [&] { return enough() || ((index == 0 || !last) && reached(due)); });
      if ((last && index != 0) || !wait(due) || last) return;
      if (!goes_on()) {
        if (index == 0) skip(round + 1);
        return;
      }
    }
  }

  // Until no chunk is left to be taken: of its own share, then of the others' from where they will come to last. Leaves the others
  // what they will be done with soon.
  template <typename Enough>
  void work_on(Phase phase, uint32_t round, size_t index, const Enough& enough) {
    const bool learns = phase == kWork && threads_ > 1 && timed(round);
    const double start = learns ? now_us() : 0;
    const float each_us = shares_[index].each_us.load(std::memory_order_relaxed);
    const auto most = [each_us](uint32_t left) {
      return each_us > 0 && each_us * static_cast<float>(left) < kShortUs ? left : left - left / 4;
    };
    uint32_t ran = 0;
    for (Piece piece; !(piece = take(index, round, true, most)).empty(); ran += piece.size())
      run(phase, piece.first, piece.end, downwards(index));
    if (learns && ran > 0) learn(shares_[index].each_us, static_cast<float>(now_us() - start) / static_cast<float>(ran));
    report(index, ran);
    if (watch(index == 0 ? 1.5 : 0.7, enough)) return;  // the caller's news took its time to get there
    bool patient = true;
    for (size_t next = index + 1; next < index + threads_; ++next) {
      const size_t other = next % threads_;
      if (patient && (other == 0 || begun(other, round))) {  // the caller comes by itself
        if (watch(2.0, enough)) return;
        patient = false;
      }
      for (Piece piece; !(piece = take(other, round, false, half)).empty(); report(index, piece.size()))
        run(phase, piece.first, piece.end, downwards(other));
    }
  }

  // A mean of late; who lost its core for a while has learned little.
  static void learn(std::atomic<float>& mean_us, float us) {
    const float mean = mean_us.load(std::memory_order_relaxed);
    const float change = mean > 0 ? std::clamp(us / mean, 0.9f, 1.1f) - 1 : 0;
    mean_us.store(mean > 0 ? mean * (1 + change / 4) : us, std::memory_order_relaxed);
  }

  bool begun(size_t share, uint32_t round) const {
    return !before(Left::of(shares_[share].left.load(std::memory_order_relaxed)).round, round);
  }

  // What a thread takes at a time: its own share as a whole if the work on it is known to be short, because every time costs it a
  // wait for all that it has written; otherwise most of what is left, so that something stays for others if it is held up. Of
  // another's half, so that all end together.
  static constexpr float kShortUs = 20;
  static uint32_t half(uint32_t left) { return left - left / 2; }

  // Takes `part(left)` of the chunks that are left of a share. Its own thread takes them from where it begins, others from where it
  // ends.
  template <typename Part>
  Piece take(size_t share, uint32_t round, bool own, const Part& part) {
    std::atomic<uint64_t>& left = shares_[share].left;
    uint64_t seen = left.load(std::memory_order_acquire);
    for (;;) {
      FUGU_MAY_STALL();
      Left now = Left::of(seen);
      if (before(round, now.round)) return {0, 0};
      if (before(now.round, round))
        now = {round, shares_[share].begin.load(std::memory_order_relaxed), shares_[share].end.load(std::memory_order_relaxed)};
      if (now.first == now.end) return {0, 0};
      const uint32_t count = part(now.end - now.first);
      Piece taken;
      if (downwards(share) == own) {
        taken = {now.end - count, now.end};
        now.end -= count;
      } else {
        taken = {now.first, now.first + count};
        now.first += count;
      }
      if (left.compare_exchange_weak(seen, now.word(), std::memory_order_acq_rel, std::memory_order_acquire)) return taken;
    }
  }

  // Nothing is left of a round that does not take place: a helper may look only after the reason has been forgotten.
  void skip(uint32_t round) {
    for (size_t t = 0; t < threads_; ++t) shares_[t].left.store(Left{round, 0, 0}.word(), std::memory_order_seq_cst);
    rounds_ = 1;
  }

  // No longer than it takes to fetch a few chunks' memory from the cache of another core, which would cost both of them.
  template <typename Enough>
  bool watch(double us, const Enough& enough) const {
    for (size_t i = 0; i < 64; i += threads_)  // two threads mostly miss each other by a tenth of a microsecond, as long as a pause
      if (enough()) return true;
    for (const double start = now_us();;) {
      for (int i = 0; i < 4; ++i) {
        if (enough()) return true;
        pause_briefly();
      }
      if (now_us() - start >= us) return false;
    }
  }

  // A round ends when all of its chunks are reported, so whoever has taken some is in this round until then.
  void report(size_t index, uint32_t ran) {
    if (ran == 0) return;
    shares_[index].done.fetch_add(ran, std::memory_order_seq_cst);
    if (parked_.load(std::memory_order_seq_cst)) {
      bell_.fetch_add(1, std::memory_order_seq_cst);
      futex_wake(bell_);
    }
  }
  bool reached(uint32_t due) const {
    uint32_t done = 0;
    for (size_t t = 0; t < threads_; ++t) done += shares_[t].done.load(std::memory_order_seq_cst);
    return !before(done, due);
  }
  bool sleep_until(uint32_t due, Patience& patience, double timeout_us) {
    return wait_until([this, due] { return reached(due); }, bell_, parked_, patience, timeout_us);
  }

  uint32_t chunks_ = 0;
  uint32_t next_ = 1, rounds_ = 0;  // for the thread that starts a job: the next round, and how many the last job had
  size_t threads_ = 0;
  std::unique_ptr<Share[]> shares_;
  // On one line, which helpers need once a job: what the caller writes, and what it tells run() if that is what a derived class
  // begins with.
  alignas(kLine) std::atomic<uint32_t> round_{0};  // of the first phase
  std::atomic<uint32_t> phases_{0};  // the first in bit 1, the last in bit 0
  std::atomic<uint32_t> due_{0};  // chunks of all rounds before it
  std::atomic<uint32_t> bell_{0};  // rung if the caller sleeps when something is done
  std::atomic<uint32_t> parked_{0};
};

class Pool {
 public:
  explicit Pool(size_t helpers) {
    for (size_t i = 0; i < helpers; ++i) helpers_.push_back(std::make_unique<Helper>());
    for (size_t i = 0; i < helpers; ++i) helpers_[i]->thread = std::thread([this, i] { serve(*helpers_[i], i + 1); });
  }
  ~Pool() {
    if (getpid() != owner_) {  // a fork: the threads are its parent's, and here there is nobody to wait for
      for (auto& helper : helpers_) static_cast<void>(helper.release());
      return;
    }
    post_.stop.store(true, std::memory_order_relaxed);
    announce(nullptr);
    wake();
    for (auto& helper : helpers_) helper->thread.join();
  }

  // Everything the job reads must be in place, and all its chunks prepared. The same job may be started again after finish().
  void start(Job& job) {
    job.balance();
    job.begin(Job::kWork, Job::kWork);
    if (helpers_.empty()) return;
    announce(&job);
    wake();
  }

  // Helps, then waits until every chunk is done.
  void finish(Job& job) {
    job.work(
        0, [] { return false; },
        [&](uint32_t due) {
          while (!job.sleep_until(due, patience_, 1e5)) {
          }
          return true;
        });
  }

  // The phases from `first` to `last`, after `place()`, which puts in place what the job reads. While the news goes to the other
  // cores this one does `meanwhile()` and works on a first chunk, taken before: an atomic operation waits for all that was written.
  template <typename Place, typename Meanwhile>
  void run(Job& job, Job::Phase first, Job::Phase last, const Place& place, const Meanwhile& meanwhile) {
    if (helpers_.empty()) {
      place();
      job.begin(first, last);
      meanwhile();
      return finish(job);
    }
    job.balance();
    const Job::Piece piece = job.take(0, job.next_, true, [](uint32_t) { return 1u; });
    place();
    job.begin(first, last);
    announce(&job);
    meanwhile();
    if (!piece.empty()) job.run(first, piece.first, piece.end, job.downwards(0));
    wake();
    job.report(0, piece.size());
    finish(job);
  }

 private:
  // On one line, and all of it written by whoever starts a job. A helper that falls a whole ring behind meets newer jobs instead of
  // older ones and helps with those: no harm.
  struct alignas(kLine) Post {
    static constexpr size_t kRing = 7;
    std::atomic<uint32_t> count{0};
    std::atomic<bool> stop{false};
    std::array<std::atomic<Job*>, kRing> ring{};
  };
  static_assert(sizeof(std::atomic<uint32_t>) + sizeof(std::atomic<bool>) + sizeof(Post::ring) <= 64);

  struct Helper {
    std::thread thread;
    alignas(kLine) std::atomic<uint32_t> parked{0};
    alignas(kLine) uint32_t seen = 0;  // its own business from here on
    Patience patience{100.0};
  };

  void announce(Job* job) {
    const uint32_t count = post_.count.load(std::memory_order_relaxed);
    post_.ring[count % Post::kRing].store(job, std::memory_order_relaxed);
    post_.count.store(count + 1, std::memory_order_release);
  }

  void wake() {
    std::atomic_thread_fence(std::memory_order_seq_cst);
    for (auto& helper : helpers_)
      if (helper->parked.load(std::memory_order_seq_cst)) {
        futex_wake(post_.count);
        return;
      }
  }

  void serve(Helper& helper, size_t index) {
    while (!post_.stop.load(std::memory_order_acquire)) {
      const auto news = [&] { return post_.count.load(std::memory_order_acquire) != helper.seen; };
      if (!wait_until(news, post_.count, helper.parked, helper.patience, 1e6)) continue;
      Job* job = post_.ring[helper.seen++ % Post::kRing].load(std::memory_order_acquire);
      // whoever it waits for may need this core
      if (job != nullptr) job->work(index, news, [&](uint32_t due) { return job->watch(50.0, [&] { return job->reached(due); }); });
    }
  }

  Post post_;
  alignas(kLine) Patience patience_{200.0};
  std::vector<std::unique_ptr<Helper>> helpers_;
  const pid_t owner_ = getpid();
};

}  // namespace fugu
