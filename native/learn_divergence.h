// How far categorical distributions are from others, and the gradients. Included by learn.h after learn_norm.h.

// The first `count` floats, ones behind them.
FUGU_INLINE Floats load_or_one(const float* from, int64_t count) {
  if (count >= kLanes) return load(from);
  Floats v = all(1.0f);
  for (int64_t i = 0; i < count; ++i) v[i] = from[i];
  return v;
}

static void divergence_rows(const Divergence& m, int64_t low, int64_t high) {
  for (int64_t row = low; row < high; ++row) {
    Floats sum{};
    for (int64_t i = 0; i < m.count; i += kLanes) {
      const Floats p = load_or_one(m.p + row * m.count + i, m.count - i), q = load_or_one(m.q + row * m.count + i, m.count - i);
      sum = fma(p, log(p) - log(q), sum);
    }
    m.divergence[row] = added_up(sum);
  }
}

static void divergence_gradients(const Divergence& m, int64_t low, int64_t high) {
  for (int64_t row = low; row < high; ++row)
    for (int64_t i = 0; i < m.count; i += kLanes) {
      const int64_t at = row * m.count + i, left = m.count - i;
      const Floats p = load_or_one(m.p + at, left), q = load_or_one(m.q + at, left);
      store_some(m.grad_p + at, m.weight_p[row] * (log(p) - log(q) + 1.0f), left);
      store_some(m.grad_q + at, -m.weight_q[row] * p / q, left);
    }
}
