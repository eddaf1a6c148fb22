// What the bindings of the learner's kernels have in common: arrays of checked shapes, and networks made of them.
#pragma once

#include <nanobind/nanobind.h>
#include <nanobind/ndarray.h>
#include <nanobind/stl/optional.h>
#include <nanobind/stl/string.h>
#include <nanobind/stl/vector.h>

#include <optional>
#include <string>
#include <vector>

#include "learn.h"

namespace fugu::learn {

namespace nb = nanobind;

template <typename T>
using Array = nb::ndarray<T, nb::c_contig, nb::device::cpu>;
using In = Array<const float>;
using Out = Array<float>;
using Flags = Array<const bool>;
using Choices = Array<const int64_t>;

template <typename T>
T* checked(const Array<T>& array, std::initializer_list<int64_t> shape, const char* name) {
  bool same = array.ndim() == shape.size();
  size_t axis = 0;
  for (const int64_t size : shape) same = same && static_cast<int64_t>(array.shape(axis++)) == size;
  if (!same) throw nb::value_error((std::string(name) + " has another shape than expected").c_str());
  return array.data();
}

template <typename T>
T* checked(const std::optional<Array<T>>& array, std::initializer_list<int64_t> shape, const char* name) {
  return array ? checked(*array, shape, name) : nullptr;
}

inline int64_t axis(const auto& array, size_t index) {
  if (array.ndim() <= index) throw nb::value_error("an array has too few axes");
  return static_cast<int64_t>(array.shape(index));
}

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
