// A step of LaProp over one tensor, whose gradient is shortened where it is long beside the tensor. Included by learn.h after
// learn_norm.h.

static double squares(const float* x, int64_t count) {
  double sum = 0;
  for (int64_t i = 0; i < count;) {
    Floats some{};
    for (const int64_t end = i + 4096 < count ? i + 4096 : count; i < end; i += kLanes) {
      const Floats v = load_some(x + i, end - i);
      some = fma(v, v, some);
    }
    if (i > count) i = count;
    sum += added_up(some);
  }
  return sum;
}

static void laprop_tensor(const LaProp& m, const float* grad, float* weight, float* mean, float* square, int64_t count) {
  const float length = sqrtf(static_cast<float>(squares(weight, count))), bound = m.clip * (length > m.shortest ? length : m.shortest);
  const float excess = sqrtf(static_cast<float>(squares(grad, count))) / bound, shorter = excess > 1.0f ? 1.0f / excess : 1.0f;
  for (int64_t i = 0; i < count; i += kLanes) {
    const int64_t left = count - i;
    const Floats g = load_some(grad + i, left) * shorter;
    const Floats s = fma(all(m.beta2), load_some(square + i, left), g * g * (1.0f - m.beta2));
    Floats deviation;
    for (int k = 0; k < kLanes; ++k) deviation[k] = sqrtf(s[k]);
    const Floats scaled = g / fma(deviation, all(m.correction2), all(m.eps)), before = load_some(mean + i, left);
    const Floats average = fma(scaled - before, all(1.0f - m.beta1), before);
    store_some(square + i, s, left);
    store_some(mean + i, average, left);
    store_some(weight + i, fma(average, all(-m.rate), load_some(weight + i, left)), left);
  }
}
