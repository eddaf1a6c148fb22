// The advantage recurrence on one range of segments. Included by advantage.h once per instruction set, inside a namespace of its own
// and under that set's target pragma; therefore no include guard, and nothing from the standard library.
//
// Data is segment-major, the recurrence runs along time, and segments are independent: kLanes segments are computed side by side, kLanes
// columns at a time. Everything that does not depend on the next column (the TD errors) is computed where it lies; then a square tile is
// transposed in registers, the recurrence takes kLanes steps on vectors of kLanes segments, and the tile is transposed back. Sixteen
// lanes of AVX-512 were no faster than these eight where that was measured (Zen 4).

constexpr int kLanes = 8;

typedef float Floats __attribute__((vector_size(4 * kLanes)));
typedef int32_t Ints __attribute__((vector_size(4 * kLanes)));
typedef int8_t Flags __attribute__((vector_size(kLanes)));

#define FUGU_INLINE static inline __attribute__((always_inline))

FUGU_INLINE Floats load(const float* from) {
  Floats v;
  __builtin_memcpy(&v, from, sizeof v);
  return v;
}

FUGU_INLINE void store(float* to, Floats v) { __builtin_memcpy(to, &v, sizeof v); }

FUGU_INLINE Flags load(const uint8_t* from) {
  Flags v;
  __builtin_memcpy(&v, from, sizeof v);
  return v;
}

// All bits of a lane where the flag is clear.
FUGU_INLINE Ints clear(Flags flags) { return __builtin_convertvector(flags == 0, Ints); }

// The float or zero. A product with zero would let NaN and infinity through.
FUGU_INLINE Floats keep_where(Ints lanes, Floats v) { return (Floats)(lanes & (Ints)v); }

// min(v, bound), and NaN stays NaN.
FUGU_INLINE Floats clip(Floats v, float bound) { return bound < v ? Floats{} + bound : v; }

// The columns of a row moved down by one, `last` behind them.
FUGU_INLINE Floats shift_in(Floats v, float last) {
  return __builtin_shufflevector(v, Floats{last}, 1, 2, 3, 4, 5, 6, 7, 8);
}

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

FUGU_INLINE void transpose(Flags (&r)[8]) {
  typedef int8_t Bytes16 __attribute__((vector_size(16)));
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

// One tile of kLanes segments and columns. `carry` is the advantage of the column after the tile, per segment; returned is that of its
// first column. kLast: what comes after the tile's last column is not in `value` but in `beyond`.
template <bool kRatio, bool kMask, bool kLast>
FUGU_INLINE Floats tile(const Tile& at, const Weights& w, Floats carry) {
  Floats delta[kLanes];  // first [segment][column], then [column][segment]
  Floats decay[kLanes];
  Flags ended[kLanes];
  for (int s = 0; s < kLanes; ++s) {
    const int64_t row = s * at.stride;
    const Floats value = load(at.value + row);
    const Floats next = kLast ? shift_in(value, at.beyond[s]) : load(at.value + row + 1);
    const Flags terminated = load(at.terminated + row);
    delta[s] = load(at.reward + row) + w.gamma * keep_where(clear(terminated), next) - value;
    ended[s] = terminated | load(at.truncated + row);
    if constexpr (kRatio) {
      Floats ratio = load(at.ratio + row);
      if constexpr (kMask) ratio = clear(load(at.mask + row)) ? Floats{} + 1.0f : ratio;
      delta[s] = clip(ratio, w.rho_clip) * delta[s];
      decay[s] = w.gamma_lambda * clip(ratio, w.c_clip);
    }
  }
  transpose(delta);
  transpose(ended);
  if constexpr (kRatio) transpose(decay);
  for (int t = kLanes - 1; t >= 0; --t) {
    const Floats after = keep_where(clear(ended[t]), carry);
    if constexpr (kRatio)
      carry = delta[t] + decay[t] * after;
    else
      carry = delta[t] + w.gamma_lambda * after;
    delta[t] = carry;
  }
  transpose(delta);
  for (int s = 0; s < kLanes; ++s) {
    Floats advantage = delta[s];
    if constexpr (kMask) advantage = keep_where(~clear(load(at.mask + s * at.stride)), advantage);
    store(at.out + s * at.stride, advantage);
  }
  return carry;
}

// The tile of `c` at this segment and column.
template <bool kRatio, bool kMask>
FUGU_INLINE Tile tile_of(const Columns& c, int64_t segment, int64_t column) {
  const int64_t at = segment * c.horizon + column;
  return Tile{c.value + at,      c.reward + at,     kRatio ? c.ratio + at : nullptr, c.bootstrap + segment,
              c.terminated + at, c.truncated + at, kMask ? c.mask + at : nullptr,   c.out + at, c.horizon};
}

// A tile of fewer segments or columns, by way of a padded copy.
template <bool kRatio, bool kMask>
__attribute__((noinline)) static Floats rim_tile(const Columns& c, const Weights& w, int64_t segment, int64_t column, Floats carry) {
  const int64_t height = c.segments - segment < kLanes ? c.segments - segment : kLanes;
  const int64_t width = c.horizon - column < kLanes ? c.horizon - column : kLanes;
  float value[kLanes][kLanes] = {}, reward[kLanes][kLanes] = {}, ratio[kLanes][kLanes] = {}, beyond[kLanes] = {};
  uint8_t terminated[kLanes][kLanes] = {}, truncated[kLanes][kLanes] = {}, mask[kLanes][kLanes] = {};
  float out[kLanes][kLanes];
  for (int64_t s = 0; s < height; ++s) {
    const int64_t row = (segment + s) * c.horizon + column;
    for (int64_t t = 0; t < width; ++t) {
      value[s][t] = c.value[row + t];
      reward[s][t] = c.reward[row + t];
      terminated[s][t] = c.terminated[row + t];
      truncated[s][t] = c.truncated[row + t];
      if constexpr (kRatio) ratio[s][t] = c.ratio[row + t];
      if constexpr (kMask) mask[s][t] = c.mask[row + t];
    }
    const float next = column + width < c.horizon ? c.value[row + width] : c.bootstrap[segment + s];
    (width < kLanes ? value[s][width] : beyond[s]) = next;
    if (width < kLanes) truncated[s][width - 1] = 1;  // nothing comes back from the padding columns
  }
  const Tile at{value[0], reward[0], ratio[0], beyond, terminated[0], truncated[0], mask[0], out[0], kLanes};
  carry = tile<kRatio, kMask, true>(at, w, carry);
  for (int64_t s = 0; s < height; ++s)
    for (int64_t t = 0; t < width; ++t) c.out[(segment + s) * c.horizon + column + t] = out[s][t];
  return carry;
}

// Asks for one tile's share of the next kLanes segments, which lie one after the other in memory. The processor's own prefetching does
// not follow a walk that goes backwards in short rows and jumps every few hundred bytes.
template <bool kRatio, bool kMask>
FUGU_INLINE void prefetch(const Columns& c, int64_t segment, int64_t column) {
  const int64_t from = (segment + kLanes) * c.horizon + kLanes * column;
  for (int64_t line = 0; line < kLanes * kLanes; line += 16) {
    __builtin_prefetch(c.value + from + line);
    __builtin_prefetch(c.reward + from + line);
    __builtin_prefetch(c.out + from + line, 1);
    if constexpr (kRatio) __builtin_prefetch(c.ratio + from + line);
  }
  for (int64_t line = 0; line < kLanes * kLanes; line += 64) {
    __builtin_prefetch(c.terminated + from + line);
    __builtin_prefetch(c.truncated + from + line);
    if constexpr (kMask) __builtin_prefetch(c.mask + from + line);
  }
}

// Segments [low, high).
template <bool kRatio, bool kMask>
static void segments(const Columns& c, const Weights& w, int64_t low, int64_t high) {
  for (int64_t segment = low; segment < high; segment += kLanes) {
    const bool whole = c.segments - segment >= kLanes;
    int64_t column = (c.horizon - 1) / kLanes * kLanes;
    Floats carry = {};
    prefetch<kRatio, kMask>(c, segment, column);  // past the end at last, which is harmless
    if (whole && column + kLanes == c.horizon)
      carry = tile<kRatio, kMask, true>(tile_of<kRatio, kMask>(c, segment, column), w, carry);
    else
      carry = rim_tile<kRatio, kMask>(c, w, segment, column, carry);
    while ((column -= kLanes) >= 0) {
      prefetch<kRatio, kMask>(c, segment, column);
      carry = whole ? tile<kRatio, kMask, false>(tile_of<kRatio, kMask>(c, segment, column), w, carry)
                    : rim_tile<kRatio, kMask>(c, w, segment, column, carry);
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
