// What the bindings of the learner's kernels have in common: arrays of checked shapes, and networks made of them.
#pragma once

#include <nanobind/stl/optional.h>
#include <nanobind/stl/string.h>
#include <nanobind/stl/vector.h>

#include <string>
#include <vector>

#include "bind_arrays.h"
#include "learn.h"

namespace fugu::learn {

using namespace fugu::bound;

inline const Kernels& kernels_called(const std::string& name) {
  const Kernels* kernels = find_kernels(name);
  if (kernels == nullptr) throw nb::value_error(("no kernels called " + name + " on this processor").c_str());
  return *kernels;
}

// `hidden` holds the outputs of the layers; fewer of them than layers: the last ones only.
inline Mlp mlp_of(const In& x, const std::vector<In>& weights, const std::vector<In>& biases, const std::vector<Out>& hidden,
           const std::vector<int>& activations) {
  Mlp m{};
  m.layers = static_cast<int>(weights.size());
  if (m.layers < 1 || m.layers > kMaxLayers || biases.size() != weights.size() || activations.size() != weights.size() ||
      hidden.empty() || hidden.size() > weights.size())
    throw nb::value_error("an MLP has 1 to 4 layers, each with a weight, a bias and an activation");
  m.rows = axis(x, 0);
  m.width[0] = m.widest = axis(x, 1);
  m.x = checked(x, {m.rows, m.width[0]}, "x");
  for (int l = 0; l < m.layers; ++l) {
    m.width[l + 1] = axis(weights[l], 0);
    m.widest = std::max(m.widest, m.width[l + 1]);
    m.weight[l] = checked(weights[l], {m.width[l + 1], m.width[l]}, "weight");
    m.bias[l] = checked(biases[l], {m.width[l + 1]}, "bias");
    m.activation[l] = static_cast<Activation>(activations[l]);
    const int kept = l - (m.layers - static_cast<int>(hidden.size()));
    if (kept >= 0) m.hidden[l] = checked(hidden[kept], {m.rows, m.width[l + 1]}, "hidden");
  }
  return m;
}

}  // namespace fugu::learn
