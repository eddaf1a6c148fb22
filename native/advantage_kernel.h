// The advantage recurrence on one range of segments. Included by advantage.h once per instruction set, inside a namespace of its own
// and under that set's target pragma; therefore no include guard, and nothing from the standard library.
//
// Data is segment-major, the recurrence runs along time, and segments are independent: eight segments are computed side by side, eight
// columns at a time. Everything that does not depend on the next column (the TD errors) is computed where it lies; then a tile of 8 x 8
// is transposed in registers, the recurrence takes eight steps on vectors of eight segments, and the tile is transposed back.

typedef float Floats __attribute__((vector_size(32)));
typedef int32_t Ints __attribute__((vector_size(32)));
typedef int8_t Bytes8 __attribute__((vector_size(8)));
typedef int8_t Bytes16 __attribute__((vector_size(16)));

#define FUGU_INLINE static inline __attribute__((always_inline))

FUGU_INLINE Floats load(const float* from) {
  Floats v;
  __builtin_memcpy(&v, from, sizeof v);
  return v;
}

FUGU_INLINE void store(float* to, Floats v) { __builtin_memcpy(to, &v, sizeof v); }

FUGU_INLINE Bytes8 load_flags(const uint8_t* from) {
  Bytes8 v;
  __builtin_memcpy(&v, from, sizeof v);
  return v;
}

// All bits of a lane where the flag is clear.
FUGU_INLINE Ints clear(Bytes8 flags) { return __builtin_convertvector(flags == 0, Ints); }

// The float or zero. A product with zero would let NaN and infinity through.
FUGU_INLINE Floats keep_where(Ints lanes, Floats v) { return (Floats)(lanes & (Ints)v); }

// min(v, bound), and NaN stays NaN.
FUGU_INLINE Floats clip(Floats v, Floats bound) { return bound < v ? bound : v; }

FUGU_INLINE void transpose(Floats (&r)[8]) {
  Floats a[8], b[8];
  for (int i = 0; i < 8; i += 2) {
    a[i] = __builtin_shufflevector(r[i], r[i + 1], 0, 8, 1, 9, 4, 12, 5, 13);
    a[i + 1] = __builtin_shufflevector(r[i], r[i + 1], 2, 10, 3, 11, 6, 14, 7, 15);
  }
  for (int i = 0; i < 8; i += 4) {
    b[i] = __builtin_shufflevector(a[i], a[i + 2], 0, 1, 8, 9, 4, 5, 12, 13);
    b[i + 1] = __builtin_shufflevector(a[i], a[i + 2], 2, 3, 10, 11, 6, 7, 14, 15);
    b[i + 2] = __builtin_shufflevector(a[i + 1], a[i + 3], 0, 1, 8, 9, 4, 5, 12, 13);
    b[i + 3] = __builtin_shufflevector(a[i + 1], a[i + 3], 2, 3, 10, 11, 6, 7, 14, 15);
  }
  for (int i = 0; i < 4; ++i) {
    r[i] = __builtin_shufflevector(b[i], b[i + 4], 0, 1, 2, 3, 8, 9, 10, 11);
    r[i + 4] = __builtin_shufflevector(b[i], b[i + 4], 4, 5, 6, 7, 12, 13, 14, 15);
  }
}

FUGU_INLINE void transpose(Bytes8 (&r)[8]) {
  Bytes16 a[4], b[4];
  for (int i = 0; i < 4; ++i)
    a[i] = __builtin_shufflevector(r[2 * i], r[2 * i + 1], 0, 8, 1, 9, 2, 10, 3, 11, 4, 12, 5, 13, 6, 14, 7, 15);
  for (int i = 0; i < 4; i += 2) {
    b[i] = __builtin_shufflevector(a[i], a[i + 1], 0, 1, 16, 17, 2, 3, 18, 19, 4, 5, 20, 21, 6, 7, 22, 23);
    b[i + 1] = __builtin_shufflevector(a[i], a[i + 1], 8, 9, 24, 25, 10, 11, 26, 27, 12, 13, 28, 29, 14, 15, 30, 31);
  }
  for (int i = 0; i < 2; ++i) {
    const Bytes16 low = __builtin_shufflevector(b[i], b[i + 2], 0, 1, 2, 3, 16, 17, 18, 19, 4, 5, 6, 7, 20, 21, 22, 23);
    const Bytes16 high = __builtin_shufflevector(b[i], b[i + 2], 8, 9, 10, 11, 24, 25, 26, 27, 12, 13, 14, 15, 28, 29, 30, 31);
    r[4 * i] = __builtin_shufflevector(low, low, 0, 1, 2, 3, 4, 5, 6, 7);
    r[4 * i + 1] = __builtin_shufflevector(low, low, 8, 9, 10, 11, 12, 13, 14, 15);
    r[4 * i + 2] = __builtin_shufflevector(high, high, 0, 1, 2, 3, 4, 5, 6, 7);
    r[4 * i + 3] = __builtin_shufflevector(high, high, 8, 9, 10, 11, 12, 13, 14, 15);
  }
}

// One tile of 8 x 8. `value` has a row length of its own and one column more than the tile; `carry` is the advantage of the column
// after the tile, per segment, and becomes that of its first column.
template <bool kRatio, bool kMask>
FUGU_INLINE void tile(const Tile& at, const Weights& w, Floats& carry) {
  Floats delta[8];  // first [segment][column], then [column][segment]
  Floats decay[8];
  Bytes8 ended[8];
  for (int s = 0; s < 8; ++s) {
    const int64_t row = s * at.stride;
    const float* value = at.value + s * at.value_stride;
    const Bytes8 terminated = load_flags(at.terminated + row);
    const Floats next = keep_where(clear(terminated), load(value + 1));
    delta[s] = load(at.reward + row) + w.gamma * next - load(value);
    ended[s] = terminated | load_flags(at.truncated + row);
    if constexpr (kRatio) {
      Floats ratio = load(at.ratio + row);
      if constexpr (kMask) ratio = clear(load_flags(at.mask + row)) ? Floats{} + 1.0f : ratio;
      delta[s] = clip(ratio, Floats{} + w.rho_clip) * delta[s];
      decay[s] = w.gamma_lambda * clip(ratio, Floats{} + w.c_clip);
    }
  }
  transpose(delta);
  transpose(ended);
  if constexpr (kRatio) transpose(decay);
  for (int t = 7; t >= 0; --t) {
    const Floats after = keep_where(clear(ended[t]), carry);
    carry = delta[t] + (kRatio ? decay[t] : Floats{} + w.gamma_lambda) * after;
    delta[t] = carry;
  }
  transpose(delta);
  for (int s = 0; s < 8; ++s) {
    Floats advantage = delta[s];
    if constexpr (kMask) advantage = keep_where(~clear(load_flags(at.mask + s * at.stride)), advantage);
    store(at.out + s * at.stride, advantage);
  }
}

// A tile at the rim (the last columns, whose next value is the bootstrap, or fewer than 8 segments), by way of a padded copy.
template <bool kRatio, bool kMask>
__attribute__((noinline)) static void rim_tile(const Columns& c, const Weights& w, int64_t segment, int64_t column, Floats& carry) {
  const int64_t height = c.segments - segment < 8 ? c.segments - segment : 8;
  const int64_t width = c.horizon - column < 8 ? c.horizon - column : 8;
  const int64_t origin = segment * c.horizon + column;
  float value[8][16] = {}, reward[8][8] = {}, ratio[8][8] = {}, out[8][8];
  uint8_t terminated[8][8] = {}, truncated[8][8] = {}, mask[8][8] = {};
  const bool whole = height == 8 && width == 8;
  Tile at{value[0], reward[0], ratio[0], terminated[0], truncated[0], mask[0], out[0], 8, 16};
  if (whole) {  // only the bootstrap column is missing
    for (int s = 0; s < 8; ++s) store(value[s], load(c.value + origin + s * c.horizon));
    at = Tile{value[0], c.reward + origin, kRatio ? c.ratio + origin : nullptr, c.terminated + origin, c.truncated + origin,
              kMask ? c.mask + origin : nullptr, c.out + origin, c.horizon, 16};
  } else {
    for (int64_t s = 0; s < height; ++s) {
      for (int64_t t = 0; t < width; ++t) {
        const int64_t from = origin + s * c.horizon + t;
        value[s][t] = c.value[from];
        reward[s][t] = c.reward[from];
        terminated[s][t] = c.terminated[from];
        truncated[s][t] = c.truncated[from];
        if constexpr (kRatio) ratio[s][t] = c.ratio[from];
        if constexpr (kMask) mask[s][t] = c.mask[from];
      }
      if (width < 8) truncated[s][width - 1] = 1;  // nothing comes back from the padding columns
    }
  }
  for (int64_t s = 0; s < height; ++s)
    value[s][width] = column + width < c.horizon ? c.value[origin + s * c.horizon + width] : c.bootstrap[segment + s];
  tile<kRatio, kMask>(at, w, carry);
  if (!whole)
    for (int64_t s = 0; s < height; ++s)
      for (int64_t t = 0; t < width; ++t) c.out[origin + s * c.horizon + t] = out[s][t];
}

// Asks for one tile's share of the next eight segments, which lie one after the other in memory. The processor's own prefetching does
// not follow a walk that goes backwards in short rows and jumps every few hundred bytes.
template <bool kRatio, bool kMask>
FUGU_INLINE void prefetch(const Columns& c, int64_t segment, int64_t column) {
  const int64_t from = (segment + 8) * c.horizon + 8 * column;
  for (int64_t line = 0; line < 64; line += 16) {
    __builtin_prefetch(c.value + from + line);
    __builtin_prefetch(c.reward + from + line);
    __builtin_prefetch(c.out + from + line, 1);
    if constexpr (kRatio) __builtin_prefetch(c.ratio + from + line);
  }
  __builtin_prefetch(c.terminated + from);
  __builtin_prefetch(c.truncated + from);
  if constexpr (kMask) __builtin_prefetch(c.mask + from);
}

// Segments [low, high); low is a multiple of 8.
template <bool kRatio, bool kMask>
static void segments(const Columns& c, const Weights& w, int64_t low, int64_t high) {
  for (int64_t segment = low; segment < high; segment += 8) {
    Floats carry = {};
    for (int64_t column = (c.horizon - 1) & ~int64_t{7}; column >= 0; column -= 8) {
      prefetch<kRatio, kMask>(c, segment, column);  // past the end at last, which is harmless
      if (c.segments - segment < 8 || c.horizon - column <= 8) {
        rim_tile<kRatio, kMask>(c, w, segment, column, carry);
        continue;
      }
      const int64_t origin = segment * c.horizon + column;
      tile<kRatio, kMask>(Tile{c.value + origin, c.reward + origin, kRatio ? c.ratio + origin : nullptr, c.terminated + origin,
                               c.truncated + origin, kMask ? c.mask + origin : nullptr, c.out + origin, c.horizon, c.horizon},
                          w, carry);
    }
  }
}

static void run(const Columns& c, const Weights& w, int64_t low, int64_t high) {
  if (c.ratio != nullptr)
    c.mask != nullptr ? segments<true, true>(c, w, low, high) : segments<true, false>(c, w, low, high);
  else
    c.mask != nullptr ? segments<false, true>(c, w, low, high) : segments<false, false>(c, w, low, high);
}

#undef FUGU_INLINE
