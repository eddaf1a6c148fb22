// An LSTM over sequences of rows, the input projection included. Included by learn.h after learn_matmul.h.
//
// Sequences are independent: a tile of them runs through all of time by itself, so that threads never wait for each other, the
// weights stay in the second-level cache, and of the gates nothing but what the backward pass needs goes to memory. At each step
// [h | x] times the two weights side by side is one product. `unit` is the number of hidden units padded to whole vectors; the
// units of the padding have zero weights and stay zero.

constexpr int64_t kSequences = 48;  // a tile; a multiple of kBlock

struct LstmSize {
  int64_t unit, gates, depth;  // depth: of the product, units and inputs
  explicit LstmSize(const Lstm& m) : unit((m.hidden + kLanes - 1) / kLanes * kLanes), gates(4 * unit), depth(unit + m.inputs) {}
};

static int64_t lstm_tile() { return kSequences; }

// What is kept of one row of one step for the backward pass: the activated gates and the cell.
static int64_t lstm_kept_floats(const Lstm& m) { return 5 * LstmSize(m).unit; }

static int64_t lstm_packed_floats(const Lstm& m) {
  const LstmSize size(m);
  return size.gates * (1 + size.depth) + padded(size.depth) * size.gates;
}

static int64_t lstm_packs(const Lstm& m, bool backward) {
  const LstmSize size(m);
  return panels(size.gates) + (backward ? panels(size.depth) : 0);
}

// The weight of a gate's unit for an element of [h | x], zero in the padding.
FUGU_INLINE float lstm_weight(const Lstm& m, const LstmSize& size, int64_t column, int64_t k) {
  const int64_t gate = column / size.unit, unit = column % size.unit, row = gate * m.hidden + unit;
  if (unit >= m.hidden) return 0;
  if (k >= size.unit) return k < size.depth ? m.weight_ih[row * m.inputs + k - size.unit] : 0;
  return k < m.hidden ? m.weight_hh[row * m.hidden + k] : 0;
}

// Piece `piece` of: the bias, weight^T [depth, gates] in panels, and for the backward pass the weight [gates, depth] in panels.
static void lstm_pack(const Lstm& m, int64_t piece, float* packed) {
  const LstmSize size(m);
  const int64_t forward = panels(size.gates);
  if (piece < forward) {
    for (int64_t j = 0; j < kPanel; ++j) {
      const int64_t column = piece * kPanel + j, gate = column / size.unit, unit = column % size.unit;
      packed[column] = unit < m.hidden ? m.bias[gate * m.hidden + unit] : 0;
      float* to = packed + size.gates + piece * size.depth * kPanel + j;
      for (int64_t k = 0; k < size.depth; ++k) to[k * kPanel] = lstm_weight(m, size, column, k);
    }
  } else {
    const int64_t low = (piece - forward) * kPanel;
    float* to = packed + size.gates * (1 + size.depth) + (piece - forward) * size.gates * kPanel;
    for (int64_t k = 0; k < size.gates; ++k)
      for (int64_t j = 0; j < kPanel; ++j) *to++ = lstm_weight(m, size, k, low + j);
  }
}

FUGU_INLINE void copy(float* to, const float* from, int64_t count) { __builtin_memcpy(to, from, count * sizeof(float)); }
FUGU_INLINE void clear(float* to, int64_t count) { __builtin_memset(to, 0, count * sizeof(float)); }

static int64_t lstm_forward_floats(const Lstm& m) {
  const LstmSize size(m);
  return kSequences * (spread(size.depth) + spread(size.gates) + size.unit);
}

// Sequences [low, high), at most a tile of them. `kept` (or null) is [time][sequence][gates i f g o, cell] of this tile.
static void lstm_forward(const Lstm& m, const float* packed, int64_t low, int64_t high, float* scratch) {
  const LstmSize size(m);
  const int64_t rows = high - low, unit = size.unit, input_step = spread(size.depth), gate_step = spread(size.gates);
  float* input = scratch;  // [h | x]
  float* gates = input + kSequences * input_step;
  float* cell = gates + kSequences * gate_step;
  clear(input, kSequences * input_step);
  clear(cell, kSequences * unit);
  for (int64_t r = 0; r < rows; ++r) {
    copy(input + r * input_step, m.state + (low + r) * 2 * m.hidden, m.hidden);
    copy(cell + r * unit, m.state + ((low + r) * 2 + 1) * m.hidden, m.hidden);
  }
  for (int64_t t = 0; t < m.time; ++t) {
    for (int64_t r = 0; r < rows; ++r) {
      const int64_t at = (low + r) * m.time + t;
      if (m.first[at]) {
        clear(input + r * input_step, unit);
        clear(cell + r * unit, unit);
      }
      copy(input + r * input_step + unit, m.x + at * m.inputs, m.inputs);
    }
    product({input, input_step, 1}, {packed + size.gates, kPanel, size.depth * kPanel}, rows, size.gates, size.depth,
            [&](int64_t, int64_t column) { return load(packed + column); },
            [&](int64_t row, int64_t column, Floats v) { store(gates + row * gate_step + column, v); });
    for (int64_t r = 0; r < rows; ++r) {
      float* kept = m.kept ? m.kept + (low * m.time + t * rows + r) * 5 * unit : nullptr;
      for (int64_t u = 0; u < unit; u += kLanes) {
        const float* gate = gates + r * gate_step + u;
        const Floats i = sigmoid(load(gate)), f = sigmoid(load(gate + unit)), g = tanh(load(gate + 2 * unit)),
                     o = sigmoid(load(gate + 3 * unit)), c = fma(f, load(cell + r * unit + u), i * g);
        store(cell + r * unit + u, c);
        store(input + r * input_step + u, o * tanh(c));
        if (kept) {
          store(kept + u, i);
          store(kept + unit + u, f);
          store(kept + 2 * unit + u, g);
          store(kept + 3 * unit + u, o);
          store(kept + 4 * unit + u, c);
        }
      }
      copy(m.h + ((low + r) * m.time + t) * m.hidden, input + r * input_step, m.hidden);
    }
  }
  for (int64_t r = 0; r < rows; ++r) {
    copy(m.new_state + (low + r) * 2 * m.hidden, input + r * input_step, m.hidden);
    copy(m.new_state + ((low + r) * 2 + 1) * m.hidden, cell + r * unit, m.hidden);
  }
}

// Sums of a share: weight^T [depth, gates], bias [gates].
static int64_t lstm_sum_floats(const Lstm& m) { return LstmSize(m).gates * (LstmSize(m).depth + 1); }

static int64_t lstm_backward_floats(const Lstm& m) {
  const LstmSize size(m);
  return kSequences * (2 * spread(size.depth) + spread(size.gates) + size.unit);
}

// One row of one step: from the gradients of h and of the cell after it to those of the gates and of the cell before it.
FUGU_INLINE void lstm_row(int64_t unit, const float* kept, const float* cell_before, int64_t cell_count, const float* grad_h,
                          float* grad_cell, float* grad_gates) {
  for (int64_t u = 0; u < unit; u += kLanes) {
    const Floats i = load(kept + u), f = load(kept + unit + u), g = load(kept + 2 * unit + u), o = load(kept + 3 * unit + u);
    const Floats squashed = tanh(load(kept + 4 * unit + u)), dh = load(grad_h + u), doh = dh * o;
    const Floats dc = load(grad_cell + u) + fma(-doh * squashed, squashed, doh);
    const Floats before = cell_count > u ? load_some(cell_before + u, cell_count - u) : Floats{};
    store(grad_cell + u, dc * f);
    store(grad_gates + u, dc * g * i * (1.0f - i));
    store(grad_gates + unit + u, dc * before * f * (1.0f - f));
    store(grad_gates + 2 * unit + u, dc * i * fma(-g, g, all(1.0f)));
    store(grad_gates + 3 * unit + u, dh * squashed * o * (1.0f - o));
  }
}

// The same tile, backwards. Adds to `sums`; writes the tile's part of grad_state, and of grad_x where it is asked for.
static void lstm_backward(const Lstm& m, const float* packed, int64_t low, int64_t high, float* sums, float* scratch) {
  const LstmSize size(m);
  const int64_t rows = high - low, unit = size.unit, input_step = spread(size.depth), gate_step = spread(size.gates);
  float* input = scratch;  // [h | x] again
  float* grad_input = input + kSequences * input_step;
  float* grad_gates = grad_input + kSequences * input_step;
  float* grad_cell = grad_gates + kSequences * gate_step;
  const float* weight = packed + size.gates * (1 + size.depth);
  const int64_t wanted = m.grad_x ? size.depth : unit;
  clear(input, 2 * kSequences * input_step);
  clear(grad_cell, kSequences * unit);
  for (int64_t r = 0; r < rows; ++r) {
    copy(grad_input + r * input_step, m.grad_new_state + (low + r) * 2 * m.hidden, m.hidden);
    copy(grad_cell + r * unit, m.grad_new_state + ((low + r) * 2 + 1) * m.hidden, m.hidden);
  }
  for (int64_t t = m.time - 1; t >= 0; --t) {
    for (int64_t r = 0; r < rows; ++r) {
      const int64_t at = (low + r) * m.time + t;
      const float* kept = m.kept + (low * m.time + t * rows + r) * 5 * unit;
      float* grad_h = grad_input + r * input_step;
      for (int64_t u = 0; u < m.hidden; u += kLanes)
        store(grad_h + u, load(grad_h + u) + load_some(m.grad_h + at * m.hidden + u, m.hidden - u));
      const float* state = m.state + (low + r) * 2 * m.hidden;
      const float* cell_before = t > 0 ? kept - rows * 5 * unit + 4 * unit : state + m.hidden;
      lstm_row(unit, kept, cell_before, m.first[at] ? 0 : t > 0 ? unit : m.hidden, grad_h, grad_cell + r * unit,
               grad_gates + r * gate_step);
      if (m.first[at])
        clear(input + r * input_step, unit);
      else
        copy(input + r * input_step, t > 0 ? m.h + (at - 1) * m.hidden : state, m.hidden);
      copy(input + r * input_step + unit, m.x + at * m.inputs, m.inputs);
    }
    add_transposed_product(input, input_step, size.depth, grad_gates, gate_step, size.gates, rows, sums);
    add_columns(grad_gates, gate_step, size.gates, rows, sums + size.gates * size.depth);
    product({grad_gates, gate_step, 1}, {weight, kPanel, size.gates * kPanel}, rows, wanted, size.gates,
            [](int64_t, int64_t) { return Floats{}; },
            [&](int64_t row, int64_t column, Floats v) { store(grad_input + row * input_step + column, v); });
    for (int64_t r = 0; r < rows; ++r) {
      const int64_t at = (low + r) * m.time + t;
      if (m.grad_x) copy(m.grad_x + at * m.inputs, grad_input + r * input_step + unit, m.inputs);
      if (m.first[at]) {
        clear(grad_input + r * input_step, unit);
        clear(grad_cell + r * unit, unit);
      }
    }
  }
  for (int64_t r = 0; r < rows; ++r) {
    copy(m.grad_state + (low + r) * 2 * m.hidden, grad_input + r * input_step, m.hidden);
    copy(m.grad_state + ((low + r) * 2 + 1) * m.hidden, grad_cell + r * unit, m.hidden);
  }
}

// The sums of all shares in their order, as gradients in the shape of the parameters; for gate `gate`.
static void lstm_gather(const Lstm& m, int64_t shares, int64_t gate, float* sums) {
  const LstmSize size(m);
  const int64_t floats = lstm_sum_floats(m);
  for (int64_t k = 0; k <= size.depth; ++k) {
    float* to = sums + k * size.gates + gate * size.unit;
    for (int64_t share = 1; share < shares; ++share)
      for (int64_t u = 0; u < size.unit; u += kLanes) store(to + u, load(to + u) + load(to + share * floats + u));
    for (int64_t u = 0; u < m.hidden; ++u) {
      const int64_t row = gate * m.hidden + u;
      if (k == size.depth)
        m.grad_bias[row] = to[u];
      else if (k >= size.unit)
        m.grad_weight_ih[row * m.inputs + k - size.unit] = to[u];
      else if (k < m.hidden)
        m.grad_weight_hh[row * m.hidden + k] = to[u];
    }
  }
}
