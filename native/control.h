// Hand-over between a parent and its worker processes through shared memory: adaptive spin, then futex.
//
// Reference with the same meaning: src/fugu/vector/control.py. Memory: one 128-byte line for the bell, then two per worker
// (one that only the parent writes, one that only the worker writes), so that nobody's store evicts a line another polls.
// Sequence numbers, not states: the worker is done when done_seq equals command_seq. A waiter publishes "parked" before it
// sleeps and re-checks; the other side makes the wake system call only if that flag is set, so a busy exchange costs none.
#pragma once

#include <linux/futex.h>
#include <sched.h>
#include <sys/syscall.h>
#include <time.h>
#include <unistd.h>

#include <algorithm>
#include <atomic>
#include <climits>
#include <cstdint>

namespace fugu {

constexpr size_t kLine = 128;

struct alignas(kLine) Bell {
  std::atomic<uint32_t> rings;
  std::atomic<uint32_t> parked;
};
struct alignas(kLine) CommandLine {  // written by the parent, except `parked`
  std::atomic<uint32_t> seq;
  std::atomic<uint32_t> command;
  std::atomic<uint32_t> slot;
  std::atomic<uint32_t> parked;
};
struct alignas(kLine) DoneLine {  // written by the worker; by the parent only to settle what it owed
  std::atomic<uint32_t> seq;
  std::atomic<uint32_t> status;
  std::atomic<uint32_t> progress;
};
static_assert(sizeof(Bell) == kLine && sizeof(CommandLine) == kLine && sizeof(DoneLine) == kLine);
static_assert(std::atomic<uint32_t>::is_always_lock_free);

inline double now_us() {
  timespec t;
  clock_gettime(CLOCK_MONOTONIC, &t);
  return static_cast<double>(t.tv_sec) * 1e6 + static_cast<double>(t.tv_nsec) * 1e-3;
}

inline void futex_wait(std::atomic<uint32_t>& word, uint32_t seen, double timeout_us) {
  timespec t;
  t.tv_sec = static_cast<time_t>(timeout_us / 1e6);
  t.tv_nsec = static_cast<long>((timeout_us - static_cast<double>(t.tv_sec) * 1e6) * 1e3);
  syscall(SYS_futex, reinterpret_cast<uint32_t*>(&word), FUTEX_WAIT, seen, &t, nullptr, 0);
}

inline void futex_wake(std::atomic<uint32_t>& word) {
  syscall(SYS_futex, reinterpret_cast<uint32_t*>(&word), FUTEX_WAKE, INT_MAX, nullptr, nullptr, 0);
}

inline void pause_briefly() {
#if defined(__x86_64__) || defined(__i386__)
  __builtin_ia32_pause();
#elif defined(__aarch64__)
  asm volatile("yield");
#endif
}

// How long to spin before sleeping: as long as spinning has lately paid, nothing where it has not.
// A sleep costs 2 to 50 us to end (a halted virtual core is slow to wake), a spin costs the core. Where there are more
// processes than cores the maximum is 0: whoever is waited for may need this core (yielding in a loop instead was slower).
class Patience {
 public:
  explicit Patience(double max_spin_us) : max_(max_spin_us) {}
  double spin_us() const { return mean_ < 2 * max_ ? max_ : std::min(5.0, max_); }
  void learn(double waited_us) { mean_ += (std::min(waited_us, 4 * max_) - mean_) / 8; }

 private:
  double max_, mean_ = 0;
};

// Waits until ready() or the deadline: spins, yields a few times, then sleeps on `word` with `parked` published.
template <typename Ready>
bool wait_until(Ready ready, std::atomic<uint32_t>& word, std::atomic<uint32_t>& parked, Patience& patience, double timeout_us) {
  if (ready()) return true;
  const double start = now_us(), spin_end = start + patience.spin_us(), deadline = start + timeout_us;
  double t = start;
  while (t < spin_end && t < deadline) {
    for (int i = 0; i < 16; ++i) {
      if (ready()) {
        patience.learn(now_us() - start);
        return true;
      }
      pause_briefly();
    }
    t = now_us();
  }
  for (int i = 0; i < 2; ++i) {
    sched_yield();
    if (ready()) {
      patience.learn(now_us() - start);
      return true;
    }
  }
  const uint32_t seen = word.load(std::memory_order_seq_cst);
  parked.store(1, std::memory_order_seq_cst);
  bool done = ready();
  t = now_us();
  if (!done && t < deadline) {  // one sleep at most: a signal may have ended it, and only the caller can run Python's handlers
    futex_wait(word, seen, deadline - t);
    done = ready();
  }
  parked.store(0, std::memory_order_seq_cst);
  if (done) patience.learn(now_us() - start);
  return done;
}

class Control {
 public:
  static constexpr size_t bytes(size_t workers) { return kLine * (1 + 2 * workers); }

  Control(char* memory, size_t workers, double max_spin_us) : workers_(workers), patience_(max_spin_us) {
    bell_ = reinterpret_cast<Bell*>(memory);
    commands_ = reinterpret_cast<CommandLine*>(memory + kLine);
    dones_ = reinterpret_cast<DoneLine*>(memory + kLine * (1 + workers));
  }

  size_t workers() const { return workers_; }

  // --- parent ---
  void post(size_t worker, uint32_t command, uint32_t slot) {
    CommandLine& line = commands_[worker];
    line.command.store(command, std::memory_order_relaxed);
    line.slot.store(slot, std::memory_order_relaxed);
    line.seq.store(line.seq.load(std::memory_order_relaxed) + 1, std::memory_order_seq_cst);
    if (line.parked.load(std::memory_order_seq_cst)) futex_wake(line.seq);
  }
  bool done(size_t worker) const {
    return dones_[worker].seq.load(std::memory_order_acquire) == commands_[worker].seq.load(std::memory_order_relaxed);
  }
  bool done(size_t low, size_t high) const {
    for (size_t w = low; w < high; ++w)
      if (!done(w)) return false;
    return true;
  }
  // Sleeps at most once: false means "look again" (timeout or signal), not "timed out".
  template <typename Ready>
  bool wait(Ready ready, double timeout_us) {
    return wait_until(ready, bell_->rings, bell_->parked, patience_, timeout_us);
  }
  uint32_t status(size_t worker) const { return dones_[worker].status.load(std::memory_order_relaxed); }
  uint32_t seq(size_t worker) const { return commands_[worker].seq.load(std::memory_order_relaxed); }
  uint32_t progress(size_t worker) const { return dones_[worker].progress.load(std::memory_order_relaxed); }
  // After a worker died or was replaced: whatever it owed counts as delivered.
  void settle(size_t worker) {
    dones_[worker].status.store(0, std::memory_order_relaxed);
    dones_[worker].seq.store(commands_[worker].seq.load(std::memory_order_relaxed), std::memory_order_seq_cst);
  }

  // --- worker ---
  // True: a command that `done_seq` has not answered yet is there.
  bool wait_command(size_t worker, double timeout_us) {
    CommandLine& line = commands_[worker];
    const uint32_t seen = dones_[worker].seq.load(std::memory_order_relaxed);
    return wait_until([&] { return (taken_ = line.seq.load(std::memory_order_acquire)) != seen; }, line.seq, line.parked,
                      patience_, timeout_us);
  }
  uint32_t command(size_t worker) const { return commands_[worker].command.load(std::memory_order_relaxed); }
  uint32_t slot(size_t worker) const { return commands_[worker].slot.load(std::memory_order_relaxed); }
  uint32_t taken() const { return taken_; }
  void set_progress(size_t worker, uint32_t value) { dones_[worker].progress.store(value, std::memory_order_relaxed); }
  void finish(size_t worker, uint32_t status) {
    dones_[worker].status.store(status, std::memory_order_relaxed);
    dones_[worker].seq.store(taken_, std::memory_order_seq_cst);
    bell_->rings.fetch_add(1, std::memory_order_seq_cst);
    if (bell_->parked.load(std::memory_order_seq_cst)) futex_wake(bell_->rings);
  }

 private:
  size_t workers_;
  Patience patience_;
  Bell* bell_;
  CommandLine* commands_;
  DoneLine* dones_;
  uint32_t taken_ = 0;  // the command being carried out; a later one (close) may be posted meanwhile
};

}  // namespace fugu
