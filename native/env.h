// What an environment is: one header, plain data and static functions, compiled for the CPU and for the GPU.
//
// An environment E declares
//   name, agents            how it is called; how many agents one world has
//   Obs, Action             plain structs (or scalars) of one agent's row; same order and alignment as fugu's Layout
//   observation, action     arrays of Field that say which Gymnasium spaces those are; several are the parts of a Dict, in
//                           alphabetical order
//   Params, params          settings with defaults, their names, and the range each may have (no `params` where there are none)
//   time_limit              steps after which the engine truncates (0: never); every environment has it as the setting max_steps
//   State                   plain data, no pointers; whatever it needs to go on
//   reset(state, params, rng)
//   step(state, params, rng, actions, rewards) -> terminated          agents start and end together
//   observe(state, params, agent, row)
// and, where they apply,
//   independent = true      agents end one by one; then step(state, params, rng, actions, fresh, rewards, terminated): an agent
//                           with fresh[agent] has ended before, its action is ignored and it starts anew within this step
//   lanes = true            worlds are stepped many at a time, as the lanes of vector instructions: see below
//   acting(state, agent)    false: the agent waits for its turn
//   action_mask(state, params, agent, mask)                            one bool per discrete choice
//   valid(state, params, over)                                         whether a saved state may be gone on from: see below
//   logs, log(state, params, agent, values)                            named values added up when an episode ends
//   costs                   names of what a step costs beside its reward, as an array; step then has a last argument float* costs
//                           and sets cost k of agent a at costs[a * count + k]
//   width, height, render(state, params, canvas)                       a picture (host only; canvas.h)
// A header of one's own ends with FUGU_ENVIRONMENT(E), outside all namespaces; `fugu build` compiles it.
// The engine (engine.h) does everything else, once for all: auto-reset, time limit, statistics, masks, buffers, seeds, threads.
//
// Lanes. An environment of one agent whose step is mere arithmetic says lanes = true. Its step is then
//   step(state, params, actions, rewards) -> terminated
// without rng: chance is for reset alone. The compiler turns the loop over worlds into vector instructions if step and observe
// have no branches: select() instead of if and ?:, | and & instead of || and &&, sin_cos() and wrap() of this file, and whole
// numbers of 32 bits (cast an action to int first). One that does branch is right all the same, only slower.
// A world whose episode is over may be stepped once more, with what comes of it thrown away: that must do no harm.
//
// Saved states. A checkpoint may come from anybody, so the bytes of a State that is restored may be any. Everything else trusts it:
// an index in it is used as it is, a loop over it runs to its end. Before that, valid() is asked, on the CPU; false: the state is
// refused. It says what step, observe, action_mask, log and render rely on, with between(), is_bool() and kMany of this file:
//   indices are within their arrays, shifts within their words, divisors not 0, numbers no NaN
//   what two fields say of the same thing agrees, if anything relies on it
//   whatever play can lead to is valid
// `over` says that the episode has ended: then the state is only drawn and reset (with lanes, stepped once more), and it may be
// one that step makes when the task is over. With independent agents it is a const bool*, one for each.
// An environment without valid() is not saved in the middle of its episodes: they begin anew at every checkpoint.
//
// A compiler for the GPU (NVRTC, which has no standard library) sees everything but the pictures: keep what draws, and the
// include of canvas.h, between #ifndef __CUDACC_RTC__ and #endif, and call memcpy, sqrtf, floorf without std::.
#pragma once

#ifdef __CUDACC_RTC__
using int8_t = signed char;
using uint8_t = unsigned char;
using int16_t = short;
using uint16_t = unsigned short;
using int32_t = int;
using uint32_t = unsigned int;
using int64_t = long;
using uint64_t = unsigned long;
#else
#include <math.h>
#include <stdint.h>
#include <string.h>
#endif

#if defined(__SSE2__) && !defined(__CUDACC__) && !defined(__CUDACC_RTC__)
#define FUGU_SSE2 1
#include <emmintrin.h>
#endif

#if defined(__CUDACC__) || defined(__CUDACC_RTC__)
#define FUGU_HD __host__ __device__
#else
#define FUGU_HD
#endif

// Says which struct of a header is the environment.
#define FUGU_ENVIRONMENT(E) using FuguEnvironment = E;

namespace fugu {

// Random numbers by counting: draw k of an environment is a hash of (seed, env, k). No state but the counter, the same on every
// machine, and no draw depends on what other environments do.
struct Rng {
  uint64_t key;
  uint64_t draws;  // as wide as the key: no gap whose bytes would be anything

  FUGU_HD static uint64_t mix(uint64_t x) {  // the finaliser of SplitMix64: every input bit reaches every output bit
    x = (x ^ (x >> 30)) * 0xbf58476d1ce4e5b9ull;
    x = (x ^ (x >> 27)) * 0x94d049bb133111ebull;
    return x ^ (x >> 31);
  }
  FUGU_HD static Rng of(uint64_t seed) { return {mix(seed + 0x9e3779b97f4a7c15ull), 0}; }
  FUGU_HD uint32_t next() { return static_cast<uint32_t>(mix(key + 0x9e3779b97f4a7c15ull * ++draws) >> 32); }
  FUGU_HD float uniform() { return static_cast<float>(next() >> 8) * 0x1p-24f; }  // [0, 1)
  FUGU_HD float uniform(float low, float high) { return low + (high - low) * uniform(); }
  FUGU_HD uint32_t below(uint32_t n) { return static_cast<uint32_t>((static_cast<uint64_t>(next()) * n) >> 32); }
};

// The bits of a number, and back.
FUGU_HD inline uint32_t bits_of(float x) {
#ifdef __CUDA_ARCH__
  return __float_as_uint(x);
#else
  return __builtin_bit_cast(uint32_t, x);
#endif
}
FUGU_HD inline float of_bits(uint32_t bits) {
#ifdef __CUDA_ARCH__
  return __uint_as_float(bits);
#else
  return __builtin_bit_cast(float, bits);
#endif
}

// `yes ? a : b` that never becomes a branch, so that loops with it can be vectorised.
FUGU_HD inline float select(bool yes, float a, float b) {
  const uint32_t all = 0u - static_cast<uint32_t>(yes);
  return of_bits((bits_of(a) & all) | (bits_of(b) & ~all));
}

// The whole number nearest to x, halves away from zero; |x| below 2^31.
FUGU_HD inline int nearest(float x) { return static_cast<int>(x + of_bits(bits_of(0.5f) | (bits_of(x) & 0x80000000u))); }

// Sine and cosine by our own polynomials: branch-free, the same bits on CPU and GPU, and the compiler may vectorise them.
// Error below 2e-7 for |x| up to a few thousand.
FUGU_HD inline void sin_cos(float x, float& sine, float& cosine) {
  const int quarter = nearest(x * 0.636619772367581343f);
  const float turned = static_cast<float>(quarter);
  float r = x - turned * 1.5703125f;  // pi/2 in three parts, so that nothing is lost
  r -= turned * 4.837512969970703125e-4f;
  r -= turned * 7.549789948768648e-8f;
  const float r2 = r * r;
  const float s = r + r * r2 * (-1.6666654611e-1f + r2 * (8.3321608736e-3f + r2 * -1.9515295891e-4f));
  const float c = 1.0f - 0.5f * r2 + r2 * r2 * (4.166664568298827e-2f + r2 * (-1.388731625493765e-3f + r2 * 2.443315711809948e-5f));
  const uint32_t q = static_cast<uint32_t>(quarter), swap = (bits_of(s) ^ bits_of(c)) & (0u - (q & 1u));  // where q is odd
  sine = of_bits(bits_of(s) ^ swap ^ ((q & 2u) << 30));
  cosine = of_bits(bits_of(c) ^ swap ^ (((q + 1u) & 2u) << 30));
}

// An angle, brought into [-pi, pi] by whole turns.
FUGU_HD inline float wrap(float angle) {
  return angle - 6.28318530717958648f * static_cast<float>(nearest(angle * 0.159154943091895336f));
}

// For valid(): whether x is a number from low to high, both allowed.
FUGU_HD inline bool between(double x, double low, double high) { return x >= low && x <= high; }
FUGU_HD inline bool is_finite(double x) { return x - x == 0; }

// For valid(): whether a bool is one. Any other use of one whose byte is neither 0 nor 1 is undefined.
FUGU_HD inline bool is_bool(const bool& flag) {
  uint8_t byte;
  memcpy(&byte, &flag, 1);
  return byte <= 1;
}

// For valid(): the highest that a counter may have come to; far from where it overflows, and further than anybody plays.
constexpr int32_t kMany = 1 << 30;

FUGU_HD inline float clamp(float x, float low, float high) { return x < low ? low : (x > high ? high : x); }

// Zeros over N bytes, as one wide store after the other: for a few hundred bytes compilers like to loop inside one instruction
// (rep stos), which takes longer to start than this takes.
template <size_t N>
FUGU_HD inline void clear(void* at) {
  memset(at, 0, N < 16 ? N : 16);
  if constexpr (N > 16) clear<N - 16>(static_cast<char*>(at) + 16);
}

// One leaf of a space, as the Python side needs to know it.
struct Field {
  enum Kind { kBox, kDiscrete, kMultiDiscrete, kMultiBinary };
  const char* name;  // "" where the row is this one leaf
  Kind kind;
  char type;  // numpy's type character: f float32, l int64, B uint8, b int8
  int rank;
  int shape[3];
  double low, high;                   // kBox
  const float *lows, *highs;          // kBox, where the bounds differ per element
  int choices;                        // kDiscrete, kMultiDiscrete: values 0 .. choices - 1
};

#ifdef __CUDACC_RTC__
constexpr float kInf = 3.4028235e38f;  // it has no infinity to offer here, and spaces are the host's business
#else
constexpr float kInf = __builtin_huge_valf();
#endif

FUGU_HD constexpr Field box(const char* name, int size, double low = -kInf, double high = kInf) {
  return {name, Field::kBox, 'f', 1, {size, 0, 0}, low, high, nullptr, nullptr, 0};
}
template <int N>
FUGU_HD constexpr Field box(const char* name, const float (&lows)[N], const float (&highs)[N]) {
  return {name, Field::kBox, 'f', 1, {N, 0, 0}, -kInf, kInf, lows, highs, 0};
}
FUGU_HD constexpr Field bytes(const char* name, int rows, int columns, double high = 255) {
  return {name, Field::kBox, 'B', 2, {rows, columns, 0}, 0, high, nullptr, nullptr, 0};
}
FUGU_HD constexpr Field signed_bytes(const char* name, int size, double low = -128, double high = 127) {
  return {name, Field::kBox, 'b', 1, {size, 0, 0}, low, high, nullptr, nullptr, 0};
}
FUGU_HD constexpr Field image(const char* name, int rows, int columns, double low = -kInf, double high = kInf) {
  return {name, Field::kBox, 'f', 2, {rows, columns, 0}, low, high, nullptr, nullptr, 0};
}
FUGU_HD constexpr Field multi_discrete(const char* name, int size, int choices) {
  return {name, Field::kMultiDiscrete, 'l', 1, {size, 0, 0}, 0, 0, nullptr, nullptr, choices};
}
FUGU_HD constexpr Field multi_binary(const char* name, int size) {
  return {name, Field::kMultiBinary, 'b', 1, {size, 0, 0}, 0, 0, nullptr, nullptr, 0};
}
FUGU_HD constexpr Field discrete(const char* name, int choices) {
  return {name, Field::kDiscrete, 'l', 0, {0, 0, 0}, 0, 0, nullptr, nullptr, choices};
}

// The number of the lowest bit that is set; there must be one.
FUGU_HD inline int lowest_bit(uint32_t bits) {
#ifdef __CUDA_ARCH__
  return __ffs(static_cast<int>(bits)) - 1;
#else
  return __builtin_ctz(bits);
#endif
}

// Bits as numbers: out[i] = bit i of `bits`, as 0 or 1, for i < Count.
template <int Count>
FUGU_HD inline void unpack_bits(uint32_t bits, float* out) {
  static_assert(Count > 0 && Count <= 32);
#ifdef FUGU_SSE2
  const __m128i all = _mm_set1_epi32(static_cast<int>(bits)), one = _mm_castps_si128(_mm_set1_ps(1.0f));
  for (int i = 0; i + 4 <= Count; i += 4) {
    const __m128i lanes = _mm_slli_epi32(_mm_setr_epi32(1, 2, 4, 8), i);
    const __m128i set = _mm_cmpeq_epi32(_mm_and_si128(all, lanes), lanes);
    _mm_storeu_ps(out + i, _mm_castsi128_ps(_mm_and_si128(set, one)));
  }
  for (int i = Count / 4 * 4; i < Count; ++i) out[i] = static_cast<float>((bits >> i) & 1u);
#else
  for (int i = 0; i < Count; ++i) out[i] = static_cast<float>((bits >> i) & 1u);
#endif
}

// A setting: its name, where it is in Params, and the values it may have. Whole numbers and reals are enough.
template <typename Params>
struct Param {
  const char* name;
  float Params::* real = nullptr;
  int32_t Params::* whole = nullptr;
  double low, high;  // both allowed; refused outside, so that the environment need not look

  FUGU_HD constexpr Param(const char* name, float Params::* at, double low = -kInf, double high = kInf)
      : name(name), real(at), low(low), high(high) {}
  FUGU_HD constexpr Param(const char* name, int32_t Params::* at, double low = -2147483648.0, double high = 2147483647.0)
      : name(name), whole(at), low(low), high(high) {}
};

}  // namespace fugu
