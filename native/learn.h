// The learner's kernels for CPUs: small MLPs and LSTMs forward and backward, sampling and the PPO loss.
//
// What they compute is stated by the reference functions in src/fugu/ops/, how in the learn_*.h files that are included
// here once per instruction set. This file chooses the set at run time, so that one wheel runs everywhere, and shares the work out
// among threads. The cut into shares depends on the sizes alone and sums are taken in the order of shares, so the number of threads
// does not change a bit of any result.
#pragma once

#if defined(__x86_64__)
#include <immintrin.h>
#endif

#include <array>
#include <cmath>
#include <string_view>
#include <utility>
#include <vector>

#include "crew.h"
#include "learn_scratch.h"

namespace fugu::learn {

enum class Activation { kNone, kTanh, kRelu };
inline constexpr int kMaxLayers = 4;

struct Mlp {  // layer l is [rows, width[l]] -> [rows, width[l + 1]]
  int layers;
  int64_t rows;
  int64_t width[kMaxLayers + 1];
  int64_t widest;
  Activation activation[kMaxLayers];
  const float* x;
  const float* weight[kMaxLayers];  // [width[l + 1], width[l]]
  const float* bias[kMaxLayers];
  float* hidden[kMaxLayers];  // outputs of the layers; null: not kept
  const float* grad_out;
  float* grad_x;  // null: not wanted
  float* grad_weight[kMaxLayers];  // all null: only grad_x is wanted
  float* grad_bias[kMaxLayers];
};

struct Lstm {  // h [sequences, time, hidden] of x [sequences, time, inputs]; gates in the order i f g o
  int64_t sequences, time, inputs, hidden;
  const float* x;
  const float* weight_ih;  // [4 hidden, inputs]
  const float* weight_hh;  // [4 hidden, hidden]
  const float* bias;       // [4 hidden]
  const float* state;      // [sequences, h and c]
  const uint8_t* first;    // [sequences, time]
  float* h;
  float* new_state;
  float* kept;  // what the backward pass needs, or null
  const float* grad_h;
  const float* grad_new_state;
  float* grad_x;  // null: not wanted
  float* grad_weight_ih;
  float* grad_weight_hh;
  float* grad_bias;
  float* grad_state;
};

struct Sample {
  int64_t rows, choices;
  const float* logits;   // [rows, choices]
  const uint8_t* mask;   // [rows, choices] or null
  const float* uniform;  // [rows], in [0, 1)
  int64_t* action;
  float* logprob;
};

struct PpoLoss {
  int64_t rows, choices;
  const float* logits;  // [rows, choices]
  const uint8_t* mask;  // [rows, choices] or null
  const float* value;   // this and the rest [rows]
  const int64_t* action;
  const float* old_logprob;
  const float* advantage;
  const float* old_value;
  const float* value_target;
  const float* weight;
  float clip, value_clip, value_coef, entropy_coef;
  float* grad_logits;
  float* grad_value;
};

struct Squashed {  // actions tanh(mean + deviation * noise) and their log-densities; row r of what has a step begins at r * step
  int64_t rows, reals;
  const float* params;  // means, then the logarithms of the deviations
  int64_t params_step;
  const float* noise;   // [rows, reals]
  float least, most;    // bounds of the logarithms
  float* action;
  int64_t action_step;
  float* logprob;             // [rows]
  const float* grad_action;   // as action
  const float* grad_logprob;  // [rows]
  float* grad_params;         // as params, zeros for what belongs to neither
};

struct Adam {
  int64_t count;
  float* weight;
  const float* grad;  // null: zeros
  float* mean;
  float* square;
  const float* root;          // of `square`
  float rate1, beta2, rate2;  // 1 - beta1, beta2, 1 - beta2
  float undo, eps;            // what the root is multiplied by, and what is added to it
  float step;                 // what mean / root is multiplied by
  float decay;                // what a weight is multiplied by first
};

inline constexpr int kLossParts = 5;  // policy, value, entropy, kl, clip fraction
using LossSums = std::array<double, kLossParts>;

struct Kernels {
  int64_t (*mlp_packed_floats)(const Mlp&);
  void (*mlp_pack)(const Mlp&, bool backward, float* packed);
  int64_t (*mlp_forward_floats)(const Mlp&);
  void (*mlp_forward)(const Mlp&, const float* packed, int64_t low, int64_t high, float* scratch);
  int64_t (*mlp_sum_floats)(const Mlp&);
  int64_t (*mlp_backward_floats)(const Mlp&);
  void (*mlp_backward)(const Mlp&, const float* packed, int64_t low, int64_t high, float* sums, float* scratch);
  void (*mlp_gather)(const Mlp&, int64_t shares, float* sums);

  int64_t (*lstm_tile)();
  int64_t (*lstm_kept_floats)(const Lstm&);
  int64_t (*lstm_packed_floats)(const Lstm&);
  int64_t (*lstm_packs)(const Lstm&, bool backward);
  void (*lstm_pack)(const Lstm&, int64_t piece, float* packed);
  int64_t (*lstm_forward_floats)(const Lstm&);
  void (*lstm_forward)(const Lstm&, const float* packed, int64_t low, int64_t high, float* scratch);
  int64_t (*lstm_sum_floats)(const Lstm&);
  int64_t (*lstm_backward_floats)(const Lstm&);
  void (*lstm_backward)(const Lstm&, const float* packed, int64_t low, int64_t high, float* sums, float* scratch);
  void (*lstm_gather)(const Lstm&, int64_t shares, int64_t gate, float* sums);

  int64_t (*loss_floats)(int64_t choices);
  void (*sample_rows)(const Sample&, int64_t low, int64_t high, float* scratch);
  void (*ppo_rows)(const PpoLoss&, int64_t low, int64_t high, double* sums, float* scratch);

  void (*squash)(const Squashed&);
  void (*squash_gradients)(const Squashed&);
  void (*adam_means)(const Adam&);
  void (*adam_follow)(const Adam&);
};

#define FUGU_SET "learn_set.h"
#include "learn_sets.h"

inline constexpr int64_t kForwardRows = 192;   // a share of the forward pass
inline constexpr int64_t kBackwardRows = 480;  // the least share of the backward pass, which has at most kSums of them
inline constexpr int64_t kSums = 16;

inline void mlp_forward(const Mlp& m, const Kernels& kernels, int threads) {
  Scratch<Use::kCall> call(kernels.mlp_packed_floats(m));
  float* packed = call.take(kernels.mlp_packed_floats(m));
  kernels.mlp_pack(m, false, packed);
  Crew::instance().run(shares_of(m.rows, kForwardRows), threads, [&](int64_t share) {
    Scratch<Use::kShare> scratch(kernels.mlp_forward_floats(m));
    const int64_t low = share * kForwardRows;
    kernels.mlp_forward(m, packed, low, std::min(m.rows, low + kForwardRows), scratch.take(0));
  });
}

inline void mlp_backward(const Mlp& m, const Kernels& kernels, int threads) {
  const int64_t per_share = std::max(kBackwardRows, shares_of(shares_of(m.rows, kSums), 48) * 48);
  const int64_t shares = std::max<int64_t>(1, shares_of(m.rows, per_share));
  const int64_t packed_floats = Scratch<Use::kCall>::round_up(kernels.mlp_packed_floats(m)), sums = kernels.mlp_sum_floats(m);
  Scratch<Use::kCall> call(packed_floats + shares * sums);
  float* packed = call.take(packed_floats);
  float* sum = call.take(shares * sums);
  kernels.mlp_pack(m, true, packed);
  Crew::instance().run(shares, threads, [&](int64_t share) {
    Scratch<Use::kShare> scratch(kernels.mlp_backward_floats(m));
    const int64_t low = share * per_share;
    if (m.grad_weight[0]) std::fill_n(sum + share * sums, sums, 0.0f);
    kernels.mlp_backward(m, packed, low, std::min(m.rows, low + per_share), sum + share * sums, scratch.take(0));
  });
  if (m.grad_weight[0]) kernels.mlp_gather(m, shares, sum);
}

inline void lstm_forward(const Lstm& m, const Kernels& kernels, int threads) {
  Scratch<Use::kCall> call(kernels.lstm_packed_floats(m));
  float* packed = call.take(0);
  Crew::instance().run(kernels.lstm_packs(m, false), threads, [&](int64_t piece) { kernels.lstm_pack(m, piece, packed); });
  const int64_t tile = kernels.lstm_tile();
  Crew::instance().run(shares_of(m.sequences, tile), threads, [&](int64_t share) {
    Scratch<Use::kShare> scratch(kernels.lstm_forward_floats(m));
    kernels.lstm_forward(m, packed, share * tile, std::min(m.sequences, (share + 1) * tile), scratch.take(0));
  });
}

inline void lstm_backward(const Lstm& m, const Kernels& kernels, int threads) {
  const int64_t tile = kernels.lstm_tile(), tiles = shares_of(m.sequences, tile), per_share = std::max<int64_t>(1, shares_of(tiles, kSums));
  const int64_t shares = std::max<int64_t>(1, shares_of(tiles, per_share));
  const int64_t packed_floats = Scratch<Use::kCall>::round_up(kernels.lstm_packed_floats(m)), sums = kernels.lstm_sum_floats(m);
  Scratch<Use::kCall> call(packed_floats + shares * sums);
  float* packed = call.take(packed_floats);
  float* sum = call.take(shares * sums);
  Crew::instance().run(kernels.lstm_packs(m, true), threads, [&](int64_t piece) { kernels.lstm_pack(m, piece, packed); });
  Crew::instance().run(shares, threads, [&](int64_t share) {
    Scratch<Use::kShare> scratch(kernels.lstm_backward_floats(m));
    std::fill_n(sum + share * sums, sums, 0.0f);
    for (int64_t at = share * per_share; at < std::min(tiles, (share + 1) * per_share); ++at)
      kernels.lstm_backward(m, packed, at * tile, std::min(m.sequences, (at + 1) * tile), sum + share * sums, scratch.take(0));
  });
  Crew::instance().run(4, threads, [&](int64_t gate) { kernels.lstm_gather(m, shares, gate, sum); });
}

inline constexpr int64_t kLossRows = 1024;

inline void sample(const Sample& m, const Kernels& kernels, int threads) {
  Crew::instance().run(shares_of(m.rows, kLossRows), threads, [&](int64_t share) {
    Scratch<Use::kShare> scratch(kernels.loss_floats(m.choices));
    kernels.sample_rows(m, share * kLossRows, std::min(m.rows, (share + 1) * kLossRows), scratch.take(0));
  });
}

inline LossSums ppo_loss(const PpoLoss& m, const Kernels& kernels, int threads) {
  std::vector<LossSums> sums(shares_of(m.rows, kLossRows));
  Crew::instance().run(static_cast<int64_t>(sums.size()), threads, [&](int64_t share) {
    Scratch<Use::kShare> scratch(kernels.loss_floats(m.choices));
    kernels.ppo_rows(m, share * kLossRows, std::min(m.rows, (share + 1) * kLossRows), sums[share].data(), scratch.take(0));
  });
  LossSums total{};
  for (const auto& sum : sums)
    for (size_t i = 0; i < total.size(); ++i) total[i] += sum[i];
  return total;
}

}  // namespace fugu::learn
