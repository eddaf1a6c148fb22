// The advantage recurrence on one range of segments. Included by advantage.h once per instruction set, inside a namespace of its own
// and under that set's target pragma; therefore no include guard, and nothing from the standard library.
//
// Data is segment-major, the recurrence runs along time, and segments are independent: kLanes segments are computed side by side, kLanes
// columns at a time. Everything that does not depend on the next column (the TD errors) is computed where it lies; then a square tile is
// transposed in registers, the recurrence takes kLanes steps on vectors of kLanes segments, and the tile is transposed back. Where an
// episode ended is found beforehand, as one bit for each segment, and becomes a vector by a table. Sixteen lanes of AVX-512 were no
// faster than these eight where that was measured (Zen 4).

#include "lanes.h"

typedef int8_t Flags __attribute__((vector_size(kLanes)));
typedef int8_t WideFlags __attribute__((vector_size(4 * kLanes)));

FUGU_INLINE Ints load(const int32_t* from) {
  Ints v;
  __builtin_memcpy(&v, from, sizeof v);
  return v;
}

template <typename Bytes = Flags>
FUGU_INLINE Bytes load(const uint8_t* from) {
  Bytes v;
  __builtin_memcpy(&v, from, sizeof v);
  return v;
}

// All bits of a lane where the flag is clear.
FUGU_INLINE Ints clear(Flags flags) { return __builtin_convertvector(flags == 0, Ints); }

// The float or zero. A product with zero would let NaN and infinity through.
FUGU_INLINE Floats keep_where(Ints lanes, Floats v) { return (Floats)(lanes & (Ints)v); }

// min(v, bound), and NaN stays NaN.
FUGU_INLINE Floats clip(Floats v, float bound) {
  for (int i = 0; i < kLanes; ++i) v[i] = bound < v[i] ? bound : v[i];
  return v;
}

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

// One tile of kLanes segments and columns. `carry` is the advantage of the column after the tile, per segment; returned is that of its
// first column. kLast: what comes after the tile's last column is not in `value` but in `beyond`.
template <bool kRatio, bool kMask, bool kLast>
FUGU_INLINE Floats tile(const Tile& at, const Weights& w, Floats carry) {
  Floats delta[kLanes];  // first [segment][column], then [column][segment]
  Floats decay[kLanes];
  for (int s = 0; s < kLanes; ++s) {
    const int64_t row = s * at.stride;
    const Floats value = load(at.value + row);
    const Floats next = kLast ? shift_in(value, at.beyond[s]) : load(at.value + row + 1);
    const Flags terminated = load(at.terminated + row);
    delta[s] = load(at.reward + row) + w.gamma * keep_where(clear(terminated), next) - value;
    if constexpr (kRatio) {
      Floats ratio = load(at.ratio + row);
      if constexpr (kMask) ratio = clear(load(at.mask + row)) ? Floats{} + 1.0f : ratio;
      delta[s] = clip(ratio, w.rho_clip) * delta[s];
      decay[s] = w.gamma_lambda * clip(ratio, w.c_clip);
    }
  }
  transpose(delta);
  if constexpr (kRatio) transpose(decay);
  for (int t = kLanes - 1; t >= 0; --t) {
    const Floats after = keep_where(load(kKept.lanes[at.cut[t]]), carry);
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
FUGU_INLINE Tile tile_of(const Columns& c, int64_t segment, int64_t column, const uint8_t* cut) {
  const int64_t at = segment * c.horizon + column;
  return Tile{c.value + at,      c.reward + at, kRatio ? c.ratio + at : nullptr, c.bootstrap + segment,
              c.terminated + at, cut,           kMask ? c.mask + at : nullptr,   c.out + at, c.horizon};
}

// The `cut` bytes of as many columns as Bytes has.
template <typename Bytes>
FUGU_INLINE void find_cuts(const uint8_t* terminated, const uint8_t* truncated, int64_t stride, uint8_t* cut) {
  Bytes bits = {};
  for (int s = 0; s < kLanes; ++s) {
    const Bytes ended = load<Bytes>(terminated + s * stride) | load<Bytes>(truncated + s * stride);
    const int8_t bit = static_cast<int8_t>(1 << s);
    bits |= (ended != 0) & bit;
  }
  __builtin_memcpy(cut, &bits, sizeof bits);
}

// The `cut` bytes of columns [start, stop) of kLanes segments, many columns at a time.
FUGU_INLINE void find_cuts(const Columns& c, int64_t segment, int64_t start, int64_t stop, uint8_t* cut) {
  const int64_t row = segment * c.horizon;
  int64_t t = start;
  for (const int64_t wide = sizeof(WideFlags); t + wide <= stop; t += wide)
    find_cuts<WideFlags>(c.terminated + row + t, c.truncated + row + t, c.horizon, cut + (t - start));
  for (; t < stop; t += kLanes) find_cuts<Flags>(c.terminated + row + t, c.truncated + row + t, c.horizon, cut + (t - start));
}

// A tile of fewer segments or columns, by way of a padded copy.
template <bool kRatio, bool kMask>
__attribute__((noinline)) static Floats rim_tile(const Columns& c, const Weights& w, int64_t segment, int64_t column, Floats carry) {
  const int64_t height = c.segments - segment < kLanes ? c.segments - segment : kLanes;
  const int64_t width = c.horizon - column < kLanes ? c.horizon - column : kLanes;
  float value[kLanes][kLanes] = {}, reward[kLanes][kLanes] = {}, ratio[kLanes][kLanes] = {}, beyond[kLanes] = {};
  uint8_t terminated[kLanes][kLanes] = {}, cut[kLanes] = {}, mask[kLanes][kLanes] = {};
  float out[kLanes][kLanes];
  for (int64_t s = 0; s < height; ++s) {
    const int64_t row = (segment + s) * c.horizon + column;
    for (int64_t t = 0; t < width; ++t) {
      value[s][t] = c.value[row + t];
      reward[s][t] = c.reward[row + t];
      terminated[s][t] = c.terminated[row + t];
      if (c.terminated[row + t] | c.truncated[row + t]) cut[t] |= 1 << s;
      if constexpr (kRatio) ratio[s][t] = c.ratio[row + t];
      if constexpr (kMask) mask[s][t] = c.mask[row + t];
    }
    const float next = column + width < c.horizon ? c.value[row + width] : c.bootstrap[segment + s];
    (width < kLanes ? value[s][width] : beyond[s]) = next;
    if (width < kLanes) cut[width - 1] = 0xff;  // nothing comes back from the padding columns
  }
  const Tile at{value[0], reward[0], ratio[0], beyond, terminated[0], cut, mask[0], out[0], kLanes};
  carry = tile<kRatio, kMask, true>(at, w, carry);
  for (int64_t s = 0; s < height; ++s)
    for (int64_t t = 0; t < width; ++t) c.out[(segment + s) * c.horizon + column + t] = out[s][t];
  return carry;
}

// Asks for one tile's share of the next kLanes segments, which lie one after the other in memory; past the end at last, which is
// harmless. The processor's own prefetching does
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

// kLanes segments, from the last column to the first.
template <bool kRatio, bool kMask>
static void whole_segments(const Columns& c, const Weights& w, int64_t segment) {
  uint8_t cut[kBlock];
  Floats carry = {};
  int64_t column = c.horizon;  // from here on everything is done
  if (column % kLanes != 0) {
    column -= column % kLanes;
    prefetch<kRatio, kMask>(c, segment, column);
    carry = rim_tile<kRatio, kMask>(c, w, segment, column, carry);
  }
  while (column > 0) {
    const int64_t start = column > kBlock ? column - kBlock : 0;
    find_cuts(c, segment, start, column, cut);
    if (column == c.horizon) {
      column -= kLanes;
      prefetch<kRatio, kMask>(c, segment, column);
      carry = tile<kRatio, kMask, true>(tile_of<kRatio, kMask>(c, segment, column, cut + (column - start)), w, carry);
    }
    while (column > start) {
      column -= kLanes;
      prefetch<kRatio, kMask>(c, segment, column);
      carry = tile<kRatio, kMask, false>(tile_of<kRatio, kMask>(c, segment, column, cut + (column - start)), w, carry);
    }
  }
}

// Segments [low, high).
template <bool kRatio, bool kMask>
static void segments(const Columns& c, const Weights& w, int64_t low, int64_t high) {
  for (int64_t segment = low; segment < high; segment += kLanes) {
    if (c.segments - segment >= kLanes) {
      whole_segments<kRatio, kMask>(c, w, segment);
      continue;
    }
    Floats carry = {};
    for (int64_t column = (c.horizon - 1) / kLanes * kLanes; column >= 0; column -= kLanes)
      carry = rim_tile<kRatio, kMask>(c, w, segment, column, carry);
  }
}

static void run(const Columns& c, const Weights& w, int64_t low, int64_t high) {
  if (c.ratio != nullptr)
    c.mask != nullptr ? segments<true, true>(c, w, low, high) : segments<true, false>(c, w, low, high);
  else
    c.mask != nullptr ? segments<false, true>(c, w, low, high) : segments<false, false>(c, w, low, high);
}

#undef FUGU_INLINE
