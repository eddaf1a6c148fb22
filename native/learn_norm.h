// RMS norm with a scale per column, then SiLU, row by row; and their gradients. Included by learn.h after learn_vector.h.

FUGU_INLINE float added_up(Floats v) {
  float sum = 0.0f;
#pragma GCC unroll 16
  for (int i = 0; i < kLanes; ++i) sum += v[i];
  return sum;
}

static void norm_rows(const Norm& m, int64_t low, int64_t high) {
  for (int64_t row = low; row < high; ++row) {
    const float* x = m.x + row * m.width;
    Floats squares{};
    for (int64_t i = 0; i < m.width; i += kLanes) {
      const Floats v = load_some(x + i, m.width - i);
      squares = fma(v, v, squares);
    }
    const float inverse = 1.0f / sqrtf(added_up(squares) / static_cast<float>(m.width) + m.epsilon);
    if (m.inverse != nullptr) m.inverse[row] = inverse;
    for (int64_t i = 0; i < m.width; i += kLanes) {
      const int64_t left = m.width - i;
      const Floats u = load_some(x + i, left) * inverse * load_some(m.scale + i, left);
      store_some(m.y + row * m.width + i, u * sigmoid(u), left);
    }
  }
}

// `sums` are those of the scale's gradient over the rows.
static void norm_gradients(const Norm& m, int64_t low, int64_t high, float* sums) {
  for (int64_t row = low; row < high; ++row) {
    const float *x = m.x + row * m.width, *grad_y = m.grad_y + row * m.width;
    float* grad_x = m.grad_x + row * m.width;
    const float inverse = m.inverse[row];
    Floats product{};
    for (int64_t i = 0; i < m.width; i += kLanes) {
      const int64_t left = m.width - i;
      const Floats v = load_some(x + i, left), n = v * inverse, scale = load_some(m.scale + i, left), u = n * scale;
      const Floats s = sigmoid(u);
      const Floats grad_u = load_some(grad_y + i, left) * s * fma(u, 1.0f - s, all(1.0f));
      store_some(sums + i, load_some(sums + i, left) + grad_u * n, left);
      store_some(grad_x + i, grad_u * scale, left);
      product = fma(grad_u * scale, v, product);
    }
    const float along = added_up(product) * inverse * inverse / static_cast<float>(m.width);
    for (int64_t i = 0; i < m.width; i += kLanes) {
      const int64_t left = m.width - i;
      store_some(grad_x + i, (load_some(grad_x + i, left) - load_some(x + i, left) * along) * inverse, left);
    }
  }
}
