// Rows -> parameters of the distribution and value, by the network of mlp.h.
#pragma once

#include "mlp.h"

namespace fugu::mlp {

struct ForwardArguments {
  Parameters parameters;
  const float* obs;      // [rows, width(0)], in `order`
  float *logits, *value;  // [rows, choices], [rows]
  RowOrder order;
  int32_t rows;
};

template <typename N, typename D>
__device__ inline void forward_kernel(const ForwardArguments& a) {
  FUGU_SHARED(float, shared);
  load_parameters<N>(shared, a.parameters);
  __syncthreads();
  for (int tile = static_cast<int>(blockIdx.x); tile * D::kRows < a.rows; tile += static_cast<int>(gridDim.x)) {
    const int row = tile * D::kRows + D::first_row() + lane_of_thread();
    const bool own = lane_of_thread() < 16 && row < a.rows;
    load_observations<N, D>(shared, a.parameters, a.obs, own ? a.order.at(row) : -1);
    forward<N, D>(shared);
    if (own && D::part() == 0) {
      const float* outputs = own_outputs<N, D>(shared);
#pragma unroll
      for (int c = 0; c < N::kChoices; ++c) a.logits[static_cast<int64_t>(row) * N::kChoices + c] = outputs[c];
      a.value[row] = outputs[N::kChoices];
    }
  }
}

}  // namespace fugu::mlp
