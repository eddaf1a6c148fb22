// Python faces of learn_world.h. Shapes are checked here; what the numbers mean is said in src/fugu/ops/.
#include <nanobind/nanobind.h>
#include <nanobind/ndarray.h>
#include <nanobind/stl/optional.h>
#include <nanobind/stl/string.h>
#include <nanobind/stl/vector.h>

#include <string>
#include <vector>

#include "bind_arrays.h"
#include "learn_world.h"

namespace nb = nanobind;
using namespace nb::literals;
using namespace fugu::bound;
using namespace fugu::world;

namespace {

const Kernels& kernels_called(const std::string& name) {
  const Kernels* kernels = find_kernels(name);
  if (kernels == nullptr) throw nb::value_error(("no kernels called " + name + " on this processor").c_str());
  return *kernels;
}

Norm norm_of(const In& x, const In& scale, float epsilon) {
  Norm m{.rows = axis(x, 0), .width = axis(x, 1), .epsilon = epsilon};
  if (m.width < 1) throw nb::value_error("there must be a column");
  m.x = checked(x, {m.rows, m.width}, "x");
  m.scale = checked(scale, {m.width}, "scale");
  return m;
}

void bound_norm_forward(const In& x, const In& scale, float epsilon, const Out& y, const std::optional<Out>& inverse, int threads,
                        const std::string& set) {
  Norm m = norm_of(x, scale, epsilon);
  m.y = checked(y, {m.rows, m.width}, "y");
  m.inverse = checked(inverse, {m.rows}, "inverse");
  const Kernels& kernels = kernels_called(set);
  nb::gil_scoped_release release;
  in_shares(kernels.norm_rows, m, threads);
}

void bound_norm_backward(const In& x, const In& scale, const Out& inverse, const In& grad_y, const Out& grad_x, const Out& grad_scale,
                         int threads, const std::string& set) {
  Norm m = norm_of(x, scale, 0.0f);
  m.inverse = checked(inverse, {m.rows}, "inverse");
  m.grad_y = checked(grad_y, {m.rows, m.width}, "grad_y");
  m.grad_x = checked(grad_x, {m.rows, m.width}, "grad_x");
  m.grad_scale = checked(grad_scale, {m.width}, "grad_scale");
  const Kernels& kernels = kernels_called(set);
  nb::gil_scoped_release release;
  norm_backward(m, kernels, threads);
}

// `params`: weight, bias and scale of each layer, and of a last one without a norm weight and bias.
Stack stack_of(int64_t rows, const std::vector<In>& params, float epsilon) {
  Stack m{.layers = static_cast<int>((params.size() + 2) / 3), .rows = rows, .epsilon = epsilon};
  if (params.size() % 3 == 1 || m.layers < 1 || m.layers > kStackLayers)
    throw nb::value_error("a stack has 1 to 6 layers, each of a weight, a bias and a scale, of which the last may lack its scale");
  m.width[0] = m.widest = axis(params[0], 1);
  for (int l = 0; l < m.layers; ++l) {
    const size_t at = 3 * static_cast<size_t>(l);
    m.width[l + 1] = axis(params[at], 0);
    m.widest = std::max(m.widest, m.width[l + 1]);
    if (m.width[l + 1] < 1) throw nb::value_error("there must be a column");
    m.weight[l] = checked(params[at], {m.width[l + 1], m.width[l]}, "weight");
    m.bias[l] = checked(params[at + 1], {m.width[l + 1]}, "bias");
    m.scale[l] = at + 2 < params.size() ? checked(params[at + 2], {m.width[l + 1]}, "scale") : nullptr;
  }
  return m;
}

void keep(Stack& m, const std::vector<Out>& kept, const std::optional<Out>& inverse) {
  int normed = 0;
  for (int l = 0; l < m.layers; ++l) normed += m.scale[l] != nullptr;
  if (!inverse) return;
  if (static_cast<int>(kept.size()) != normed) throw nb::value_error("what is kept are the linear outputs of all layers with a norm");
  for (int l = 0; l < normed; ++l) m.kept[l] = checked(kept[l], {m.rows, m.width[l + 1]}, "kept");
  m.inverse = checked(*inverse, {m.layers, m.rows}, "inverse");
}

void bound_stack_forward(const In& x, const std::vector<In>& params, float epsilon, const Out& y, const std::vector<Out>& kept,
                         const std::optional<Out>& inverse, int threads, const std::string& set) {
  Stack m = stack_of(axis(x, 0), params, epsilon);
  m.x = checked(x, {m.rows, m.width[0]}, "x");
  m.y = checked(y, {m.rows, m.width[m.layers]}, "y");
  keep(m, kept, inverse);
  const Kernels& kernels = kernels_called(set);
  nb::gil_scoped_release release;
  stack_forward(m, kernels, threads);
}

void bound_stack_backward(const In& x, const std::vector<In>& params, float epsilon, const std::vector<Out>& kept, const Out& inverse,
                          const In& grad_y, const std::optional<Out>& grad_x, const std::vector<Out>& grads, int threads,
                          const std::string& set) {
  Stack m = stack_of(axis(x, 0), params, epsilon);
  m.x = checked(x, {m.rows, m.width[0]}, "x");
  keep(m, kept, inverse);
  m.grad_y = checked(grad_y, {m.rows, m.width[m.layers]}, "grad_y");
  m.grad_x = checked(grad_x, {m.rows, m.width[0]}, "grad_x");
  if (grads.size() != params.size()) throw nb::value_error("every parameter has a gradient");
  for (int l = 0; l < m.layers; ++l) {
    const size_t at = 3 * static_cast<size_t>(l);
    m.grad_weight[l] = checked(grads[at], {m.width[l + 1], m.width[l]}, "grad_weight");
    m.grad_bias[l] = checked(grads[at + 1], {m.width[l + 1]}, "grad_bias");
    if (m.scale[l] != nullptr) m.grad_scale[l] = checked(grads[at + 2], {m.width[l + 1]}, "grad_scale");
  }
  const Kernels& kernels = kernels_called(set);
  nb::gil_scoped_release release;
  stack_backward(m, kernels, threads);
}

TwoHot two_hot_of(const In& logits, const In& bins) {
  TwoHot m{.rows = axis(logits, 0), .count = axis(logits, 1)};
  if (m.count < 3 || m.count % 2 == 0) throw nb::value_error("bins are an odd number, at least 3");
  m.logits = checked(logits, {m.rows, m.count}, "logits");
  m.bins = checked(bins, {m.count}, "bins");
  return m;
}

void bound_two_hot_mean(const In& logits, const In& bins, const Out& mean, int threads, const std::string& set) {
  TwoHot m = two_hot_of(logits, bins);
  m.mean = checked(mean, {m.rows}, "mean");
  const Kernels& kernels = kernels_called(set);
  nb::gil_scoped_release release;
  two_hot_rows(m, kernels, threads);
}

void bound_two_hot_loss(const In& logits, const In& bins, const In& target, const Out& log_sum, const Out& loss, int threads,
                        const std::string& set) {
  TwoHot m = two_hot_of(logits, bins);
  m.targets = axis(target, 1);
  m.target = checked(target, {m.rows, m.targets}, "target");
  m.log_sum = checked(log_sum, {m.rows}, "log_sum");
  m.loss = checked(loss, {m.rows}, "loss");
  const Kernels& kernels = kernels_called(set);
  nb::gil_scoped_release release;
  two_hot_rows(m, kernels, threads);
  in_shares(kernels.two_hot_losses, m, threads);
}

void bound_two_hot_backward(const In& logits, const In& bins, const In& target, const Out& log_sum, const In& grad_loss,
                            const Out& grad_logits, int threads, const std::string& set) {
  TwoHot m = two_hot_of(logits, bins);
  m.targets = axis(target, 1);
  m.target = checked(target, {m.rows, m.targets}, "target");
  m.log_sum = checked(log_sum, {m.rows}, "log_sum");
  m.grad_loss = checked(grad_loss, {m.rows}, "grad_loss");
  m.grad_logits = checked(grad_logits, {m.rows, m.count}, "grad_logits");
  const Kernels& kernels = kernels_called(set);
  nb::gil_scoped_release release;
  in_shares(kernels.two_hot_gradients, m, threads);
}

Divergence divergence_of(const In& p, const In& q) {
  Divergence m{.rows = axis(p, 0), .count = axis(p, 1)};
  m.p = checked(p, {m.rows, m.count}, "p");
  m.q = checked(q, {m.rows, m.count}, "q");
  return m;
}

void bound_divergence(const In& p, const In& q, const Out& divergence, int threads, const std::string& set) {
  Divergence m = divergence_of(p, q);
  m.divergence = checked(divergence, {m.rows}, "divergence");
  const Kernels& kernels = kernels_called(set);
  nb::gil_scoped_release release;
  in_shares(kernels.divergence_rows, m, threads);
}

void bound_divergence_backward(const In& p, const In& q, const In& weight_p, const In& weight_q, const Out& grad_p, const Out& grad_q,
                               int threads, const std::string& set) {
  Divergence m = divergence_of(p, q);
  m.weight_p = checked(weight_p, {m.rows}, "weight_p");
  m.weight_q = checked(weight_q, {m.rows}, "weight_q");
  m.grad_p = checked(grad_p, {m.rows, m.count}, "grad_p");
  m.grad_q = checked(grad_q, {m.rows, m.count}, "grad_q");
  const Kernels& kernels = kernels_called(set);
  nb::gil_scoped_release release;
  in_shares(kernels.divergence_gradients, m, threads);
}

Mixed mixed_of(int64_t rows, int64_t columns, int64_t classes, float even) {
  if (classes < 1 || columns % classes != 0) throw nb::value_error("variables have equally many classes");
  return {.rows = rows, .variables = columns / classes, .classes = classes, .even = even};
}

void bound_mixed(const In& logits, int64_t classes, float even, const Out& chance, int threads, const std::string& set) {
  Mixed m = mixed_of(axis(logits, 0), axis(logits, 1), classes, even);
  m.logits = checked(logits, {m.rows, m.variables * classes}, "logits");
  m.chance = checked(chance, {m.rows, m.variables * classes}, "chance");
  const Kernels& kernels = kernels_called(set);
  nb::gil_scoped_release release;
  in_shares(kernels.mixed_rows, m, threads);
}

void bound_mixed_backward(const Out& chance, const In& grad_chance, const Out& grad_logits, int64_t classes, float even, int threads,
                          const std::string& set) {
  Mixed m = mixed_of(axis(chance, 0), axis(chance, 1), classes, even);
  m.chance = checked(chance, {m.rows, m.variables * classes}, "chance");
  m.grad_chance = checked(grad_chance, {m.rows, m.variables * classes}, "grad_chance");
  m.grad_logits = checked(grad_logits, {m.rows, m.variables * classes}, "grad_logits");
  const Kernels& kernels = kernels_called(set);
  nb::gil_scoped_release release;
  in_shares(kernels.mixed_gradients, m, threads);
}

// `params`: weight, bias and scale of deter, stoch and the mix, and weight and bias of the gates.
Cell cell_of(const std::vector<In>& params, float epsilon) {
  if (params.size() < 11) throw nb::value_error("a cell has 11 parameters");
  Cell c{.deter = axis(params[0], 1), .random = axis(params[3], 1), .hidden = axis(params[0], 0), .blocks = axis(params[6], 0),
         .epsilon = epsilon};
  if (c.deter < 1 || c.random < 1 || c.hidden < 1 || c.blocks < 1 || c.deter % c.blocks != 0)
    throw nb::value_error("blocks of a cell are equally wide");
  const int64_t width = c.deter / c.blocks;
  c.deter_weight = checked(params[0], {c.hidden, c.deter}, "deter_weight");
  c.deter_bias = checked(params[1], {c.hidden}, "deter_bias");
  c.deter_scale = checked(params[2], {c.hidden}, "deter_scale");
  c.stoch_weight = checked(params[3], {c.hidden, c.random}, "stoch_weight");
  c.stoch_bias = checked(params[4], {c.hidden}, "stoch_bias");
  c.stoch_scale = checked(params[5], {c.hidden}, "stoch_scale");
  c.mix_weight = checked(params[6], {c.blocks, width + 3 * c.hidden, width}, "mix_weight");
  c.mix_bias = checked(params[7], {c.blocks, 1, width}, "mix_bias");
  c.mix_scale = checked(params[8], {c.deter}, "mix_scale");
  c.gate_weight = checked(params[9], {c.blocks, width, 3 * width}, "gate_weight");
  c.gate_bias = checked(params[10], {c.blocks, 1, 3 * width}, "gate_bias");
  return c;
}

// `params`: those of the cell, the weight of what deter says of the posterior, the scale, and weight and bias of its last layer.
Observe observe_of(const std::vector<In>& params, float epsilon, float even, int64_t classes, const In& action, const Flags& first) {
  if (params.size() != 15) throw nb::value_error("observing has 15 parameters");
  Observe m{.cell = cell_of(params, epsilon), .time = axis(action, 0), .rows = axis(action, 1), .classes = classes, .even = even};
  const Cell& c = m.cell;
  if (classes < 1 || c.random % classes != 0) throw nb::value_error("variables have equally many classes");
  m.expected_weight = checked(params[11], {c.hidden, c.deter}, "expected_weight");
  m.seen_scale = checked(params[12], {c.hidden}, "seen_scale");
  m.posterior_weight = checked(params[13], {c.random, c.hidden}, "posterior_weight");
  m.posterior_bias = checked(params[14], {c.random}, "posterior_bias");
  m.action = checked(action, {m.time, m.rows, c.hidden}, "action");
  m.first = reinterpret_cast<const uint8_t*>(checked(first, {m.time, m.rows}, "first"));
  return m;
}

int64_t observe_kept(int64_t deter, int64_t random, int64_t hidden, int64_t blocks, const std::string& set) {
  return kernels_called(set).observe_floats(Observe{.cell = {.deter = deter, .random = random, .hidden = hidden, .blocks = blocks}});
}

void bound_observe_forward(const std::vector<In>& params, float epsilon, float even, int64_t classes, const In& action, const In& seen,
                           const Flags& first, const In& start_deter, const In& start_stoch, const In& uniform, const Out& deter,
                           const Out& stoch, const Out& chance, const Out& kept, const std::string& set) {
  Observe m = observe_of(params, epsilon, even, classes, action, first);
  const Cell& c = m.cell;
  const Kernels& kernels = kernels_called(set);
  m.seen = checked(seen, {m.time, m.rows, c.hidden}, "seen");
  m.start_deter = checked(start_deter, {m.rows, c.deter}, "start_deter");
  m.start_stoch = checked(start_stoch, {m.rows, c.random}, "start_stoch");
  m.uniform = checked(uniform, {m.time, m.rows, c.random / classes}, "uniform");
  m.deter = checked(deter, {m.time, m.rows, c.deter}, "deter");
  m.stoch = checked(stoch, {m.time, m.rows, c.random}, "stoch");
  m.chance = checked(chance, {m.time, m.rows, c.random}, "chance");
  m.kept = checked(kept, {m.time * m.rows, kernels.observe_floats(m)}, "kept");
  nb::gil_scoped_release release;
  observe_forward(m, kernels);
}

void bound_observe_backward(const std::vector<In>& params, float epsilon, float even, int64_t classes, const In& action,
                            const Flags& first, const Out& deter, const Out& chance, const Out& kept, const In& grad_deter,
                            const In& grad_stoch, const In& grad_chance, const Out& grad_action, const Out& grad_seen,
                            const std::vector<Out>& grads, const std::string& set) {
  Observe m = observe_of(params, epsilon, even, classes, action, first);
  const Cell& c = m.cell;
  const Kernels& kernels = kernels_called(set);
  m.deter = checked(deter, {m.time, m.rows, c.deter}, "deter");
  m.chance = checked(chance, {m.time, m.rows, c.random}, "chance");
  m.kept = checked(kept, {m.time * m.rows, kernels.observe_floats(m)}, "kept");
  m.grad_deter = checked(grad_deter, {m.time, m.rows, c.deter}, "grad_deter");
  m.grad_stoch = checked(grad_stoch, {m.time, m.rows, c.random}, "grad_stoch");
  m.grad_chance = checked(grad_chance, {m.time, m.rows, c.random}, "grad_chance");
  m.grad_action = checked(grad_action, {m.time, m.rows, c.hidden}, "grad_action");
  m.grad_seen = checked(grad_seen, {m.time, m.rows, c.hidden}, "grad_seen");
  if (grads.size() != params.size()) throw nb::value_error("every parameter has a gradient");
  for (size_t i = 0; i < grads.size(); ++i)
    if (grads[i].size() != params[i].size()) throw nb::value_error("a gradient is as large as its parameter");
  float** const to[] = {&m.grad_deter_weight, &m.grad_deter_bias, &m.grad_deter_scale, &m.grad_stoch_weight, &m.grad_stoch_bias,
                        &m.grad_stoch_scale, &m.grad_mix_weight, &m.grad_mix_bias, &m.grad_mix_scale, &m.grad_gate_weight,
                        &m.grad_gate_bias, &m.grad_expected_weight, &m.grad_seen_scale, &m.grad_posterior_weight,
                        &m.grad_posterior_bias};
  for (size_t i = 0; i < grads.size(); ++i) *to[i] = grads[i].data();
  nb::gil_scoped_release release;
  observe_backward(m, kernels);
}

// `action`: weight, bias and scale of the layer that reads actions. `counts`: choices of each.
void bound_roll(const std::vector<In>& cell, const std::vector<In>& prior, const std::vector<In>& actor, const std::vector<In>& action,
                float epsilon, float even, int64_t classes, const std::vector<int64_t>& counts, int64_t binaries, int64_t reals,
                float least, float most, const In& uniform, const In& noise, const Out& features, const Out& actions, int threads,
                const std::string& set) {
  const int64_t rows = axis(features, 1), heads = static_cast<int64_t>(counts.size());
  Roll m{.cell = cell_of(cell, epsilon), .prior = stack_of(rows, prior, epsilon), .actor = stack_of(rows, actor, epsilon), .rows = rows,
         .ahead = axis(features, 0) - 1, .classes = classes, .even = even, .heads = heads, .binaries = binaries, .reals = reals,
         .dims = heads + binaries + reals, .counts = counts.data(), .least = least, .most = most};
  for (const int64_t count : counts) {
    if (count < 1) throw nb::value_error("there must be a choice");
    m.choices += count;
  }
  m.numbers = m.choices + binaries + reals;
  const Cell& c = m.cell;
  const int64_t state = c.deter + c.random;
  if (binaries < 0 || reals < 0 || m.dims < 1 || m.ahead < 0 || classes < 1 || c.random % classes != 0 || action.size() != 3 ||
      m.prior.width[0] != c.deter || m.prior.width[m.prior.layers] != c.random || m.actor.width[0] != state ||
      m.actor.width[m.actor.layers] != m.numbers + reals)
    throw nb::value_error("the parts of a model have other sizes than expected");
  m.action_weight = checked(action[0], {c.hidden, m.numbers}, "action_weight");
  m.action_bias = checked(action[1], {c.hidden}, "action_bias");
  m.action_scale = checked(action[2], {c.hidden}, "action_scale");
  m.uniform = checked(uniform, {m.ahead, rows, c.random / classes}, "uniform");
  m.noise = checked(noise, {m.ahead + 1, rows, m.dims}, "noise");
  m.features = checked(features, {m.ahead + 1, rows, state}, "features");
  m.action = checked(actions, {m.ahead + 1, rows, m.dims}, "action");
  const Kernels& kernels = kernels_called(set);
  nb::gil_scoped_release release;
  roll(m, kernels, threads);
}

void bound_laprop(const std::vector<In>& grads, const std::vector<Out>& weights, const std::vector<Out>& means,
                  const std::vector<Out>& squares, float rate, float beta1, float beta2, float eps, float clip, float shortest,
                  float correction2, const std::string& set) {
  const LaProp m{.beta1 = beta1, .beta2 = beta2, .eps = eps, .clip = clip, .shortest = shortest, .rate = rate, .correction2 = correction2};
  if (weights.size() != grads.size() || means.size() != grads.size() || squares.size() != grads.size())
    throw nb::value_error("every tensor has a gradient and two means");
  for (size_t i = 0; i < grads.size(); ++i)
    if (weights[i].size() != grads[i].size() || means[i].size() != grads[i].size() || squares[i].size() != grads[i].size())
      throw nb::value_error("a gradient and its means are as large as the tensor");
  const Kernels& kernels = kernels_called(set);
  nb::gil_scoped_release release;
  for (size_t i = 0; i < grads.size(); ++i)
    kernels.laprop_tensor(m, grads[i].data(), weights[i].data(), means[i].data(), squares[i].data(), static_cast<int64_t>(grads[i].size()));
}

}  // namespace

void bind_world(nb::module_& m) {
  m.def("norm_forward", &bound_norm_forward, "x"_a.noconvert(), "scale"_a.noconvert(), "epsilon"_a, "y"_a.noconvert(),
        "inverse"_a.noconvert().none(), "threads"_a, "set"_a = "best");
  m.def("norm_backward", &bound_norm_backward, "x"_a.noconvert(), "scale"_a.noconvert(), "inverse"_a.noconvert(),
        "grad_y"_a.noconvert(), "grad_x"_a.noconvert(), "grad_scale"_a.noconvert(), "threads"_a, "set"_a = "best");
  m.def("stack_forward", &bound_stack_forward, "x"_a.noconvert(), "params"_a.noconvert(), "epsilon"_a, "y"_a.noconvert(),
        "kept"_a.noconvert(), "inverse"_a.noconvert().none(), "threads"_a, "set"_a = "best");
  m.def("stack_backward", &bound_stack_backward, "x"_a.noconvert(), "params"_a.noconvert(), "epsilon"_a, "kept"_a.noconvert(),
        "inverse"_a.noconvert(), "grad_y"_a.noconvert(), "grad_x"_a.noconvert().none(), "grads"_a.noconvert(), "threads"_a,
        "set"_a = "best");
  m.def("two_hot_mean", &bound_two_hot_mean, "logits"_a.noconvert(), "bins"_a.noconvert(), "mean"_a.noconvert(), "threads"_a,
        "set"_a = "best");
  m.def("two_hot_loss", &bound_two_hot_loss, "logits"_a.noconvert(), "bins"_a.noconvert(), "target"_a.noconvert(),
        "log_sum"_a.noconvert(), "loss"_a.noconvert(), "threads"_a, "set"_a = "best");
  m.def("two_hot_backward", &bound_two_hot_backward, "logits"_a.noconvert(), "bins"_a.noconvert(), "target"_a.noconvert(),
        "log_sum"_a.noconvert(), "grad_loss"_a.noconvert(), "grad_logits"_a.noconvert(), "threads"_a, "set"_a = "best");
  m.def("divergence", &bound_divergence, "p"_a.noconvert(), "q"_a.noconvert(), "divergence"_a.noconvert(), "threads"_a,
        "set"_a = "best");
  m.def("divergence_backward", &bound_divergence_backward, "p"_a.noconvert(), "q"_a.noconvert(), "weight_p"_a.noconvert(),
        "weight_q"_a.noconvert(), "grad_p"_a.noconvert(), "grad_q"_a.noconvert(), "threads"_a, "set"_a = "best");
  m.def("mixed", &bound_mixed, "logits"_a.noconvert(), "classes"_a, "even"_a, "chance"_a.noconvert(), "threads"_a, "set"_a = "best");
  m.def("mixed_backward", &bound_mixed_backward, "chance"_a.noconvert(), "grad_chance"_a.noconvert(), "grad_logits"_a.noconvert(),
        "classes"_a, "even"_a, "threads"_a, "set"_a = "best");
  m.def("observe_kept", &observe_kept, "deter"_a, "random"_a, "hidden"_a, "blocks"_a, "set"_a = "best",
        "Floats kept per row for the backward pass.");
  m.def("observe_forward", &bound_observe_forward, "params"_a.noconvert(), "epsilon"_a, "even"_a, "classes"_a, "action"_a.noconvert(),
        "seen"_a.noconvert(), "first"_a.noconvert(), "start_deter"_a.noconvert(), "start_stoch"_a.noconvert(), "uniform"_a.noconvert(),
        "deter"_a.noconvert(), "stoch"_a.noconvert(), "chance"_a.noconvert(), "kept"_a.noconvert(), "set"_a = "best");
  m.def("observe_backward", &bound_observe_backward, "params"_a.noconvert(), "epsilon"_a, "even"_a, "classes"_a, "action"_a.noconvert(),
        "first"_a.noconvert(), "deter"_a.noconvert(), "chance"_a.noconvert(), "kept"_a.noconvert(), "grad_deter"_a.noconvert(),
        "grad_stoch"_a.noconvert(), "grad_chance"_a.noconvert(), "grad_action"_a.noconvert(), "grad_seen"_a.noconvert(),
        "grads"_a.noconvert(), "set"_a = "best");
  m.def("roll", &bound_roll, "cell"_a.noconvert(), "prior"_a.noconvert(), "actor"_a.noconvert(), "action"_a.noconvert(), "epsilon"_a,
        "even"_a, "classes"_a, "counts"_a, "binaries"_a, "reals"_a, "least"_a, "most"_a, "uniform"_a.noconvert(), "noise"_a.noconvert(),
        "features"_a.noconvert(), "actions"_a.noconvert(), "threads"_a, "set"_a = "best");
  m.def("laprop", &bound_laprop, "grads"_a.noconvert(), "weights"_a.noconvert(), "means"_a.noconvert(), "squares"_a.noconvert(), "rate"_a,
        "beta1"_a, "beta2"_a, "eps"_a, "clip"_a, "shortest"_a, "correction2"_a, "set"_a = "best");
}
