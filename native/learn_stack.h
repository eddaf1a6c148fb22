// Layers of a world model on tiles of rows: linear, RMS norm, SiLU, and perhaps a linear one after them. Included by learn.h after
// learn_norm.h.
//
// As with learn_mlp.h a tile passes through all layers while it is in cache. What is kept for the backward pass is what the linear
// layers gave; what norm and SiLU made of it is computed again.

constexpr int64_t kStackRows = 48;  // a tile; a multiple of kBlock

// to[row, column] = from[row, column] + (left right)[row, column]. `from` may be `to`; a step of 0 takes the same row for all.
static void linear(const Left& left, const Right& right, int64_t rows, int64_t columns, int64_t depth, const float* from,
                   int64_t from_step, float* to, int64_t to_step) {
  product(left, right, rows, columns, depth,
          [&](int64_t row, int64_t column) { return load_some(from + row * from_step + column, columns - column); },
          [&](int64_t row, int64_t column, Floats v) { store_some(to + row * to_step + column, v, columns - column); });
}

FUGU_INLINE int64_t packed_floats(int64_t depth, int64_t columns) { return depth * padded(columns); }

// All panels of a matrix as in `pack`. Returns what lies behind them.
static float* pack_all(const float* from, int64_t k_step, int64_t column_step, int64_t depth, int64_t columns, float* to) {
  for (int64_t p = 0; p < panels(columns); ++p, to += depth * kPanel) pack(from, k_step, column_step, depth, columns, p, to);
  return to;
}

FUGU_INLINE Right panels_at(const float* packed, int64_t depth) { return {packed, kPanel, depth * kPanel}; }

static int64_t stack_packed_floats(const Stack& m, bool backward) {
  int64_t floats = backward ? padded(m.widest) : 0;
  for (int l = 0; l < m.layers; ++l)
    floats += backward ? packed_floats(m.width[l + 1], m.width[l]) : packed_floats(m.width[l], m.width[l + 1]);
  return floats;
}

// The weights in panels; for the backward pass behind a row of zeros, and as they are multiplied by there.
static void stack_pack(const Stack& m, bool backward, float* to) {
  if (backward) {
    for (int64_t i = 0; i < padded(m.widest); ++i) to[i] = 0.0f;
    to += padded(m.widest);
  }
  for (int l = 0; l < m.layers; ++l) {
    const int64_t in = m.width[l], out = m.width[l + 1];
    to = backward ? pack_all(m.weight[l], in, 1, out, in, to) : pack_all(m.weight[l], 1, in, in, out, to);
  }
}

static int64_t stack_forward_floats(const Stack& m) { return 2 * kStackRows * spread(m.widest); }

// At most a tile of rows. `kept_row`: where what is kept of them lies; less than 0: nothing is.
static void stack_tile(const Stack& m, const float* packed, const float* x, int64_t x_step, int64_t rows, float* y, int64_t y_step,
                       int64_t kept_row, float* scratch) {
  const int64_t step = spread(m.widest);
  for (int l = 0; l < m.layers; ++l) {
    const int64_t in = m.width[l], out = m.width[l + 1];
    const bool last = l == m.layers - 1, normed = m.scale[l] != nullptr, keep = normed && kept_row >= 0;
    float *result = last ? y : scratch + l % 2 * kStackRows * step, *plain = keep ? m.kept[l] + kept_row * out : result;
    const int64_t result_step = last ? y_step : step, plain_step = keep ? out : result_step;
    linear({x, x_step, 1}, panels_at(packed, in), rows, out, in, m.bias[l], 0, plain, plain_step);
    if (normed)
      for (int64_t r = 0; r < rows; ++r) {
        const float inverse = norm_row(plain + r * plain_step, m.scale[l], out, m.epsilon, result + r * result_step);
        if (keep) m.inverse[l * m.rows + kept_row + r] = inverse;
      }
    x = result;
    x_step = result_step;
    packed += packed_floats(in, out);
  }
}

static void stack_forward(const Stack& m, const float* packed, int64_t low, int64_t high, float* scratch) {
  const int64_t in = m.width[0], out = m.width[m.layers];
  for (int64_t row = low; row < high; row += kStackRows)
    stack_tile(m, packed, m.x + row * in, in, high - row < kStackRows ? high - row : kStackRows, m.y + row * out, out,
               m.inverse ? row : -1, scratch);
}

// Sums of a share: per layer weight^T [in, padded(out)], bias and scale, each [padded(out)].
static int64_t stack_sum_floats(const Stack& m) {
  int64_t floats = 0;
  for (int l = 0; l < m.layers; ++l) floats += (m.width[l] + 2) * padded(m.width[l + 1]);
  return floats;
}

static int64_t stack_backward_floats(const Stack& m) { return 3 * kStackRows * spread(m.widest); }

// Adds what rows [low, high) give to `sums`; writes their part of m.grad_x where it is asked for.
static void stack_backward(const Stack& m, const float* packed, int64_t low, int64_t high, float* sums, float* scratch) {
  const int64_t step = spread(m.widest);
  float* again = scratch;
  for (int64_t row = low; row < high; row += kStackRows) {
    float *delta = again + kStackRows * step, *next = delta + kStackRows * step;
    const int64_t rows = high - row < kStackRows ? high - row : kStackRows, width = m.width[m.layers];
    for (int64_t r = 0; r < rows; ++r)
      for (int64_t i = 0; i < width; i += kLanes)
        store_some(delta + r * step + i, load_some(m.grad_y + (row + r) * width + i, width - i), width - i);
    const float* weight = packed + stack_packed_floats(m, true);
    float* sum = sums + stack_sum_floats(m);
    for (int l = m.layers - 1; l >= 0; --l) {
      const int64_t in = m.width[l], out = m.width[l + 1];
      weight -= packed_floats(out, in);
      sum -= (in + 2) * padded(out);
      if (m.scale[l] != nullptr)
        for (int64_t r = 0; r < rows; ++r)
          norm_gradient(m.kept[l] + (row + r) * out, m.scale[l], m.inverse[l * m.rows + row + r], delta + r * step, out,
                        delta + r * step, sum + (in + 1) * padded(out));
      const float* input = m.x + row * in;
      if (l > 0) {
        input = again;
        for (int64_t r = 0; r < rows; ++r)
          norm_row_again(m.kept[l - 1] + (row + r) * in, m.scale[l - 1], m.inverse[(l - 1) * m.rows + row + r], in,
                         again + r * step);
      }
      add_transposed_product(input, l > 0 ? step : in, in, delta, step, out, rows, sum);
      add_columns(delta, step, out, rows, sum + in * padded(out));
      if (l > 0) {
        linear({delta, step, 1}, panels_at(weight, out), rows, in, out, packed, 0, next, step);
        float* const swap = delta;
        delta = next;
        next = swap;
      } else if (m.grad_x) {
        linear({delta, step, 1}, panels_at(weight, out), rows, in, out, packed, 0, m.grad_x + row * in, in);
      }
    }
  }
}

// Element (i, j) of a sum as element (j, i) of a gradient.
static void transposed(const float* from, int64_t step, int64_t in, int64_t out, float* to) {
  for (int64_t j = 0; j < out; ++j)
    for (int64_t i = 0; i < in; ++i) to[j * in + i] = from[i * step + j];
}

// The sums of all shares in their order, as gradients in the shape of the parameters.
static void stack_gather(const Stack& m, int64_t shares, float* sums) {
  const int64_t floats = stack_sum_floats(m);
  for (int64_t share = 1; share < shares; ++share)
    for (int64_t i = 0; i < floats; i += kLanes) store(sums + i, load(sums + i) + load(sums + share * floats + i));
  for (int l = 0; l < m.layers; ++l) {
    const int64_t in = m.width[l], out = m.width[l + 1], step = padded(out);
    transposed(sums, step, in, out, m.grad_weight[l]);
    for (int64_t j = 0; j < out; ++j) m.grad_bias[l][j] = sums[in * step + j];
    if (m.scale[l] != nullptr)
      for (int64_t j = 0; j < out; ++j) m.grad_scale[l][j] = sums[(in + 1) * step + j];
    sums += (in + 2) * step;
  }
}
