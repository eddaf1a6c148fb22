// A small network, held in shared memory and computed by the tensor cores: layers of 16 to 128 outputs with tanh or relu, then one
// linear layer whose outputs are the logits of one choice and, last, the value. mlp_forward.h, mlp_ppo.h and mlp_rollout.h are made
// of what is here, so all three compute the same bits for the same row.
//
// A block computes a tile of kRows = 16 * Strips rows at a time. A strip of 16 rows is that of `Split` warps, which divide the
// outputs of every layer among them. In shared memory lie, in this order (words of 4 bytes):
//   the weights of layer i, [outputs][inputs] as torch has them, rows padded to weight_stride(i), then its biases
//   what observations are shifted and scaled by, [padded(0)] each
//   what goes into layer i (0: the observation) for all rows, [kRows][row_stride(i)]; the last are the outputs of the network
//
// Matrix products are those of kernel.h: tf32, in one pass, or in three with every number split into a large and a small part,
// which is nearly float32 (relative error of a product 2^-20 instead of 2^-10). Within a step of 8 inputs they are taken in the
// order 0 2 4 6 1 3 5 7: then the two numbers a lane needs are neighbours, one load of 8 bytes.
//
// Banks. A row of 16 k + 8 words puts the rows g = 0..3 (of 8-byte loads, 8 words each) or t = 0..3 (of 4-byte loads) on different
// banks. Weights that the backward pass reads by columns too have rows of 32 k words with groups of 8 words exchanged by `swizzle`,
// which serves both ways.
//
// Nothing here may depend on compiler flags: a * b + c is written fmaf where it shall be one, since environments are compiled
// without contraction and a rollout holds both.
#pragma once

#include "kernel.h"

namespace fugu::mlp {

enum Activation { kTanh, kRelu };

constexpr int kMaxLayers = 4;

// Running moments of observations or values, as policy/normalize.py has them; null: numbers are taken as they are.
struct Moments {
  const double *mean, *var;
  float clip;
};

struct Parameters {
  const float *weight[kMaxLayers], *bias[kMaxLayers];
  Moments moments;  // of observations
};

// Widths: inputs, those of the hidden layers, outputs.
template <int Passes, Activation Activate, int... Widths>
struct Network {
  static constexpr int kLayers = static_cast<int>(sizeof...(Widths)) - 1;
  static constexpr int kPasses = Passes;
  static constexpr Activation kActivation = Activate;
  static_assert(kLayers >= 2 && kLayers <= kMaxLayers && (Passes == 1 || Passes == 3));

  __host__ __device__ static constexpr int width(int i) {
    const int all[] = {Widths...};
    return all[i];
  }
  __host__ __device__ static constexpr int padded(int i) { return (width(i) + 7) / 8 * 8; }
  __host__ __device__ static constexpr int row_stride(int i) { return padded(i) % 16 == 8 ? padded(i) : padded(i) + 8; }
  __host__ __device__ static constexpr int weight_stride(int i) { return i == 0 ? row_stride(0) : (padded(i) + 31) / 32 * 32; }
  // Where the weights of layer i begin, where its biases do, and where all of that ends.
  __host__ __device__ static constexpr int weight_at(int i) {
    int at = 0;
    for (int l = 0; l < i; ++l) at += padded(l + 1) * (weight_stride(l) + 1);
    return at;
  }
  __host__ __device__ static constexpr int bias_at(int i) { return weight_at(i) + padded(i + 1) * weight_stride(i); }
  // Where the rows that go into layer i begin, in a block of `rows` rows; kLayers: the outputs; kLayers + 1: the end of all.
  __host__ __device__ static constexpr int rows_at(int i, int rows) {
    int at = weight_at(kLayers) + 2 * padded(0);
    for (int l = 0; l < i; ++l) at += rows * row_stride(l);
    return at;
  }
  __host__ __device__ static constexpr int shared_words(int rows) { return rows_at(kLayers + 1, rows); }
  // Where layer i begins among all parameters, one after the other as torch has them: weights, then biases.
  __host__ __device__ static constexpr int parameter_at(int i) {
    int at = 0;
    for (int l = 0; l < i; ++l) at += width(l + 1) * (width(l) + 1);
    return at;
  }

  static constexpr int kOutputs = width(kLayers), kChoices = kOutputs - 1, kParameters = parameter_at(kLayers);
};

// Exponential, logarithm and hyperbolic tangent by the special function units. Relative error of e^x 2e-7 (1 + |x|), absolute
// error of log and tanh below 5e-7.
__device__ inline float quick_exp(float x) {
#ifdef __CUDACC_RTC__
  float out;
  asm("ex2.approx.ftz.f32 %0, %1;" : "=f"(out) : "f"(x * 1.442695041f));
  return out;
#else
  return expf(x);
#endif
}
__device__ inline float quick_log(float x) {
#ifdef __CUDACC_RTC__
  float out;
  asm("lg2.approx.ftz.f32 %0, %1;" : "=f"(out) : "f"(x));
  return out * 0.693147181f;
#else
  return logf(x);
#endif
}
__device__ inline float quick_tanh(float x) {
#ifdef __CUDACC_RTC__
  float power, inverse;
  asm("ex2.approx.ftz.f32 %0, %1;" : "=f"(power) : "f"(x * 2.885390082f));  // e^2x; infinite: the inverse is 0
  asm("rcp.approx.ftz.f32 %0, %1;" : "=f"(inverse) : "f"(power + 1.0f));
  return fmaf(-2.0f, inverse, 1.0f);
#else
  return fmaf(-2.0f, 1.0f / (expf(2.0f * x) + 1.0f), 1.0f);
#endif
}

template <Activation A>
__device__ inline float activate(float x) { return A == kTanh ? quick_tanh(x) : fmaxf(x, 0.0f); }
// Its derivative, given what it gave.
template <Activation A>
__device__ inline float slope(float y) { return A == kTanh ? fmaf(-y, y, 1.0f) : (y > 0.0f ? 1.0f : 0.0f); }

// An operand of a product. The tensor cores cut numbers off, so half a unit is added to round them: what cvt.rna does with all
// that is finite, at the price of an addition.
__device__ inline float rounded(float x) { return of_bits((bits_of(x) + 0x1000u) & 0xffffe000u); }

template <int Passes, int Count>
struct Operand {
  uint32_t large[Count], small[Passes == 3 ? Count : 1];

  __device__ void set(int i, float x) {
    if constexpr (Passes == 1) {
      large[i] = bits_of(x) + 0x1000u;
    } else {
      large[i] = bits_of(rounded(x));
      small[i] = bits_of(x - rounded(x)) + 0x1000u;
    }
  }
  // The same for a weight, which was rounded when it came into shared memory if there is but one pass.
  __device__ void set_weight(int i, float x) {
    if constexpr (Passes == 1)
      large[i] = bits_of(x);
    else
      set(i, x);
  }
};

template <int Passes>
__device__ inline void multiply(float (&d)[4], const Operand<Passes, 4>& a, const Operand<Passes, 2>& b) {
  if constexpr (Passes == 3) {
    multiply_tf32(d, a.small, b.large);
    multiply_tf32(d, a.large, b.small);
  }
  multiply_tf32(d, a.large, b.large);
}

__device__ constexpr int swizzle(int row) { return 8 * ((row & 3) ^ ((row >> 2) & 1)); }

// The parameters into shared memory, zeros where they are padded; by all threads of the block, which must then meet.
template <typename N, int I = 0>
__device__ inline void load_parameters(float* shared, const Parameters& from) {
  constexpr int in = N::width(I), out = N::width(I + 1), stride = N::weight_stride(I);
  const int thread = static_cast<int>(threadIdx.x), threads = static_cast<int>(blockDim.x);
  float* weight = shared + N::weight_at(I);
  for (int i = thread; i < N::padded(I + 1) * N::padded(I); i += threads) {
    const int row = i / N::padded(I), column = i % N::padded(I);
    const float x = row < out && column < in ? from.weight[I][row * in + column] : 0.0f;
    weight[row * stride + (I == 0 ? column : column ^ swizzle(row))] = N::kPasses == 1 ? rounded(x) : x;
  }
  for (int i = thread; i < N::padded(I + 1); i += threads) shared[N::bias_at(I) + i] = i < out ? from.bias[I][i] : 0.0f;
  if constexpr (I + 1 < N::kLayers) {
    load_parameters<N, I + 1>(shared, from);
  } else {
    const Moments& seen = from.moments;
    for (int i = thread; i < N::padded(0); i += threads) {
      const bool known = seen.mean != nullptr && i < N::width(0);
      shared[N::weight_at(N::kLayers) + i] = known ? static_cast<float>(seen.mean[i]) : 0.0f;
      shared[N::weight_at(N::kLayers) + N::padded(0) + i] = known ? static_cast<float>(1.0 / sqrt(seen.var[i] + 1e-8)) : 1.0f;
    }
  }
}

// Number `column` of an observation, shifted and scaled.
template <typename N>
__device__ inline float normalized(const float* shared, const Parameters& parameters, int column, float x) {
  const float *shift = shared + N::weight_at(N::kLayers), *scale = shift + N::padded(0), clip = parameters.moments.clip;
  return clamp((x - shift[column]) * scale[column], -clip, clip);  // NaN stays NaN
}

// Values between what the network says and what they are (algorithm/scale.py): real = said * deviation + mean.
struct ValueScale {
  float mean = 0.0f, deviation = 1.0f;

  __device__ explicit ValueScale(const Moments& seen) {
    if (seen.mean == nullptr) return;
    mean = static_cast<float>(*seen.mean);
    deviation = static_cast<float>(fmax(sqrt(*seen.var), 1e-4));
  }
  __device__ float real(float said) const { return said * deviation + mean; }
  __device__ float said(float real) const { return (real - mean) / deviation; }
};

// How the warps of a block share its work.
template <int Strips_, int Split_>
struct Division {
  static constexpr int kStrips = Strips_, kSplit = Split_, kWarps = Strips_ * Split_, kRows = 16 * Strips_;

  __device__ static int first_row() { return 16 * (warp_of_thread() / kSplit); }
  __device__ static int part() { return kSplit == 1 ? 0 : warp_of_thread() % kSplit; }
  // All warps of a strip have written what they all are going to read.
  __device__ static void meet() {
    if constexpr (kSplit == 1)
      __syncwarp();
    else
      __syncthreads();
  }
};

// d[j] += left[g, g + 8][0, 8 Steps) times the weights of 8 outputs, for j < G, as the lanes of a warp hold them: `left` are 16 rows
// of `stride` words, `right(step, j)` gives the lane's two weights. Step s is added to the (s % Chains)-th sum: a product waits for
// the one before in its sum, so where a layer has few outputs there must be several.
template <int Passes, int Steps, int Chains, int G, typename Right>
__device__ inline void products(float (&d)[G][4], const float* left, int stride, const Right& right) {
  const int g = lane_of_thread() >> 2, t = lane_of_thread() & 3;
  const float* low = left + g * stride + 2 * t;
  const float* high = low + 8 * stride;
  const auto add = [&](float (&sums)[G][4], int step) {
    const float2 upper = *reinterpret_cast<const float2*>(low + 8 * step), lower = *reinterpret_cast<const float2*>(high + 8 * step);
    Operand<Passes, 4> a;
    a.set(0, upper.x), a.set(1, lower.x), a.set(2, upper.y), a.set(3, lower.y);
#pragma unroll
    for (int j = 0; j < G; ++j) {
      const float2 two = right(step, j);
      Operand<Passes, 2> b;
      b.set_weight(0, two.x), b.set_weight(1, two.y);
      multiply<Passes>(sums[j], a, b);
    }
  };
  if constexpr (Chains == 1) {
#pragma unroll 4
    for (int step = 0; step < Steps; ++step) add(d, step);
  } else {
    float others[Chains - 1][G][4] = {};
#pragma unroll
    for (int step = 0; step < Steps; ++step) add(step % Chains == 0 ? d : others[step % Chains - 1], step);
#pragma unroll
    for (int chain = 1; chain < Chains && chain < Steps; ++chain)
#pragma unroll
      for (int j = 0; j < G; ++j)
#pragma unroll
        for (int i = 0; i < 4; ++i) d[j][i] += others[chain - 1][j][i];
  }
}

// Sums for each output of a layer with this many groups of 8. How a layer is divided among warps must not matter: same bits.
__host__ __device__ constexpr int chains_of(int tiles) { return tiles <= 2 ? 4 : tiles <= 4 ? 2 : 1; }

// How many groups of 8 outputs one warp computes at once, of the `tiles` it has in all: at most 8, which keeps enough products in
// flight and takes 32 registers.
__host__ __device__ constexpr int group_size(int tiles) {
  const int groups = (tiles + 7) / 8;
  return (tiles + groups - 1) / groups;
}

// Layer I of this warp's strip and part: rows that go into layer I -> rows that go into layer I + 1.
template <typename N, typename D, int I>
__device__ inline void layer(float* shared) {
  constexpr int tiles = N::padded(I + 1) / 8, own = (tiles + D::kSplit - 1) / D::kSplit, group = group_size(own);
  constexpr int stride = N::weight_stride(I), in_stride = N::row_stride(I), out_stride = N::row_stride(I + 1);
  const int g = lane_of_thread() >> 2, t = lane_of_thread() & 3, row = D::first_row();
  const float* weight = shared + N::weight_at(I) + g * stride + 2 * t;
  const float* bias = shared + N::bias_at(I) + 2 * t;
  const float* in = shared + N::rows_at(I, D::kRows) + row * in_stride;
  float* out = shared + N::rows_at(I + 1, D::kRows) + (row + g) * out_stride + 2 * t;
  const int turn = I == 0 ? 0 : swizzle(g), end = (D::part() + 1) * own < tiles ? (D::part() + 1) * own : tiles;
  for (int from = D::part() * own; from < end; from += group) {
    float d[group][4];
#pragma unroll
    for (int j = 0; j < group; ++j) {  // a warp's last group may reach past its end: it is computed for nothing, not stored
      const float2 two = *reinterpret_cast<const float2*>(bias + 8 * (from + j < tiles ? from + j : 0));
      d[j][0] = d[j][2] = two.x, d[j][1] = d[j][3] = two.y;
    }
    products<N::kPasses, N::padded(I) / 8, chains_of(tiles)>(d, in, in_stride, [&](int step, int j) {
      const int tile = from + j < tiles ? from + j : 0;
      return *reinterpret_cast<const float2*>(weight + 8 * tile * stride + (8 * step ^ turn));
    });
#pragma unroll
    for (int j = 0; j < group; ++j) {
      if (from + j >= end) break;
      if constexpr (I + 1 < N::kLayers)
        for (float& x : d[j]) x = activate<N::kActivation>(x);
      *reinterpret_cast<float2*>(out + 8 * (from + j)) = make_float2(d[j][0], d[j][1]);
      *reinterpret_cast<float2*>(out + 8 * out_stride + 8 * (from + j)) = make_float2(d[j][2], d[j][3]);
    }
  }
}

// The whole network on this warp's strip, whose observations its warps have written (and need not have met after that).
template <typename N, typename D, int I = 0>
__device__ inline void forward(float* shared) {
  D::meet();
  layer<N, D, I>(shared);
  if constexpr (I + 1 < N::kLayers)
    forward<N, D, I + 1>(shared);
  else
    D::meet();
}

// Row r of a batch lies at row (r / inner) * outer_stride + (r % inner) * inner_stride of every column: blocks of segments of a
// slab [time, agents] are read where they are.
struct RowOrder {
  int64_t outer_stride, inner_stride;
  uint32_t inner;
  __device__ int64_t at(int r) const {
    const uint32_t outer = static_cast<uint32_t>(r) / inner;
    return outer * outer_stride + (static_cast<uint32_t>(r) - outer * inner) * inner_stride;
  }
};

// The observations of this warp's strip. `from`, in lanes 0..15: the row of that number in `obs`, or negative: zeros. The
// parameters must be there.
template <typename N, typename D>
__device__ inline void load_observations(float* shared, const Parameters& parameters, const float* obs, int64_t from) {
  constexpr int width = N::width(0), padded = N::padded(0);
  float* to = shared + N::rows_at(0, D::kRows) + D::first_row() * N::row_stride(0);
  for (int i = D::part() * 32; i < 16 * padded; i += 32 * D::kSplit) {  // a multiple of 32 in all
    const int at = i + lane_of_thread(), row = at / padded, column = at % padded;
    const int64_t source = __shfl_sync(kAllLanes, from, row);
    float x = 0.0f;
    if (source >= 0 && column < width) x = normalized<N>(shared, parameters, column, obs[source * width + column]);
    to[row * N::row_stride(0) + column] = x;
  }
}

// Of one row of outputs: logits, the largest of them, and what softmax divides by. logprob(c) = logit[c] - offset.
template <typename N>
struct Logits {
  float logit[N::kChoices], largest, sum, offset, value;

  __device__ explicit Logits(const float* outputs) {
#pragma unroll
    for (int c = 0; c < N::kChoices; ++c) logit[c] = outputs[c];
    value = outputs[N::kChoices];
    largest = logit[0];
#pragma unroll
    for (int c = 1; c < N::kChoices; ++c) largest = fmaxf(largest, logit[c]);
    sum = 0.0f;
#pragma unroll
    for (int c = 0; c < N::kChoices; ++c) sum += quick_exp(logit[c] - largest);
    offset = largest + quick_log(sum);
  }
};

// The outputs of this lane's row (lanes 0..15 of the first warp of a strip).
template <typename N, typename D>
__device__ inline float* own_outputs(float* shared) {
  return shared + N::rows_at(N::kLayers, D::kRows) + (D::first_row() + lane_of_thread()) * N::row_stride(N::kLayers);
}

}  // namespace fugu::mlp
