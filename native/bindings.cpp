// Python faces of the native core. Python objects stop here, except in pack.h and row_writer.h, whose subject they are.
#include <nanobind/nanobind.h>
#include <nanobind/ndarray.h>
#include <nanobind/stl/pair.h>
#include <nanobind/stl/vector.h>

#include <poll.h>
#include <signal.h>
#include <unistd.h>

#include <thread>

#include "control.h"
#include "pack.h"
#include "row_writer.h"
#include "shrink.h"

namespace nb = nanobind;
using namespace nb::literals;

void bind_advantage(nb::module_&);
void bind_engine(nb::module_&);
void bind_learn(nb::module_&);
void bind_soft(nb::module_&);
void bind_world(nb::module_&);

namespace {

// numpy's import_array() is a macro that returns from the function it stands in.
int load_numpy() {
  import_array1(-1);
  return 0;
}

// Owns a reference to the shared buffer so that the mapping outlives every Control over it.
struct SharedControl {
  Py_buffer view{};
  fugu::Control control;

  static Py_buffer open(nb::handle buffer, size_t workers) {
    Py_buffer view;
    if (PyObject_GetBuffer(buffer.ptr(), &view, PyBUF_WRITABLE | PyBUF_SIMPLE) != 0) throw nb::python_error();
    if (static_cast<size_t>(view.len) < fugu::Control::bytes(workers) || reinterpret_cast<uintptr_t>(view.buf) % fugu::kLine) {
      PyBuffer_Release(&view);
      throw nb::value_error("control memory is too small or not aligned to 128 bytes");
    }
    return view;
  }

  SharedControl(nb::handle buffer, size_t workers, double max_spin_us)
      : view(open(buffer, workers)), control(static_cast<char*>(view.buf), workers, max_spin_us) {}
  ~SharedControl() { PyBuffer_Release(&view); }
  SharedControl(const SharedControl&) = delete;

  void check(size_t worker) const {
    if (worker >= control.workers()) throw nb::index_error("no such worker");
  }
};

// Sleeps in steps, running Python's signal handlers in between: Ctrl-C ends the wait at once.
template <typename Ready>
bool patient_wait(SharedControl& self, Ready ready, double timeout_s) {
  const double deadline = fugu::now_us() + timeout_s * 1e6;
  for (;;) {
    const double left = deadline - fugu::now_us();
    bool done;
    {
      nb::gil_scoped_release release;
      done = self.control.wait(ready, std::max(0.0, left));
    }
    if (done) return true;
    if (PyErr_CheckSignals() != 0) throw nb::python_error();
    if (left <= 0) return false;
  }
}

// A worker sleeps without a deadline worth the name; one sleep per call, then the caller may look around.
bool wait_command(SharedControl& self, size_t worker, double timeout_s) {
  nb::gil_scoped_release release;
  return self.control.wait_command(worker, timeout_s * 1e6);
}

// Ends this process and its process group, what it has started, as soon as `pidfd` (the parent's) becomes readable, even if a stuck
// env holds the GIL.
void exit_with(int pidfd) {
  std::thread([pidfd] {
    pollfd poll_on{pidfd, POLLIN, 0};
    while (poll(&poll_on, 1, -1) <= 0) {
    }
    kill(0, SIGKILL);
    _exit(1);
  }).detach();
}

using Grey = nb::ndarray<nb::numpy, uint8_t, nb::ndim<2>, nb::c_contig, nb::device::cpu>;

void shrink(fugu::Shrink& self, const Grey& image, const Grey& other, const Grey& out) {
  for (const Grey* given : {&image, &other})
    if (given->shape(0) != self.rows() || given->shape(1) != self.columns()) throw nb::value_error("a picture has another size");
  if (out.shape(0) != self.to_rows() || out.shape(1) != self.to_columns()) throw nb::value_error("out has another size");
  self(image.data(), other.data(), out.data());
}

}  // namespace

NB_MODULE(_native, m) {
  if (load_numpy() != 0) throw nb::python_error();
  m.doc() = "fugu's native core: packing values into rows, and the hand-over between processes";

  nb::class_<fugu::Plan>(m, "Plan")
      .def(nb::init<nb::handle>(), "plan"_a)
      .def("pack", &fugu::Plan::pack, "value"_a.none(), "row"_a, "Write value into row; False: left to the reference.");

  nb::class_<fugu::RowWriter>(m, "RowWriter")
      .def(nb::init<nb::object, nb::object, nb::object, nb::object, nb::object, nb::object, nb::object>(), "plan"_a, "obs"_a,
           "reward"_a, "terminated"_a, "truncated"_a, "first"_a, "mask"_a)
      .def("step", &fugu::RowWriter::step, "result"_a.none())
      .def("start", &fugu::RowWriter::start, "obs"_a.none());

  nb::class_<fugu::Shrink>(m, "Shrink")
      .def(nb::init<size_t, size_t, size_t, size_t>(), "rows"_a, "columns"_a, "to_rows"_a, "to_columns"_a)
      .def("__call__", &shrink, "image"_a.noconvert(), "other"_a.noconvert(), "out"_a.noconvert());

  nb::class_<SharedControl>(m, "Control")
      .def(nb::init<nb::handle, size_t, double>(), "buffer"_a, "workers"_a, "max_spin_us"_a)
      .def_static("bytes", &fugu::Control::bytes, "workers"_a)
      .def("post",
           [](SharedControl& self, size_t worker, uint32_t command, uint32_t slot) {
             self.check(worker);
             self.control.post(worker, command, slot);
           }, "worker"_a, "command"_a, "slot"_a)
      .def("done", [](SharedControl& self, size_t worker) { self.check(worker); return self.control.done(worker); }, "worker"_a)
      .def("status", [](SharedControl& self, size_t worker) { self.check(worker); return self.control.status(worker); }, "worker"_a)
      .def("progress", [](SharedControl& self, size_t worker) { self.check(worker); return self.control.progress(worker); },
           "worker"_a)
      .def("seq", [](SharedControl& self, size_t worker) { self.check(worker); return self.control.seq(worker); }, "worker"_a)
      .def("taken", [](SharedControl& self) { return self.control.taken(); })
      .def("settle", [](SharedControl& self, size_t worker) { self.check(worker); self.control.settle(worker); }, "worker"_a)
      .def("wait_all",
           [](SharedControl& self, size_t low, size_t high, double timeout_s) {
             if (low > high || high > self.control.workers()) throw nb::index_error("no such workers");
             return patient_wait(self, [&] { return self.control.done(low, high); }, timeout_s);
           }, "low"_a, "high"_a, "timeout_s"_a)
      .def("wait_any",
           [](SharedControl& self, const std::vector<std::pair<size_t, size_t>>& ranges, double timeout_s) {
             for (auto [low, high] : ranges)
               if (low > high || high > self.control.workers()) throw nb::index_error("no such workers");
             int found = -1;
             patient_wait(self, [&] {
               for (size_t i = 0; i < ranges.size(); ++i)
                 if (self.control.done(ranges[i].first, ranges[i].second)) {
                   found = static_cast<int>(i);
                   return true;
                 }
               return false;
             }, timeout_s);
             return found;
           }, "ranges"_a, "timeout_s"_a)
      .def("wait_command",
           [](SharedControl& self, size_t worker, double timeout_s) {
             self.check(worker);
             return wait_command(self, worker, timeout_s);
           }, "worker"_a, "timeout_s"_a)
      .def("command", [](SharedControl& self, size_t worker) { self.check(worker); return self.control.command(worker); },
           "worker"_a)
      .def("slot", [](SharedControl& self, size_t worker) { self.check(worker); return self.control.slot(worker); }, "worker"_a)
      .def("set_progress",
           [](SharedControl& self, size_t worker, uint32_t value) { self.control.set_progress(worker, value); }, "worker"_a, "value"_a)
      .def("finish",
           [](SharedControl& self, size_t worker, uint32_t status) { self.check(worker); self.control.finish(worker, status); },
           "worker"_a, "status"_a);

  bind_advantage(m);
  bind_engine(m);
  bind_learn(m);
  bind_soft(m);
  bind_world(m);
  m.def("exit_with", &exit_with, "pidfd"_a, "End this process and its group when the process behind pidfd ends.");
}
