// RMS norm with a scale per column, then SiLU, row by row; and their gradients. Included by learn.h after learn_vector.h.

// In pairs, so that no addition waits for more than the three or four before it.
FUGU_INLINE float added_up(Floats v) {
  float lane[kLanes];
  store(lane, v);
#pragma GCC unroll 4
  for (int half = kLanes / 2; half > 0; half /= 2)
#pragma GCC unroll 8
    for (int i = 0; i < half; ++i) lane[i] += lane[i + half];
  return lane[0];
}

// One row; y may be x. Returns what the row was multiplied by.
static float norm_row(const float* x, const float* scale, int64_t width, float epsilon, float* y) {
  Floats squares{};
  for (int64_t i = 0; i < width; i += kLanes) {
    const Floats v = load_some(x + i, width - i);
    squares = fma(v, v, squares);
  }
  const float inverse = 1.0f / sqrtf(added_up(squares) / static_cast<float>(width) + epsilon);
  for (int64_t i = 0; i < width; i += kLanes) {
    const Floats u = load_some(x + i, width - i) * inverse * load_some(scale + i, width - i);
    store_some(y + i, u * sigmoid(u), width - i);
  }
  return inverse;
}

// The same once more where the inverse is known.
static void norm_row_again(const float* x, const float* scale, float inverse, int64_t width, float* y) {
  for (int64_t i = 0; i < width; i += kLanes) {
    const Floats u = load_some(x + i, width - i) * inverse * load_some(scale + i, width - i);
    store_some(y + i, u * sigmoid(u), width - i);
  }
}

// Backwards; grad_x may be grad_y. `sums` are those of the scale's gradient over the rows.
static void norm_gradient(const float* x, const float* scale, float inverse, const float* grad_y, int64_t width, float* grad_x,
                          float* sums) {
  Floats product{};
  for (int64_t i = 0; i < width; i += kLanes) {
    const int64_t left = width - i;
    const Floats v = load_some(x + i, left), n = v * inverse, factor = load_some(scale + i, left), u = n * factor;
    const Floats s = sigmoid(u);
    const Floats grad_u = load_some(grad_y + i, left) * s * fma(u, 1.0f - s, all(1.0f));
    store_some(sums + i, load_some(sums + i, left) + grad_u * n, left);
    store_some(grad_x + i, grad_u * factor, left);
    product = fma(grad_u * factor, v, product);
  }
  const float along = added_up(product) * inverse * inverse / static_cast<float>(width);
  for (int64_t i = 0; i < width; i += kLanes) {
    const int64_t left = width - i;
    store_some(grad_x + i, (load_some(grad_x + i, left) - load_some(x + i, left) * along) * inverse, left);
  }
}

static void norm_rows(const Norm& m, int64_t low, int64_t high) {
  for (int64_t row = low; row < high; ++row) {
    const float inverse = norm_row(m.x + row * m.width, m.scale, m.width, m.epsilon, m.y + row * m.width);
    if (m.inverse != nullptr) m.inverse[row] = inverse;
  }
}

static void norm_gradients(const Norm& m, int64_t low, int64_t high, float* sums) {
  for (int64_t row = low; row < high; ++row) {
    const int64_t at = row * m.width;
    norm_gradient(m.x + at, m.scale, m.inverse[row], m.grad_y + at, m.width, m.grad_x + at, sums);
  }
}
