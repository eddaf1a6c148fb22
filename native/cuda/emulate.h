// A GPU played by the CPU, for tests: the threads of a block are contexts that one real thread switches between, blocks run one
// after the other. It keeps CUDA's rules for barriers and warps, and stops with a message where a kernel breaks them (a barrier
// that some threads never reach would hang a real card). What it cannot show: races between blocks, and speed.
#pragma once

#include <math.h>
#include <stdint.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <sys/mman.h>
#include <ucontext.h>

#include <tuple>
#include <utility>
#include <vector>

#define __global__
#define __device__
#define __host__
#define __forceinline__ inline
#define __shared__ static
#define __launch_bounds__(...)
#define __grid_constant__
#define __restrict__ __restrict
#define __align__(n) __attribute__((aligned(n)))
#define FUGU_SHARED(Type, name) Type* const name = reinterpret_cast<Type*>(fugu::emulate::shared_memory())
#define FUGU_KERNEL(name)                                                                                        \
  extern "C" __attribute__((visibility("default"))) int emulate_##name(void** arguments, int blocks_x, int blocks_y, \
                                                                       int threads, int shared) {               \
    return fugu::emulate::launch(&name, arguments, blocks_x, blocks_y, threads, shared);                        \
  }

struct Dimensions {
  unsigned x = 1, y = 1, z = 1;
};
inline Dimensions threadIdx, blockIdx, blockDim, gridDim;

struct alignas(8) float2 { float x, y; };
struct alignas(16) float4 { float x, y, z, w; };
struct alignas(8) uint2 { unsigned x, y; };
struct alignas(16) uint4 { unsigned x, y, z, w; };
struct alignas(16) int4 { int x, y, z, w; };
inline float2 make_float2(float x, float y) { return {x, y}; }
inline float4 make_float4(float x, float y, float z, float w) { return {x, y, z, w}; }
inline uint2 make_uint2(unsigned x, unsigned y) { return {x, y}; }
inline uint4 make_uint4(unsigned x, unsigned y, unsigned z, unsigned w) { return {x, y, z, w}; }

namespace fugu::emulate {

constexpr size_t kStack = 256 * 1024;
enum Waits { kNo, kForBlock, kForWarp, kDone };

struct Thread {
  ucontext_t context;
  Waits waits = kNo;
  unsigned exchanges = 0;  // of values within its warp, so far
};

struct Card {
  std::vector<Thread> threads;
  char* stacks = nullptr;
  size_t stacks_size = 0;
  std::vector<char> shared;
  ucontext_t scheduler;
  Thread* running = nullptr;
  void (*body)(void*) = nullptr;
  void* argument = nullptr;
  // What the lanes of a warp show each other; two of each, so that a lane may write its next while others still read.
  uint32_t shown[2][32][32][8];  // [turn][warp][lane]
};
inline Card card;

inline char* shared_memory() {
  auto at = reinterpret_cast<uintptr_t>(card.shared.data());
  return reinterpret_cast<char*>((at + 127) / 128 * 128);
}

[[noreturn]] inline void broken(const char* why) {
  fprintf(stderr, "emulated kernel: %s (block %u, thread %u)\n", why, blockIdx.x, threadIdx.x);
  abort();
}

inline void wait(Waits for_what) {
  Thread* self = card.running;
  const Dimensions me = threadIdx;
  self->waits = for_what;
  swapcontext(&self->context, &card.scheduler);
  threadIdx = me;
}

inline void start_thread() {
  card.body(card.argument);
  card.running->waits = kDone;
  swapcontext(&card.running->context, &card.scheduler);
}

inline void run_block(int threads) {
  card.threads.assign(static_cast<size_t>(threads), {});
  for (int i = 0; i < threads; ++i) {
    Thread& thread = card.threads[static_cast<size_t>(i)];
    getcontext(&thread.context);
    thread.context.uc_stack.ss_sp = card.stacks + static_cast<size_t>(i) * kStack;
    thread.context.uc_stack.ss_size = kStack;
    thread.context.uc_link = nullptr;
    makecontext(&thread.context, start_thread, 0);
  }
  bool backwards = false;
  for (bool left = true; left; backwards = !backwards) {  // to and fro: what a barrier is missing for is not always there in time
    left = false;
    for (int turn = 0; turn < threads; ++turn) {
      const int i = backwards ? threads - 1 - turn : turn;
      Thread& thread = card.threads[static_cast<size_t>(i)];
      if (thread.waits != kNo) continue;
      threadIdx = {static_cast<unsigned>(i), 0, 0};
      card.running = &thread;
      swapcontext(&card.scheduler, &thread.context);
    }
    int done = 0, at_barrier = 0, released = 0;
    for (const Thread& thread : card.threads) done += thread.waits == kDone, at_barrier += thread.waits == kForBlock;
    if (done == threads) return;
    for (int warp = 0; warp < (threads + 31) / 32; ++warp) {  // a warp whose lanes all wait for each other goes on
      int waiting = 0;
      const int from = 32 * warp, to = from + 32 < threads ? from + 32 : threads;
      for (int i = from; i < to; ++i) waiting += card.threads[static_cast<size_t>(i)].waits == kForWarp;
      if (waiting == 0) continue;
      if (waiting != to - from) {
        for (int i = from; i < to; ++i)
          if (card.threads[static_cast<size_t>(i)].waits == kDone) broken("a lane has returned while its warp exchanges values");
        broken("lanes of a warp wait at different places");
      }
      for (int i = from; i < to; ++i) card.threads[static_cast<size_t>(i)].waits = kNo, ++released;
    }
    if (released == 0) {
      if (at_barrier != threads) broken("a barrier that not all threads reach");
      for (Thread& thread : card.threads) thread.waits = kNo;
    }
    left = true;
  }
}

template <typename... A, size_t... I>
void call(void (*kernel)(A...), void** arguments, std::index_sequence<I...>) {
  kernel(*static_cast<std::remove_reference_t<A>*>(arguments[I])...);
}

template <typename... A>
int launch(void (*kernel)(A...), void** arguments, int blocks_x, int blocks_y, int threads, int shared) {
  if (threads < 1 || threads > 1024 || threads % 32 != 0) return 1;
  const size_t stacks = static_cast<size_t>(threads) * kStack;
  if (card.stacks_size < stacks) {
    if (card.stacks) munmap(card.stacks, card.stacks_size);
    void* at = mmap(nullptr, stacks, PROT_READ | PROT_WRITE, MAP_PRIVATE | MAP_ANONYMOUS | MAP_NORESERVE, -1, 0);
    if (at == MAP_FAILED) return 2;
    card.stacks = static_cast<char*>(at);
    card.stacks_size = stacks;
  }
  struct Call {
    void (*kernel)(A...);
    void** arguments;
  } what{kernel, arguments};
  card.argument = &what;
  card.body = [](void* at) {
    auto* it = static_cast<Call*>(at);
    call(it->kernel, it->arguments, std::index_sequence_for<A...>{});
  };
  blockDim = {static_cast<unsigned>(threads), 1, 1};
  gridDim = {static_cast<unsigned>(blocks_x), static_cast<unsigned>(blocks_y), 1};
  for (int y = 0; y < blocks_y; ++y)
    for (int x = 0; x < blocks_x; ++x) {
      card.shared.assign(static_cast<size_t>(shared) + 128, static_cast<char>(0xff));  // NaN: what is read must be written first
      blockIdx = {static_cast<unsigned>(x), static_cast<unsigned>(y), 0};
      run_block(threads);
    }
  return 0;
}

// Shows `words` to the other lanes and waits until all have shown theirs; gives what the lanes of this warp showed.
template <int N>
inline uint32_t (*show(const uint32_t (&words)[N]))[8] {
  static_assert(N <= 8);
  const unsigned turn = card.running->exchanges++ & 1u, warp = threadIdx.x / 32, lane = threadIdx.x % 32;
  memcpy(card.shown[turn][warp][lane], words, sizeof words);
  wait(kForWarp);
  return card.shown[turn][warp];
}

template <typename T>
inline T of_lane(T value, unsigned lane) {
  static_assert(sizeof(T) == 4 || sizeof(T) == 8);
  uint32_t words[2] = {};
  memcpy(words, &value, sizeof value);
  auto shown = show(words);
  memcpy(&value, shown[lane & 31], sizeof value);
  return value;
}

inline uint32_t bits(float x) { return __builtin_bit_cast(uint32_t, x); }
inline float number(uint32_t x) { return __builtin_bit_cast(float, x); }
inline uint32_t to_tf32(float x) { return (bits(x) + 0x1000u) & 0xffffe000u; }
inline uint32_t to_bf16(float x) {  // to the nearest, halves to even
  const uint32_t b = bits(x);
  return (b & 0x7fffffffu) > 0x7f800000u ? 0x7fffu : (b + 0x7fffu + ((b >> 16) & 1u)) >> 16;
}

inline void multiply_tf32(float (&d)[4], const uint32_t (&a)[4], const uint32_t (&b)[2]) {
  const uint32_t mine[6] = {a[0], a[1], a[2], a[3], b[0], b[1]};
  auto shown = show(mine);
  const unsigned lane = threadIdx.x % 32, g = lane / 4, t = lane % 4;
  for (unsigned i = 0; i < 4; ++i) {
    const unsigned row = g + 8 * (i / 2), column = 2 * t + i % 2;
    float sum = 0;
    for (unsigned k = 0; k < 8; ++k) {
      const float left = number(shown[(row % 8) * 4 + k % 4][row / 8 + 2 * (k / 4)] & 0xffffe000u);
      const float right = number(shown[column * 4 + k % 4][4 + k / 4] & 0xffffe000u);
      sum += left * right;
    }
    d[i] += sum;
  }
}

inline void multiply_bf16(float (&d)[4], const uint32_t (&a)[4], const uint32_t (&b)[2]) {
  const uint32_t mine[6] = {a[0], a[1], a[2], a[3], b[0], b[1]};
  auto shown = show(mine);
  const unsigned lane = threadIdx.x % 32, g = lane / 4, t = lane % 4;
  for (unsigned i = 0; i < 4; ++i) {
    const unsigned row = g + 8 * (i / 2), column = 2 * t + i % 2;
    float sum = 0;
    for (unsigned k = 0; k < 16; ++k) {
      const unsigned from = (k % 8) / 2, shift = 16 * (k % 2);
      const float left = number((shown[(row % 8) * 4 + from][row / 8 + 2 * (k / 8)] >> shift) << 16);
      const float right = number((shown[column * 4 + from][4 + k / 8] >> shift) << 16);
      sum += left * right;
    }
    d[i] += sum;
  }
}

}  // namespace fugu::emulate

inline void __syncthreads() { fugu::emulate::wait(fugu::emulate::kForBlock); }
inline void __syncwarp(unsigned = 0xffffffffu) { fugu::emulate::wait(fugu::emulate::kForWarp); }
inline void __threadfence() {}
template <typename T>
T __shfl_sync(unsigned, T value, int lane) { return fugu::emulate::of_lane(value, static_cast<unsigned>(lane)); }
template <typename T>
T __shfl_xor_sync(unsigned, T value, int mask) { return fugu::emulate::of_lane(value, threadIdx.x % 32 ^ static_cast<unsigned>(mask)); }
template <typename T>
T __shfl_down_sync(unsigned, T value, int by) {
  const unsigned lane = threadIdx.x % 32 + static_cast<unsigned>(by);
  return fugu::emulate::of_lane(value, lane < 32 ? lane : threadIdx.x % 32);
}
template <typename T>
T __shfl_up_sync(unsigned, T value, int by) {
  const unsigned lane = threadIdx.x % 32, back = static_cast<unsigned>(by);
  return fugu::emulate::of_lane(value, lane >= back ? lane - back : lane);
}
inline unsigned __ballot_sync(unsigned, bool yes) {
  auto shown = fugu::emulate::show({static_cast<uint32_t>(yes)});
  unsigned out = 0;
  for (unsigned lane = 0; lane < 32; ++lane) out |= (shown[lane][0] & 1u) << lane;
  return out;
}
inline bool __any_sync(unsigned mask, bool yes) { return __ballot_sync(mask, yes) != 0; }
template <typename T>
T atomicAdd(T* at, T by) {
  const T before = *at;
  *at = before + by;
  return before;
}
template <typename T>
T __ldg(const T* at) { return *at; }
inline float __expf(float x) { return expf(x); }
inline float __logf(float x) { return logf(x); }
inline float __fdividef(float x, float y) { return x / y; }
inline float rsqrtf(float x) { return 1.0f / sqrtf(x); }
inline int __ffs(int x) { return __builtin_ffs(x); }
inline int __popc(unsigned x) { return __builtin_popcount(x); }
inline float __uint_as_float(unsigned x) { return fugu::emulate::number(x); }
inline unsigned __float_as_uint(float x) { return fugu::emulate::bits(x); }
