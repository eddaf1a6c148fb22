// Kernels of world models for CPUs: layers with a norm, numbers as classes, states of observed and of imagined rows, and LaProp.
//
// What they compute is stated by the reference functions in src/fugu/ops/, how in the headers that learn_world_set.h lists. As in
// learn.h the instruction set is chosen at run time, and the number of threads does not change a bit of any result.
#pragma once

#if defined(__x86_64__)
#include <immintrin.h>
#endif

#include <cmath>
#include <string_view>

#include "crew.h"
#include "learn_scratch.h"

namespace fugu::world {

using learn::Scratch, learn::Use, learn::shares_of;

inline constexpr int kStackLayers = 6;

struct Norm {  // y = SiLU(x / sqrt(mean(x^2) + epsilon) * scale), [rows, width]
  int64_t rows, width;
  const float* x;
  const float* scale;  // [width]
  float epsilon;
  float* y;
  float* inverse;  // [rows] what a row is multiplied by; null: not kept
  const float* grad_y;
  float* grad_x;
  float* grad_scale;
};

struct Stack {  // layer l is [rows, width[l]] -> [rows, width[l + 1]]: linear, and where there is a scale norm and SiLU
  int layers;
  int64_t rows;
  int64_t width[kStackLayers + 1];
  int64_t widest;
  float epsilon;
  const float* x;
  const float* weight[kStackLayers];  // [width[l + 1], width[l]]
  const float* bias[kStackLayers];
  const float* scale[kStackLayers];  // null: only linear
  float* y;
  float* kept[kStackLayers];  // what the linear parts gave
  float* inverse;             // [layers, rows]; null: nothing is kept
  const float* grad_y;
  float* grad_x;  // null: not wanted
  float* grad_weight[kStackLayers];
  float* grad_bias[kStackLayers];
  float* grad_scale[kStackLayers];
};

struct TwoHot {  // logits [rows, count] over bins [count], an odd number, symmetric around 0
  int64_t rows, count, targets;
  const float* logits;
  const float* bins;
  float* mean;     // [rows] or null
  float* log_sum;  // [rows] or null
  const float* target;  // [rows, targets]
  float* loss;          // [rows]
  const float* grad_loss;
  float* grad_logits;
};

struct Mixed {  // probabilities of logits [rows, variables, classes], a share of them spread evenly
  int64_t rows, variables, classes;
  float even;
  const float* logits;
  float* chance;
  const float* grad_chance;
  float* grad_logits;
};

struct Divergence {  // of p from q, both [rows, count]
  int64_t rows, count;
  const float *p, *q;
  float* divergence;               // [rows]
  const float *weight_p, *weight_q;  // [rows] of the gradients
  float *grad_p, *grad_q;
};

struct Cell {  // deter [deter] in blocks, stoch [random] and action [hidden, after its layer] -> the next deter
  int64_t deter, random, hidden, blocks;
  float epsilon;
  const float *deter_weight, *deter_bias, *deter_scale;  // [hidden, deter]
  const float *stoch_weight, *stoch_bias, *stoch_scale;  // [hidden, random]
  const float *mix_weight, *mix_bias, *mix_scale;        // [blocks, width + 3 hidden, width]
  const float *gate_weight, *gate_bias;                  // [blocks, width, 3 width]
};

struct Observe {  // [time, rows, ...]
  Cell cell;
  int64_t time, rows, classes;
  float even;  // share of probabilities that is spread evenly
  const float *expected_weight, *seen_scale, *posterior_weight, *posterior_bias;
  const float *start_deter, *start_stoch, *action, *seen, *uniform;
  const uint8_t* first;
  float *deter, *stoch, *chance, *kept;
  const float *grad_deter, *grad_stoch, *grad_chance;
  float *grad_action, *grad_seen;
  float *grad_deter_weight, *grad_deter_bias, *grad_deter_scale, *grad_stoch_weight, *grad_stoch_bias, *grad_stoch_scale;
  float *grad_mix_weight, *grad_mix_bias, *grad_mix_scale, *grad_gate_weight, *grad_gate_bias;
  float *grad_expected_weight, *grad_seen_scale, *grad_posterior_weight, *grad_posterior_bias;
};

struct Roll {  // [ahead + 1, rows, ...]
  Cell cell;
  Stack prior, actor;
  int64_t rows, ahead, classes;
  float even;
  int64_t heads, choices, binaries, reals, dims, numbers;  // of an action
  const int64_t* counts;                                   // [heads]
  float least, most;                                       // deviation
  const float *action_weight, *action_bias, *action_scale;
  const float* uniform;  // [ahead, rows, variables]
  const float* noise;    // [ahead + 1, rows, dims]
  float* features;       // [ahead + 1, rows, deter + random], the first of them given
  float* action;         // [ahead + 1, rows, dims]
};

struct LaProp {
  float beta1, beta2, eps, clip, shortest;
  float rate;         // with what undoes the start of the mean at 0
  float correction2;  // of the deviation, likewise
};

struct Kernels {
  void (*norm_rows)(const Norm&, int64_t low, int64_t high);
  void (*norm_gradients)(const Norm&, int64_t low, int64_t high, float* sums);

  int64_t (*stack_packed_floats)(const Stack&, bool backward);
  void (*stack_pack)(const Stack&, bool backward, float* packed);
  int64_t (*stack_forward_floats)(const Stack&);
  void (*stack_forward)(const Stack&, const float* packed, int64_t low, int64_t high, float* scratch);
  int64_t (*stack_sum_floats)(const Stack&);
  int64_t (*stack_backward_floats)(const Stack&);
  void (*stack_backward)(const Stack&, const float* packed, int64_t low, int64_t high, float* sums, float* scratch);
  void (*stack_gather)(const Stack&, int64_t shares, float* sums);

  int64_t (*two_hot_floats)(const TwoHot&);
  void (*two_hot_rows)(const TwoHot&, int64_t low, int64_t high, float* scratch);
  void (*two_hot_losses)(const TwoHot&, int64_t low, int64_t high);
  void (*two_hot_gradients)(const TwoHot&, int64_t low, int64_t high);

  void (*divergence_rows)(const Divergence&, int64_t low, int64_t high);
  void (*divergence_gradients)(const Divergence&, int64_t low, int64_t high);

  void (*mixed_rows)(const Mixed&, int64_t low, int64_t high);
  void (*mixed_gradients)(const Mixed&, int64_t low, int64_t high);

  int64_t (*observe_floats)(const Observe&);
  int64_t (*observe_packed_floats)(const Observe&);
  void (*observe_forward)(const Observe&, float* scratch);
  int64_t (*observe_backward_floats)(const Observe&);
  void (*observe_backward)(const Observe&, float* scratch);

  int64_t (*roll_packed_floats)(const Roll&);
  void (*roll_pack)(const Roll&, float* packed);
  int64_t (*roll_tile)();
  int64_t (*roll_floats)(const Roll&);
  void (*roll_forward)(const Roll&, const float* packed, int64_t low, int64_t high, float* scratch);

  void (*laprop_tensor)(const LaProp&, const float* grad, float* weight, float* mean, float* square, int64_t count);
};

#define FUGU_SET "learn_world_set.h"
#include "learn_sets.h"

inline constexpr int64_t kRows = 192;             // the least share of a pass that writes rows alone
inline constexpr int64_t kGradientRows = 480;     // and of one that adds up gradients of weights
inline constexpr int64_t kSums = 16;              // at most so many sums of a gradient
inline constexpr int64_t kSumFloats = 1 << 23;    // in at most so much memory

inline void norm_backward(const Norm& m, const Kernels& kernels, int threads) {
  const int64_t per_share = std::max(kRows, shares_of(m.rows, kSums)), shares = shares_of(m.rows, per_share);
  Scratch<Use::kCall> call(shares * m.width);
  float* sum = call.take(shares * m.width);
  std::fill_n(sum, shares * m.width, 0.0f);
  Crew::instance().run(shares, threads, [&](int64_t share) {
    kernels.norm_gradients(m, share * per_share, std::min(m.rows, (share + 1) * per_share), sum + share * m.width);
  });
  std::fill_n(m.grad_scale, m.width, 0.0f);
  for (int64_t share = 0; share < shares; ++share)
    for (int64_t i = 0; i < m.width; ++i) m.grad_scale[i] += sum[share * m.width + i];
}

inline void stack_forward(const Stack& m, const Kernels& kernels, int threads) {
  Scratch<Use::kCall> call(kernels.stack_packed_floats(m, false));
  float* packed = call.take(0);
  kernels.stack_pack(m, false, packed);
  Crew::instance().run(shares_of(m.rows, kRows), threads, [&](int64_t share) {
    Scratch<Use::kShare> scratch(kernels.stack_forward_floats(m));
    kernels.stack_forward(m, packed, share * kRows, std::min(m.rows, (share + 1) * kRows), scratch.take(0));
  });
}

inline void stack_backward(const Stack& m, const Kernels& kernels, int threads) {
  const int64_t sums = kernels.stack_sum_floats(m), most = std::clamp<int64_t>(kSumFloats / sums, 1, kSums);
  const int64_t per_share = std::max(kGradientRows, shares_of(shares_of(m.rows, most), 48) * 48);
  const int64_t shares = std::max<int64_t>(1, shares_of(m.rows, per_share));
  const int64_t packed_floats = Scratch<Use::kCall>::round_up(kernels.stack_packed_floats(m, true));
  Scratch<Use::kCall> call(packed_floats + shares * sums);
  float* packed = call.take(packed_floats);
  float* sum = call.take(shares * sums);
  kernels.stack_pack(m, true, packed);
  Crew::instance().run(shares, threads, [&](int64_t share) {
    Scratch<Use::kShare> scratch(kernels.stack_backward_floats(m));
    std::fill_n(sum + share * sums, sums, 0.0f);
    kernels.stack_backward(m, packed, share * per_share, std::min(m.rows, (share + 1) * per_share), sum + share * sums, scratch.take(0));
  });
  kernels.stack_gather(m, shares, sum);
}

inline void two_hot_rows(const TwoHot& m, const Kernels& kernels, int threads) {
  Crew::instance().run(shares_of(m.rows, kRows), threads, [&](int64_t share) {
    Scratch<Use::kShare> scratch(kernels.two_hot_floats(m));
    kernels.two_hot_rows(m, share * kRows, std::min(m.rows, (share + 1) * kRows), scratch.take(0));
  });
}

// rows(m, low, high) in shares.
template <typename Columns>
void in_shares(void (*rows)(const Columns&, int64_t, int64_t), const Columns& m, int threads) {
  Crew::instance().run(shares_of(m.rows, kRows), threads,
                       [&](int64_t share) { rows(m, share * kRows, std::min(m.rows, (share + 1) * kRows)); });
}

// Sequences are few, and each row of time waits for the one before: one thread does them all.
inline void observe_forward(const Observe& m, const Kernels& kernels) {
  Scratch<Use::kCall> call(kernels.observe_packed_floats(m));
  kernels.observe_forward(m, call.take(0));
}

inline void observe_backward(const Observe& m, const Kernels& kernels) {
  Scratch<Use::kCall> call(kernels.observe_backward_floats(m));
  kernels.observe_backward(m, call.take(0));
}

inline void roll(const Roll& m, const Kernels& kernels, int threads) {
  Scratch<Use::kCall> call(kernels.roll_packed_floats(m));
  float* packed = call.take(0);
  kernels.roll_pack(m, packed);
  const int64_t tile = kernels.roll_tile();
  Crew::instance().run(shares_of(m.rows, tile), threads, [&](int64_t share) {
    Scratch<Use::kShare> scratch(kernels.roll_floats(m));
    kernels.roll_forward(m, packed, share * tile, std::min(m.rows, (share + 1) * tile), scratch.take(0));
  });
}

}  // namespace fugu::world
