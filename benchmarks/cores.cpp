// How long a cache line takes from one thread to another and back: it tells whether the two cores are one.
#include <algorithm>
#include <atomic>
#include <chrono>
#include <thread>

extern "C" double round_trip_ns() {
  constexpr int kTrips = 200, kTries = 5;
  struct alignas(128) Line {
    std::atomic<int> number{0};
  } there, back;
  std::atomic<bool> over{false};
  std::thread other([&] {
    for (int seen = 0; !over.load(std::memory_order_relaxed);) {
      const int number = there.number.load(std::memory_order_acquire);
      if (number == seen) continue;
      seen = number;
      back.number.store(number, std::memory_order_release);
    }
  });
  double ns[kTries];
  int number = 0;
  for (double& each : ns) {
    const auto start = std::chrono::steady_clock::now();
    for (int i = 0; i < kTrips; ++i) {
      there.number.store(++number, std::memory_order_release);
      while (back.number.load(std::memory_order_acquire) != number) {
      }
    }
    each = std::chrono::duration<double, std::nano>(std::chrono::steady_clock::now() - start).count() / kTrips;
  }
  over.store(true, std::memory_order_relaxed);
  other.join();
  std::nth_element(ns, ns + kTries / 2, ns + kTries);
  return ns[kTries / 2];
}
