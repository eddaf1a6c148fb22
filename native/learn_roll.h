// Imagination: an actor acts in a world model from many starts. Included by learn.h after learn_observe.h.
//
// A tile of starts goes all the way by itself, while what it needs stays in cache. Nothing is kept for gradients: none go this way.

static int64_t roll_row_floats(const Roll& m) {  // of the cell's rows, parameters of actions, actions as numbers, logits, probabilities
  const int64_t most = m.choices > m.cell.random ? m.choices : m.cell.random;
  return cell_floats(m.cell) + m.actor.width[m.actor.layers] + m.numbers + m.cell.random + most;
}

static int64_t roll_packed_floats(const Roll& m) {
  return cell_packed_floats(m.cell) + stack_packed_floats(m.prior, false) + stack_packed_floats(m.actor, false) +
         packed_floats(m.numbers, m.cell.hidden);
}

static void roll_pack(const Roll& m, float* to) {
  cell_pack(m.cell, to);
  to += cell_packed_floats(m.cell);
  stack_pack(m.prior, false, to);
  to += stack_packed_floats(m.prior, false);
  stack_pack(m.actor, false, to);
  to += stack_packed_floats(m.actor, false);
  pack_all(m.action_weight, 1, m.numbers, m.numbers, m.cell.hidden, to);
}

static int64_t roll_tile() { return kStackRows; }

static int64_t roll_floats(const Roll& m) {
  return kStackRows * roll_row_floats(m) + stack_forward_floats(m.prior) + stack_forward_floats(m.actor) + 8 * kPanel;
}

// One row: from the actor's output to an action, and to the numbers that the model reads. Choices and bits take uniform noise, real
// numbers normal noise.
static void roll_act(const Roll& m, const float* out, const float* noise, float* action, float* numbers, float* chance) {
  for (int64_t head = 0; head < m.heads; ++head) {
    mixed_draws(out, 1, m.counts[head], m.even, noise + head, chance, numbers);
    int64_t chosen = 0;
    for (int64_t k = 0; k < m.counts[head]; ++k) chosen = numbers[k] > 0.0f ? k : chosen;
    action[head] = static_cast<float>(chosen);
    out += m.counts[head];
    numbers += m.counts[head];
  }
  for (int64_t i = m.heads; i < m.heads + m.binaries; ++i, ++out, ++numbers)
    action[i] = *numbers = noise[i] < sigmoid(all(*out))[0] ? 1.0f : 0.0f;
  for (int64_t i = m.heads + m.binaries; i < m.dims; ++i, ++out, ++numbers) {
    const float deviation = m.least + (m.most - m.least) * sigmoid(all(out[m.reals] + 2.0f))[0];
    action[i] = tanh(all(*out))[0] + noise[i] * deviation;
    const float size = action[i] < 0.0f ? -action[i] : action[i];
    *numbers = size > 1.0f ? action[i] / size : action[i];
  }
}

// Starts [low, high), at most a tile.
static void roll_forward(const Roll& m, const float* packed, int64_t low, int64_t high, float* scratch) {
  const Cell& c = m.cell;
  const int64_t rows = high - low, d = c.deter, z = c.random, h = c.hidden, state = d + z, size = m.actor.width[m.actor.layers];
  const float* prior = packed + cell_packed_floats(c);
  const float* actor = prior + stack_packed_floats(m.prior, false);
  const float* action = actor + stack_packed_floats(m.actor, false);
  const CellRows cell = cell_rows(c, scratch, kStackRows);
  float* params = scratch + kStackRows * cell_floats(c);
  float* numbers = params + kStackRows * size;
  float* logits = numbers + kStackRows * m.numbers;
  float* chance = logits + kStackRows * z;
  float* work = scratch + kStackRows * roll_row_floats(m);
  for (int64_t t = 0; t <= m.ahead; ++t) {
    const int64_t at = t * m.rows + low;
    float *now = m.features + at * state, *next = now + m.rows * state;
    stack_tile(m.actor, actor, now, state, rows, params, size, -1, work);
    for (int64_t r = 0; r < rows; ++r)
      roll_act(m, params + r * size, m.noise + (at + r) * m.dims, m.action + (at + r) * m.dims, numbers + r * m.numbers, chance);
    if (t == m.ahead) break;
    linear({numbers, m.numbers, 1}, panels_at(action, m.numbers), rows, h, m.numbers, m.action_bias, 0, cell.common + 2 * h, 3 * h);
    for (int64_t r = 0; r < rows; ++r) {
      float* common = cell.common + r * 3 * h + 2 * h;
      norm_row(common, m.action_scale, h, c.epsilon, common);
    }
    cell_forward(c, packed, rows, now, state, now + d, state, cell, next, state);
    stack_tile(m.prior, prior, next, state, rows, logits, z, -1, work);
    const int64_t variables = z / m.classes;
    for (int64_t r = 0; r < rows; ++r)
      mixed_draws(logits + r * z, variables, m.classes, m.even, m.uniform + (at + r) * variables, chance, next + r * state + d);
  }
}
