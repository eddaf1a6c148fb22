// Matrix products for tiles of rows that stay in cache. Included by learn.h after learn_vector.h.
//
// A block of kBlock rows and one panel of kPanel columns, or its first half, is summed in registers over the whole depth. What the
// sum starts from and what becomes of it are given by the caller, so that biases, activations and their derivatives cost no pass of
// their own.

constexpr int kBlock = 6;  // 6 x 2 accumulators, 2 columns and 1 broadcast: 15 of the 16 registers of AVX2
constexpr int kPanel = 2 * kLanes;

FUGU_INLINE int64_t panels(int64_t columns) { return (columns + kPanel - 1) / kPanel; }
FUGU_INLINE int64_t padded(int64_t columns) { return panels(columns) * kPanel; }

// A distance between rows at which the rows of a tile do not compete for the same few sets of the cache.
FUGU_INLINE int64_t spread(int64_t columns) { return padded(columns) + 16; }

struct Left {  // element (row, k)
  const float* at;
  int64_t row_step, k_step;
};

struct Right {  // kPanel elements at (k, panel)
  const float* at;
  int64_t k_step, panel_step;
};

template <int kRows, int kVectors, typename Start, typename Finish>
FUGU_INLINE void block(const Left& left, const float* right, int64_t k_step, int64_t row, int64_t column, int64_t depth,
                       const Start& start, const Finish& finish) {
  Floats sum[kRows][kVectors];
#pragma GCC unroll 8
  for (int i = 0; i < kRows; ++i)
#pragma GCC unroll 2
    for (int v = 0; v < kVectors; ++v) sum[i][v] = start(row + i, column + v * kLanes);
  const float* a = left.at + row * left.row_step;
  for (int64_t k = 0; k < depth; ++k, a += left.k_step, right += k_step) {
    Floats b[kVectors];
#pragma GCC unroll 2
    for (int v = 0; v < kVectors; ++v) b[v] = load(right + v * kLanes);
#pragma GCC unroll 8
    for (int i = 0; i < kRows; ++i) {
      const Floats factor = all(a[i * left.row_step]);
#pragma GCC unroll 2
      for (int v = 0; v < kVectors; ++v) sum[i][v] = fma(factor, b[v], sum[i][v]);
    }
  }
#pragma GCC unroll 8
  for (int i = 0; i < kRows; ++i)
#pragma GCC unroll 2
    for (int v = 0; v < kVectors; ++v) finish(row + i, column + v * kLanes, sum[i][v]);
}

template <int kVectors, typename Start, typename Finish>
FUGU_INLINE void panel_product(const Left& left, const float* right, int64_t k_step, int64_t rows, int64_t column, int64_t depth,
                               const Start& start, const Finish& finish) {
  int64_t row = 0;
  for (; row + kBlock <= rows; row += kBlock) block<kBlock, kVectors>(left, right, k_step, row, column, depth, start, finish);
  switch (rows - row) {
    case 5: block<5, kVectors>(left, right, k_step, row, column, depth, start, finish); break;
    case 4: block<4, kVectors>(left, right, k_step, row, column, depth, start, finish); break;
    case 3: block<3, kVectors>(left, right, k_step, row, column, depth, start, finish); break;
    case 2: block<2, kVectors>(left, right, k_step, row, column, depth, start, finish); break;
    case 1: block<1, kVectors>(left, right, k_step, row, column, depth, start, finish); break;
    default: break;
  }
}

// finish(row, column, start(row, column) + (left right)[row, column...]) for all rows and all vectors with one of the columns.
template <typename Start, typename Finish>
FUGU_INLINE void product(const Left& left, const Right& right, int64_t rows, int64_t columns, int64_t depth, const Start& start,
                         const Finish& finish) {
  for (int64_t column = 0; column < columns; column += kPanel) {
    const float* b = right.at + column / kPanel * right.panel_step;
    if (columns - column > kLanes)
      panel_product<2>(left, b, right.k_step, rows, column, depth, start, finish);
    else
      panel_product<1>(left, b, right.k_step, rows, column, depth, start, finish);
  }
}

// sum[i, j] += left[:, i]^T right[:, j] over `rows` rows: the gradient of a weight, transposed. `right` is padded to whole panels.
static void add_transposed_product(const float* left, int64_t left_step, int64_t left_columns, const float* right, int64_t right_step,
                                   int64_t right_columns, int64_t rows, float* sum) {
  const int64_t step = padded(right_columns);
  product({left, 1, left_step}, {right, right_step, kPanel}, left_columns, right_columns, rows,
          [&](int64_t row, int64_t column) { return load(sum + row * step + column); },
          [&](int64_t row, int64_t column, Floats v) { store(sum + row * step + column, v); });
}

// sum[j] += the sum of column j over `rows` rows.
static void add_columns(const float* from, int64_t step, int64_t columns, int64_t rows, float* sum) {
  for (int64_t column = 0; column < columns; column += kLanes) {
    Floats total = load(sum + column);
    for (int64_t row = 0; row < rows; ++row) total += load(from + row * step + column);
    store(sum + column, total);
  }
}

// Exchanges, in every square of 2 kStep rows and columns, the upper right quarter with the lower left one.
template <int kStep, int... kLane>
FUGU_INLINE void exchange(Floats* rows, std::integer_sequence<int, kLane...>) {
#pragma GCC unroll 16
  for (int i = 0; i < kLanes; ++i) {
    if (i & kStep) continue;
    const Floats a = rows[i], b = rows[i + kStep];
    rows[i] = __builtin_shufflevector(a, b, (kLane & kStep ? kLanes + kLane - kStep : kLane)...);
    rows[i + kStep] = __builtin_shufflevector(a, b, (kLane & kStep ? kLanes + kLane : kLane + kStep)...);
  }
}

// to[column * to_step + row] = from[row * from_step + column].
static void transpose(const float* from, int64_t from_step, int64_t rows, int64_t columns, float* to, int64_t to_step) {
  constexpr std::make_integer_sequence<int, kLanes> lanes{};
  const int64_t whole_rows = rows / kLanes * kLanes, whole_columns = columns / kLanes * kLanes;
  for (int64_t row = 0; row < whole_rows; row += kLanes)
    for (int64_t column = 0; column < whole_columns; column += kLanes) {
      Floats square[kLanes];
#pragma GCC unroll 16
      for (int i = 0; i < kLanes; ++i) square[i] = load(from + (row + i) * from_step + column);
      exchange<1>(square, lanes);
      exchange<2>(square, lanes);
#if FUGU_LANES > 4
      exchange<4>(square, lanes);
#endif
#if FUGU_LANES > 8
      exchange<8>(square, lanes);
#endif
#pragma GCC unroll 16
      for (int i = 0; i < kLanes; ++i) store(to + (column + i) * to_step + row, square[i]);
    }
  for (int64_t row = 0; row < rows; ++row)
    for (int64_t column = row < whole_rows ? whole_columns : 0; column < columns; ++column)
      to[column * to_step + row] = from[row * from_step + column];
}

// Panel `panel` of a [depth, columns] matrix, element (k, column) at from[k * k_step + column * column_step], one of the steps 1;
// zeros beyond.
static void pack(const float* from, int64_t k_step, int64_t column_step, int64_t depth, int64_t columns, int64_t panel, float* to) {
  const int64_t low = panel * kPanel, width = columns - low < kPanel ? columns - low : kPanel;
  if (width < kPanel)
    for (int64_t k = 0; k < depth; ++k)
      for (int64_t j = width; j < kPanel; ++j) to[k * kPanel + j] = 0;
  if (column_step != 1) return transpose(from + low * column_step, column_step, width, depth, to, kPanel);
  for (int64_t k = 0; k < depth; ++k, from += k_step, to += kPanel) {
    store_some(to, load_some(from + low, width), width);
    if (width > kLanes) store_some(to + kLanes, load_some(from + low + kLanes, width - kLanes), width - kLanes);
  }
}
