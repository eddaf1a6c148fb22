// Normal distributions squashed by tanh, row by row, and their gradients. Included by learn.h after learn_vector.h.
//
// With u = mean + deviation * noise and action = tanh(u) the log-density is that of the noise, less the logarithms of the deviation
// and of the slope 1 - action^2. Nothing is kept for the gradients: what they need is computed again.

struct Squash {
  Floats u, deviation, log_deviation, action;
  Ints inside;  // where the logarithm of the deviation is within its bounds
};

FUGU_INLINE Squash squash_some(const Squashed& s, int64_t row, int64_t j) {
  const int64_t left = s.reals - j;
  const float* params = s.params + row * s.params_step;
  Squash found;
  const Floats free = load_some(params + s.reals + j, left);
  found.inside = free >= s.least && free <= s.most;
  found.log_deviation = at_least(at_most(free, s.most), s.least);
  found.deviation = exp(found.log_deviation);
  found.u = fma(load_some(s.noise + row * s.reals + j, left), found.deviation, load_some(params + j, left));
  found.action = tanh(found.u);
  return found;
}

// log(1 - tanh(u)^2) without cancellation.
FUGU_INLINE Floats log_slope(Floats u) {
  const Floats size = u < 0.0f ? -u : u;
  return 2.0f * (0.693147182f - size - log(1.0f + exp(-2.0f * size)));
}

static void squash(const Squashed& s) {
  for (int64_t row = 0; row < s.rows; ++row) {
    float terms[kLanes], sum = 0;
    for (int64_t j = 0; j < s.reals; j += kLanes) {
      const int64_t left = s.reals - j;
      const Squash found = squash_some(s, row, j);
      const Floats noise = load_some(s.noise + row * s.reals + j, left);
      store_some(s.action + row * s.action_step + j, found.action, left);
      store(terms, fma(0.5f * noise, noise, found.log_deviation + log_slope(found.u)));
      for (int64_t i = 0; i < (left < kLanes ? left : kLanes); ++i) sum += terms[i];
    }
    s.logprob[row] = -sum - static_cast<float>(s.reals) * 0.918938533f;  // half the logarithm of tau
  }
}

static void squash_gradients(const Squashed& s) {
  for (int64_t row = 0; row < s.rows; ++row) {
    float* grad = s.grad_params + row * s.params_step;
    const Floats of_logprob = all(s.grad_logprob[row]);
    for (int64_t j = 0; j < s.reals; j += kLanes) {
      const int64_t left = s.reals - j;
      const Squash found = squash_some(s, row, j);
      // the slope of -log(1 - action^2) along u is 2 * action
      const Floats slope = fma(-found.action, found.action, all(1.0f));
      const Floats of_u = fma(load_some(s.grad_action + row * s.action_step + j, left), slope, 2.0f * of_logprob * found.action);
      const Floats noise = load_some(s.noise + row * s.reals + j, left);
      const Floats of_log = fma(of_u * found.deviation, noise, -of_logprob);
      store_some(grad + j, of_u, left);
      store_some(grad + s.reals + j, found.inside ? of_log : Floats{}, left);
    }
    for (int64_t j = 2 * s.reals; j < s.params_step; ++j) grad[j] = 0;
  }
}
