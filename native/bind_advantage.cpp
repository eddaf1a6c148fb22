// Python faces of advantage.h.
#include <nanobind/nanobind.h>
#include <nanobind/ndarray.h>
#include <nanobind/stl/optional.h>

#include <optional>

#include "advantage.h"

namespace nb = nanobind;
using namespace nb::literals;

namespace {

using Floats = nb::ndarray<const float, nb::ndim<2>, nb::c_contig, nb::device::cpu>;
using Flags = nb::ndarray<const bool, nb::ndim<2>, nb::c_contig, nb::device::cpu>;
using Output = nb::ndarray<float, nb::ndim<2>, nb::c_contig, nb::device::cpu>;
using Bootstrap = nb::ndarray<const float, nb::ndim<1>, nb::c_contig, nb::device::cpu>;

template <typename Column>
auto rows_of(const Column& column, const Floats& value) {
  if (column.shape(0) != value.shape(0) || column.shape(1) != value.shape(1)) throw nb::value_error("columns differ in shape");
  return column.data();
}

const uint8_t* bytes_of(const Flags& flags, const Floats& value) { return reinterpret_cast<const uint8_t*>(rows_of(flags, value)); }

// A column that `out` begins at the same address as may be overwritten; any other overlap would be read after it was written.
template <typename Column>
void check_apart(const Output& out, const Column& column, bool replaceable) {
  const auto begin = [](const auto& array) { return reinterpret_cast<uintptr_t>(array.data()); };
  const bool overlap = begin(out) < begin(column) + column.nbytes() && begin(column) < begin(out) + out.nbytes();
  if (overlap && !(replaceable && begin(out) == begin(column))) throw nb::value_error("out overlaps a column");
}

void advantage(const Floats& value, const Floats& reward, const Flags& terminated, const Flags& truncated, const Bootstrap& bootstrap,
               const std::optional<Floats>& ratio, const std::optional<Flags>& mask, const Output& out, float gamma,
               float gamma_lambda, float rho_clip, float c_clip, int threads, bool portable) {
  if (bootstrap.shape(0) != value.shape(0)) throw nb::value_error("bootstrap has one value per segment");
  const fugu::advantage::Columns columns{
      .value = value.data(),
      .reward = rows_of(reward, value),
      .terminated = bytes_of(terminated, value),
      .truncated = bytes_of(truncated, value),
      .bootstrap = bootstrap.data(),
      .ratio = ratio ? rows_of(*ratio, value) : nullptr,
      .mask = mask ? bytes_of(*mask, value) : nullptr,
      .out = rows_of(out, value),
      .segments = static_cast<int64_t>(value.shape(0)),
      .horizon = static_cast<int64_t>(value.shape(1)),
  };
  check_apart(out, value, false);
  check_apart(out, reward, true);
  check_apart(out, terminated, false);
  check_apart(out, truncated, false);
  check_apart(out, bootstrap, false);
  if (ratio) check_apart(out, *ratio, true);
  if (mask) check_apart(out, *mask, false);
  const fugu::advantage::Weights weights{gamma, gamma_lambda, rho_clip, c_clip};
  const fugu::advantage::Kernel kernel = portable ? &fugu::advantage::portable::run : fugu::advantage::best_kernel();
  nb::gil_scoped_release release;
  fugu::advantage::compute(columns, weights, threads, kernel);
}

}  // namespace

void bind_advantage(nb::module_& m) {
  m.def("advantage", &advantage, "value"_a.noconvert(), "reward"_a.noconvert(), "terminated"_a.noconvert(),
        "truncated"_a.noconvert(), "bootstrap"_a.noconvert(), "ratio"_a.noconvert().none(), "mask"_a.noconvert().none(),
        "out"_a.noconvert(), "gamma"_a, "gamma_lambda"_a, "rho_clip"_a, "c_clip"_a, "threads"_a, "portable"_a = false,
        "Write GAE (ratio None) or V-trace advantages of [segments, horizon] columns into out.");
}
