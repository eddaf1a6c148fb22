// Python faces of the environment engine (engine.h), of every environment in envs/, and of those loaded at run time.
#include <dlfcn.h>
#include <nanobind/nanobind.h>
#include <nanobind/ndarray.h>
#include <nanobind/stl/string.h>
#include <nanobind/stl/vector.h>

#include <algorithm>
#include <cstdint>
#include <cstring>
#include <map>
#include <optional>
#include <utility>

#include "envs/all.h"
#include "group.h"

namespace nb = nanobind;
using namespace nb::literals;

namespace {

using Array = nb::ndarray<nb::numpy, nb::c_contig, nb::device::cpu>;

template <typename... E>
std::map<std::string, const fugu::EngineApi*> table(fugu::List<E...>) {
  return {{E::name, fugu::Engine<E>::api()}...};
}

std::map<std::string, const fugu::EngineApi*>& environments() {
  static auto all = table(fugu::AllEnvironments{});
  return all;
}

const fugu::EngineApi& find(const std::string& name) {
  const auto found = environments().find(name);
  if (found == environments().end()) throw nb::key_error(name.c_str());
  return *found->second;
}

// An environment built by `fugu build`. It stays loaded: its code may be running in any thread.
void load(const std::string& name, const std::string& path) {
  void* library = dlopen(path.c_str(), RTLD_NOW | RTLD_LOCAL);
  if (library == nullptr) throw std::runtime_error(dlerror());
  auto* entry = reinterpret_cast<const fugu::EngineApi* (*)()>(dlsym(library, "fugu_environment"));
  if (entry == nullptr) throw std::runtime_error(path + " is not an environment built by fugu");
  const fugu::EngineApi* api = entry();
  if (api->abi != fugu::kAbi) throw std::runtime_error(path + " was built for another version of fugu; build it again");
  environments()[name] = api;
}

nb::list describe_fields(const fugu::Field* fields, int count) {
  static constexpr const char* kinds[] = {"box", "discrete", "multi_discrete", "multi_binary"};
  nb::list out;
  for (const fugu::Field* field = fields; field != fields + count; ++field) {
    nb::list shape, low, high;
    int size = 1;
    for (int d = 0; d < field->rank; ++d) {
      shape.append(field->shape[d]);
      size *= field->shape[d];
    }
    for (int i = 0; i < size; ++i) {
      low.append(field->lows ? static_cast<double>(field->lows[i]) : field->low);
      high.append(field->highs ? static_cast<double>(field->highs[i]) : field->high);
    }
    nb::dict one;
    one["name"] = field->name;
    one["kind"] = kinds[field->kind];
    one["type"] = std::string(1, field->type);
    one["shape"] = nb::tuple(shape);
    one["choices"] = field->choices;
    one["low"] = low;
    one["high"] = high;
    out.append(one);
  }
  return out;
}

nb::dict describe(const fugu::EngineApi& api) {
  nb::dict out, params, bounds;
  for (int i = 0; i < api.params; ++i) {
    bounds[api.param[i].name] = nb::make_tuple(api.param[i].low, api.param[i].high);
    if (api.param[i].whole)
      params[api.param[i].name] = static_cast<int64_t>(api.param[i].value);
    else
      params[api.param[i].name] = api.param[i].value;
    bounds[api.param[i].name] = nb::make_tuple(api.param[i].low, api.param[i].high);
  }
  nb::list logs;
  for (int i = 0; i < api.logs; ++i) logs.append(api.log[i]);
  out["name"] = api.name;
  out["agents"] = api.agents;
  out["time_limit"] = api.time_limit;
  out["observation"] = describe_fields(api.observation, api.observations);
  out["action"] = describe_fields(api.action, api.actions);
  out["params"] = params;
  out["bounds"] = bounds;
  out["logs"] = nb::tuple(logs);
  nb::list costs;
  for (int i = 0; i < api.costs; ++i) costs.append(api.cost[i]);
  out["costs"] = nb::tuple(costs);
  out["renders"] = api.render != nullptr;
  out["masks_actions"] = api.masks_actions;
  out["restores"] = api.restore != nullptr;
  out["world_bytes"] = api.world_bytes;
  return out;
}

std::vector<double> values_of(const fugu::EngineApi& api, const nb::dict& settings) {
  std::vector<double> values;
  for (int i = 0; i < api.params; ++i)
    values.push_back(settings.contains(api.param[i].name) ? nb::cast<double>(settings[api.param[i].name]) : api.param[i].value);
  return values;
}

int limit_of(const fugu::EngineApi& api, const nb::dict& settings) {
  const double limit = settings.contains("max_steps") ? nb::cast<double>(settings["max_steps"]) : api.time_limit;
  return limit > 0 ? static_cast<int>(std::min<double>(limit, fugu::kNoLimit)) : fugu::kNoLimit;
}

// What a kernel of the environment is given by value: its Params as bytes, and the time limit.
nb::tuple device_settings(const std::string& name, const nb::dict& settings) {
  const fugu::EngineApi& api = find(name);
  std::vector<char> params(api.params_bytes);
  api.pack_params(values_of(api, settings).data(), params.data());
  return nb::make_tuple(nb::bytes(params.data(), params.size()), limit_of(api, settings));
}

// The first world on a GPU that cannot be in the state that `words` are, or -1.
int64_t first_unsound(const std::string& name, const nb::dict& settings, const Array& words) {
  const fugu::EngineApi& api = find(name);
  if (api.first_unsound == nullptr) throw nb::value_error("this environment has no valid() to check a state with");
  const size_t bytes = words.nbytes();
  if (bytes % api.world_bytes != 0 || reinterpret_cast<uintptr_t>(words.data()) % alignof(uint32_t) != 0)
    throw nb::value_error("these are not the words of whole worlds");
  const auto* const data = static_cast<const uint32_t*>(words.data());
  return api.first_unsound(values_of(api, settings).data(), limit_of(api, settings), data, bytes / api.world_bytes);
}

// What the buffer protocol says of an array; nothing where it has none, or lies in pieces.
struct Buffer {
  Py_buffer view{};

  Buffer() = default;
  explicit Buffer(nb::handle object) {
    if (!PyObject_CheckBuffer(object.ptr()) || PyObject_GetBuffer(object.ptr(), &view, PyBUF_ND | PyBUF_FORMAT) != 0) {
      PyErr_Clear();
      view = {};
    }
  }
  Buffer(Buffer&& other) noexcept : view(std::exchange(other.view, {})) {}
  Buffer& operator=(Buffer&& other) noexcept {
    std::swap(view, other.view);
    return *this;
  }
  ~Buffer() {
    if (view.obj != nullptr) PyBuffer_Release(&view);
  }

  bool like(const Buffer& other, size_t rows) const {  // in all but the number of rows
    if (view.obj == nullptr || view.ndim != other.view.ndim || view.itemsize != other.view.itemsize) return false;
    if (std::strcmp(view.format, other.view.format) != 0 || static_cast<size_t>(view.shape[0]) != rows) return false;
    return std::equal(view.shape + 1, view.shape + view.ndim, other.view.shape + 1);
  }
};

// An engine, its threads, its groups, and the arrays it writes into (kept alive here).
class Worlds {
 public:
  Worlds(const std::string& name, size_t worlds, const nb::dict& settings, const std::vector<size_t>& bounds, size_t threads)
      : api_(find(name)), worlds_(worlds), pool_(threads - 1) {
    engine_ = api_.create(worlds, values_of(api_, settings).data(), limit_of(api_, settings));
    for (size_t g = 0; g + 1 < bounds.size(); ++g)
      groups_.push_back(std::make_unique<fugu::Group>(api_, engine_, bounds[g], bounds[g + 1], threads));
  }
  ~Worlds() {
    {
      nb::gil_scoped_release release;
      for (auto& group : groups_)
        if (group->running) pool_.finish(*group);
    }
    api_.destroy(engine_);
  }
  Worlds(const Worlds&) = delete;

  // `groups`: for each group its columns of both slots.
  void bind(Array seeds, Array action, nb::list groups) {
    const size_t agents = static_cast<size_t>(api_.agents);
    if (nb::len(groups) != groups_.size()) throw nb::value_error("bind() needs the columns of every group");
    for (size_t i = 0; i < 2 * groups_.size(); ++i) {
      fugu::Group& group = *groups_[i / 2];
      const size_t rows = (group.high() - group.low()) * agents;
      nb::tuple given = nb::cast<nb::tuple>(groups[i / 2][i % 2]);
      fugu::Columns& out = group.slots[i % 2];
      out.obs = need(nb::cast<Array>(given[0]), rows * api_.obs_bytes);
      out.reward = static_cast<float*>(need(nb::cast<Array>(given[1]), rows * sizeof(float)));
      out.terminated = static_cast<bool*>(need(nb::cast<Array>(given[2]), rows));
      out.truncated = static_cast<bool*>(need(nb::cast<Array>(given[3]), rows));
      out.first = static_cast<bool*>(need(nb::cast<Array>(given[4]), rows));
      out.mask = static_cast<bool*>(need(nb::cast<Array>(given[5]), rows));
      if (api_.masks_actions) {
        out.action_mask = static_cast<bool*>(need(nb::cast<Array>(given[6]), rows * static_cast<size_t>(api_.choices)));
      }
      if (api_.costs > 0) {
        out.cost = static_cast<float*>(need(nb::cast<Array>(given[7]), rows * static_cast<size_t>(api_.costs) * sizeof(float)));
      }
    }
    api_.bind(engine_, need(action, worlds_ * agents * api_.action_bytes),
              static_cast<const int64_t*>(need(seeds, worlds_ * sizeof(int64_t))));
    form_ = Buffer(nb::cast(action));
    kept_ = nb::make_tuple(seeds, action, groups);
    bound_ = true;
  }

  void start(size_t group, int command, int slot) {
    fugu::Group& job = at(group);
    if (!bound_) throw nb::value_error("bind() first");
    if (job.running) throw nb::value_error("this group is running already");
    if (slot < 0 || slot > 1 || command < fugu::EngineApi::kReset || command > fugu::EngineApi::kStepNarrow)
      throw nb::value_error("no such slot or command");
    job.command = command;
    job.slot = slot;
    job.running = true;
    pool_.start(job);
  }

  void finish(size_t group) {
    fugu::Group& job = at(group);
    if (!job.running) throw nb::value_error("this group is not running");
    nb::gil_scoped_release release;
    pool_.finish(job);
    job.running = false;
  }

  // Copies a group's actions in and gives the first agent whose action is outside its space, or kNone. Takes arrays that look like
  // the one that was bound, as most do; of others (another type, not contiguous, a list) it says kOther and does nothing.
  int64_t take(size_t group, nb::handle actions) { return take_and(group, actions, fugu::Job::kPrepare, 0); }

  // The same for the first group, and steps its worlds into `slot`: start and finish in one. False: take() would not say kNone, and
  // no world has moved.
  bool step(nb::handle actions, int slot) {
    if (slot < 0 || slot > 1) throw nb::value_error("no such slot");
    return take_and(0, actions, fugu::Job::kWork, slot) == kNone;
  }

  int64_t bad_action(size_t group) {
    fugu::Group& job = at(group);
    return api_.take(engine_, nullptr, job.low(), job.high());
  }

  nb::tuple drain() {
    fugu::LogSum sum;
    for (auto& group : groups_) {
      while (group->held) {  // by another thread of the program
        nb::gil_scoped_release release;
        std::this_thread::yield();
      }
      if (group->running) {  // it may be adding to its sums just now
        nb::gil_scoped_release release;
        pool_.finish(*group);
      }
      group->drain(sum);
    }
    nb::dict values;
    for (int i = 0; i < api_.logs; ++i) values[api_.log[i]] = sum.values[i];
    for (int i = 0; i < api_.costs; ++i) values[api_.cost[i]] = sum.values[api_.logs + i];
    return nb::make_tuple(sum.episodes, sum.returns, sum.lengths, values);
  }

  nb::ndarray<nb::numpy, uint8_t> render(size_t world) {
    if (api_.render == nullptr) throw nb::value_error("this environment draws no picture");
    if (world >= worlds_) throw nb::index_error("no such world");
    const size_t shape[] = {static_cast<size_t>(api_.height), static_cast<size_t>(api_.width), 3};
    auto* pixels = new uint8_t[shape[0] * shape[1] * shape[2]]();
    nb::capsule owner(pixels, [](void* p) noexcept { delete[] static_cast<uint8_t*>(p); });
    api_.render(engine_, world, pixels);
    return nb::ndarray<nb::numpy, uint8_t>(pixels, 3, shape, owner);
  }

  nb::bytes state() { return nb::bytes(api_.state(engine_), state_bytes()); }
  // The first world that cannot be in this state, or kNone: then all are.
  int64_t restore(nb::bytes state) {
    if (api_.restore == nullptr) throw nb::value_error("this environment has no valid() to check a state with");
    if (state.size() != state_bytes()) throw nb::value_error("this state is of other or differently many worlds");
    return api_.restore(engine_, state.c_str());
  }
  size_t state_bytes() const { return api_.state_bytes(engine_); }

  static constexpr int64_t kNone = -1, kOther = -2;

 private:
  fugu::Group& at(size_t group) {
    if (group >= groups_.size()) throw nb::index_error("no such group");
    return *groups_[group];
  }
  int64_t take_and(size_t group, nb::handle actions, fugu::Job::Phase last, int slot) {
    fugu::Group& job = at(group);
    if (!bound_) throw nb::value_error("bind() first");
    if (job.running) throw nb::value_error("this group is running already");
    const Buffer given(actions);
    if (!given.like(form_, (job.high() - job.low()) * static_cast<size_t>(api_.agents))) return kOther;
    job.running = job.held = true;
    std::optional<nb::gil_scoped_release> released;
    const auto place = [&] {
      job.given = static_cast<const char*>(given.view.buf);
      job.command = fugu::EngineApi::kStep;
      job.slot = slot;
    };
    pool_.run(job, fugu::Job::kPrepare, last, place, [&] { released.emplace(); });
    const int64_t bad = job.bad_action();
    released.reset();
    job.running = job.held = false;
    return bad < 0 ? kNone : bad;
  }
  static void* need(const Array& array, size_t bytes) {
    if (array.nbytes() != bytes) throw nb::value_error("a column has another size than the environment's rows need");
    return array.data();
  }

  const fugu::EngineApi& api_;
  size_t worlds_;
  void* engine_ = nullptr;
  std::vector<std::unique_ptr<fugu::Group>> groups_;
  fugu::Pool pool_;  // after what its threads use: it ends first
  nb::object kept_;
  Buffer form_;  // of the actions
  bool bound_ = false;
};

}  // namespace

void bind_engine(nb::module_& m) {
  m.def("environments", [] {
    nb::dict out;
    for (const auto& [name, api] : environments()) out[name.c_str()] = describe(*api);
    return out;
  });
  m.def("load", &load, "name"_a, "path"_a, "Load an environment built by `fugu build` under this name.");
  m.def("device_settings", &device_settings, "name"_a, "settings"_a, "The Params of an environment as bytes, and its time limit.");
  m.def("first_unsound", &first_unsound, "name"_a, "settings"_a, "words"_a, "The first world on a GPU that cannot be in this state, or -1.");
  nb::class_<Worlds>(m, "Worlds")
      .def(nb::init<const std::string&, size_t, const nb::dict&, const std::vector<size_t>&, size_t>(), "name"_a, "worlds"_a,
           "settings"_a, "bounds"_a, "threads"_a)
      .def("bind", &Worlds::bind, "seeds"_a.noconvert(), "action"_a.noconvert(), "groups"_a)
      .def("start", &Worlds::start, "group"_a, "command"_a, "slot"_a)
      .def("finish", &Worlds::finish, "group"_a)
      .def("take", &Worlds::take, "group"_a, "actions"_a)
      .def("step", &Worlds::step)  // without names for its arguments, which nanobind calls faster
      .def("bad_action", &Worlds::bad_action, "group"_a)
      .def("drain", &Worlds::drain)
      .def("render", &Worlds::render, "world"_a)
      .def("restore", &Worlds::restore, "state"_a)
      .def_prop_ro("state", &Worlds::state)
      .def_prop_ro("state_bytes", &Worlds::state_bytes);
}
