// All kernels of world models for one instruction set. Included by learn_world.h inside a namespace of the set's own and under its
// target pragma.
#include "learn_vector.h"
#include "learn_matmul.h"
#include "learn_norm.h"
#include "learn_stack.h"
#include "learn_two_hot.h"
#include "learn_divergence.h"
#include "learn_mixed.h"
#include "learn_cell.h"
#include "learn_observe.h"
#include "learn_roll.h"
#include "learn_laprop.h"

static constexpr Kernels kernels{
    .norm_rows = norm_rows,
    .norm_gradients = norm_gradients,
    .stack_packed_floats = stack_packed_floats,
    .stack_pack = stack_pack,
    .stack_forward_floats = stack_forward_floats,
    .stack_forward = stack_forward,
    .stack_sum_floats = stack_sum_floats,
    .stack_backward_floats = stack_backward_floats,
    .stack_backward = stack_backward,
    .stack_gather = stack_gather,
    .two_hot_floats = two_hot_floats,
    .two_hot_rows = two_hot_rows,
    .two_hot_losses = two_hot_losses,
    .two_hot_gradients = two_hot_gradients,
    .divergence_rows = divergence_rows,
    .divergence_gradients = divergence_gradients,
    .mixed_rows = mixed_rows,
    .mixed_gradients = mixed_gradients,
    .observe_floats = observe_floats,
    .observe_packed_floats = observe_packed_floats,
    .observe_forward = observe_forward,
    .observe_backward_floats = observe_backward_floats,
    .observe_backward = observe_backward,
    .roll_packed_floats = roll_packed_floats,
    .roll_pack = roll_pack,
    .roll_tile = roll_tile,
    .roll_floats = roll_floats,
    .roll_forward = roll_forward,
    .laprop_tensor = laprop_tensor,
};
#undef FUGU_INLINE
