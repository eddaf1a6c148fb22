// Probabilities of which a share is spread evenly over the classes, and draws from them. Included by learn.h after learn_norm.h.

// Of each variable of a row: the probabilities of its `classes` classes. `chance` may not be `logits`.
static void mixed_row(const float* logits, int64_t variables, int64_t classes, float even, float* chance) {
  const int64_t count = variables * classes;
  for (int64_t s = 0; s < count; s += classes) {
    float largest = logits[s];
    for (int64_t k = 1; k < classes; ++k) largest = logits[s + k] > largest ? logits[s + k] : largest;
    for (int64_t k = 0; k < classes; ++k) chance[s + k] = logits[s + k] - largest;
  }
  for (int64_t i = 0; i < count; i += kLanes) store_some(chance + i, exp_below(load_some(chance + i, count - i)), count - i);
  const float floor = even / static_cast<float>(classes);
  for (int64_t s = 0; s < count; s += classes) {
    float sum = 0.0f;
    for (int64_t k = 0; k < classes; ++k) sum += chance[s + k];
    const float share = (1.0f - even) / sum;
    for (int64_t k = 0; k < classes; ++k) chance[s + k] = chance[s + k] * share + floor;
  }
}

// The gradient of the logits; it may be that of the probabilities.
static void mixed_gradient(const float* chance, const float* grad_chance, int64_t variables, int64_t classes, float even,
                           float* grad_logits) {
  const float floor = even / static_cast<float>(classes);
  for (int64_t s = 0; s < variables * classes; s += classes) {
    float along = 0.0f;
    for (int64_t k = 0; k < classes; ++k) along += grad_chance[s + k] * (chance[s + k] - floor);
    along /= 1.0f - even;
    for (int64_t k = 0; k < classes; ++k) grad_logits[s + k] = (chance[s + k] - floor) * (grad_chance[s + k] - along);
  }
}

// Also the one-hot class on which the uniform number of each variable falls. `one_hot` may be `logits`.
static void mixed_draws(const float* logits, int64_t variables, int64_t classes, float even, const float* uniform, float* chance,
                        float* one_hot) {
  mixed_row(logits, variables, classes, even, chance);
  for (int64_t v = 0, s = 0; v < variables; ++v, s += classes) {
    float before = 0.0f;
    int64_t chosen = 0;
    for (int64_t k = 0; k < classes; ++k) {
      before += chance[s + k];
      chosen += before <= uniform[v];
      one_hot[s + k] = 0.0f;
    }
    one_hot[s + (chosen < classes ? chosen : classes - 1)] = 1.0f;
  }
}

static void mixed_rows(const Mixed& m, int64_t low, int64_t high) {
  for (int64_t row = low; row < high; ++row)
    mixed_row(m.logits + row * m.variables * m.classes, m.variables, m.classes, m.even, m.chance + row * m.variables * m.classes);
}

static void mixed_gradients(const Mixed& m, int64_t low, int64_t high) {
  for (int64_t row = low; row < high; ++row) {
    const int64_t at = row * m.variables * m.classes;
    mixed_gradient(m.chance + at, m.grad_chance + at, m.variables, m.classes, m.even, m.grad_logits + at);
  }
}
