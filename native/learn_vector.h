// Functions of vectors that the learner's kernels share; like lanes.h for one instruction set at a time.

constexpr int kLanes = FUGU_LANES;

#include "lanes.h"

// Minus zero, which the compiler may leave out; plus zero it may not, because of -0.
FUGU_INLINE Floats all(float value) { return value - Floats{}; }

// a * b + c, rounded once where the processor can; the build forbids the compiler to do that by itself.
FUGU_INLINE Floats fma(Floats a, Floats b, Floats c) {
#if FUGU_LANES == 16
  return (Floats)_mm512_fmadd_ps((__m512)a, (__m512)b, (__m512)c);
#elif defined(FUGU_FMA)
  return (Floats)_mm256_fmadd_ps((__m256)a, (__m256)b, (__m256)c);
#else
  return a * b + c;
#endif
}

// NaN stays NaN.
FUGU_INLINE Floats at_most(Floats v, float bound) { return v > bound ? all(bound) : v; }
FUGU_INLINE Floats at_least(Floats v, float bound) { return v < bound ? all(bound) : v; }

// e^x as 2^n * (1 + p): p = e^r - 1 for the rest r of x beyond n ln 2, |r| <= ln 2 / 2, relative error 3e-8. |x| < 2^22.
FUGU_INLINE Floats exp_parts(Floats x, Floats& p) {
  const Floats shift = all(12582912.0f);  // 1.5 * 2^23: adding it rounds to a whole number
  const Floats n = fma(x, all(1.44269504f), shift) - shift;
  const Floats r = fma(n, all(2.12194440e-4f), fma(n, all(-0.693359375f), x));  // ln 2 in two parts: n times the first is exact
  Floats q = fma(all(0.00139336544f), r, all(0.00836318266f));
  q = fma(q, r, all(0.0416664667f));
  q = fma(q, r, all(0.166665763f));
  q = fma(q, r, all(0.5f));
  p = fma(r * r, q, r);
  return n;
}

FUGU_INLINE Floats power_of_two(Floats n) { return (Floats)((__builtin_convertvector(n, Ints) + 127) << 23); }

// 0 below the smallest normal number, infinity above the largest, else within 2e-7 of e^x.
FUGU_INLINE Floats exp(Floats x) {
  Floats p;
  const Floats inside = at_least(at_most(x, 89.0f), -88.0f);
  const Floats n = exp_parts(inside, p);
  const Floats half = __builtin_convertvector(__builtin_convertvector(n, Ints) >> 1, Floats);  // 2^128 is not a float
  const Floats e = (p + 1.0f) * power_of_two(half) * power_of_two(n - half);
  return x < -87.3365448f ? Floats{} : e;
}

// The same of numbers that are not above 1, in half the time.
FUGU_INLINE Floats exp_below(Floats x) {
  Floats p;
  const Floats n = exp_parts(at_least(x, -87.0f), p);
  return x < -87.0f ? Floats{} : (p + 1.0f) * power_of_two(n);
}

// t / (t + 2) with t = e^2|x| - 1, computed without cancellation: relative error below 5e-7 everywhere.
FUGU_INLINE Floats tanh(Floats x) {
  const Ints sign = (Ints)x & (Ints)all(-0.0f);
  Floats p;
  const Floats n = exp_parts(2.0f * at_most((Floats)((Ints)x ^ sign), 9.02f), p);
  const Floats scale = power_of_two(n);
  const Floats t = fma(scale, p, scale - 1.0f);
  return (Floats)((Ints)(t / (t + 2.0f)) | sign);
}

FUGU_INLINE Floats sigmoid(Floats x) {
  Floats p;
  const Floats n = exp_parts(at_least(at_most(-x, 87.0f), -87.0f), p);
  return 1.0f / fma(power_of_two(n), p + 1.0f, all(1.0f));
}

// The natural logarithm of positive normal numbers: the exponent, and 2 atanh((m - 1) / (m + 1)) of the mantissa around 1.
FUGU_INLINE Floats log(Floats x) {
  const Ints raised = (Ints)x - (Ints)all(0.70710678f);
  const Floats e = __builtin_convertvector(raised >> 23, Floats);
  const Floats m = (Floats)((Ints)x - (Ints)((raised >> 23) << 23));
  const Floats t = (m - 1.0f) / (m + 1.0f), s = t * t;
  Floats q = fma(all(2.0f / 9), s, all(2.0f / 7));
  q = fma(q, s, all(2.0f / 5));
  q = fma(q, s, all(2.0f / 3));
  q = fma(q * s, t, 2.0f * t);
  return x == x ? fma(e, all(0.693147182f), q) : x;
}

// The first `count` floats of a vector's worth, zeros behind them; and back.
FUGU_INLINE Floats load_some(const float* from, int64_t count) {
  if (count >= kLanes) return load(from);
  float some[kLanes] = {};
  for (int64_t i = 0; i < count; ++i) some[i] = from[i];
  return load(some);
}

FUGU_INLINE void store_some(float* to, Floats v, int64_t count) {
  if (count >= kLanes) return store(to, v);
  float some[kLanes];
  store(some, v);
  for (int64_t i = 0; i < count; ++i) to[i] = some[i];
}
