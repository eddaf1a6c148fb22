/* The zygote's loop and what a fork does, for Python: src/fugu/coding/sandbox/loop.py, child.py and program.py in C. And system calls
 * for those modules, which would otherwise need ctypes.
 *
 * Why in C: after a fork every page that either side touches is copied, and Python touches hundreds to make a dozen system calls. Here
 * the child gets to the program's first line, and the zygote to its next fork, with a few dozen. */
#include "sandbox.h"

#include <malloc.h>
#include <unistd.h>

/* serve(maps, control, own_namespace, plan, group, landlock_version, readable, rights of compute, of program, filter of compute, of program, hooks, begin, look, end, what is only kept) */
static PyObject *module_serve(PyObject *Py_UNUSED(self), PyObject *arguments) {
    static struct doors doors; /* of a zygote there is one */
    PyObject *readable, *rights[2], *given, *filling;
    Py_ssize_t lengths[2];
    int maps;
    if (!PyArg_ParseTuple(arguments, "iiiiiiO!O!O!z#z#O!OOOO", &maps, &doors.control, &doors.own_namespace, &doors.plan, &doors.group, &doors.landlock_version,
                          &PyTuple_Type, &readable, &PyTuple_Type, &rights[0], &PyTuple_Type, &rights[1], &doors.filters[0],
                          &lengths[0], &doors.filters[1], &lengths[1], &PyTuple_Type, &given, &fugu_trees[TREE_BEGIN], &fugu_trees[TREE_LOOK],
                          &fugu_trees[TREE_END], &filling))
        return NULL;
    doors.readable_count = (int32_t)PyTuple_Size(readable);
    if (doors.readable_count > READABLE || PyTuple_Size(rights[0]) != doors.readable_count ||
        PyTuple_Size(rights[1]) != doors.readable_count || PyTuple_Size(given) != HOOKS) {
        PyErr_SetString(PyExc_ValueError, "the numbers of descriptors, rights or hooks do not fit");
        return NULL;
    }
    for (int index = 0; index < doors.readable_count; index++) {
        doors.readable[index] = (int32_t)PyLong_AsLong(PyTuple_GetItem(readable, index));
        for (int kind = 0; kind < 2; kind++) doors.rights[kind][index] = PyLong_AsUnsignedLongLong(PyTuple_GetItem(rights[kind], index));
    }
    for (int kind = 0; kind < 2; kind++) doors.filter_lengths[kind] = (uint64_t)lengths[kind] / 8;
    if (PyErr_Occurred()) return NULL;
    Py_INCREF(arguments);
    for (int index = 0; index < HOOKS; index++) fugu_hooks[index] = PyTuple_GetItem(given, index);
#ifdef __GLIBC__
    malloc_trim(0); /* what was used to get here and is free again would be copied, too */
#endif
    fugu_move_to_huge_pages(maps);
    close(maps);
    fugu_serve(&doors);
    return NULL;
}

/* syscall(number, ...): each argument an int, bytes (their address) or None. What the kernel answers; OSError where it is -1. */
static PyObject *module_syscall(PyObject *Py_UNUSED(self), PyObject *arguments) {
    long values[7] = {0};
    Py_ssize_t count = PyTuple_Size(arguments);
    if (count < 1 || count > 7) {
        PyErr_SetString(PyExc_TypeError, "syscall takes a number and up to six arguments");
        return NULL;
    }
    for (Py_ssize_t index = 0; index < count; index++) {
        PyObject *each = PyTuple_GetItem(arguments, index);
        if (each == Py_None) continue;
        values[index] = PyBytes_Check(each) ? (long)PyBytes_AsString(each) : PyLong_AsLong(each);
        if (PyErr_Occurred()) return NULL;
    }
    long result = syscall(values[0], values[1], values[2], values[3], values[4], values[5], values[6]);
    return result == -1 ? PyErr_SetFromErrno(PyExc_OSError) : PyLong_FromLong(result);
}

/* address(bytes): where they are, for structures that point to others. */
static PyObject *module_address(PyObject *Py_UNUSED(self), PyObject *bytes) {
    char *where = PyBytes_AsString(bytes);
    return where ? PyLong_FromVoidPtr(where) : NULL;
}

static PyMethodDef methods[] = {
    {"serve", module_serve, METH_VARARGS, NULL},
    {"syscall", module_syscall, METH_VARARGS, NULL},
    {"address", module_address, METH_O, NULL},
    {NULL, NULL, 0, NULL},
};

static struct PyModuleDef definition = {PyModuleDef_HEAD_INIT, .m_name = "_sandbox", .m_size = -1, .m_methods = methods};

PyMODINIT_FUNC PyInit__sandbox(void) { return PyModule_Create(&definition); }
