/* What a fork of the zygote does up to the program's first line and after its last, as src/fugu/coding/sandbox/child.py and program.py
 * do it: those are the readable reference and the fallback, step by step the same; tests run both. */
#include "sandbox.h"

#include <errno.h>
#include <fcntl.h>
#include <sched.h>
#include <stdio.h>
#include <string.h>
#include <sys/mount.h>
#include <sys/prctl.h>
#include <sys/resource.h>
#include <sys/syscall.h>
#include <unistd.h>

/* The same on every architecture. */
#define CALL_CLOSE_RANGE 436
#define CALL_LANDLOCK_CREATE 444
#define CALL_LANDLOCK_ADD 445
#define CALL_LANDLOCK_RESTRICT 446

enum { STDIO = 0 };
enum { READY = 4, SETUP_FAILED = 5 };
enum { CHANNEL = 3, THREADS = 16, SETUP_EXIT = 70 };
static const uint64_t STACK = 64ull << 20;
static const unsigned long SECUREBITS_LOCKED = 0xEF;

/* Each step names itself, so that a failure can be told. */
#define STEP(call, what)  \
    do {                  \
        if ((call) < 0) { \
            *step = what; \
            return -1;    \
        }                 \
    } while (0)

static int limit(int kind, uint64_t soft, uint64_t hard) {
    struct rlimit have, want;
    if (getrlimit(kind, &have) < 0) return -1;
    want.rlim_max = hard < have.rlim_max ? hard : have.rlim_max; /* raising is not ours to do */
    want.rlim_cur = soft < have.rlim_max ? soft : have.rlim_max;
    return setrlimit(kind, &want);
}

static int read_all(int from, void *to, size_t size) {
    char *at = to;
    while (size) {
        ssize_t part = read(from, at, size);
        if (part < 0 && errno == EINTR) continue;
        if (part <= 0) {
            if (part == 0) errno = EPIPE;
            return -1;
        }
        at += part;
        size -= (size_t)part;
    }
    return 0;
}

/* The channel begins with the sizes of stdin, source and names. stdin comes first and is put in place here. */
static int take_stdin(uint32_t sizes[3]) {
    static char buffer[1 << 16];
    if (read_all(CHANNEL, sizes, 12) < 0) return -1;
    if (!sizes[0]) { /* an empty pipe of its own: flags, mode and times of one that all share would be a letter box */
        int ends[2];
        return pipe2(ends, O_CLOEXEC) < 0 || dup2(ends[0], 0) < 0 || close(ends[0]) < 0 ? -1 : close(ends[1]);
    }
    int file = (int)syscall(SYS_memfd_create, "stdin", 1u /* close on exec */);
    if (file < 0) return -1;
    for (size_t left = sizes[0]; left;) {
        size_t part = left < sizeof buffer ? left : sizeof buffer;
        if (read_all(CHANNEL, buffer, part) < 0) return -1;
        for (size_t written = 0; written < part;) {
            ssize_t some = write(file, buffer + written, part - written);
            if (some < 0) return -1;
            written += (size_t)some;
        }
        left -= part;
    }
    return lseek(file, 0, SEEK_SET) < 0 || dup2(file, 0) < 0 ? -1 : 0;
}

static int allow(int ruleset, int descriptor, uint64_t rights) {
    struct __attribute__((packed)) {
        uint64_t rights;
        int32_t descriptor;
    } rule = {rights, descriptor};
    return (int)syscall(CALL_LANDLOCK_ADD, ruleset, 1, &rule, 0);
}

/* landlock.restrict */
static int restrict_files(const struct doors *doors, int writable, int execute) {
    const int version = doors->landlock_version;
    uint64_t rights = (1u << 13) - 1;
    if (version >= 2) rights |= 1u << 13;
    if (version >= 3) rights |= 1u << 14;
    if (version >= 5) rights |= 1u << 15;
    uint64_t attributes[3] = {rights, 3, 3};
    size_t size = version >= 6 ? 24 : version >= 4 ? 16 : 8;
    int ruleset = (int)syscall(CALL_LANDLOCK_CREATE, attributes, size, 0);
    if (ruleset < 0) return -1;
    for (int index = 0; index < doors->readable_count; index++)
        if (allow(ruleset, doors->readable[index], doors->rights[execute][index] & rights) < 0) return -1;
    if (writable >= 0 && allow(ruleset, writable, execute ? rights : rights & ~1ull) < 0) return -1;
    if (syscall(CALL_LANDLOCK_RESTRICT, ruleset, 0) < 0) return -1;
    return close(ruleset);
}

/* cgroup.join */
static int join(int group, uint64_t execution) {
    char path[40];
    snprintf(path, sizeof path, "%llu/cgroup.procs", (unsigned long long)execution);
    int file = openat(group, path, O_WRONLY | O_CLOEXEC);
    return file < 0 || write(file, "0", 1) < 0 ? -1 : close(file);
}

static int lock(const struct order *order, const struct doors *doors, int parent, const char **step) {
    const int plan = doors->plan;
    int writable = -1;
    STEP(setsid(), "setsid");
    if (order->program && doors->group >= 0) STEP(join(doors->group, order->execution), "join control group");
    if (plan & MOUNTS) {
        char options[80];
        /* What IPC namespaces keep apart is refused by the filter already, where there is one; they are dear. */
        STEP(unshare(CLONE_NEWNS | (plan & SECCOMP ? 0 : CLONE_NEWIPC)), "unshare mounts");
        snprintf(options, sizeof options, "mode=700,size=%llu,nr_inodes=256", (unsigned long long)order->disk_bytes);
        unsigned long flags = MS_NOSUID | MS_NODEV | (order->program ? 0 : MS_NOEXEC);
        STEP(mount("tmpfs", "/tmp", "tmpfs", flags, options), "mount /tmp");
        STEP(chdir("/tmp"), "chdir");
        STEP(writable = open("/tmp", O_PATH | O_DIRECTORY), "open /tmp");
    }
    if (plan & NAMESPACES) {
        /* After the mounts, over which it has no power, and before the limit on processes, which is counted per namespace. */
        STEP(unshare(CLONE_NEWUSER), "unshare user");
        STEP(prctl(PR_SET_SECUREBITS, SECUREBITS_LOCKED, 0, 0, 0), "securebits");
    }
    if (plan & PROCESS_LIMIT) {
        uint64_t most = order->program ? order->processes : THREADS;
        STEP(limit(RLIMIT_NPROC, most, most), "limit processes");
    }
    struct {
        uint32_t version;
        int pid;
    } header = {0x20080522, 0};
    uint32_t none[6] = {0};
    STEP(syscall(SYS_capset, &header, none), "capset");
    if (order->program) STEP(prctl(PR_SET_DUMPABLE, 1, 0, 0, 0), "dumpable"); /* so that the zygote may count its memory */
    uint64_t cpu = (uint64_t)order->cpu_s + 1;
    STEP(limit(RLIMIT_CPU, cpu, cpu + 1), "limit cpu");
    STEP(limit(RLIMIT_FSIZE, order->file_bytes, order->file_bytes), "limit file size");
    STEP(limit(RLIMIT_STACK, STACK, STACK), "limit stack");
    STEP(limit(RLIMIT_CORE, 0, 0), "limit core");
    STEP(limit(RLIMIT_MEMLOCK, 0, 0), "limit locked memory");
    STEP(limit(RLIMIT_MSGQUEUE, 0, 0), "limit queues");
    STEP(limit(RLIMIT_SIGPENDING, 64, 64), "limit signals");
    STEP(limit(RLIMIT_AS, order->memory, order->memory), "limit memory");
    /* After the last change of credentials, which would clear it. */
    STEP(prctl(PR_SET_PDEATHSIG, SIGKILL, 0, 0, 0), "death signal");
    if (!(plan & NAMESPACES) && getppid() != parent) {
        errno = ESRCH;
        *step = "the zygote is gone";
        return -1;
    }
    STEP(prctl(PR_SET_NO_NEW_PRIVS, 1, 0, 0, 0), "no_new_privs");
    if (plan & LANDLOCK) {
        STEP(restrict_files(doors, writable, order->program ? 1 : 0), "landlock");
    }
    /* Only now: the zygote holds the descriptors of orders that wait, above the limit perhaps. */
    STEP(syscall(CALL_CLOSE_RANGE, CHANNEL + 1, ~0u, 0), "close_range");
    STEP(limit(RLIMIT_NOFILE, order->open_files, order->open_files), "limit files");
    if (plan & SECCOMP) {
        const void *filter = doors->filters[order->program ? 1 : 0];
        struct {
            unsigned short length;
            const void *filter;
        } program = {(unsigned short)doors->filter_lengths[order->program ? 1 : 0], filter};
        if (!filter) errno = ENOSYS;
        STEP(filter ? syscall(SYS_seccomp, 1, 0, &program) : -1, "seccomp");
    }
    return 0;
}

static int become(const struct order *order, const struct doors *doors, int parent, const int *descriptors, const sigset_t *mask,
                  uint32_t sizes[3], const char **step) {
    STEP(sigprocmask(SIG_SETMASK, mask, NULL), "signal mask");
    STEP(dup2(descriptors[1], 1), "stdout");
    STEP(dup2(descriptors[2], 2), "stderr");
    if (descriptors[0] != CHANNEL) STEP(dup2(descriptors[0], CHANNEL), "channel");
    STEP(take_stdin(sizes), "stdin");
    return lock(order, doors, parent, step);
}

/* wire.frame */
static void write_frame(uint8_t kind, const char *text) {
    struct __attribute__((packed)) {
        uint8_t kind;
        uint32_t size;
        char text[500];
    } frame = {.kind = kind};
    size_t size = strlen(text);
    frame.size = (uint32_t)(size < sizeof frame.text ? size : sizeof frame.text);
    memcpy(frame.text, text, frame.size);
    while (write(CHANNEL, &frame, 5 + frame.size) < 0 && errno == EINTR) {
    }
}

PyObject *fugu_hooks[HOOKS];

static PyObject *exception(void) {
    PyObject *type, *value, *traceback;
    PyErr_Fetch(&type, &value, &traceback);
    PyErr_NormalizeException(&type, &value, &traceback);
    if (traceback) PyException_SetTraceback(value, traceback);
    Py_DecRef(type);
    Py_DecRef(traceback);
    return value;
}

/* program._finish and _flushed */
static int finish(int code) {
    PyObject *handlers = PyObject_CallNoArgs(fugu_hooks[EXIT_HANDLERS]);
    long count = handlers ? PyLong_AsLong(handlers) : 1;
    PyErr_Clear();
    if (count || PyDict_Size(fugu_hooks[THREADS_RUNNING]) > 1) {
        PyObject *known = PyObject_CallFunction(fugu_hooks[FINISH], "i", code);
        long result = known ? PyLong_AsLong(known) : 1;
        return PyErr_Occurred() ? 1 : (int)result;
    }
    const char *names[] = {"stdout", "__stdout__", "stderr"};
    PyObject *before = NULL;
    for (int index = 0; index < 3; index++) {
        PyObject *stream = PySys_GetObject(names[index]);
        if (stream && stream == before) continue; /* stdout, twice */
        before = stream;
        if (!stream || !PyObject_CallMethodObjArgs(stream, fugu_hooks[FLUSH], NULL)) {
            PyErr_Clear();
            if (!code) code = 120;
        }
    }
    return code;
}

/* program.begin */
static _Noreturn void begin(const struct order *order, const uint32_t sizes[3]) {
    PyObject *source = PyBytes_FromStringAndSize(NULL, sizes[1]), *names = PyBytes_FromStringAndSize(NULL, sizes[2]);
    PyObject *seed = PyLong_FromUnsignedLongLong(order->seed);
    int known = source && names && seed;
    if (known && (read_all(CHANNEL, PyBytes_AsString(source), sizes[1]) < 0 || read_all(CHANNEL, PyBytes_AsString(names), sizes[2]) < 0)) {
        PyErr_SetFromErrno(PyExc_OSError);
        known = 0;
    }
    if (!known || !PyObject_CallFunctionObjArgs(fugu_hooks[SEED], seed, NULL)) {
        PyObject_CallFunctionObjArgs(fugu_hooks[GIVE_UP], exception(), NULL);
        _exit(SETUP_EXIT);
    }
    PyGC_Enable();
    write_frame(READY, "");
    if (order->mode != STDIO) {
        PyObject_CallFunction(fugu_hooks[GO], "iOO", (int)order->mode, source, names);
        _exit(1); /* which it never comes back from */
    }
    close(CHANNEL);
    PyObject *code = PyObject_CallFunctionObjArgs(fugu_hooks[COMPILE], source, fugu_hooks[NAME], fugu_hooks[MODE], fugu_hooks[FLAGS], fugu_hooks[ALONE], NULL);
    int left = 0;
    if (!code || !PyEval_EvalCode(code, fugu_hooks[GLOBALS], fugu_hooks[GLOBALS])) {
        PyObject *error = exception(), *result = PyObject_CallFunctionObjArgs(fugu_hooks[FAILED], error, source, NULL);
        left = result ? (int)PyLong_AsLong(result) : 1;
        if (PyErr_Occurred()) left = 1;
        PyErr_Clear();
        Py_DecRef(error); /* and with it what the functions under way held: files have something to write yet */
    }
    _exit(finish(left));
}

_Noreturn void fugu_run_program(const struct order *order, const struct doors *doors, int parent, const int *descriptors, const sigset_t *mask) {
    uint32_t sizes[3];
    const char *step = "";
    if (become(order, doors, parent, descriptors, mask, sizes, &step) < 0) {
        char text[200];
        snprintf(text, sizeof text, "OSError: [Errno %d] %s: %s", errno, step, strerror(errno));
        write_frame(SETUP_FAILED, text);
        _exit(SETUP_EXIT);
    }
    begin(order, sizes);
}
