// The recurrent cell of a world model: from a state and an action to the deterministic part of the next state, and back. Included by
// learn.h after learn_stack.h.
//
// All of the units are in blocks that share nothing: a block mixes its own units with what all see (`common`: deter, stoch and action
// after a layer each), and makes three gates of that. The part of the mixing that is common is one product for all blocks.

struct CellPlan {  // where the packed weights lie
  int64_t width;   // units of a block
  int64_t own_floats, gate_floats, from_deter, from_stoch, shared, own, gate, packed;
  int64_t back_own_floats, back_gate_floats, back_deter, back_stoch, back_shared, back_own, back_gate, back_packed;
  explicit CellPlan(const Cell& c) : width(c.deter / c.blocks) {
    own_floats = packed_floats(width, width);
    gate_floats = packed_floats(width, 3 * width);
    from_deter = 0;
    from_stoch = from_deter + packed_floats(c.deter, c.hidden);
    shared = from_stoch + packed_floats(c.random, c.hidden);
    own = shared + packed_floats(3 * c.hidden, c.deter);
    gate = own + c.blocks * own_floats;
    packed = gate + c.blocks * gate_floats;
    back_own_floats = packed_floats(width, width);
    back_gate_floats = packed_floats(3 * width, width);
    back_deter = 0;
    back_stoch = back_deter + packed_floats(c.hidden, c.deter);
    back_shared = back_stoch + packed_floats(c.hidden, c.random);
    back_own = back_shared + packed_floats(c.deter, 3 * c.hidden);
    back_gate = back_own + c.blocks * back_own_floats;
    back_packed = back_gate + c.blocks * back_gate_floats;
  }
};

struct CellRows {  // what is kept of rows, or, of all but `mixed` and `inverse`, its gradients
  float* plain;    // [2 hidden] what the layers of deter and stoch gave, before their norm
  float* common;   // [3 hidden]
  float* mix;      // [deter] before the norm
  float* mixed;    // [deter] after it
  float* gates;    // [blocks][reset, candidate, update], before anything
  float* inverse;  // [3] of deter, stoch and mix
};

static int64_t cell_floats(const Cell& c) { return 5 * c.hidden + 5 * c.deter + 3; }

static CellRows cell_rows(const Cell& c, float* memory, int64_t count) {
  CellRows rows;
  rows.plain = memory;
  rows.common = rows.plain + count * 2 * c.hidden;
  rows.mix = rows.common + count * 3 * c.hidden;
  rows.mixed = rows.mix + count * c.deter;
  rows.gates = rows.mixed + count * c.deter;
  rows.inverse = rows.gates + count * 3 * c.deter;
  return rows;
}

static CellRows from_row(const Cell& c, const CellRows& all_rows, int64_t row) {
  return {all_rows.plain + row * 2 * c.hidden, all_rows.common + row * 3 * c.hidden, all_rows.mix + row * c.deter,
          all_rows.mixed + row * c.deter,      all_rows.gates + row * 3 * c.deter,   all_rows.inverse + row * 3};
}

// The rows of `mix_weight [blocks, width + 3 hidden, width]` that are common, as a matrix of all blocks' columns beside each other.
static void gather_shared(const Cell& c, const CellPlan& plan, float* to) {
  const int64_t w = plan.width, depth = w + 3 * c.hidden;
  for (int64_t k = 0; k < 3 * c.hidden; ++k)
    for (int64_t g = 0; g < c.blocks; ++g)
      for (int64_t j = 0; j < w; ++j) to[k * c.deter + g * w + j] = c.mix_weight[(g * depth + w + k) * w + j];
}

static int64_t cell_packed_floats(const Cell& c) { return CellPlan(c).packed + 3 * c.hidden * c.deter; }

static void cell_pack(const Cell& c, float* to) {
  const CellPlan plan(c);
  const int64_t w = plan.width, depth = w + 3 * c.hidden;
  float* between = to + plan.packed;
  gather_shared(c, plan, between);
  pack_all(c.deter_weight, 1, c.deter, c.deter, c.hidden, to + plan.from_deter);
  pack_all(c.stoch_weight, 1, c.random, c.random, c.hidden, to + plan.from_stoch);
  pack_all(between, c.deter, 1, 3 * c.hidden, c.deter, to + plan.shared);
  for (int64_t g = 0; g < c.blocks; ++g) {
    pack_all(c.mix_weight + g * depth * w, w, 1, w, w, to + plan.own + g * plan.own_floats);
    pack_all(c.gate_weight + g * w * 3 * w, 3 * w, 1, w, 3 * w, to + plan.gate + g * plan.gate_floats);
  }
}

static int64_t cell_back_packed_floats(const Cell& c) { return CellPlan(c).back_packed + 3 * c.hidden * c.deter; }

static void cell_back_pack(const Cell& c, float* to) {
  const CellPlan plan(c);
  const int64_t w = plan.width, depth = w + 3 * c.hidden;
  float* between = to + plan.back_packed;
  gather_shared(c, plan, between);
  pack_all(c.deter_weight, c.deter, 1, c.hidden, c.deter, to + plan.back_deter);
  pack_all(c.stoch_weight, c.random, 1, c.hidden, c.random, to + plan.back_stoch);
  pack_all(between, 1, c.deter, c.deter, 3 * c.hidden, to + plan.back_shared);
  for (int64_t g = 0; g < c.blocks; ++g) {
    pack_all(c.mix_weight + g * depth * w, 1, w, w, w, to + plan.back_own + g * plan.back_own_floats);
    pack_all(c.gate_weight + g * w * 3 * w, 1, 3 * w, 3 * w, w, to + plan.back_gate + g * plan.back_gate_floats);
  }
}

// `kept.common` has the action's third already; the rest is written here.
static void cell_forward(const Cell& c, const float* packed, int64_t rows, const float* deter, int64_t deter_step, const float* stoch,
                         int64_t stoch_step, const CellRows& kept, float* next, int64_t next_step) {
  const CellPlan plan(c);
  const int64_t w = plan.width, h = c.hidden, d = c.deter;
  linear({deter, deter_step, 1}, panels_at(packed + plan.from_deter, d), rows, h, d, c.deter_bias, 0, kept.plain, 2 * h);
  linear({stoch, stoch_step, 1}, panels_at(packed + plan.from_stoch, c.random), rows, h, c.random, c.stoch_bias, 0, kept.plain + h, 2 * h);
  for (int64_t r = 0; r < rows; ++r) {
    const CellRows row = from_row(c, kept, r);
    row.inverse[0] = norm_row(row.plain, c.deter_scale, h, c.epsilon, row.common);
    row.inverse[1] = norm_row(row.plain + h, c.stoch_scale, h, c.epsilon, row.common + h);
  }
  linear({kept.common, 3 * h, 1}, panels_at(packed + plan.shared, 3 * h), rows, d, 3 * h, c.mix_bias, 0, kept.mix, d);
  for (int64_t g = 0; g < c.blocks; ++g)
    linear({deter + g * w, deter_step, 1}, panels_at(packed + plan.own + g * plan.own_floats, w), rows, w, w, kept.mix + g * w, d,
           kept.mix + g * w, d);
  for (int64_t r = 0; r < rows; ++r)
    kept.inverse[3 * r + 2] = norm_row(kept.mix + r * d, c.mix_scale, d, c.epsilon, kept.mixed + r * d);
  for (int64_t g = 0; g < c.blocks; ++g)
    linear({kept.mixed + g * w, d, 1}, panels_at(packed + plan.gate + g * plan.gate_floats, w), rows, 3 * w, w, c.gate_bias + g * 3 * w, 0,
           kept.gates + g * 3 * w, 3 * d);
  for (int64_t r = 0; r < rows; ++r)
    for (int64_t g = 0; g < c.blocks; ++g)
      for (int64_t u = 0; u < w; u += kLanes) {
        const float* gate = kept.gates + r * 3 * d + g * 3 * w + u;
        const int64_t left = w - u;
        const Floats reset = sigmoid(load_some(gate, left)), update = sigmoid(load_some(gate + 2 * w, left) - 1.0f);
        const Floats before = load_some(deter + r * deter_step + g * w + u, left);
        const Floats candidate = tanh(reset * load_some(gate + w, left));
        store_some(next + r * next_step + g * w + u, fma(update, candidate - before, before), left);
      }
}

struct CellSums {  // of the gradients of scales
  float *deter, *stoch, *mix;
};

// From `grad_next [rows, deter]` to the gradients of deter and stoch, and of the linear layers: in `grad` plain, the action's third of
// common, mix and gates. `zeros`: as many as any layer is wide.
static void cell_backward(const Cell& c, const float* packed, int64_t rows, const float* deter, const CellRows& kept,
                          const float* grad_next, const CellRows& grad, float* grad_deter, float* grad_stoch, const float* zeros,
                          const CellSums& sums) {
  const CellPlan plan(c);
  const int64_t w = plan.width, h = c.hidden, d = c.deter;
  for (int64_t r = 0; r < rows; ++r)
    for (int64_t g = 0; g < c.blocks; ++g)
      for (int64_t u = 0; u < w; u += kLanes) {
        const int64_t at = r * d + g * w + u, left = w - u;
        const float* gate = kept.gates + r * 3 * d + g * 3 * w + u;
        float* to = grad.gates + r * 3 * d + g * 3 * w + u;
        const Floats raw = load_some(gate + w, left), reset = sigmoid(load_some(gate, left));
        const Floats update = sigmoid(load_some(gate + 2 * w, left) - 1.0f), candidate = tanh(reset * raw);
        const Floats slope = load_some(grad_next + at, left), before = load_some(deter + at, left);
        const Floats inside = slope * update * (1.0f - candidate * candidate);
        store_some(to, inside * raw * reset * (1.0f - reset), left);
        store_some(to + w, inside * reset, left);
        store_some(to + 2 * w, slope * (candidate - before) * update * (1.0f - update), left);
        store_some(grad_deter + at, slope * (1.0f - update), left);
      }
  for (int64_t g = 0; g < c.blocks; ++g)
    linear({grad.gates + g * 3 * w, 3 * d, 1}, panels_at(packed + plan.back_gate + g * plan.back_gate_floats, 3 * w), rows, w, 3 * w, zeros,
           0, grad.mix + g * w, d);
  for (int64_t r = 0; r < rows; ++r)
    norm_gradient(kept.mix + r * d, c.mix_scale, kept.inverse[3 * r + 2], grad.mix + r * d, d, grad.mix + r * d, sums.mix);
  for (int64_t g = 0; g < c.blocks; ++g)
    linear({grad.mix + g * w, d, 1}, panels_at(packed + plan.back_own + g * plan.back_own_floats, w), rows, w, w, grad_deter + g * w, d,
           grad_deter + g * w, d);
  linear({grad.mix, d, 1}, panels_at(packed + plan.back_shared, d), rows, 3 * h, d, zeros, 0, grad.common, 3 * h);
  for (int64_t r = 0; r < rows; ++r) {
    const CellRows row = from_row(c, kept, r), to = from_row(c, grad, r);
    norm_gradient(row.plain, c.deter_scale, row.inverse[0], to.common, h, to.plain, sums.deter);
    norm_gradient(row.plain + h, c.stoch_scale, row.inverse[1], to.common + h, h, to.plain + h, sums.stoch);
  }
  linear({grad.plain, 2 * h, 1}, panels_at(packed + plan.back_deter, h), rows, d, h, grad_deter, d, grad_deter, d);
  linear({grad.plain + h, 2 * h, 1}, panels_at(packed + plan.back_stoch, h), rows, c.random, h, zeros, 0, grad_stoch, c.random);
}
