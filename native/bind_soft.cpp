// Python faces of soft.h. What the numbers mean is said in src/fugu/ops/soft.py.
#include <nanobind/stl/pair.h>

#include "bind_learn.h"
#include "soft.h"

using namespace nanobind::literals;

namespace fugu::learn {
namespace {

using Numbers = std::vector<In>;

// Networks whose layers are given as weight and bias in turn, one network after the other.
std::vector<Mlp> networks(const Numbers& parameters, int64_t count, int64_t inputs, int64_t outputs, int activation) {
  const int64_t each = static_cast<int64_t>(parameters.size()) / count;
  if (each < 2 || each > 2 * kMaxLayers || each % 2 || each * count != static_cast<int64_t>(parameters.size()))
    throw nb::value_error("a network has 1 to 4 layers, each with a weight and a bias");
  std::vector<Mlp> found(count);
  for (int64_t i = 0; i < count; ++i) {
    Mlp& m = found[i];
    m.layers = static_cast<int>(each / 2);
    m.width[0] = m.widest = inputs;
    for (int l = 0; l < m.layers; ++l) {
      const In &weight = parameters[i * each + 2 * l], &bias = parameters[i * each + 2 * l + 1];
      m.width[l + 1] = axis(weight, 0);
      m.widest = std::max(m.widest, m.width[l + 1]);
      m.weight[l] = checked(weight, {m.width[l + 1], m.width[l]}, "weight");
      m.bias[l] = checked(bias, {m.width[l + 1]}, "bias");
      m.activation[l] = l + 1 < m.layers ? static_cast<Activation>(activation) : Activation::kNone;
    }
    if (m.width[m.layers] < outputs || (outputs == 1 && m.width[m.layers] != 1))
      throw nb::value_error("a network has another number of outputs than expected");
  }
  return found;
}

int64_t gradient_floats(const std::vector<Mlp>& networks) {
  int64_t floats = 0;
  for (const Mlp& m : networks)
    for (int l = 0; l < m.layers; ++l) floats += m.width[l + 1] * (m.width[l] + 1);
  return floats;
}

Soft soft_of(const Numbers& policy, const Numbers& critics, int64_t count, int activation, const In& obs, const In& noise,
             const In& weight, const Flags& valid, float temperature, std::pair<float, float> bounds) {
  Soft s{.rows = axis(obs, 0), .features = axis(obs, 1), .reals = axis(noise, 1), .temperature = temperature, .least = bounds.first,
         .most = bounds.second};
  if (count < 1) throw nb::value_error("there must be a critic");
  s.policy = networks(policy, 1, s.features, 2 * s.reals, activation)[0];
  s.critics = networks(critics, count, s.inputs(), 1, activation);
  s.obs = obs.data();
  s.noise = checked(noise, {s.rows, s.reals}, "noise");
  s.weight = checked(weight, {s.rows}, "weight");
  s.valid = reinterpret_cast<const uint8_t*>(checked(valid, {s.rows}, "valid"));
  return s;
}

double bound_soft_critics(const Numbers& policy, const Numbers& critics, const Numbers& slow, int activation, const In& obs,
                          const In& noise, const In& weight, const Flags& valid, float temperature, std::pair<float, float> bounds,
                          const In& next, const In& action, const In& reward, const Flags& terminated, float gamma, const Out& value,
                          const Out& error, const Out& grads, int threads, const std::string& set) {
  const int64_t count = axis(value, 0);
  const Soft s = soft_of(policy, critics, count, activation, obs, noise, weight, valid, temperature, bounds);
  SoftTarget t{.slow = networks(slow, count, s.inputs(), 1, activation), .gamma = gamma};
  t.next = checked(next, {s.rows, s.features}, "next");
  t.action = checked(action, {s.rows, s.reals}, "action");
  t.reward = checked(reward, {s.rows}, "reward");
  t.terminated = reinterpret_cast<const uint8_t*>(checked(terminated, {s.rows}, "terminated"));
  t.value = checked(value, {count, s.rows}, "value");
  t.error = checked(error, {count, s.rows}, "error");
  float* to = checked(grads, {gradient_floats(s.critics)}, "grads");
  const Kernels& kernels = kernels_called(set);
  nb::gil_scoped_release release;
  return soft_critics(s, t, to, kernels, threads);
}

std::pair<double, double> bound_soft_policy(const Numbers& policy, const Numbers& critics, int64_t count, int activation, const In& obs,
                                            const In& noise, const In& weight, const Flags& valid, float temperature,
                                            std::pair<float, float> bounds, const Out& grads, int threads, const std::string& set) {
  const Soft s = soft_of(policy, critics, count, activation, obs, noise, weight, valid, temperature, bounds);
  float* to = checked(grads, {gradient_floats({s.policy})}, "grads");
  const Kernels& kernels = kernels_called(set);
  nb::gil_scoped_release release;
  const SoftPolicyLoss found = soft_policy(s, to, kernels, threads);
  return {found.loss, found.entropy};
}

}  // namespace
}  // namespace fugu::learn

void bind_soft(nanobind::module_& m) {
  using namespace fugu::learn;
  m.def("soft_critics", &bound_soft_critics, "policy"_a.noconvert(), "critics"_a.noconvert(), "slow"_a.noconvert(), "activation"_a,
        "obs"_a.noconvert(), "noise"_a.noconvert(), "weight"_a.noconvert(), "valid"_a.noconvert(), "temperature"_a, "bounds"_a,
        "next"_a.noconvert(), "action"_a.noconvert(), "reward"_a.noconvert(), "terminated"_a.noconvert(), "gamma"_a,
        "value"_a.noconvert(), "error"_a.noconvert(), "grads"_a.noconvert(), "threads"_a, "set"_a = "best");
  m.def("soft_policy", &bound_soft_policy, "policy"_a.noconvert(), "critics"_a.noconvert(), "count"_a, "activation"_a,
        "obs"_a.noconvert(), "noise"_a.noconvert(), "weight"_a.noconvert(), "valid"_a.noconvert(), "temperature"_a, "bounds"_a,
        "grads"_a.noconvert(), "threads"_a, "set"_a = "best");
}
