// Value -> row, the fast path of src/fugu/spaces/pack.py (the reference, which also explains what does not fit).
//
// A Plan is the tree of a space's Dict, Tuple, array and text nodes with byte offsets. pack() walks a Python value along
// it and copies each leaf into the row. Anything unexpected (another type, dtype, shape, key, a NaN) returns false: the
// caller then runs the reference, which accepts it slowly or raises the error a person can read. So a false answer is
// always safe, and a true one is only given where the reference would write the same bytes. No Python error is left set.
#pragma once

#include <nanobind/nanobind.h>

#define NPY_NO_DEPRECATED_API NPY_2_0_API_VERSION
#include <numpy/arrayobject.h>
#include <numpy/arrayscalars.h>

#include <algorithm>
#include <cmath>
#include <cstdint>
#include <cstring>
#include <string>
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
  int type_num = 0;                                        // array
  PyTypeObject* scalar_type = nullptr;                     // numpy's own, never freed
  bool is_integer = false;
  bool any_integer = false;  // whatever its dtype: a Discrete
  bool finite = false;       // check it
  bool ranged = false;       // check it
  std::vector<npy_intp> shape;
  std::string low, high;  // inclusive range, one item of the leaf's type per element

  std::unordered_map<uint32_t, uint32_t> codes;  // text

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
      itemsize = item_size(type_num, &scalar_type);
      shape = dims(parts[3]);
      count = 1;
      for (npy_intp dim : shape) count *= static_cast<size_t>(dim);
      nbytes = itemsize * count;
      finite = nb::cast<bool>(parts[4]);
      is_integer = PyTypeNum_ISINTEGER(type_num);
      any_integer = nb::cast<bool>(parts[5]);
      ranged = !parts[6].is_none();
      if (ranged) {
        nb::tuple range = nb::cast<nb::tuple>(parts[6]);
        low = raw(range[0]);
        high = raw(range[1]);
        if (low.size() != nbytes || high.size() != nbytes) throw nb::value_error("plan: one range per element");
      }
    }
  }

  // Where the last byte that pack() may write lies.
  size_t end() const {
    size_t last = offset + nbytes;
    for (const Node& child : children) last = std::max(last, child.end());
    return last;
  }

  static std::vector<npy_intp> dims(nb::handle shape) {
    std::vector<npy_intp> out;
    for (nb::handle dim : nb::cast<nb::tuple>(shape)) out.push_back(nb::cast<npy_intp>(dim));
    return out;
  }

  static bool same_shape(PyArrayObject* array, const std::vector<npy_intp>& shape) {
    if (static_cast<size_t>(PyArray_NDIM(array)) != shape.size()) return false;
    for (size_t d = 0; d < shape.size(); ++d)
      if (PyArray_DIM(array, static_cast<int>(d)) != shape[d]) return false;
    return true;
  }

  static size_t item_size(int type_num, PyTypeObject** scalar_type = nullptr) {
    PyArray_Descr* descr = PyArray_DescrFromType(type_num);
    if (descr == nullptr) throw nb::python_error();
    if (scalar_type != nullptr) *scalar_type = descr->typeobj;
    const auto size = static_cast<size_t>(PyDataType_ELSIZE(descr));
    Py_DECREF(descr);
    return size;
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
  static std::string raw(nb::handle object) {
    nb::bytes bytes = nb::cast<nb::bytes>(object);
    return {bytes.c_str(), bytes.size()};
  }

  // Only types whose lookup is dict's own: a subclass may compute its items.
  bool pack_dict(PyObject* value, char* row) const {
    if (!PyDict_CheckExact(value) && !PyODict_CheckExact(value)) return false;
    if (PyDict_GET_SIZE(value) != static_cast<Py_ssize_t>(keys.size())) return false;
    for (size_t i = 0; i < keys.size(); ++i) {
      PyObject* part = PyDict_GetItemWithError(value, keys[i].ptr());
      if (part == nullptr) {
        PyErr_Clear();
        return false;
      }
      Py_INCREF(part);  // a key's __eq__ or a number's __index__ may run Python code that empties the dict
      const bool packed = children[i].pack(part, row);
      Py_DECREF(part);
      if (!packed) return false;
    }
    return true;
  }

  bool pack_tuple(PyObject* value, char* row) const {
    if (!PyTuple_CheckExact(value) || PyTuple_GET_SIZE(value) != static_cast<Py_ssize_t>(children.size())) return false;
    for (size_t i = 0; i < children.size(); ++i)
      if (!children[i].pack(PyTuple_GET_ITEM(value, static_cast<Py_ssize_t>(i)), row)) return false;
    return true;
  }

  bool pack_text(PyObject* value, char* row) const {
    if (!PyUnicode_CheckExact(value)) return false;
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
      if (!same_shape(array, shape) || !PyArray_IS_C_CONTIGUOUS(array)) return false;
      std::memmove(out, PyArray_DATA(array), nbytes);  // the env may hold a view of this very row
    } else if (!shape.empty()) {
      return false;
    } else if (is_integer && PyLong_Check(value)) {
      if (!store_integer(value, out)) return false;
    } else if (Py_TYPE(value) == scalar_type) {
      PyArray_ScalarAsCtype(value, out);
    } else if (any_integer && PyArray_IsScalar(value, Integer)) {
      if (!store_other_integer(value, out)) return false;
    } else if (type_num == NPY_FLOAT && PyFloat_CheckExact(value)) {
      const float number = static_cast<float>(PyFloat_AS_DOUBLE(value));
      std::memcpy(out, &number, sizeof number);
    } else if (type_num == NPY_DOUBLE && PyFloat_CheckExact(value)) {
      const double number = PyFloat_AS_DOUBLE(value);
      std::memcpy(out, &number, sizeof number);
    } else {
      return false;
    }
    return (!ranged || in_range(out)) && (!finite || is_finite(out));
  }

  bool store_other_integer(PyObject* value, char* out) const {
    PyObject* index = PyNumber_Index(value);
    if (index == nullptr) {
      PyErr_Clear();
      return false;
    }
    const bool stored = store_integer(index, out);
    Py_DECREF(index);
    return stored;
  }

  bool store_integer(PyObject* value, char* out) const {
    int overflow = 0;
    const int64_t number = PyLong_AsLongLongAndOverflow(value, &overflow);
    if (overflow != 0) return false;
    switch (type_num) {  // a value that does not survive the narrowing is left to the reference to explain
      case NPY_BYTE: return store<int8_t>(number, out);
      case NPY_UBYTE: return store<uint8_t>(number, out);
      case NPY_SHORT: return store<int16_t>(number, out);
      case NPY_USHORT: return store<uint16_t>(number, out);
      case NPY_INT: return store<int32_t>(number, out);
      case NPY_UINT: return store<uint32_t>(number, out);
      default:
        if (itemsize != sizeof number || (PyTypeNum_ISUNSIGNED(type_num) && number < 0)) return false;
        std::memcpy(out, &number, sizeof number);
        return true;
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
    for (size_t i = 0; i < nbytes; i += sizeof(T)) {
      T item, least, most;
      std::memcpy(&item, data + i, sizeof(T));
      std::memcpy(&least, low.data() + i, sizeof(T));
      std::memcpy(&most, high.data() + i, sizeof(T));
      if (item < least || item > most) return false;
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
      default:
        if (itemsize != sizeof(int64_t)) return false;
        return PyTypeNum_ISUNSIGNED(type_num) ? in_range_as<uint64_t>(data) : in_range_as<int64_t>(data);
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
  int type_num;  // of a row
  std::vector<npy_intp> shape;
  Node root;

  explicit Plan(nb::handle plan) : Plan(nb::cast<nb::tuple>(plan)) {}

  bool pack(nb::handle value, nb::handle row) const {
    return fits(row) && root.pack(value.ptr(), static_cast<char*>(PyArray_DATA(reinterpret_cast<PyArrayObject*>(row.ptr()))));
  }

  // Whether `row` is memory for one row; nothing is written to anything else.
  bool fits(nb::handle row) const {
    if (!PyArray_Check(row.ptr())) return false;
    auto* array = reinterpret_cast<PyArrayObject*>(row.ptr());
    return PyArray_TYPE(array) == type_num && PyArray_ISNOTSWAPPED(array) && Node::same_shape(array, shape) &&
           PyArray_IS_C_CONTIGUOUS(array) && PyArray_ISWRITEABLE(array);
  }

 private:
  explicit Plan(const nb::tuple& parts) : type_num(nb::cast<int>(parts[1])), shape(Node::dims(parts[2])), root(parts[3]) {
    size_t nbytes = Node::item_size(type_num);
    for (npy_intp dim : shape) nbytes *= static_cast<size_t>(dim);
    if (root.end() > nbytes) throw nb::value_error("plan: a leaf lies outside the row");
  }
};

}  // namespace fugu
