// Arrays as the kernels of learners are given them, and checks of their shapes.
#pragma once

#include <nanobind/nanobind.h>
#include <nanobind/ndarray.h>

#include <initializer_list>
#include <optional>
#include <string>

namespace fugu::bound {

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

}  // namespace fugu::bound
