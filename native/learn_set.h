// All kernels for one instruction set. Included by learn.h inside a namespace of the set's own and under its target pragma.
#include "learn_vector.h"
#include "learn_matmul.h"
#include "learn_mlp.h"
#include "learn_lstm.h"
#include "learn_loss.h"
#include "learn_squashed.h"
#include "learn_adam.h"

static constexpr Kernels kernels{
    .mlp_packed_floats = mlp_packed_floats,
    .mlp_pack = mlp_pack,
    .mlp_forward_floats = mlp_forward_floats,
    .mlp_forward = mlp_forward,
    .mlp_sum_floats = mlp_sum_floats,
    .mlp_backward_floats = mlp_backward_floats,
    .mlp_backward = mlp_backward,
    .mlp_gather = mlp_gather,
    .lstm_tile = lstm_tile,
    .lstm_kept_floats = lstm_kept_floats,
    .lstm_packed_floats = lstm_packed_floats,
    .lstm_packs = lstm_packs,
    .lstm_pack = lstm_pack,
    .lstm_forward_floats = lstm_forward_floats,
    .lstm_forward = lstm_forward,
    .lstm_sum_floats = lstm_sum_floats,
    .lstm_backward_floats = lstm_backward_floats,
    .lstm_backward = lstm_backward,
    .lstm_gather = lstm_gather,
    .loss_floats = loss_floats,
    .sample_rows = sample_rows,
    .ppo_rows = ppo_rows,
    .squash = squash,
    .squash_gradients = squash_gradients,
    .adam_means = adam_means,
    .adam_follow = adam_follow,
};
#undef FUGU_INLINE
