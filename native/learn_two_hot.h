// Numbers as classes: the mean over bins, and the cross entropy of targets put between two bins. Included by learn.h after
// learn_norm.h.

// e^(logit - largest) of a row in `to`, whose vectors are filled up with zeros; the largest logit and the sum.
FUGU_INLINE void exponentials(const float* logits, int64_t bins, float* to, float& largest, float& sum) {
  Floats most = all(logits[0]);
  int64_t i = 0;
  for (; i + kLanes <= bins; i += kLanes) {
    const Floats v = load(logits + i);
    most = v > most || v != v ? v : most;
  }
  largest = logits[0];
  for (; i < bins; ++i) largest = logits[i] > largest || logits[i] != logits[i] ? logits[i] : largest;
  float lane[kLanes];
  store(lane, most);
#pragma GCC unroll 4
  for (int half = kLanes / 2; half > 0; half /= 2)
#pragma GCC unroll 8
    for (int k = 0; k < half; ++k) lane[k] = lane[k + half] > lane[k] || lane[k + half] != lane[k + half] ? lane[k + half] : lane[k];
  largest = lane[0] > largest || lane[0] != lane[0] ? lane[0] : largest;
  Floats total{};
  for (i = 0; i < bins; i += kLanes) {
    Floats e = exp_below(load_some(logits + i, bins - i) - largest);
    if (bins - i < kLanes)
      for (int k = 0; k < kLanes; ++k) e[k] = k < bins - i ? e[k] : 0.0f;
    store(to + i, e);
    total += e;
  }
  sum = added_up(total);
}

FUGU_INLINE float sum_of_pairs(const float* e, const float* bins, int64_t count) {  // so that equal logits mean exactly 0
  const int64_t half = count / 2;
  Floats total{};
  int64_t i = 1;
  for (; i + kLanes - 1 <= half; i += kLanes) {
    const Floats below = load(e + half - i - (kLanes - 1));
    Floats mirrored;
#pragma GCC unroll 16
    for (int k = 0; k < kLanes; ++k) mirrored[k] = below[kLanes - 1 - k];
    total = fma(load(e + half + i) - mirrored, load(bins + half + i), total);
  }
  float sum = added_up(total);
  for (; i <= half; ++i) sum += (e[half + i] - e[half - i]) * bins[half + i];
  return sum;
}

static int64_t two_hot_floats(const TwoHot& m) { return padded(m.count); }

// Means of rows [low, high) where asked for, and log sums of exponentials.
static void two_hot_rows(const TwoHot& m, int64_t low, int64_t high, float* scratch) {
  for (int64_t row = low; row < high; ++row) {
    float largest, sum;
    exponentials(m.logits + row * m.count, m.count, scratch, largest, sum);
    if (m.mean) m.mean[row] = sum_of_pairs(scratch, m.bins, m.count) / sum;
    if (m.log_sum) m.log_sum[row] = largest + logf(sum);
  }
}

// Where `y` lies: the bin above it, and its share of the two around it.
FUGU_INLINE int64_t bin_above(const float* bins, int64_t count, float y, float& share) {
  y = y < bins[0] ? bins[0] : y > bins[count - 1] ? bins[count - 1] : y;
  int64_t low = 0, high = count;  // the first bin above y is in (low, high]
  while (high - low > 1) {
    const int64_t middle = (low + high) / 2;
    if (bins[middle] > y)
      high = middle;
    else
      low = middle;
  }
  const int64_t above = high < count ? high : count - 1;
  share = (y - bins[above - 1]) / (bins[above] - bins[above - 1]);
  return above;
}

// The sum of the cross entropies of all targets of a row; from log_sum, which is known.
static void two_hot_losses(const TwoHot& m, int64_t low, int64_t high) {
  for (int64_t row = low; row < high; ++row) {
    const float* logits = m.logits + row * m.count;
    float loss = 0.0f;
    for (int64_t i = 0; i < m.targets; ++i) {
      float share;
      const int64_t above = bin_above(m.bins, m.count, m.target[row * m.targets + i], share);
      loss += m.log_sum[row] - (logits[above - 1] + share * (logits[above] - logits[above - 1]));
    }
    m.loss[row] = loss;
  }
}

static void two_hot_gradients(const TwoHot& m, int64_t low, int64_t high) {
  for (int64_t row = low; row < high; ++row) {
    const float* logits = m.logits + row * m.count;
    float* grad = m.grad_logits + row * m.count;
    const float weight = m.grad_loss[row], log_sum = m.log_sum[row], times = weight * static_cast<float>(m.targets);
    for (int64_t i = 0; i < m.count; i += kLanes)
      store_some(grad + i, times * exp_below(load_some(logits + i, m.count - i) - log_sum), m.count - i);
    for (int64_t i = 0; i < m.targets; ++i) {
      float share;
      const int64_t above = bin_above(m.bins, m.count, m.target[row * m.targets + i], share);
      grad[above - 1] -= weight * (1.0f - share);
      grad[above] -= weight * share;
    }
  }
}
