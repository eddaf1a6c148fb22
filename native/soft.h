// The two losses of soft actor-critic, with their gradients, for small MLPs and squashed normal actions.
//
// What they compute is stated by SAC in src/fugu/algorithm/sac.py. Rows that do not count are read as zeros, so that what they hold
// reaches nothing. Critics are computed side by side, each by one thread; sums are taken in the order of rows.
#pragma once

#include <algorithm>
#include <vector>

#include "learn.h"

namespace fugu::learn {

struct Soft {  // what both losses need; the networks are without rows
  int64_t rows, features, reals;
  Mlp policy;
  std::vector<Mlp> critics;
  const float* obs;      // [rows, features]
  const float* noise;    // [rows, reals]
  const float* weight;   // [rows]
  const uint8_t* valid;  // [rows]
  float temperature;
  float least, most;  // bounds of the logarithm of a deviation

  int64_t inputs() const { return features + reals; }  // of a critic
  int64_t count() const { return static_cast<int64_t>(critics.size()); }
};

struct SoftTarget {
  std::vector<Mlp> slow;
  const float* next;    // [rows, features] the observations after
  const float* action;  // [rows, reals]
  const float* reward;  // [rows]
  const uint8_t* terminated;
  float gamma;
  float* value;  // [critics, rows] what the critics say
  float* error;  // [critics, rows] what they are off by
};

using SoftMemory = Scratch<Use::kUpdate>;

inline int64_t soft_floats(const Soft& s) {
  int64_t per_row = 2 * s.inputs() + 8;
  const auto add = [&](const Mlp& m) {
    for (int l = 0; l <= m.layers; ++l) per_row += 2 * m.width[l];
    per_row += 2;
  };
  add(s.policy);
  for (const Mlp& critic : s.critics) add(critic);
  return per_row * s.rows + 16 * 16 * (s.count() + 2);  // pieces are rounded up
}

// Lays weight and bias of each layer of all networks one after the other, from `at` on.
inline void put_gradients(std::vector<Mlp>& networks, float* at) {
  for (Mlp& m : networks)
    for (int l = 0; l < m.layers; ++l) {
      m.grad_weight[l] = at;
      m.grad_bias[l] = at += m.width[l + 1] * m.width[l];
      at += m.width[l + 1];
    }
}

inline void give_rows(Mlp& m, const float* x, int64_t rows, bool keep, SoftMemory& memory) {
  m.x = x;
  m.rows = rows;
  for (int l = keep ? 0 : m.layers - 1; l < m.layers; ++l) m.hidden[l] = memory.take(rows * m.width[l + 1]);
}

// Copies rows that count to the first columns of `to [rows, step]`, and zeros for the others.
inline void put_rows(const Soft& s, const float* from, int64_t columns, float* to, int64_t step) {
  for (int64_t row = 0; row < s.rows; ++row, from += columns, to += step) {
    if (s.valid[row])
      std::copy_n(from, columns, to);
    else
      std::fill_n(to, columns, 0.0f);
  }
}

// Lets the policy act on `obs [rows, features]`. `input [rows, inputs()]` becomes what critics judge.
inline Squashed draw(const Soft& s, Mlp& policy, const float* obs, float* input, bool keep, SoftMemory& memory, const Kernels& kernels,
                     int threads) {
  float* x = memory.take(s.rows * s.features);
  put_rows(s, obs, s.features, x, s.features);
  put_rows(s, obs, s.features, input, s.inputs());
  give_rows(policy, x, s.rows, keep, memory);
  mlp_forward(policy, kernels, threads);
  const Squashed drawn{.rows = s.rows, .reals = s.reals, .params = policy.hidden[policy.layers - 1],
                       .params_step = policy.width[policy.layers], .noise = s.noise, .least = s.least, .most = s.most,
                       .action = input + s.features, .action_step = s.inputs(), .logprob = memory.take(s.rows)};
  kernels.squash(drawn);
  return drawn;
}

inline bool lower(float a, float b) { return a < b || a != a; }

// The lowest of values [critics, rows] of a row; NaN if one of them is.
inline float lowest(const float* values, int64_t critics, int64_t rows, int64_t row) {
  float found = values[row];
  for (int64_t i = 1; i < critics; ++i) found = lower(found, values[i * rows + row]) ? found : values[i * rows + row];
  return found;
}

// The gradients of all critics go to `grads`. Returns the loss.
inline double soft_critics(const Soft& s, const SoftTarget& t, float* grads, const Kernels& kernels, int threads) {
  SoftMemory memory(soft_floats(s));
  const int64_t rows = s.rows;
  float* input = memory.take(rows * s.inputs());
  float* target = memory.take(rows);
  Mlp policy = s.policy;
  const Squashed drawn = draw(s, policy, t.next, input, false, memory, kernels, threads);
  Crew::instance().run(s.count(), threads, [&](int64_t i) {
    Mlp slow = t.slow[i];
    slow.x = input;
    slow.rows = rows;
    slow.hidden[slow.layers - 1] = t.value + i * rows;  // until the critics' own are there
    mlp_forward(slow, kernels, 1);
  });
  for (int64_t row = 0; row < rows; ++row) {
    const float value = lowest(t.value, s.count(), rows, row) - s.temperature * drawn.logprob[row];
    target[row] = t.reward[row] + t.gamma * (t.terminated[row] ? 0.0f : value);
  }
  put_rows(s, s.obs, s.features, input, s.inputs());
  put_rows(s, t.action, s.reals, input + s.features, s.inputs());
  std::vector<Mlp> critics = s.critics;
  put_gradients(critics, grads);
  std::vector<float*> slopes;
  for (int64_t i = 0; i < s.count(); ++i) {
    give_rows(critics[i], input, rows, true, memory);
    critics[i].hidden[critics[i].layers - 1] = t.value + i * rows;
    critics[i].grad_out = slopes.emplace_back(memory.take(rows));
  }
  Crew::instance().run(s.count(), threads, [&](int64_t i) {
    mlp_forward(critics[i], kernels, 1);
    for (int64_t row = 0; row < rows; ++row) {
      const float error = s.valid[row] ? t.value[i * rows + row] - target[row] : 0.0f;
      t.error[i * rows + row] = error;
      slopes[i][row] = s.weight[row] * error;
    }
    mlp_backward(critics[i], kernels, 1);
  });
  double loss = 0;
  for (int64_t i = 0; i < s.count(); ++i)
    for (int64_t row = 0; row < rows; ++row) {
      const double error = t.error[i * rows + row];
      loss += 0.5 * s.weight[row] * error * error;
    }
  return loss;
}

struct SoftPolicyLoss {
  double loss, entropy;
};

// What goes back through a critic: only the rows whose value is the lowest of all critics, one after the other.
struct Some {
  Mlp critic;
  std::vector<int64_t> rows;
};

inline Some some_rows(const Mlp& critic, const float* slope, SoftMemory& memory) {
  Some some{critic, {}};
  for (int64_t row = 0; row < critic.rows; ++row)
    if (slope[row] != 0) some.rows.push_back(row);
  const int64_t count = some.critic.rows = static_cast<int64_t>(some.rows.size());
  float* of_value = memory.take(count);
  for (int64_t i = 0; i < count; ++i) of_value[i] = slope[some.rows[i]];
  for (int l = 0; l < critic.layers; ++l) {
    const int64_t width = critic.width[l + 1];
    float* hidden = some.critic.hidden[l] = memory.take(count * width);
    for (int64_t i = 0; i < count; ++i) std::copy_n(critic.hidden[l] + some.rows[i] * width, width, hidden + i * width);
  }
  some.critic.grad_out = of_value;
  some.critic.grad_x = memory.take(count * critic.width[0]);
  return some;
}

// The gradient of the policy goes to `grads`. The critics stay as they are.
inline SoftPolicyLoss soft_policy(const Soft& s, float* grads, const Kernels& kernels, int threads) {
  SoftMemory memory(soft_floats(s));
  const int64_t rows = s.rows, count = s.count();
  float* input = memory.take(rows * s.inputs());
  float* value = memory.take(count * rows);
  std::vector<Mlp> policy{s.policy}, critics = s.critics;
  Squashed drawn = draw(s, policy[0], s.obs, input, true, memory, kernels, threads);
  for (int64_t i = 0; i < count; ++i) {
    give_rows(critics[i], input, rows, true, memory);
    critics[i].hidden[critics[i].layers - 1] = value + i * rows;
  }
  Crew::instance().run(count, threads, [&](int64_t i) { mlp_forward(critics[i], kernels, 1); });
  SoftPolicyLoss found{0, 0};
  float* of_logprob = memory.take(rows);
  std::vector<float> slope(count * rows);
  for (int64_t row = 0; row < rows; ++row) {
    const float least = lowest(value, count, rows, row), weight = s.weight[row];
    int64_t equal = 0;
    for (int64_t i = 0; i < count; ++i) equal += value[i * rows + row] == least;
    for (int64_t i = 0; i < count; ++i)
      slope[i * rows + row] = value[i * rows + row] == least ? -weight / static_cast<float>(equal) : 0.0f;
    of_logprob[row] = weight * s.temperature;
    if (!s.valid[row]) continue;
    found.loss += static_cast<double>(weight) * (s.temperature * drawn.logprob[row] - least);
    found.entropy -= static_cast<double>(weight) * drawn.logprob[row];
  }
  float* of_input = memory.take(rows * s.inputs());
  std::fill_n(of_input, rows * s.inputs(), 0.0f);
  std::vector<Some> back;
  for (int64_t i = 0; i < count; ++i) back.push_back(some_rows(critics[i], &slope[i * rows], memory));
  Crew::instance().run(count, threads, [&](int64_t i) { mlp_backward(back[i].critic, kernels, 1); });
  for (const Some& some : back)
    for (int64_t i = 0; i < some.critic.rows; ++i)
      for (int64_t at = 0; at < s.inputs(); ++at) of_input[some.rows[i] * s.inputs() + at] += some.critic.grad_x[i * s.inputs() + at];
  drawn.grad_action = of_input + s.features;
  drawn.grad_logprob = of_logprob;
  drawn.grad_params = memory.take(rows * drawn.params_step);
  kernels.squash_gradients(drawn);
  policy[0].grad_out = drawn.grad_params;
  put_gradients(policy, grads);
  mlp_backward(policy[0], kernels, threads);
  return found;
}

}  // namespace fugu::learn
