// What one agent's environment returned -> its row, the fast path of src/fugu/emulation/writer.py (the reference).
//
// The observation goes through a Plan (pack.h); reward, flags and info are recognised here. What is not recognised is left to the
// reference, as in pack.h.
#pragma once

#include "pack.h"

namespace fugu {

// One agent's row in one slot: where its observation, reward and flags go. Written by single-agent envs.
struct RowWriter {
  enum Code : int { kNotRecognised = -1, kPlain = 0, kEnded = 1, kInfo = 2 };

  nb::object plan_owner, obs, reward, terminated, truncated, first, mask;  // keep the memory alive
  const Plan* plan;
  char* obs_at;
  float* reward_at;
  bool *terminated_at, *truncated_at, *first_at, *mask_at;

  RowWriter(nb::object plan_, nb::object obs_, nb::object reward_, nb::object terminated_, nb::object truncated_,
            nb::object first_, nb::object mask_)
      : plan_owner(plan_), obs(obs_), reward(reward_), terminated(terminated_), truncated(truncated_), first(first_),
        mask(mask_) {
    plan = &nb::cast<const Plan&>(plan_owner);
    if (!plan->fits(obs)) throw nb::type_error("RowWriter: obs must be one row of the plan, contiguous and writable");
    obs_at = static_cast<char*>(PyArray_DATA(reinterpret_cast<PyArrayObject*>(obs.ptr())));
    reward_at = static_cast<float*>(data(reward, NPY_FLOAT));
    terminated_at = static_cast<bool*>(data(terminated, NPY_BOOL));
    truncated_at = static_cast<bool*>(data(truncated, NPY_BOOL));
    first_at = static_cast<bool*>(data(first, NPY_BOOL));
    mask_at = static_cast<bool*>(data(mask, NPY_BOOL));
  }

  // `result` is what env.step returned. A bit set of kEnded and kInfo, or kNotRecognised: nothing but obs may be written.
  int step(nb::handle result) {
    PyObject* tuple = result.ptr();
    if (!PyTuple_CheckExact(tuple) || PyTuple_GET_SIZE(tuple) != 5) return kNotRecognised;
    float gain;
    bool ended_by_env, ended_by_limit;
    if (!number(PyTuple_GET_ITEM(tuple, 1), gain) || !flag(PyTuple_GET_ITEM(tuple, 2), ended_by_env) ||
        !flag(PyTuple_GET_ITEM(tuple, 3), ended_by_limit))
      return kNotRecognised;
    PyObject* info = PyTuple_GET_ITEM(tuple, 4);
    if (!PyDict_Check(info)) return kNotRecognised;
    if (!plan->root.pack(PyTuple_GET_ITEM(tuple, 0), obs_at)) return kNotRecognised;
    const bool ended = ended_by_env || ended_by_limit;
    *reward_at = gain;
    *terminated_at = ended_by_env;
    *truncated_at = ended_by_limit;
    *first_at = false;
    *mask_at = !ended;
    return (ended ? kEnded : 0) | (PyDict_GET_SIZE(info) > 0 ? kInfo : 0);
  }

  // The first row of an episode. False: not recognised, nothing but obs may be written.
  bool start(nb::handle value) {
    if (!plan->root.pack(value.ptr(), obs_at)) return false;
    *reward_at = 0.0f;
    *terminated_at = *truncated_at = false;
    *first_at = *mask_at = true;
    return true;
  }

 private:
  static void* data(const nb::object& object, int type_num) {
    auto* array = reinterpret_cast<PyArrayObject*>(object.ptr());
    if (!PyArray_Check(object.ptr()) || PyArray_TYPE(array) != type_num || PyArray_SIZE(array) < 1 ||
        !PyArray_ISCARRAY(array))
      throw nb::type_error("RowWriter: reward must be float32 and the flags bool; one element each, aligned and writable");
    return PyArray_DATA(array);
  }

  static bool number(PyObject* value, float& out) {
    double number;
    if (PyFloat_Check(value)) {
      number = PyFloat_AS_DOUBLE(value);
    } else if (PyLong_Check(value) || is_real(value)) {
      number = PyFloat_AsDouble(value);
      if (number == -1.0 && PyErr_Occurred()) {
        PyErr_Clear();
        return false;
      }
    } else {
      return false;
    }
    out = static_cast<float>(number);
    return std::isfinite(out);
  }

  // A numpy integer or float, as a scalar or an array without axes. (numpy counts time spans among the integers.)
  static bool is_real(PyObject* value) {
    if (PyArray_Check(value)) {
      auto* array = reinterpret_cast<PyArrayObject*>(value);
      return PyArray_NDIM(array) == 0 && (PyArray_ISINTEGER(array) || PyArray_ISFLOAT(array));
    }
    return PyArray_IsScalar(value, Floating) || (PyArray_IsScalar(value, Integer) && !PyArray_IsScalar(value, Timedelta));
  }

  static bool flag(PyObject* value, bool& out) {
    if (value == Py_True || value == Py_False) {
      out = value == Py_True;
      return true;
    }
    if (!PyArray_IsScalar(value, Bool)) return false;
    out = PyObject_IsTrue(value) == 1;
    return true;
  }
};

}  // namespace fugu
