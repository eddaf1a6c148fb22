// Small multilayer perceptrons on tiles of rows. Included by learn.h after learn_matmul.h.
//
// A tile passes through all layers while its activations are in cache. The backward pass takes a tile from the last layer to the
// first; the gradients of the weights are summed over the tiles of a share, transposed, in memory that belongs to the share.

constexpr int64_t kTile = 48;  // rows; a multiple of kBlock

FUGU_INLINE Floats activate(Activation activation, Floats v) {
  if (activation == Activation::kTanh) return tanh(v);
  if (activation == Activation::kRelu) return v < 0.0f ? Floats{} : v;
  return v;
}

// The derivative, from the activated value.
FUGU_INLINE Floats slope(Activation activation, Floats h) {
  if (activation == Activation::kTanh) return fma(-h, h, all(1.0f));
  if (activation == Activation::kRelu) return h > 0.0f ? all(1.0f) : Floats{};
  return all(1.0f);
}

static int64_t mlp_packed_floats(const Mlp& m) {
  int64_t floats = 0;
  for (int l = 0; l < m.layers; ++l) floats += padded(m.width[l + 1]) * (m.width[l] + 1) + padded(m.width[l]) * m.width[l + 1];
  return floats;
}

// Per layer: its bias padded and weight^T in panels, which the forward pass reads, and the weight in panels for the backward pass.
static void mlp_pack(const Mlp& m, bool backward, float* to) {
  for (int l = 0; l < m.layers; ++l) {
    const int64_t in = m.width[l], out = m.width[l + 1];
    if (!backward) {
      for (int64_t j = 0; j < padded(out); ++j) to[j] = j < out ? m.bias[l][j] : 0;
      for (int64_t p = 0; p < panels(out); ++p) pack(m.weight[l], 1, in, in, out, p, to + padded(out) + p * in * kPanel);
    }
    to += padded(out) * (in + 1);
    if (backward)
      for (int64_t p = 0; p < panels(in); ++p) pack(m.weight[l], in, 1, out, in, p, to + p * out * kPanel);
    to += padded(in) * out;
  }
}

static int64_t mlp_forward_floats(const Mlp& m) { return 2 * kTile * m.widest; }

template <Activation kActivation>
static void mlp_layer(const float* input, int64_t in, int64_t out, const float* packed, int64_t rows, float* output) {
  const float* bias = packed;
  product({input, in, 1}, {packed + padded(out), kPanel, in * kPanel}, rows, out, in,
          [&](int64_t, int64_t column) { return load(bias + column); },
          [&](int64_t row, int64_t column, Floats v) {
            store_some(output + row * out + column, activate(kActivation, v), out - column);
          });
}

// Rows [low, high) of the output, and of the hidden layers where they are asked for.
static void mlp_forward(const Mlp& m, const float* packed, int64_t low, int64_t high, float* scratch) {
  for (int64_t row = low; row < high; row += kTile) {
    const int64_t rows = high - row < kTile ? high - row : kTile;
    const float* input = m.x + row * m.width[0];
    const float* at = packed;
    for (int l = 0; l < m.layers; ++l) {
      const int64_t in = m.width[l], out = m.width[l + 1];
      float* output = m.hidden[l] ? m.hidden[l] + row * out : scratch + l % 2 * kTile * m.widest;
      switch (m.activation[l]) {
        case Activation::kTanh: mlp_layer<Activation::kTanh>(input, in, out, at, rows, output); break;
        case Activation::kRelu: mlp_layer<Activation::kRelu>(input, in, out, at, rows, output); break;
        case Activation::kNone: mlp_layer<Activation::kNone>(input, in, out, at, rows, output); break;
      }
      input = output;
      at += padded(out) * (in + 1) + padded(in) * out;
    }
  }
}

// Sums of a share: per layer weight^T [in, padded(out)] and bias [padded(out)].
static int64_t mlp_sum_floats(const Mlp& m) {
  int64_t floats = 0;
  for (int l = 0; l < m.layers; ++l) floats += padded(m.width[l + 1]) * (m.width[l] + 1);
  return floats;
}

static int64_t mlp_backward_floats(const Mlp& m) { return 2 * kTile * spread(m.widest); }

// gradient[row, column] = slope(h) * (delta weight)[row, column], padded; or, for the input, where it belongs and as it is.
template <Activation kActivation>
static void mlp_through(const float* delta, int64_t delta_step, int64_t out, const float* weight, int64_t in, int64_t rows,
                        const float* h, float* gradient, int64_t step, bool pad) {
  product({delta, delta_step, 1}, {weight, kPanel, out * kPanel}, rows, in, out,
          [](int64_t, int64_t) { return Floats{}; },
          [&](int64_t row, int64_t column, Floats v) {
            if (kActivation != Activation::kNone) v *= slope(kActivation, load_some(h + row * in + column, in - column));
            store_some(gradient + row * step + column, v, pad ? kLanes : in - column);
          });
}

// Adds what rows [low, high) give to `sums`, if the gradients of the weights are asked for; writes their part of m.grad_x likewise.
static void mlp_backward(const Mlp& m, const float* packed, int64_t low, int64_t high, float* sums, float* scratch) {
  float* delta = scratch;
  float* next = scratch + kTile * spread(m.widest);
  for (int64_t row = low; row < high; row += kTile) {
    const int64_t rows = high - row < kTile ? high - row : kTile;
    const int last = m.layers - 1;
    const int64_t width = m.width[last + 1];
    for (int64_t r = 0; r < rows; ++r)
      for (int64_t column = 0; column < padded(width); column += kLanes) {
        const int64_t at = (row + r) * width + column;
        const Floats h = load_some(m.hidden[last] + at, width - column);
        store(delta + r * spread(width) + column, slope(m.activation[last], h) * load_some(m.grad_out + at, width - column));
      }
    const float* weight = packed + mlp_packed_floats(m);
    float* sum = sums + mlp_sum_floats(m);
    for (int l = last; l >= 0; --l) {
      const int64_t in = m.width[l], out = m.width[l + 1];
      const float* input = l > 0 ? m.hidden[l - 1] + row * in : m.x + row * in;
      weight -= padded(in) * out;
      sum -= padded(out) * (in + 1);
      if (m.grad_weight[l]) {
        add_transposed_product(input, in, in, delta, spread(out), out, rows, sum);
        add_columns(delta, spread(out), out, rows, sum + padded(out) * in);
      }
      if (l > 0) {
        if (m.activation[l - 1] == Activation::kTanh)
          mlp_through<Activation::kTanh>(delta, spread(out), out, weight, in, rows, input, next, spread(in), true);
        else
          mlp_through<Activation::kRelu>(delta, spread(out), out, weight, in, rows, input, next, spread(in), true);
        float* const swap = delta;
        delta = next;
        next = swap;
      } else if (m.grad_x) {
        mlp_through<Activation::kNone>(delta, spread(out), out, weight, in, rows, nullptr, m.grad_x + row * in, in, false);
      }
      weight -= padded(out) * (in + 1);
    }
  }
}

// The sums of all shares in their order, turned into gradients in the shape of the parameters.
static void mlp_gather(const Mlp& m, int64_t shares, float* sums) {
  const int64_t floats = mlp_sum_floats(m);
  for (int64_t share = 1; share < shares; ++share)
    for (int64_t i = 0; i < floats; i += kLanes) store(sums + i, load(sums + i) + load(sums + share * floats + i));
  for (int l = 0; l < m.layers; ++l) {
    const int64_t in = m.width[l], out = m.width[l + 1];
    transpose(sums, padded(out), in, out, m.grad_weight[l], in);
    sums += padded(out) * in;
    for (int64_t j = 0; j < out; ++j) m.grad_bias[l][j] = sums[j];
    sums += padded(out);
  }
}
