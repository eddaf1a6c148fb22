// A whole rollout in one kernel: the network of mlp.h chooses, the worlds of world.h step, for as many steps as the horizon has.
// Parameters, worlds and the row at hand stay on the multiprocessor; each row is written once, to the slabs.
//
// A strip of 16 rows is 16 worlds (of one agent). Lanes 0..15 of its first warp have a world each: they sample and step; all warps
// of the strip compute the network and copy observations out. Strips have nothing to do with each other.
#pragma once

#include "mlp.h"
#include "worlds.h"

namespace fugu::mlp {

// Slabs are [steps, worlds], those marked + have one row more: row `steps` is what comes after.
struct RolloutArguments {
  Parameters parameters;
  uint32_t* words;  // the worlds
  LogSum* logs;     // [strips of 16 worlds], added to
  float* obs;       // + [.., .., inputs]; row 0 is read
  bool *first, *mask;  // +
  int64_t* action;
  float *logprob, *value, *reward;
  bool *terminated, *truncated;
  const float* uniform;  // in [0, 1): what sampling draws
  float* bootstrap;      // [worlds]: the value of row `steps`
  Moments values;        // the slabs hold real values
  int32_t worlds, steps, time_limit;
  int32_t carry;  // begin with the last row of the slabs: copy it to row 0
};

// The last choice of positive probability before which at most uniform * sum lies, as in ops/sample.py.
template <typename N>
__device__ inline int sample(const Logits<N>& now, float uniform) {
  const float target = uniform * now.sum;
  float before = 0.0f;
  int choice = 0;
#pragma unroll
  for (int c = 0; c < N::kChoices; ++c) {
    const float weight = quick_exp(now.logit[c] - now.largest);
    if (before <= target && weight > 0.0f) choice = c;
    before += weight;
  }
  return choice;
}

// The observations of this warp's strip, of which `count` worlds exist, as the worlds wrote them: to the slab at `to`; normalised:
// to where they are.
template <typename N, typename D>
__device__ inline void store_observations(float* shared, const Parameters& parameters, float* to, int count) {
  constexpr int width = N::width(0), stride = N::row_stride(0), wide = width % 4 == 0 ? 4 : width % 2 == 0 ? 2 : 1;
  float* from = shared + N::rows_at(0, D::kRows) + D::first_row() * stride;
  for (int i = wide * (D::part() * 32 + lane_of_thread()); i < count * width; i += wide * 32 * D::kSplit) {
    float* source = from + i / width * stride + i % width;
    if constexpr (wide == 4)
      *reinterpret_cast<float4*>(to + i) = *reinterpret_cast<const float4*>(source);
    else if constexpr (wide == 2)
      *reinterpret_cast<float2*>(to + i) = *reinterpret_cast<const float2*>(source);
    else
      to[i] = *source;
    if (parameters.moments.mean != nullptr)
#pragma unroll
      for (int k = 0; k < wide; ++k) source[k] = normalized<N>(shared, parameters, i % width + k, source[k]);
  }
}

template <typename E, typename N, typename D>
__device__ inline void rollout_kernel(const RolloutArguments& a, const typename E::Params& params) {
  static_assert(E::agents == 1 && !Traits<E>::kMasks && Traits<E>::kChoices == N::kChoices && sizeof(typename E::Action) == 8);
  static_assert(sizeof(typename E::Obs) == sizeof(float) * N::width(0));
  static_assert(Traits<E>::kCosts == 0);  // there is no slab for them
  FUGU_SHARED(float, shared);
  load_parameters<N>(shared, a.parameters);
  const int strip = static_cast<int>(blockIdx.x) * D::kStrips + warp_of_thread() / D::kSplit, lane = lane_of_thread();
  const int begin = 16 * strip, w = begin + lane, count = a.worlds - begin < 0 ? 0 : a.worlds - begin < 16 ? a.worlds - begin : 16;
  const bool here = lane < count, owner = here && D::part() == 0;
  const int64_t worlds = a.worlds, steps = a.steps;

  const ValueScale values(a.values);
  __syncthreads();  // the parameters are there
  const float* last = a.obs + steps * worlds * N::width(0);
  load_observations<N, D>(shared, a.parameters, a.carry ? last : a.obs, here ? w : -1);
  if (a.carry) {
    const int64_t from = static_cast<int64_t>(begin) * N::width(0);
    for (int i = D::part() * 32 + lane; i < count * N::width(0); i += 32 * D::kSplit) a.obs[from + i] = last[from + i];
    if (owner) a.first[w] = a.first[steps * worlds + w], a.mask[w] = a.mask[steps * worlds + w];
  }
  World<E> own;
  World<E>* world = &own;
  if constexpr (kInPlace<E>)
    world = reinterpret_cast<World<E>*>(a.words) + (owner ? w : 0);
  else if (owner)
    own = load_world<E>(a.words, static_cast<size_t>(worlds), static_cast<size_t>(w));

  auto* const row = reinterpret_cast<typename E::Obs*>(shared + N::rows_at(0, D::kRows) + (D::first_row() + lane) * N::row_stride(0));
  LogSum ended;
  for (int64_t t = 0; t < steps; ++t) {
    const int64_t at = t * worlds + w, next = at + worlds;
    const float uniform = owner ? a.uniform[at] : 0.0f;
    forward<N, D>(shared);
    if (owner) {
      const Logits<N> now(own_outputs<N, D>(shared));
      const int choice = sample<N>(now, uniform);
      float logit = now.logit[0];
#pragma unroll
      for (int c = 1; c < N::kChoices; ++c) logit = c == choice ? now.logit[c] : logit;
      const typename E::Action action = choice;
      a.action[at] = choice;
      a.logprob[at] = logit - now.offset;
      a.value[at] = values.real(now.value);
      const WorldRows<E> rows{row,           a.reward + at,  a.terminated + at, a.truncated + at,
                              a.first + next, a.mask + next, nullptr,           nullptr};
      step_world<E>(*world, params, a.time_limit, &action, rows, ended);
    }
    D::meet();
    store_observations<N, D>(shared, a.parameters, a.obs + (static_cast<int64_t>(begin) + (t + 1) * worlds) * N::width(0), count);
  }
  forward<N, D>(shared);
  if (owner) a.bootstrap[w] = values.real(own_outputs<N, D>(shared)[N::kChoices]);
  if constexpr (!kInPlace<E>)
    if (owner) store_world<E>(a.words, static_cast<size_t>(worlds), static_cast<size_t>(w), own);
  if (D::part() == 0 && count > 0) add_logs<E>(ended, a.logs + strip);
}

}  // namespace fugu::mlp
