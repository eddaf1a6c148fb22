/* What the parts of the sandbox's extension module share: orders, what the zygote prepared once, and who does what.
 *
 *   sandbox.c          the module, for Python
 *   sandbox_loop.c     the zygote's loop: orders in, forks, ends of processes out
 *   sandbox_child.c    what a fork does up to the program's first line and after its last
 *   sandbox_pages.c    memory that forks cheaply
 */
#pragma once
#define _GNU_SOURCE
#define PY_SSIZE_T_CLEAN
#define Py_LIMITED_API 0x030B0000 /* the stable interface of Python 3.11 and later, whatever interpreter it was built with */
#include <Python.h>
#include <signal.h>
#include <stdint.h>

enum { NAMESPACES = 1, MOUNTS = 2, PROCESS_LIMIT = 4, LANDLOCK = 8, SECCOMP = 16 };

/* wire.REQUEST */
struct __attribute__((packed)) order {
    uint8_t kind;
    uint64_t execution;
    double cpu_s, wall_s;
    uint64_t memory;
    uint32_t processes, open_files;
    uint64_t file_bytes, disk_bytes, seed;
    uint8_t program, mode, urgent;
};

/* child.Doors: what the zygote prepared once. Of each pair, the first is for compute and the second for program. */
enum { READABLE = 64 };
struct doors {
    int32_t control, own_namespace, plan, group, landlock_version, readable_count;
    int32_t readable[READABLE];
    uint64_t rights[2][READABLE]; /* rules for plain files must not carry rights of directories, so each has its own */
    const void *filters[2];
    uint64_t filter_lengths[2];
};

/* program.Hooks: fetched once in the zygote, so that a child looks nothing up. All are borrowed from a tuple that is never freed. */
enum { SEED, COMPILE, NAME, MODE, FLAGS, ALONE, GLOBALS, FLUSH, THREADS_RUNNING, EXIT_HANDLERS, GIVE_UP, FAILED, FINISH, GO, HOOKS };

/* tree.Trees: `begin`, `look` and `end`, None where no program may have several processes. Called in the zygote. */
enum { TREE_BEGIN, TREE_LOOK, TREE_END, TREES };

#pragma GCC visibility push(hidden)
extern PyObject *fugu_hooks[HOOKS], *fugu_trees[TREES];
/* Serves until the control socket closes, and then ends the process. */
void fugu_serve(const struct doors *doors);
/* In the child: ends the process when the program has. `descriptors` are the channel, stdout and stderr, `mask` the signals before. */
_Noreturn void fugu_run_program(const struct order *order, const struct doors *doors, int parent, const int *descriptors, const sigset_t *mask);
/* ``maps`` is an open /proc/self/maps; there must be no other thread. */
void fugu_move_to_huge_pages(int maps);
#pragma GCC visibility pop
