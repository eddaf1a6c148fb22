// The two halves of a step of Adam, each in one pass. Included by learn.h after learn_vector.h.

// Takes gradients into both running means; they may be missing, which counts as zeros.
static void adam_means(const Adam& a) {
  for (int64_t i = 0; i < a.count; i += kLanes) {
    const int64_t left = a.count - i;
    const Floats grad = a.grad ? load_some(a.grad + i, left) : Floats{}, mean = load_some(a.mean + i, left);
    store_some(a.mean + i, fma(all(a.rate1), grad - mean, mean), left);
    store_some(a.square + i, fma(a.rate2 * grad, grad, load_some(a.square + i, left) * a.beta2), left);
  }
}

static void adam_follow(const Adam& a) {
  for (int64_t i = 0; i < a.count; i += kLanes) {
    const int64_t left = a.count - i;
    const Floats deviation = load_some(a.root + i, left) * a.undo + a.eps;
    const Floats change = load_some(a.mean + i, left) / deviation * a.step;
    store_some(a.weight + i, load_some(a.weight + i, left) * a.decay + change, left);
  }
}
