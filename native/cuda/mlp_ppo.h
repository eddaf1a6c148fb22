// PPO's loss over a batch of rows, and its gradient for every parameter of the network of mlp.h, without anything of a row ever
// leaving the multiprocessor. The loss is that of src/fugu/ops/ppo_loss.py.
//
// Three kernels. `prepare` counts the rows that matter and sums their advantages. `ppo` goes over tiles of rows, forward and
// backward; a warp holds its own part of every layer's gradient in registers until all tiles of the block are done, then the block
// writes its sums. `reduce` adds those of all blocks. Sums are always added in the same order, so the same rows give the same bits.
//
// Backward through layer i, with y what went into it and e the gradient at what came out: its weights get e^T y, summed over the
// rows of the block by all warps, and what went in gets e W, times the slope of the activation there, which takes the place of y.
#pragma once

#include "mlp.h"

namespace fugu::mlp {

constexpr int kStats = 8;  // policy, value, entropy, kl, clip_fraction, ratio, loss, unused; before the gradients of the parameters

struct Settings {
  Moments values;  // what the network says of values is in these units; old_value and value_target are real
  const float* entropy_coef_at;  // where it is to be read, if it changes while the kernel is replayed; else null
  float clip, value_clip, value_coef, entropy_coef;
  int32_t normalize;  // advantages to mean 0 and deviation 1

  __device__ float entropy() const { return entropy_coef_at ? *entropy_coef_at : entropy_coef; }
};

struct PpoArguments {
  Parameters parameters;
  const float* obs;  // [rows, width(0)], and this and all other columns in `order`
  const int64_t* action;
  const float *old_logprob, *advantage, *old_value, *value_target;
  const bool* mask;
  double* moments;  // [prepare_blocks, 3]: rows that count, their sum of advantages and of its squares
  float* partial;   // [ppo_blocks, kStats + kParameters]
  float* out;       // [kStats + kParameters]
  RowOrder order;
  Settings settings;
  int32_t rows, prepare_blocks, ppo_blocks;
};

using fugu::warp_sum;
__device__ inline double warp_sum(double x) {
  for (int step = 16; step > 0; step >>= 1) x += __shfl_xor_sync(kAllLanes, x, step);
  return x;
}

__device__ inline void prepare_kernel(const PpoArguments& a) {
  FUGU_SHARED(double, shared);  // [3][warps]
  double sums[3] = {};
  for (int row = static_cast<int>(blockIdx.x * blockDim.x + threadIdx.x); row < a.rows; row += static_cast<int>(gridDim.x * blockDim.x)) {
    const int64_t at = a.order.at(row);
    if (!a.mask[at]) continue;
    const double x = a.advantage[at];
    sums[0] += 1.0, sums[1] += x, sums[2] += x * x;
  }
  const int warps = static_cast<int>(blockDim.x) / 32;
  for (int i = 0; i < 3; ++i) {
    const double sum = warp_sum(sums[i]);
    if (lane_of_thread() == 0) shared[i * warps + warp_of_thread()] = sum;
  }
  __syncthreads();
  if (threadIdx.x < 3) {
    double total = 0;
    for (int w = 0; w < warps; ++w) total += shared[static_cast<int>(threadIdx.x) * warps + w];
    a.moments[3 * blockIdx.x + threadIdx.x] = total;
  }
}

// What a row's advantage becomes, and what a row that counts weighs.
struct Scale {
  float mean, per_deviation, weight;
};

__device__ inline Scale scale_of(const PpoArguments& a) {  // by a whole warp
  double sums[3] = {};
  for (int block = lane_of_thread(); block < a.prepare_blocks; block += 32)
    for (int i = 0; i < 3; ++i) sums[i] += a.moments[3 * block + i];
  for (double& sum : sums) sum = warp_sum(sum);
  const double count = fmax(sums[0], 1.0), mean = sums[1] / count, variance = fmax(sums[2] / count - mean * mean, 0.0);
  if (!a.settings.normalize) return {0.0f, 1.0f, static_cast<float>(1.0 / count)};
  return {static_cast<float>(mean), static_cast<float>(1.0 / (sqrt(variance) + 1e-8)), static_cast<float>(1.0 / count)};
}

// A row's columns, read before the network is computed so that they are there when it is.
struct Row {
  float weight = 0.0f, old_logprob = 0.0f, advantage = 0.0f, old_value = 0.0f, value_target = 0.0f;
  int action = 0;
};

// Loss of one row: adds to `stats`, and puts the gradient of the loss in place of the outputs.
template <typename N>
__device__ inline void row_loss(float* outputs, const Row& row, const Settings& s, float entropy_coef, float (&stats)[6]) {
  const Logits<N> now(outputs);
  float logprob = 0.0f, entropy = 0.0f;
#pragma unroll
  for (int c = 0; c < N::kChoices; ++c) {
    const float log_p = now.logit[c] - now.offset;
    entropy = fmaf(-quick_exp(log_p), log_p, entropy);
    logprob = c == row.action ? log_p : logprob;
  }
  const float log_ratio = logprob - row.old_logprob, ratio = quick_exp(log_ratio);
  const float clipped = fminf(fmaxf(ratio, 1.0f - s.clip), 1.0f + s.clip);
  const bool moves = ratio * row.advantage <= clipped * row.advantage;  // the clipped one does not depend on the parameters
  const float gain = moves ? ratio * row.advantage : clipped * row.advantage;

  const float error = now.value - row.value_target, change = now.value - row.old_value;
  const float near = row.old_value + fminf(fmaxf(change, -s.value_clip), s.value_clip) - row.value_target;
  const bool clips = near * near > error * error;
  const float squared = clips ? near * near : error * error;
  const float pull = clips ? (fabsf(change) <= s.value_clip ? near : 0.0f) : error;

  stats[0] = fmaf(-row.weight, gain, stats[0]);
  stats[1] = fmaf(0.5f * row.weight, squared, stats[1]);
  stats[2] = fmaf(row.weight, entropy, stats[2]);
  stats[3] = fmaf(row.weight, ratio - 1.0f - log_ratio, stats[3]);
  stats[4] += fabsf(ratio - 1.0f) > s.clip ? row.weight : 0.0f;
  stats[5] = fmaf(row.weight, ratio, stats[5]);

  const float push = moves ? -gain : 0.0f;
#pragma unroll
  for (int c = 0; c < N::kChoices; ++c) {
    const float log_p = now.logit[c] - now.offset, p = quick_exp(log_p);
    outputs[c] = row.weight * (push * ((c == row.action ? 1.0f : 0.0f) - p) + entropy_coef * p * (log_p + entropy));
  }
  outputs[N::kChoices] = row.weight * s.value_coef * pull;
}

// Into how many equal shares `steps` may be divided, at most `wanted`; a power of 2.
__host__ __device__ constexpr int equal_shares(int wanted, int steps) {
  int shares = 1;
  while (2 * shares <= wanted && steps % (2 * shares) == 0) shares *= 2;
  return shares;
}

// The gradients of all parameters, spread over the warps of a block. Layer I's weights are a grid of 16 x 8 tiles: along its longer
// sides run the outputs (or, in the last layer, whose outputs are few, the inputs). A warp has one row of tiles, or every kApart-th
// tile of one; where there are more warps than tiles, warps divide the rows of the batch and add what they have at the end.
template <typename N, typename D>
struct Gradients {
  template <int I>
  struct Layer {
    static constexpr bool kLast = I == N::kLayers - 1;
    static constexpr int kLong = N::padded(kLast ? I : I + 1) / 16, kTiles = N::padded(kLast ? I + 1 : I) / 8;
    static_assert(N::padded(kLast ? I : I + 1) % 16 == 0 && kLong <= D::kWarps);
    static constexpr int kWarpsEach = D::kWarps / kLong;  // on one row of tiles
    static constexpr int kApart = kWarpsEach < kTiles ? kWarpsEach : kTiles;
    static constexpr int kShares = equal_shares(kWarpsEach / kApart, D::kRows / 8);  // of the batch's rows
    static constexpr int kOwn = (kTiles + kApart - 1) / kApart;
    static constexpr int kBiases = kLast ? kOwn : 2;

    __device__ static int strip() { return warp_of_thread() / kWarpsEach; }
    __device__ static int first_tile() { return warp_of_thread() % kWarpsEach % kApart; }
    __device__ static int share() { return warp_of_thread() % kWarpsEach / kApart; }
    __device__ static bool works() { return strip() < kLong && share() < kShares; }
  };

  // Where layer I's tiles and biases are among those of all layers.
  template <int I>
  __host__ __device__ static constexpr int tiles_at() {
    if constexpr (I == 0)
      return 0;
    else
      return tiles_at<I - 1>() + Layer<I - 1>::kOwn;
  }
  template <int I>
  __host__ __device__ static constexpr int biases_at() {
    if constexpr (I == 0)
      return 0;
    else
      return biases_at<I - 1>() + Layer<I - 1>::kBiases;
  }
  template <int I>
  __host__ __device__ static constexpr int most_shares() {
    if constexpr (I == N::kLayers)
      return 1;
    else
      return Layer<I>::kShares > most_shares<I + 1>() ? Layer<I>::kShares : most_shares<I + 1>();
  }

  float weight[tiles_at<N::kLayers>()][4] = {}, bias[biases_at<N::kLayers>()] = {};

  // Adds the rows of the tile in shared memory: `in` went into layer I, `error` is the gradient at what came out.
  template <int I>
  __device__ void add(const float* in, const float* error) {
    using L = Layer<I>;
    if (!L::works()) return;
    constexpr int in_stride = N::row_stride(I), error_stride = N::row_stride(I + 1);
    constexpr int long_stride = L::kLast ? in_stride : error_stride, short_stride = L::kLast ? error_stride : in_stride;
    constexpr int rows = D::kRows / L::kShares, tiles = tiles_at<I>(), biases = biases_at<I>();
    const int g = lane_of_thread() >> 2, t = lane_of_thread() & 3, from = L::share() * rows;
    const float* left = (L::kLast ? in : error) + (from + t) * long_stride + 16 * L::strip() + g;
    const float* right = (L::kLast ? error : in) + (from + t) * short_stride + 8 * L::first_tile() + g;
#pragma unroll 2
    for (int row = 0; row < rows; row += 8, left += 8 * long_stride, right += 8 * short_stride) {
      const float x[4] = {left[0], left[8], left[4 * long_stride], left[4 * long_stride + 8]};
      Operand<N::kPasses, 4> a;
#pragma unroll
      for (int i = 0; i < 4; ++i) a.set(i, x[i]);
      if constexpr (!L::kLast) bias[biases] += x[0] + x[2], bias[biases + 1] += x[1] + x[3];
#pragma unroll
      for (int j = 0; j < L::kOwn; ++j) {
        if (L::first_tile() + j * L::kApart >= L::kTiles) break;
        const float y[2] = {right[8 * L::kApart * j], right[8 * L::kApart * j + 4 * short_stride]};
        Operand<N::kPasses, 2> b;
        b.set(0, y[0]), b.set(1, y[1]);
        multiply<N::kPasses>(weight[tiles + j], a, b);
        if constexpr (L::kLast) bias[biases + j] += y[0] + y[1];
      }
    }
  }

  // Into `to` [kParameters], in the order of torch's parameters; `turn` counts the shares, so that they are added one by one.
  template <int I>
  __device__ void put(float* to, int turn) {
    using L = Layer<I>;
    if (L::works() && L::share() == turn) {
      constexpr int in = N::width(I), out = N::width(I + 1), tiles = tiles_at<I>(), biases = biases_at<I>();
      const int g = lane_of_thread() >> 2, t = lane_of_thread() & 3;
      const auto store = [&](int output, int input, float x) {  // input `in`: the bias
        if (output >= out || input > in) return;
        float& place = to[N::parameter_at(I) + (input < in ? output * in + input : out * in + output)];
        place = turn == 0 ? x : place + x;
      };
#pragma unroll
      for (int j = 0; j < L::kOwn; ++j) {
        const int tile = L::first_tile() + j * L::kApart;
        if (tile >= L::kTiles) break;
#pragma unroll
        for (int i = 0; i < 4; ++i) {
          const int along = 16 * L::strip() + g + 8 * (i / 2), across = 8 * tile + 2 * t + i % 2;
          if (across < N::width(L::kLast ? I + 1 : I)) store(L::kLast ? across : along, L::kLast ? along : across, weight[tiles + j][i]);
        }
      }
#pragma unroll
      for (int j = 0; j < L::kBiases; ++j) {
        float sum = bias[biases + j];
        sum += __shfl_xor_sync(kAllLanes, sum, 1);
        sum += __shfl_xor_sync(kAllLanes, sum, 2);
        if constexpr (L::kLast) {
          if (t == 0 && L::strip() == 0 && L::first_tile() + j * L::kApart < L::kTiles)
            store(8 * (L::first_tile() + j * L::kApart) + g, in, sum);
        } else {
          if (t == 0 && L::first_tile() == 0) store(16 * L::strip() + g + 8 * j, in, sum);
        }
      }
    }
    if constexpr (I + 1 < N::kLayers) put<I + 1>(to, turn);
  }
};

// The gradient at what went into layer I, times the slope there, in place of what went in; this warp's strip and part.
template <typename N, typename D, int I>
__device__ inline void backward_rows(float* shared) {
  constexpr int tiles = N::padded(I) / 8, own = (tiles + D::kSplit - 1) / D::kSplit, group = group_size(own);
  constexpr int stride = N::weight_stride(I), in_stride = N::row_stride(I);
  const int g = lane_of_thread() >> 2, t = lane_of_thread() & 3, row = D::first_row();
  const float* weight = shared + N::weight_at(I) + 2 * t * stride + g;
  const float* error = shared + N::rows_at(I + 1, D::kRows) + row * N::row_stride(I + 1);
  float* in = shared + N::rows_at(I, D::kRows) + (row + g) * in_stride + 2 * t;
  const int even = swizzle(2 * t), odd = swizzle(2 * t + 1);
  const int end = (D::part() + 1) * own < tiles ? (D::part() + 1) * own : tiles;
  for (int from = D::part() * own; from < end; from += group) {
    float d[group][4] = {};
    products<N::kPasses, N::padded(I + 1) / 8, chains_of(tiles)>(d, error, N::row_stride(I + 1), [&](int step, int j) {
      const int tile = from + j < tiles ? from + j : 0;
      const float* at = weight + 8 * step * stride;
      return make_float2(at[8 * tile ^ even], at[stride + (8 * tile ^ odd)]);
    });
#pragma unroll
    for (int j = 0; j < group; ++j) {
      if (from + j >= end) break;
#pragma unroll
      for (int half = 0; half < 2; ++half) {
        float2& at = *reinterpret_cast<float2*>(in + 8 * half * in_stride + 8 * (from + j));
        const float2 y = at;
        at = make_float2(d[j][2 * half] * slope<N::kActivation>(y.x), d[j][2 * half + 1] * slope<N::kActivation>(y.y));
      }
    }
  }
}

template <typename N, typename D, int I>
__device__ inline void backward(float* shared, Gradients<N, D>& gradients) {
  __syncthreads();
  gradients.template add<I>(shared + N::rows_at(I, D::kRows), shared + N::rows_at(I + 1, D::kRows));
  __syncthreads();
  if constexpr (I > 0) {
    backward_rows<N, D, I>(shared);
    backward<N, D, I - 1>(shared, gradients);
  }
}

template <typename N, typename D>
__device__ inline void ppo_kernel(const PpoArguments& a) {
  FUGU_SHARED(float, shared);
  load_parameters<N>(shared, a.parameters);
  const Scale scale = scale_of(a);
  const ValueScale values(a.settings.values);
  const float entropy_coef = a.settings.entropy();
  Gradients<N, D> gradients;
  float stats[6] = {};
  const bool owner = lane_of_thread() < 16 && D::part() == 0;
  __syncthreads();
  for (int tile = static_cast<int>(blockIdx.x); tile * D::kRows < a.rows; tile += static_cast<int>(gridDim.x)) {
    const int number = tile * D::kRows + D::first_row() + lane_of_thread();
    int64_t at = lane_of_thread() < 16 && number < a.rows ? a.order.at(number) : -1;
    if (at >= 0 && !a.mask[at]) at = -1;  // nothing of such a row is read: it may be NaN
    Row row;
    if (at >= 0 && owner) {
      row = {scale.weight,
             a.old_logprob[at],
             (a.advantage[at] - scale.mean) * scale.per_deviation,
             values.said(a.old_value[at]),
             values.said(a.value_target[at]),
             static_cast<int>(a.action[at])};
    }
    load_observations<N, D>(shared, a.parameters, a.obs, at);
    forward<N, D>(shared);
    if (owner) row_loss<N>(own_outputs<N, D>(shared), row, a.settings, entropy_coef, stats);
    backward<N, D, N::kLayers - 1>(shared, gradients);
  }
  static_assert(kStats + N::kParameters + 6 * D::kWarps <= N::shared_words(D::kRows));
  // The parameters are no longer needed, and all warps have met: the sums of the block take their place.
  float* sums = shared + kStats;
  for (int turn = 0; turn < Gradients<N, D>::template most_shares<0>(); ++turn) {
    gradients.template put<0>(sums, turn);
    __syncthreads();
  }
  float* warps = sums + N::kParameters;  // [6][kWarps]
  for (int i = 0; i < 6; ++i) {
    const float sum = warp_sum(stats[i]);
    if (lane_of_thread() == 0) warps[i * D::kWarps + warp_of_thread()] = sum;
  }
  __syncthreads();
  if (threadIdx.x < kStats) {
    float sum = 0;
    for (int w = 0; w < D::kWarps && threadIdx.x < 6; ++w) sum += warps[threadIdx.x * D::kWarps + w];
    shared[threadIdx.x] = sum;
  }
  __syncthreads();
  float* to = a.partial + static_cast<int64_t>(blockIdx.x) * (kStats + N::kParameters);
  for (int i = static_cast<int>(threadIdx.x); i < kStats + N::kParameters; i += static_cast<int>(blockDim.x)) to[i] = shared[i];
}

constexpr int kReduceColumns = 32, kReduceParts = 8;  // a block adds 32 columns, each in 8 parts

__device__ inline void reduce_kernel(const PpoArguments& a, int columns) {
  FUGU_SHARED(float, shared);  // [kReduceParts][kReduceColumns]
  const int lane = lane_of_thread(), part = warp_of_thread(), column = static_cast<int>(blockIdx.x) * kReduceColumns + lane;
  float sum = 0;
  if (column < columns) {
#pragma unroll 8
    for (int block = part; block < a.ppo_blocks; block += kReduceParts) sum += a.partial[static_cast<int64_t>(block) * columns + column];
  }
  shared[part * kReduceColumns + lane] = sum;
  __syncthreads();
  if (part != 0) return;
  for (int p = 1; p < kReduceParts; ++p) sum += shared[p * kReduceColumns + lane];
  const float policy = __shfl_sync(kAllLanes, sum, 0), value = __shfl_sync(kAllLanes, sum, 1), entropy = __shfl_sync(kAllLanes, sum, 2);
  if (column == 6) sum = policy + a.settings.value_coef * value - a.settings.entropy() * entropy;
  if (column < columns) a.out[column] = sum;
}

}  // namespace fugu::mlp
