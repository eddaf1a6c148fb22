// Value -> row, the fast path of src/fugu/spaces/pack.py (the reference, which also explains what does not fit).
//
// A Plan is the tree of a space's Dict, Tuple, array and text nodes with byte offsets. pack() walks a Python value along
// it and copies each leaf into the row. Anything unexpected (another type, dtype, shape, key, a NaN) returns false: the
// caller then runs the reference, which accepts it slowly or raises the error a person can read.
#pragma once

#include <nanobind/nanobind.h>

#define NPY_NO_DEPRECATED_API NPY_2_0_API_VERSION
#include <numpy/arrayobject.h>
#include <numpy/arrayscalars.h>

#include <cmath>
#include <cstdint>
#include <cstring>
#include <unordered_map>
#include <vector>

namespace nb = nanobind;

namespace fugu {

// Bit patterns rather than isfinite(): integer compares vectorise without -ffast-math.
template <typename Bits>
inline bool all_finite(const char* data, size_t count, Bits exponent) {
  Bits bad = 0;
  for (size_t i = 0; i < count; ++i) {
    Bits bits;
    std::memcpy(&bits, data + i * sizeof(Bits), sizeof(Bits));
    bad |= static_cast<Bits>((bits & exponent) == exponent);
  }
  return bad == 0;
}

struct Node {
  enum Kind { kDict, kTuple, kArray, kText } kind;

  std::vector<nb::object> keys;  // dict
  std::vector<Node> children;    // dict, tuple

  size_t offset = 0, itemsize = 0, nbytes = 0, count = 0;  // array, text
  int type_num = 0;
  bool is_integer = false, finite = false;
  std::vector<npy_intp> shape;
  std::vector<int64_t> low, high;  // inclusive range per element; empty: no check
  std::unordered_map<uint32_t, uint32_t> codes;

  explicit Node(nb::handle plan) {
    nb::tuple parts = nb::cast<nb::tuple>(plan);
    const std::string name = nb::cast<nb::str>(parts[0]).c_str();
    if (name == "dict") {
      kind = kDict;
      for (nb::handle key : nb::cast<nb::tuple>(parts[1])) keys.push_back(nb::borrow(key));
      for (nb::handle child : nb::cast<nb::tuple>(parts[2])) children.emplace_back(child);
    } else if (name == "tuple") {
      kind = kTuple;
      for (nb::handle child : nb::cast<nb::tuple>(parts[1])) children.emplace_back(child);
    } else if (name == "text") {
      kind = kText;
      offset = nb::cast<size_t>(parts[1]);
      itemsize = nb::cast<size_t>(parts[2]);
      count = nb::cast<size_t>(parts[3]);
      nbytes = itemsize * count;
      for (auto [key, code] : nb::cast<nb::dict>(parts[4]))
        codes[PyUnicode_ReadChar(key.ptr(), 0)] = nb::cast<uint32_t>(code);
    } else {
      kind = kArray;
      offset = nb::cast<size_t>(parts[1]);
      type_num = nb::cast<int>(parts[2]);
      itemsize = nb::cast<size_t>(parts[3]);
      count = 1;
      for (nb::handle dim : nb::cast<nb::tuple>(parts[4])) {
        shape.push_back(nb::cast<npy_intp>(dim));
        count *= static_cast<size_t>(shape.back());
      }
      nbytes = itemsize * count;
      finite = nb::cast<bool>(parts[5]);
      is_integer = PyTypeNum_ISINTEGER(type_num);
      if (!parts[6].is_none()) {
        nb::tuple range = nb::cast<nb::tuple>(parts[6]);
        low = int64s(range[0]);
        high = int64s(range[1]);
      }
    }
  }

  bool pack(PyObject* value, char* row) const {
    switch (kind) {
      case kDict: return pack_dict(value, row);
      case kTuple: return pack_tuple(value, row);
      case kText: return pack_text(value, row);
      default: return pack_array(value, row);
    }
  }

 private:
  static std::vector<int64_t> int64s(nb::handle array) {
    auto* a = reinterpret_cast<PyArrayObject*>(array.ptr());
    auto* data = static_cast<const int64_t*>(PyArray_DATA(a));
    return {data, data + PyArray_SIZE(a)};
  }

  bool pack_dict(PyObject* value, char* row) const {
    if (!PyDict_Check(value) || PyDict_Size(value) != static_cast<Py_ssize_t>(keys.size())) return false;
    for (size_t i = 0; i < keys.size(); ++i) {
      PyObject* part = PyDict_GetItemWithError(value, keys[i].ptr());
      if (part == nullptr) {
        PyErr_Clear();
        return false;
      }
      if (!children[i].pack(part, row)) return false;
    }
    return true;
  }

  bool pack_tuple(PyObject* value, char* row) const {
    if (!PyTuple_Check(value) || PyTuple_GET_SIZE(value) != static_cast<Py_ssize_t>(children.size())) return false;
    for (size_t i = 0; i < children.size(); ++i)
      if (!children[i].pack(PyTuple_GET_ITEM(value, static_cast<Py_ssize_t>(i)), row)) return false;
    return true;
  }

  bool pack_text(PyObject* value, char* row) const {
    if (!PyUnicode_Check(value)) return false;
    const Py_ssize_t length = PyUnicode_GET_LENGTH(value);
    if (static_cast<size_t>(length) > count) return false;
    const int width = PyUnicode_KIND(value);
    const void* chars = PyUnicode_DATA(value);
    std::memset(row + offset, 0, nbytes);
    for (Py_ssize_t i = 0; i < length; ++i) {
      auto found = codes.find(PyUnicode_READ(width, chars, i));
      if (found == codes.end()) return false;
      // little-endian: the low bytes of the code come first, whatever the leaf's width
      std::memcpy(row + offset + static_cast<size_t>(i) * itemsize, &found->second, itemsize);
    }
    return true;
  }

  bool pack_array(PyObject* value, char* row) const {
    char* out = row + offset;
    if (PyArray_Check(value)) {
      auto* array = reinterpret_cast<PyArrayObject*>(value);
      if (PyArray_TYPE(array) != type_num || !PyArray_ISNOTSWAPPED(array)) return false;
      if (static_cast<size_t>(PyArray_NDIM(array)) != shape.size()) return false;
      for (size_t d = 0; d < shape.size(); ++d)
        if (PyArray_DIM(array, static_cast<int>(d)) != shape[d]) return false;
      if (!PyArray_IS_C_CONTIGUOUS(array)) return false;
      std::memcpy(out, PyArray_DATA(array), nbytes);
    } else if (!shape.empty()) {
      return false;
    } else if (is_integer && (PyLong_Check(value) || (!low.empty() && PyArray_IsScalar(value, Integer)))) {
      if (!store_integer(value, out)) return false;
    } else if (type_num == NPY_FLOAT && PyFloat_CheckExact(value)) {
      const float number = static_cast<float>(PyFloat_AS_DOUBLE(value));
      std::memcpy(out, &number, sizeof number);
    } else if (type_num == NPY_DOUBLE && PyFloat_CheckExact(value)) {
      const double number = PyFloat_AS_DOUBLE(value);
      std::memcpy(out, &number, sizeof number);
    } else {
      return false;
    }
    return (low.empty() || in_range(out)) && (!finite || is_finite(out));
  }

  bool store_integer(PyObject* value, char* out) const {
    int64_t number;
    if (PyLong_Check(value)) {
      int overflow = 0;
      number = PyLong_AsLongLongAndOverflow(value, &overflow);
      if (overflow != 0) return false;
    } else {
      PyObject* index = PyNumber_Index(value);
      if (index == nullptr) {
        PyErr_Clear();
        return false;
      }
      int overflow = 0;
      number = PyLong_AsLongLongAndOverflow(index, &overflow);
      Py_DECREF(index);
      if (overflow != 0) return false;
    }
    switch (type_num) {  // a value that does not survive the narrowing is left to the reference to explain
      case NPY_BYTE: return store<int8_t>(number, out);
      case NPY_UBYTE: return store<uint8_t>(number, out);
      case NPY_SHORT: return store<int16_t>(number, out);
      case NPY_USHORT: return store<uint16_t>(number, out);
      case NPY_INT: return store<int32_t>(number, out);
      case NPY_UINT: return store<uint32_t>(number, out);
      default:
        if (PyTypeNum_ISUNSIGNED(type_num) && number < 0) return false;
        std::memcpy(out, &number, sizeof number);
        return itemsize == sizeof number;
    }
  }

  template <typename T>
  static bool store(int64_t number, char* out) {
    const T narrow = static_cast<T>(number);
    std::memcpy(out, &narrow, sizeof narrow);
    return static_cast<int64_t>(narrow) == number;
  }

  template <typename T>
  bool in_range_as(const char* data) const {
    for (size_t i = 0; i < count; ++i) {
      T item;
      std::memcpy(&item, data + i * sizeof(T), sizeof(T));
      const auto number = static_cast<int64_t>(item);
      if (number < low[i] || number > high[i]) return false;
    }
    return true;
  }

  bool in_range(const char* data) const {
    switch (type_num) {
      case NPY_BYTE: return in_range_as<int8_t>(data);
      case NPY_UBYTE: return in_range_as<uint8_t>(data);
      case NPY_SHORT: return in_range_as<int16_t>(data);
      case NPY_USHORT: return in_range_as<uint16_t>(data);
      case NPY_INT: return in_range_as<int32_t>(data);
      case NPY_UINT: return in_range_as<uint32_t>(data);
      default: return itemsize == 8 && !PyTypeNum_ISUNSIGNED(type_num) && in_range_as<int64_t>(data);
    }
  }

  bool is_finite(const char* data) const {
    switch (itemsize) {
      case 2: return all_finite<uint16_t>(data, count, 0x7c00u);
      case 4: return all_finite<uint32_t>(data, count, 0x7f800000u);
      default: return all_finite<uint64_t>(data, count, 0x7ff0000000000000ull);
    }
  }
};

struct Plan {
  Node root;
  explicit Plan(nb::handle plan) : root(plan) {}

  bool pack(nb::handle value, nb::handle row) const {
    if (!PyArray_Check(row.ptr())) return false;
    auto* array = reinterpret_cast<PyArrayObject*>(row.ptr());
    if (!PyArray_IS_C_CONTIGUOUS(array) || !PyArray_ISWRITEABLE(array)) return false;
    return root.pack(value.ptr(), static_cast<char*>(PyArray_DATA(array)));
  }
};

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
    plan = nb::inst_ptr<Plan>(plan_owner);
    obs_at = static_cast<char*>(data(obs, -1));
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
    if (!PyArray_Check(object.ptr())) throw nb::type_error("RowWriter takes numpy arrays");
    auto* array = reinterpret_cast<PyArrayObject*>(object.ptr());
    if (!PyArray_IS_C_CONTIGUOUS(array) || !PyArray_ISWRITEABLE(array))
      throw nb::value_error("RowWriter needs contiguous, writable arrays");
    if (type_num >= 0 && (PyArray_TYPE(array) != type_num || PyArray_SIZE(array) < 1))
      throw nb::type_error("RowWriter: reward must be float32 and the flags bool, one element each");
    return PyArray_DATA(array);
  }

  static bool number(PyObject* value, float& out) {
    double number;
    if (PyFloat_Check(value)) {
      number = PyFloat_AS_DOUBLE(value);
    } else if (PyLong_Check(value) || PyArray_IsScalar(value, Number) ||
               (PyArray_Check(value) && PyArray_NDIM(reinterpret_cast<PyArrayObject*>(value)) == 0)) {
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
