// Python faces of the environment engine (engine.h) and of every environment in envs/.
#include <nanobind/nanobind.h>
#include <nanobind/stl/string.h>
#include <nanobind/stl/vector.h>
#include <nanobind/ndarray.h>

#include <functional>
#include <map>

#include "engine.h"
#include "envs/acrobot.h"
#include "envs/cartpole.h"
#include "envs/mountain_car.h"
#include "envs/pendulum.h"

namespace nb = nanobind;
using namespace nb::literals;

namespace {

using Array = nb::ndarray<nb::numpy, nb::c_contig, nb::device::cpu>;

struct Entry {
  std::function<nb::dict()> describe;
  std::function<std::unique_ptr<fugu::EngineBase>(size_t worlds, nb::dict settings)> make;
};

nb::dict describe_field(const fugu::Field& field) {
  nb::dict out;
  static constexpr const char* kinds[] = {"box", "discrete", "multi_discrete", "multi_binary"};
  out["name"] = field.name;
  out["kind"] = kinds[field.kind];
  out["type"] = std::string(1, field.type);
  nb::list shape;
  int count = 1;
  for (int d = 0; d < field.rank; ++d) {
    shape.append(field.shape[d]);
    count *= field.shape[d];
  }
  out["shape"] = nb::tuple(shape);
  out["choices"] = field.choices;
  nb::list low, high;
  for (int i = 0; i < count; ++i) {
    low.append(field.lows ? static_cast<double>(field.lows[i]) : field.low);
    high.append(field.highs ? static_cast<double>(field.highs[i]) : field.high);
  }
  out["low"] = low;
  out["high"] = high;
  return out;
}

template <typename Fields>
nb::list describe_fields(const Fields& fields) {
  nb::list out;
  for (const fugu::Field& field : fields) out.append(describe_field(field));
  return out;
}

template <typename E>
Entry entry() {
  return {
      [] {
        nb::dict out, params;
        const typename E::Params defaults{};
        for (const auto& param : E::params) {
          if (param.real)
            params[param.name] = defaults.*param.real;
          else
            params[param.name] = defaults.*param.whole;
        }
        out["name"] = E::name;
        out["agents"] = E::agents;
        out["time_limit"] = E::time_limit;
        out["observation"] = describe_fields(E::observation);
        out["action"] = describe_fields(E::action);
        out["params"] = params;
        return out;
      },
      [](size_t worlds, nb::dict settings) -> std::unique_ptr<fugu::EngineBase> {
        typename E::Params params{};
        for (const auto& param : E::params) {
          if (!settings.contains(param.name)) continue;
          if (param.real)
            params.*param.real = nb::cast<float>(settings[param.name]);
          else
            params.*param.whole = nb::cast<int32_t>(settings[param.name]);
        }
        const int limit = settings.contains("max_steps") ? nb::cast<int>(settings["max_steps"]) : E::time_limit;
        return std::make_unique<fugu::Engine<E>>(worlds, params, limit);
      }};
}

const std::map<std::string, Entry>& entries() {
  static const std::map<std::string, Entry> table = {
      {fugu::Acrobot::name, entry<fugu::Acrobot>()},
      {fugu::CartPole::name, entry<fugu::CartPole>()},
      {fugu::MountainCar::name, entry<fugu::MountainCar>()},
      {fugu::Pendulum::name, entry<fugu::Pendulum>()},
  };
  return table;
}

// The engine, its threads, its groups, and the arrays it writes into (kept alive here).
class Worlds {
 public:
  Worlds(const std::string& name, size_t worlds, nb::dict settings, const std::vector<size_t>& bounds, size_t threads)
      : engine_(entries().at(name).make(worlds, settings)), pool_(threads - 1) {
    for (size_t g = 0; g + 1 < bounds.size(); ++g)
      groups_.push_back(std::make_unique<fugu::Group>(*engine_, bounds[g], bounds[g + 1], threads));
  }
  ~Worlds() {
    nb::gil_scoped_release release;
    for (auto& group : groups_)
      if (group->running) pool_.finish(*group);
  }

  void bind(Array seeds, Array action, nb::list slots) {
    const size_t rows = engine_->worlds * engine_->agents;
    engine_->seeds = static_cast<const int64_t*>(need(seeds, engine_->worlds * 8));
    engine_->action = need(action, rows * engine_->action_bytes);
    for (size_t s = 0; s < 2; ++s) {
      nb::tuple columns = nb::cast<nb::tuple>(slots[s]);
      fugu::Columns& out = engine_->slots[s];
      out.obs = need(nb::cast<Array>(columns[0]), rows * engine_->obs_bytes);
      out.reward = static_cast<float*>(need(nb::cast<Array>(columns[1]), rows * 4));
      out.terminated = static_cast<bool*>(need(nb::cast<Array>(columns[2]), rows));
      out.truncated = static_cast<bool*>(need(nb::cast<Array>(columns[3]), rows));
      out.first = static_cast<bool*>(need(nb::cast<Array>(columns[4]), rows));
      out.mask = static_cast<bool*>(need(nb::cast<Array>(columns[5]), rows));
      if (!columns[6].is_none()) {
        Array mask = nb::cast<Array>(columns[6]);
        out.choices = mask.shape(1);
        out.action_mask = static_cast<bool*>(need(mask, rows * out.choices));
      }
    }
    kept_ = nb::make_tuple(seeds, action, slots);
    bound_ = true;
  }

  void start(size_t group, int command, int slot) {
    fugu::Group& job = at(group);
    if (!bound_) throw nb::value_error("bind() first");
    if (job.running) throw nb::value_error("this group is running already");
    if (slot < 0 || slot > 1 || (command != fugu::EngineBase::kReset && command != fugu::EngineBase::kStep))
      throw nb::value_error("no such slot or command");
    job.command = static_cast<fugu::EngineBase::Command>(command);
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

  int64_t bad_action(size_t group) {
    fugu::Group& job = at(group);
    return engine_->bad_action(job.low(), job.high());
  }

  nb::tuple drain() {
    const fugu::LogSum sum = engine_->drain();
    return nb::make_tuple(sum.episodes, sum.returns, sum.lengths);
  }

  nb::bytes state() { return nb::bytes(engine_->state(), engine_->state_bytes()); }
  void set_state(nb::bytes state) {
    if (state.size() != engine_->state_bytes()) throw nb::value_error("this state is of other or differently many worlds");
    std::memcpy(engine_->state(), state.c_str(), state.size());
  }
  size_t state_bytes() const { return engine_->state_bytes(); }

 private:
  fugu::Group& at(size_t group) {
    if (group >= groups_.size()) throw nb::index_error("no such group");
    return *groups_[group];
  }
  static void* need(const Array& array, size_t bytes) {
    if (array.nbytes() != bytes) throw nb::value_error("a column has another size than the environment's rows need");
    return array.data();
  }

  std::unique_ptr<fugu::EngineBase> engine_;
  std::vector<std::unique_ptr<fugu::Group>> groups_;
  fugu::Pool pool_;  // after what its threads use: it ends first
  nb::object kept_;
  bool bound_ = false;
};

}  // namespace

void bind_engine(nb::module_& m) {
  m.def("environments", [] {
    nb::dict out;
    for (const auto& [name, entry] : entries()) out[name.c_str()] = entry.describe();
    return out;
  });
  nb::class_<Worlds>(m, "Worlds")
      .def(nb::init<const std::string&, size_t, nb::dict, const std::vector<size_t>&, size_t>(), "name"_a, "worlds"_a, "settings"_a,
           "bounds"_a, "threads"_a)
      .def("bind", &Worlds::bind, "seeds"_a.noconvert(), "action"_a.noconvert(), "slots"_a)
      .def("start", &Worlds::start, "group"_a, "command"_a, "slot"_a)
      .def("finish", &Worlds::finish, "group"_a)
      .def("bad_action", &Worlds::bad_action, "group"_a)
      .def("drain", &Worlds::drain)
      .def_prop_rw("state", &Worlds::state, &Worlds::set_state)
      .def_prop_ro("state_bytes", &Worlds::state_bytes);
}
