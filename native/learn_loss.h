// Sampling from, and the PPO loss of, a categorical distribution. Included by learn.h after learn_vector.h.
//
// kLanes rows are computed side by side, one choice after the other: every row has the same number of choices, so nothing is ever
// summed across lanes. The number of choices is small; its columns are gathered once into `column` and stay in cache.

// Choice c of `rows` rows (the last one repeated in the lanes beyond), masked choices at the most negative number.
FUGU_INLINE Floats choice(const float* logits, const uint8_t* mask, int64_t choices, int64_t rows, int64_t c) {
  float gathered[kLanes];
#pragma GCC unroll 16
  for (int i = 0; i < kLanes; ++i) {
    const int64_t at = (i < rows ? i : rows - 1) * choices + c;
    gathered[i] = mask == nullptr || mask[at] ? logits[at] : -3.40282347e38f;
  }
  return load(gathered);
}

struct Softmax {
  Floats largest, sum;
};

// column[c] = e^(logit - largest) for all choices.
FUGU_INLINE Softmax softmax(const float* logits, const uint8_t* mask, int64_t choices, int64_t rows, float* logit, float* column) {
  Floats largest = all(-3.40282347e38f);
  for (int64_t c = 0; c < choices; ++c) {
    const Floats v = choice(logits, mask, choices, rows, c);
    store(logit + c * kLanes, v);
    largest = v > largest || v != v ? v : largest;
  }
  Floats sum{};
  for (int64_t c = 0; c < choices; ++c) {
    const Floats e = exp(load(logit + c * kLanes) - largest);
    store(column + c * kLanes, e);
    sum += e;
  }
  return {largest, sum};
}

static int64_t loss_floats(int64_t choices) { return 2 * choices * kLanes; }

// The inverse of the distribution function: the last choice of positive probability before which at most uniform * sum lies.
static void sample_rows(const Sample& m, int64_t low, int64_t high, float* scratch) {
  float* logit = scratch;
  float* column = scratch + m.choices * kLanes;
  for (int64_t row = low; row < high; row += kLanes) {
    const int64_t rows = high - row < kLanes ? high - row : kLanes;
    const uint8_t* mask = m.mask ? m.mask + row * m.choices : nullptr;
    const Softmax s = softmax(m.logits + row * m.choices, mask, m.choices, rows, logit, column);
    const Floats target = load_some(m.uniform + row, rows) * s.sum;
    Floats before{}, chosen_logit = load(logit);
    Ints chosen{};
    for (int64_t c = 0; c < m.choices; ++c) {
      const Floats e = load(column + c * kLanes);
      const Ints takes = before <= target && e > 0.0f;
      chosen = takes ? Ints{} + (int32_t)c : chosen;
      chosen_logit = takes ? load(logit + c * kLanes) : chosen_logit;
      before += e;
    }
    store_some(m.logprob + row, chosen_logit - s.largest - log(s.sum), rows);
    for (int64_t i = 0; i < rows; ++i) m.action[row + i] = chosen[i];
  }
}

FUGU_INLINE Floats clamp(Floats v, float low, float high) { return at_least(at_most(v, high), low); }

// Gradients of rows [low, high) and what they add to the sums.
static void ppo_rows(const PpoLoss& m, int64_t low, int64_t high, double* sums, float* scratch) {
  float* logit = scratch;
  float* column = scratch + m.choices * kLanes;
  Floats total[kLossParts] = {};
  for (int64_t row = low; row < high; row += kLanes) {
    const int64_t rows = high - row < kLanes ? high - row : kLanes;
    const uint8_t* mask = m.mask ? m.mask + row * m.choices : nullptr;
    const Floats weight = load_some(m.weight + row, rows);
    const Ints counts = weight != 0.0f;  // rows without weight give nothing, whatever they hold
    Ints action;
    for (int i = 0; i < kLanes; ++i) action[i] = i < rows ? (int32_t)m.action[row + i] : -1;

    const Softmax s = softmax(m.logits + row * m.choices, mask, m.choices, rows, logit, column);
    const Floats normalizer = s.largest + log(s.sum), inverse = 1.0f / s.sum;
    Floats logprob{}, entropy{};
    for (int64_t c = 0; c < m.choices; ++c) {
      const Floats p = load(column + c * kLanes) * inverse, logp = load(logit + c * kLanes) - normalizer;
      logprob = action == (int32_t)c ? logp : logprob;
      entropy -= p == 0.0f ? Floats{} : p * logp;
      store(column + c * kLanes, p);
      store(logit + c * kLanes, logp);
    }

    const Floats advantage = load_some(m.advantage + row, rows), log_ratio = logprob - load_some(m.old_logprob + row, rows);
    const Floats ratio = exp(log_ratio), surrogate = ratio * advantage;
    const Floats clipped = clamp(ratio, 1.0f - m.clip, 1.0f + m.clip) * advantage;
    const Floats distance = ratio - 1.0f;
    const Floats outside = distance > m.clip || distance < -m.clip ? all(1.0f) : Floats{};

    const Floats value = load_some(m.value + row, rows), value_target = load_some(m.value_target + row, rows);
    const Floats old_value = load_some(m.old_value + row, rows), error = value - value_target;
    Floats square = error * error, value_slope = error;
    if (m.value_clip < __builtin_inff()) {
      const Floats moved = value - old_value;
      const Floats near = old_value + clamp(moved, -m.value_clip, m.value_clip) - value_target;
      const Ints inside = moved >= -m.value_clip && moved <= m.value_clip;
      const Ints farther = !(near * near <= square);  // NaN too
      square = farther ? near * near : square;
      value_slope = farther ? (inside ? near : Floats{}) : value_slope;
    }

    const Floats terms[kLossParts] = {-(surrogate < clipped ? surrogate : clipped), 0.5f * square, entropy, distance - log_ratio, outside};
    for (int i = 0; i < kLossParts; ++i) total[i] += counts ? weight * terms[i] : Floats{};

    // d loss / d logit_c = d loss / d logprob * ((c is the action) - p_c) + entropy_coef * weight * p_c (log p_c + entropy)
    const Floats through = surrogate <= clipped || surrogate != surrogate ? -weight * surrogate : Floats{};
    const Floats spread_out = m.entropy_coef * weight;
    store_some(m.grad_value + row, counts ? m.value_coef * weight * value_slope : Floats{}, rows);
    for (int64_t c = 0; c < m.choices; ++c) {
      const Floats p = load(column + c * kLanes), logp = load(logit + c * kLanes);
      const Floats one = action == (int32_t)c ? all(1.0f) : Floats{};
      const Floats flat = p == 0.0f ? Floats{} : p * (logp + entropy);
      const Floats grad = counts ? fma(through, one - p, spread_out * flat) : Floats{};
      for (int64_t i = 0; i < rows; ++i) {
        const int64_t at = (row + i) * m.choices + c;
        m.grad_logits[at] = m.mask == nullptr || m.mask[at] ? grad[i] : 0.0f;
      }
    }
  }
  for (int i = 0; i < kLossParts; ++i) {
    sums[i] = 0;
    for (int lane = 0; lane < kLanes; ++lane) sums[i] += total[i][lane];
  }
}
