// The states of a sequence of observed rows, and the gradients through all of it. Included by learn.h after learn_cell.h.
//
// Only what one row needs of the row before is computed row by row; the gradients of the weights are products over all rows.

struct ObserveRows {  // of all rows, in the order of time
  CellRows cell;
  float* deter;    // [deter] before the row; zeros where an episode begins
  float* stoch;    // [random] likewise
  float* plain;    // [hidden] of the posterior's layer, before its norm
  float* hidden;   // [hidden] after it
  float* inverse;  // [1]
};

static int64_t observe_floats(const Observe& m) {
  return cell_floats(m.cell) + m.cell.deter + m.cell.random + 2 * m.cell.hidden + 1;
}

static ObserveRows observe_rows(const Observe& m, float* memory) {
  const int64_t count = m.time * m.rows;
  ObserveRows rows;
  rows.cell = cell_rows(m.cell, memory, count);
  rows.deter = memory + count * cell_floats(m.cell);
  rows.stoch = rows.deter + count * m.cell.deter;
  rows.plain = rows.stoch + count * m.cell.random;
  rows.hidden = rows.plain + count * m.cell.hidden;
  rows.inverse = rows.hidden + count * m.cell.hidden;
  return rows;
}

static int64_t observe_packed_floats(const Observe& m) {
  const Cell& c = m.cell;
  return cell_packed_floats(c) + packed_floats(c.deter, c.hidden) + packed_floats(c.hidden, c.random) + padded(c.hidden) + kPanel;
}

static void observe_forward(const Observe& m, float* scratch) {
  const Cell& c = m.cell;
  const int64_t n = m.rows, d = c.deter, z = c.random, h = c.hidden;
  float* packed = scratch;
  cell_pack(c, packed);
  float* expected = packed + cell_packed_floats(c);
  float* posterior = pack_all(m.expected_weight, 1, d, d, h, expected);
  pack_all(m.posterior_weight, 1, h, h, z, posterior);
  const ObserveRows all_rows = observe_rows(m, m.kept);
  for (int64_t t = 0; t < m.time; ++t) {
    const CellRows kept = from_row(c, all_rows.cell, t * n);
    for (int64_t r = 0; r < n; ++r) {
      const int64_t at = t * n + r;
      const bool begins = m.first[at];
      const float *deter = t > 0 ? m.deter + (at - n) * d : m.start_deter + r * d, *stoch = t > 0 ? m.stoch + (at - n) * z : m.start_stoch + r * z;
      for (int64_t i = 0; i < d; ++i) all_rows.deter[at * d + i] = begins ? 0.0f : deter[i];
      for (int64_t i = 0; i < z; ++i) all_rows.stoch[at * z + i] = begins ? 0.0f : stoch[i];
      for (int64_t i = 0; i < h; ++i) kept.common[r * 3 * h + 2 * h + i] = m.action[at * h + i];
    }
    float *next = m.deter + t * n * d, *plain = all_rows.plain + t * n * h, *hidden = all_rows.hidden + t * n * h;
    cell_forward(c, packed, n, all_rows.deter + t * n * d, d, all_rows.stoch + t * n * z, z, kept, next, d);
    linear({next, d, 1}, panels_at(expected, d), n, h, d, m.seen + t * n * h, h, plain, h);
    for (int64_t r = 0; r < n; ++r)
      all_rows.inverse[t * n + r] = norm_row(plain + r * h, m.seen_scale, h, c.epsilon, hidden + r * h);
    float *chance = m.chance + t * n * z, *drawn = m.stoch + t * n * z;
    linear({hidden, h, 1}, panels_at(posterior, h), n, z, h, m.posterior_bias, 0, drawn, z);
    const int64_t variables = z / m.classes;
    for (int64_t r = 0; r < n; ++r)
      mixed_draws(drawn + r * z, variables, m.classes, m.even, m.uniform + (t * n + r) * variables, chance + r * z, drawn + r * z);
  }
}

struct ObserveSums {  // of gradients of weights, transposed and padded, and of biases and scales
  int64_t deter, stoch, shared, own, gate, expected, posterior, vectors, floats;
  int64_t deter_bias, stoch_bias, mix_bias, gate_bias, posterior_bias, deter_scale, stoch_scale, mix_scale, seen_scale;
  explicit ObserveSums(const Cell& c) {
    const int64_t w = c.deter / c.blocks;
    deter = 0;
    stoch = deter + packed_floats(c.deter, c.hidden);
    shared = stoch + packed_floats(c.random, c.hidden);
    own = shared + packed_floats(3 * c.hidden, c.deter);
    gate = own + c.blocks * packed_floats(w, w);
    expected = gate + c.blocks * packed_floats(w, 3 * w);
    posterior = expected + packed_floats(c.deter, c.hidden);
    vectors = posterior + packed_floats(c.hidden, c.random);
    deter_bias = vectors;
    stoch_bias = deter_bias + padded(c.hidden);
    mix_bias = stoch_bias + padded(c.hidden);
    gate_bias = mix_bias + padded(c.deter);
    posterior_bias = gate_bias + padded(3 * c.deter);
    deter_scale = posterior_bias + padded(c.random);
    stoch_scale = deter_scale + padded(c.hidden);
    mix_scale = stoch_scale + padded(c.hidden);
    seen_scale = mix_scale + padded(c.deter);
    floats = seen_scale + padded(c.hidden);
  }
};

struct ObserveGrads {  // of all rows
  CellRows cell;
  float *plain, *logits;
};

static int64_t observe_backward_floats(const Observe& m) {
  const Cell& c = m.cell;
  const int64_t rows = m.time * m.rows * (cell_floats(c) + c.hidden + c.random), weights = packed_floats(c.hidden, c.deter) + packed_floats(c.random, c.hidden);
  const int64_t widest = 3 * (c.deter + c.hidden) + c.random;
  return cell_back_packed_floats(c) + weights + rows + m.rows * 2 * (c.deter + c.random) + ObserveSums(c).floats + widest + 8 * kPanel;
}

constexpr int64_t kWeightRows = 96;  // whose columns are added up at a time, so that they stay in cache

// The gradients of weights, from those of what the linear layers gave.
static void observe_weights(const Observe& m, const ObserveRows& kept, const ObserveGrads& grads, float* sums) {
  const Cell& c = m.cell;
  const ObserveSums at(c);
  const int64_t count = m.time * m.rows, d = c.deter, z = c.random, h = c.hidden, w = d / c.blocks;
  for (int64_t low = 0; low < count; low += kWeightRows) {
    const int64_t n = count - low < kWeightRows ? count - low : kWeightRows;
    const CellRows cell = from_row(c, kept.cell, low), grad = from_row(c, grads.cell, low);
    const float *deter = kept.deter + low * d, *plain = grads.plain + low * h, *logits = grads.logits + low * z;
    add_transposed_product(deter, d, d, grad.plain, 2 * h, h, n, sums + at.deter);
    add_transposed_product(kept.stoch + low * z, z, z, grad.plain + h, 2 * h, h, n, sums + at.stoch);
    add_transposed_product(cell.common, 3 * h, 3 * h, grad.mix, d, d, n, sums + at.shared);
    for (int64_t g = 0; g < c.blocks; ++g) {
      add_transposed_product(deter + g * w, d, w, grad.mix + g * w, d, w, n, sums + at.own + g * packed_floats(w, w));
      add_transposed_product(cell.mixed + g * w, d, w, grad.gates + g * 3 * w, 3 * d, 3 * w, n,
                             sums + at.gate + g * packed_floats(w, 3 * w));
    }
    add_transposed_product(m.deter + low * d, d, d, plain, h, h, n, sums + at.expected);
    add_transposed_product(kept.hidden + low * h, h, h, logits, z, z, n, sums + at.posterior);
    add_columns(grad.plain, 2 * h, h, n, sums + at.deter_bias);
    add_columns(grad.plain + h, 2 * h, h, n, sums + at.stoch_bias);
    add_columns(grad.mix, d, d, n, sums + at.mix_bias);
    add_columns(grad.gates, 3 * d, 3 * d, n, sums + at.gate_bias);
    add_columns(logits, z, z, n, sums + at.posterior_bias);
  }

  transposed(sums + at.deter, padded(h), d, h, m.grad_deter_weight);
  transposed(sums + at.stoch, padded(h), z, h, m.grad_stoch_weight);
  transposed(sums + at.expected, padded(h), d, h, m.grad_expected_weight);
  transposed(sums + at.posterior, padded(z), h, z, m.grad_posterior_weight);
  const int64_t depth = w + 3 * h;
  for (int64_t g = 0; g < c.blocks; ++g)
    for (int64_t k = 0; k < depth; ++k)
      for (int64_t j = 0; j < w; ++j)
        m.grad_mix_weight[(g * depth + k) * w + j] = k < w ? sums[at.own + g * packed_floats(w, w) + k * padded(w) + j]
                                                           : sums[at.shared + (k - w) * padded(d) + g * w + j];
  for (int64_t g = 0; g < c.blocks; ++g)
    for (int64_t k = 0; k < w; ++k)
      for (int64_t j = 0; j < 3 * w; ++j)
        m.grad_gate_weight[(g * w + k) * 3 * w + j] = sums[at.gate + g * packed_floats(w, 3 * w) + k * padded(3 * w) + j];
  const struct {
    int64_t from, count;
    float* to;
  } vectors[] = {{at.deter_bias, h, m.grad_deter_bias},   {at.stoch_bias, h, m.grad_stoch_bias}, {at.mix_bias, d, m.grad_mix_bias},
                 {at.gate_bias, 3 * d, m.grad_gate_bias}, {at.posterior_bias, z, m.grad_posterior_bias},
                 {at.deter_scale, h, m.grad_deter_scale}, {at.stoch_scale, h, m.grad_stoch_scale},
                 {at.mix_scale, d, m.grad_mix_scale},     {at.seen_scale, h, m.grad_seen_scale}};
  for (const auto& v : vectors)
    for (int64_t i = 0; i < v.count; ++i) v.to[i] = sums[v.from + i];
}

static void observe_backward(const Observe& m, float* scratch) {
  const Cell& c = m.cell;
  const ObserveSums at(c);
  const int64_t n = m.rows, count = m.time * n, d = c.deter, z = c.random, h = c.hidden;
  float* const packed = scratch;
  cell_back_pack(c, packed);
  float* const expected = packed + cell_back_packed_floats(c);
  float* const posterior = pack_all(m.expected_weight, d, 1, h, d, expected);
  float* const sums = pack_all(m.posterior_weight, h, 1, z, h, posterior);
  float* const zeros = sums + at.floats;
  float *const grad_deter = zeros + 3 * (d + h) + z, *const grad_stoch = grad_deter + n * d, *const through = grad_stoch + n * z;
  for (float* p = sums; p < through; ++p) *p = 0.0f;
  ObserveGrads grads;
  grads.cell = cell_rows(c, through + n * d, count);
  grads.plain = through + n * d + count * cell_floats(c);
  grads.logits = grads.plain + count * h;
  const ObserveRows kept = observe_rows(m, m.kept);
  const CellSums scales{sums + at.deter_scale, sums + at.stoch_scale, sums + at.mix_scale};
  for (int64_t t = m.time - 1; t >= 0; --t) {
    float *logits = grads.logits + t * n * z, *plain = grads.plain + t * n * h;
    for (int64_t i = 0; i < n * z; ++i) logits[i] = m.grad_chance[t * n * z + i] + m.grad_stoch[t * n * z + i] + grad_stoch[i];
    mixed_gradient(m.chance + t * n * z, logits, n * z / m.classes, m.classes, m.even, logits);
    linear({logits, z, 1}, panels_at(posterior, z), n, h, z, zeros, 0, plain, h);
    for (int64_t r = 0; r < n; ++r) {
      const int64_t row = t * n + r;
      norm_gradient(kept.plain + row * h, m.seen_scale, kept.inverse[row], plain + r * h, h, plain + r * h, sums + at.seen_scale);
      for (int64_t i = 0; i < h; ++i) m.grad_seen[row * h + i] = plain[r * h + i];
      for (int64_t i = 0; i < d; ++i) through[r * d + i] = grad_deter[r * d + i] + m.grad_deter[row * d + i];
    }
    linear({plain, h, 1}, panels_at(expected, h), n, d, h, through, d, through, d);
    const CellRows grad = from_row(c, grads.cell, t * n);
    cell_backward(c, packed, n, kept.deter + t * n * d, from_row(c, kept.cell, t * n), through, grad, grad_deter, grad_stoch, zeros, scales);
    for (int64_t r = 0; r < n; ++r) {
      for (int64_t i = 0; i < h; ++i) m.grad_action[(t * n + r) * h + i] = grad.common[r * 3 * h + 2 * h + i];
      if (m.first[t * n + r]) {
        for (int64_t i = 0; i < d; ++i) grad_deter[r * d + i] = 0.0f;
        for (int64_t i = 0; i < z; ++i) grad_stoch[r * z + i] = 0.0f;
      }
    }
  }
  observe_weights(m, kept, grads, sums);
}
