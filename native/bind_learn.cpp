// Python faces of learn.h. Shapes are checked here; what the numbers mean is said in src/fugu/ops/.
#include <nanobind/stl/array.h>

#ifdef __linux__
#include <malloc.h>
#endif

#include <limits>

#include "bind_learn.h"

namespace nb = nanobind;
using namespace nb::literals;
using namespace fugu::bound;
using namespace fugu::learn;

namespace {

void bound_mlp_forward(const In& x, const std::vector<In>& weights, const std::vector<In>& biases, const std::vector<Out>& hidden,
                       const std::vector<int>& activations, int threads, const std::string& set) {
  const Mlp m = mlp_of(x, weights, biases, hidden, activations);
  const Kernels& kernels = kernels_called(set);
  nb::gil_scoped_release release;
  mlp_forward(m, kernels, threads);
}

void bound_mlp_backward(const In& x, const std::vector<In>& weights, const std::vector<In>& biases, const std::vector<Out>& hidden,
                        const std::vector<int>& activations, const In& grad_out, const std::optional<Out>& grad_x,
                        const std::vector<Out>& grad_weights, const std::vector<Out>& grad_biases, int threads, const std::string& set) {
  Mlp m = mlp_of(x, weights, biases, hidden, activations);
  const size_t wanted = grad_x && grad_weights.empty() ? 0 : weights.size();
  if (hidden.size() != weights.size() || grad_weights.size() != wanted || grad_biases.size() != wanted)
    throw nb::value_error("the backward pass needs the output of every layer, and the gradients of all or only that of x");
  m.grad_out = checked(grad_out, {m.rows, m.width[m.layers]}, "grad_out");
  m.grad_x = checked(grad_x, {m.rows, m.width[0]}, "grad_x");
  for (size_t l = 0; l < wanted; ++l) {
    m.grad_weight[l] = checked(grad_weights[l], {m.width[l + 1], m.width[l]}, "grad_weight");
    m.grad_bias[l] = checked(grad_biases[l], {m.width[l + 1]}, "grad_bias");
  }
  const Kernels& kernels = kernels_called(set);
  nb::gil_scoped_release release;
  mlp_backward(m, kernels, threads);
}

Lstm lstm_of(const In& x, const In& weight_ih, const In& weight_hh, const In& bias, const In& state, const Flags& first, const Out& h,
             const std::optional<Out>& kept, const Kernels& kernels) {
  Lstm m{.sequences = axis(x, 0), .time = axis(x, 1), .inputs = axis(x, 2), .hidden = axis(weight_hh, 1)};
  m.x = checked(x, {m.sequences, m.time, m.inputs}, "x");
  m.weight_ih = checked(weight_ih, {4 * m.hidden, m.inputs}, "weight_ih");
  m.weight_hh = checked(weight_hh, {4 * m.hidden, m.hidden}, "weight_hh");
  m.bias = checked(bias, {4 * m.hidden}, "bias");
  m.state = checked(state, {m.sequences, 2 * m.hidden}, "state");
  m.first = reinterpret_cast<const uint8_t*>(checked(first, {m.sequences, m.time}, "first"));
  m.h = checked(h, {m.sequences, m.time, m.hidden}, "h");
  m.kept = checked(kept, {m.sequences, m.time, kernels.lstm_kept_floats(m)}, "kept");
  return m;
}

void bound_lstm_forward(const In& x, const In& weight_ih, const In& weight_hh, const In& bias, const In& state, const Flags& first,
                        const Out& h, const Out& new_state, const std::optional<Out>& kept, int threads, const std::string& set) {
  const Kernels& kernels = kernels_called(set);
  Lstm m = lstm_of(x, weight_ih, weight_hh, bias, state, first, h, kept, kernels);
  m.new_state = checked(new_state, {m.sequences, 2 * m.hidden}, "new_state");
  nb::gil_scoped_release release;
  lstm_forward(m, kernels, threads);
}

void bound_lstm_backward(const In& x, const In& weight_ih, const In& weight_hh, const In& bias, const In& state, const Flags& first,
                         const Out& h, const Out& kept, const In& grad_h, const In& grad_new_state, const std::optional<Out>& grad_x,
                         const Out& grad_weight_ih, const Out& grad_weight_hh, const Out& grad_bias, const Out& grad_state, int threads,
                         const std::string& set) {
  const Kernels& kernels = kernels_called(set);
  Lstm m = lstm_of(x, weight_ih, weight_hh, bias, state, first, h, kept, kernels);
  m.grad_h = checked(grad_h, {m.sequences, m.time, m.hidden}, "grad_h");
  m.grad_new_state = checked(grad_new_state, {m.sequences, 2 * m.hidden}, "grad_new_state");
  m.grad_x = checked(grad_x, {m.sequences, m.time, m.inputs}, "grad_x");
  m.grad_weight_ih = checked(grad_weight_ih, {4 * m.hidden, m.inputs}, "grad_weight_ih");
  m.grad_weight_hh = checked(grad_weight_hh, {4 * m.hidden, m.hidden}, "grad_weight_hh");
  m.grad_bias = checked(grad_bias, {4 * m.hidden}, "grad_bias");
  m.grad_state = checked(grad_state, {m.sequences, 2 * m.hidden}, "grad_state");
  nb::gil_scoped_release release;
  lstm_backward(m, kernels, threads);
}

int64_t lstm_kept(int64_t hidden, const std::string& set) { return kernels_called(set).lstm_kept_floats(Lstm{.hidden = hidden}); }

void bound_sample(const In& logits, const std::optional<Flags>& mask, const In& uniform, const Array<int64_t>& action,
                  const Out& logprob, int threads, const std::string& set) {
  Sample m{.rows = axis(logits, 0), .choices = axis(logits, 1)};
  if (m.choices < 1) throw nb::value_error("there must be a choice");
  m.logits = checked(logits, {m.rows, m.choices}, "logits");
  m.mask = reinterpret_cast<const uint8_t*>(checked(mask, {m.rows, m.choices}, "mask"));
  m.uniform = checked(uniform, {m.rows}, "uniform");
  m.action = checked(action, {m.rows}, "action");
  m.logprob = checked(logprob, {m.rows}, "logprob");
  const Kernels& kernels = kernels_called(set);
  nb::gil_scoped_release release;
  sample(m, kernels, threads);
}

LossSums bound_ppo_loss(const In& logits, const In& value, const Choices& action, const In& old_logprob, const In& advantage,
                        const In& old_value, const In& value_target, const In& weight, const std::optional<Flags>& mask, float clip,
                        float value_clip, float value_coef, float entropy_coef, const Out& grad_logits, const Out& grad_value,
                        int threads, const std::string& set) {
  PpoLoss m{.rows = axis(logits, 0), .choices = axis(logits, 1)};
  if (m.choices < 1) throw nb::value_error("there must be a choice");
  m.logits = checked(logits, {m.rows, m.choices}, "logits");
  m.mask = reinterpret_cast<const uint8_t*>(checked(mask, {m.rows, m.choices}, "mask"));
  m.value = checked(value, {m.rows}, "value");
  m.action = checked(action, {m.rows}, "action");
  m.old_logprob = checked(old_logprob, {m.rows}, "old_logprob");
  m.advantage = checked(advantage, {m.rows}, "advantage");
  m.old_value = checked(old_value, {m.rows}, "old_value");
  m.value_target = checked(value_target, {m.rows}, "value_target");
  m.weight = checked(weight, {m.rows}, "weight");
  m.clip = clip;
  m.value_clip = value_clip;
  m.value_coef = value_coef;
  m.entropy_coef = entropy_coef;
  m.grad_logits = checked(grad_logits, {m.rows, m.choices}, "grad_logits");
  m.grad_value = checked(grad_value, {m.rows}, "grad_value");
  const Kernels& kernels = kernels_called(set);
  nb::gil_scoped_release release;
  return ppo_loss(m, kernels, threads);
}

// Gradients of any shape, one after the other as in `mean` and `square`; one that is None counts as zeros.
void bound_adam_means(const std::vector<std::optional<In>>& grads, const std::vector<int64_t>& sizes, const Out& mean,
                      const Out& square, float rate1, float beta2, float rate2, const std::string& set) {
  const Kernels& kernels = kernels_called(set);
  int64_t total = 0;
  for (size_t i = 0; i < sizes.size(); ++i) {
    if (sizes[i] < 0 || i >= grads.size() || (grads[i] && static_cast<int64_t>(grads[i]->size()) != sizes[i]))
      throw nb::value_error("a gradient has another size than its parameter");
    total += sizes[i];
  }
  checked(mean, {total}, "mean");
  checked(square, {total}, "square");
  nb::gil_scoped_release release;
  Adam a{.mean = mean.data(), .square = square.data(), .rate1 = rate1, .beta2 = beta2, .rate2 = rate2};
  for (size_t i = 0; i < sizes.size(); a.mean += sizes[i], a.square += sizes[i], ++i) {
    a.count = sizes[i];
    a.grad = grads[i] ? grads[i]->data() : nullptr;
    kernels.adam_means(a);
  }
}

// Parameters of any shape, one after the other as in `mean` and `root`.
void bound_adam_follow(const std::vector<Out>& parameters, const Out& mean, const In& root, float undo, float eps, float step,
                       float decay, const std::string& set) {
  const Kernels& kernels = kernels_called(set);
  int64_t total = 0;
  for (const Out& parameter : parameters) total += static_cast<int64_t>(parameter.size());
  checked(mean, {total}, "mean");
  checked(root, {total}, "root");
  nb::gil_scoped_release release;
  Adam a{.mean = mean.data(), .root = root.data(), .undo = undo, .eps = eps, .step = step, .decay = decay};
  for (const Out& parameter : parameters) {
    a.count = static_cast<int64_t>(parameter.size());
    a.weight = parameter.data();
    kernels.adam_follow(a);
    a.mean += a.count;
    a.root += a.count;
  }
}

// By default glibc gives large blocks back to the system as soon as they are freed and gets them anew, page by page and zeroed.
bool keep_freed_memory() {
#ifdef __GLIBC__
  return mallopt(M_MMAP_MAX, 0) == 1 && mallopt(M_TRIM_THRESHOLD, std::numeric_limits<int>::max()) == 1;
#else
  return false;
#endif
}

}  // namespace

void bind_learn(nb::module_& m) {
  m.def("mlp_forward", &bound_mlp_forward, "x"_a.noconvert(), "weights"_a.noconvert(), "biases"_a.noconvert(), "hidden"_a.noconvert(),
        "activations"_a, "threads"_a, "set"_a = "best");
  m.def("mlp_backward", &bound_mlp_backward, "x"_a.noconvert(), "weights"_a.noconvert(), "biases"_a.noconvert(), "hidden"_a.noconvert(),
        "activations"_a, "grad_out"_a.noconvert(), "grad_x"_a.noconvert().none(), "grad_weights"_a.noconvert(),
        "grad_biases"_a.noconvert(), "threads"_a, "set"_a = "best");
  m.def("lstm_forward", &bound_lstm_forward, "x"_a.noconvert(), "weight_ih"_a.noconvert(), "weight_hh"_a.noconvert(),
        "bias"_a.noconvert(), "state"_a.noconvert(), "first"_a.noconvert(), "h"_a.noconvert(), "new_state"_a.noconvert(),
        "kept"_a.noconvert().none(), "threads"_a, "set"_a = "best");
  m.def("lstm_backward", &bound_lstm_backward, "x"_a.noconvert(), "weight_ih"_a.noconvert(), "weight_hh"_a.noconvert(),
        "bias"_a.noconvert(), "state"_a.noconvert(), "first"_a.noconvert(), "h"_a.noconvert(), "kept"_a.noconvert(),
        "grad_h"_a.noconvert(), "grad_new_state"_a.noconvert(), "grad_x"_a.noconvert().none(), "grad_weight_ih"_a.noconvert(),
        "grad_weight_hh"_a.noconvert(), "grad_bias"_a.noconvert(), "grad_state"_a.noconvert(), "threads"_a, "set"_a = "best");
  m.def("lstm_kept", &lstm_kept, "hidden"_a, "set"_a = "best", "Floats kept per row for the backward pass.");
  m.def("sample_categorical", &bound_sample, "logits"_a.noconvert(), "mask"_a.noconvert().none(), "uniform"_a.noconvert(),
        "action"_a.noconvert(), "logprob"_a.noconvert(), "threads"_a, "set"_a = "best");
  m.def("ppo_loss_categorical", &bound_ppo_loss, "logits"_a.noconvert(), "value"_a.noconvert(), "action"_a.noconvert(),
        "old_logprob"_a.noconvert(), "advantage"_a.noconvert(), "old_value"_a.noconvert(), "value_target"_a.noconvert(),
        "weight"_a.noconvert(), "mask"_a.noconvert().none(), "clip"_a, "value_clip"_a, "value_coef"_a, "entropy_coef"_a,
        "grad_logits"_a.noconvert(), "grad_value"_a.noconvert(), "threads"_a, "set"_a = "best");
  m.def("adam_means", &bound_adam_means, "grads"_a.noconvert(), "sizes"_a, "mean"_a.noconvert(), "square"_a.noconvert(), "rate1"_a,
        "beta2"_a, "rate2"_a, "set"_a = "best");
  m.def("adam_follow", &bound_adam_follow, "parameters"_a.noconvert(), "mean"_a.noconvert(), "root"_a.noconvert(), "undo"_a, "eps"_a,
        "step"_a, "decay"_a, "set"_a = "best");
  m.def("keep_freed_memory", &keep_freed_memory, "Let malloc keep what is freed for the next request; False: not possible here.");
}
