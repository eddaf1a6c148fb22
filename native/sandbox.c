/* The zygote's loop and what a fork does up to the program's first line and after its last, as src/fugu/coding/sandbox/loop.py,
 * child.py and program.py do it: those are the readable reference and the fallback, step by step the same; tests run both. And system
 * calls for those modules, which would otherwise need ctypes.
 *
 * Why in C: after a fork every page that either side touches is copied, and Python touches hundreds to make a dozen system calls. Here
 * the child gets to the program's first line, and the zygote to its next fork, with a few dozen. The zygote allocates nothing and reads
 * nothing an agent wrote.
 *
 * An extension module for the stable interface of Python 3.11 and later, whatever interpreter it was built with. */
#define _GNU_SOURCE
#define PY_SSIZE_T_CLEAN
#define Py_LIMITED_API 0x030B0000
#include <Python.h>
#include <errno.h>
#include <fcntl.h>
#include <malloc.h>
#include <poll.h>
#include <sched.h>
#include <signal.h>
#include <stdint.h>
#include <stdio.h>
#include <string.h>
#include <sys/mount.h>
#include <sys/prctl.h>
#include <sys/resource.h>
#include <sys/signalfd.h>
#include <sys/socket.h>
#include <sys/syscall.h>
#include <sys/wait.h>
#include <time.h>
#include <unistd.h>

/* The same on every architecture. */
#define CALL_CLOSE_RANGE 436
#define CALL_LANDLOCK_CREATE 444
#define CALL_LANDLOCK_ADD 445
#define CALL_LANDLOCK_RESTRICT 446

enum { NAMESPACES = 1, MOUNTS = 2, PROCESS_LIMIT = 4, LANDLOCK = 8, SECCOMP = 16 };
enum { RUN = 1, KILL = 2, PING = 3 };
enum { DONE = 3, PONG = 4 };
enum { BY_ITSELF = 0, WALL = 1, CPU = 2, TOLD = 3, NOT_STARTED = 4 };
enum { STDIO = 0 };
enum { READY = 4, SETUP_FAILED = 5 };
enum { CHANNEL = 3, THREADS = 16, MOST = 1024, SETUP_EXIT = 70 };
static const uint64_t STACK = 64ull << 20;
static const unsigned long SECUREBITS_LOCKED = 0xEF;

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

/* wire.REPORT */
struct __attribute__((packed)) report {
    uint8_t kind;
    uint64_t execution;
    int32_t status;
    uint8_t why;
    double cpu_s, wall_s, max_rss_mb, own_mb;
};

/* child.Doors: what the zygote prepared once. Of each pair, the first is for compute and the second for program. */
enum { READABLE = 64 };
struct doors {
    int32_t control, own_namespace, plan, landlock_version, readable_count;
    int32_t readable[READABLE];
    uint64_t rights[2][READABLE]; /* rules for plain files must not carry rights of directories, so each has its own */
    const void *filters[2];
    uint64_t filter_lengths[2];
};

struct running {
    int pid; /* 0: free */
    uint8_t why, state;
    uint64_t execution;
    double started, cpu_s, deadline, next; /* when it has to be looked at again; of one that was killed: when it has to be gone */
    double checked, spent;                 /* when its CPU time was last read, and what it was */
};

struct waiting {
    struct order order;
    int descriptors[3];
};

static struct running table[MOST];
static int used; /* entries of the table that have ever been in use */
static struct waiting line[MOST]; /* a ring */
static int first, waiting;

/* How many may compute at once: see loop.py. */
static const double YOUNG_S = 0.01, BUSY_SHARE = 0.1, UNKILLABLE_S = 10;
enum { MOST_STARTING = 4, MOST_BUSY = 2 };
enum { UNKNOWN, BUSY, IDLE };

static double now(void) {
    struct timespec time;
    clock_gettime(CLOCK_MONOTONIC, &time);
    return (double)time.tv_sec + 1e-9 * (double)time.tv_nsec;
}

static double seconds(struct timeval time) { return (double)time.tv_sec + 1e-6 * (double)time.tv_usec; }

/* ---- In the child. Each step names itself, so that a failure can be told. ---- */

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

static int lock(const struct order *order, const struct doors *doors, int parent, const char **step) {
    const int plan = doors->plan;
    int writable = -1;
    STEP(setsid(), "setsid");
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

/* program.Hooks: fetched once in the zygote, so that a child looks nothing up. All are borrowed from a tuple that is never freed. */
enum { SEED, COMPILE, NAME, MODE, FLAGS, ALONE, GLOBALS, FLUSH, THREADS_RUNNING, EXIT_HANDLERS, GIVE_UP, FAILED, FINISH, GO, HOOKS };
static PyObject *hooks[HOOKS];

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
    PyObject *handlers = PyObject_CallNoArgs(hooks[EXIT_HANDLERS]);
    long count = handlers ? PyLong_AsLong(handlers) : 1;
    PyErr_Clear();
    if (count || PyDict_Size(hooks[THREADS_RUNNING]) > 1) {
        PyObject *known = PyObject_CallFunction(hooks[FINISH], "i", code);
        long result = known ? PyLong_AsLong(known) : 1;
        return PyErr_Occurred() ? 1 : (int)result;
    }
    const char *names[] = {"stdout", "__stdout__", "stderr"};
    PyObject *before = NULL;
    for (int index = 0; index < 3; index++) {
        PyObject *stream = PySys_GetObject(names[index]);
        if (stream && stream == before) continue; /* stdout, twice */
        before = stream;
        if (!stream || !PyObject_CallMethodObjArgs(stream, hooks[FLUSH], NULL)) {
            PyErr_Clear();
            if (!code) code = 120;
        }
    }
    return code;
}

/* program.begin */
static void begin(const struct order *order, const uint32_t sizes[3]) {
    PyObject *source = PyBytes_FromStringAndSize(NULL, sizes[1]), *names = PyBytes_FromStringAndSize(NULL, sizes[2]);
    PyObject *seed = PyLong_FromUnsignedLongLong(order->seed);
    int known = source && names && seed;
    if (known && (read_all(CHANNEL, PyBytes_AsString(source), sizes[1]) < 0 || read_all(CHANNEL, PyBytes_AsString(names), sizes[2]) < 0)) {
        PyErr_SetFromErrno(PyExc_OSError);
        known = 0;
    }
    if (!known || !PyObject_CallFunctionObjArgs(hooks[SEED], seed, NULL)) {
        PyObject_CallFunctionObjArgs(hooks[GIVE_UP], exception(), NULL);
        _exit(SETUP_EXIT);
    }
    PyGC_Enable();
    write_frame(READY, "");
    if (order->mode != STDIO) {
        PyObject_CallFunction(hooks[GO], "iOO", (int)order->mode, source, names);
        _exit(1); /* which it never comes back from */
    }
    close(CHANNEL);
    PyObject *code = PyObject_CallFunctionObjArgs(hooks[COMPILE], source, hooks[NAME], hooks[MODE], hooks[FLAGS], hooks[ALONE], NULL);
    int left = 0;
    if (!code || !PyEval_EvalCode(code, hooks[GLOBALS], hooks[GLOBALS])) {
        PyObject *error = exception(), *result = PyObject_CallFunctionObjArgs(hooks[FAILED], error, source, NULL);
        left = result ? (int)PyLong_AsLong(result) : 1;
        if (PyErr_Occurred()) left = 1;
        PyErr_Clear();
        Py_DecRef(error); /* and with it what the functions under way held: files have something to write yet */
    }
    _exit(finish(left));
}

/* ---- In the zygote. ---- */

static void say(int control, const struct report *report) {
    while (send(control, report, sizeof *report, MSG_NOSIGNAL) < 0 && errno == EINTR) {
    }
}

static void tell(int control, uint64_t execution, int status, uint8_t why, double cpu_s, double wall_s, double rss_mb) {
    struct rusage own;
    getrusage(RUSAGE_SELF, &own);
    struct report report = {DONE, execution, status, why, cpu_s, wall_s, rss_mb, (double)own.ru_maxrss / 1024};
    say(control, &report);
}

static struct running *find(int pid) {
    for (int index = 0; index < used; index++)
        if (table[index].pid == pid) return &table[index];
    return NULL;
}

static void end(struct running *each, uint8_t why, int plan) {
    if (each->why == BY_ITSELF) {
        each->why = why;
        each->next = now() + UNKILLABLE_S;
    }
    kill(each->pid, SIGKILL); /* asynchronous: a fork bomb takes a while to die */
    if (!(plan & NAMESPACES)) kill(-each->pid, SIGKILL);
}

/* Without a pid namespace: what an execution left behind. Its orphans are ours now, since we are their subreaper. */
static void sweep(int pid) {
    static char text[1 << 14];
    kill(-pid, SIGKILL);
    snprintf(text, sizeof text, "/proc/self/task/%d/children", getpid());
    int file = open(text, O_RDONLY | O_CLOEXEC);
    if (file < 0) return;
    ssize_t size = read(file, text, sizeof text - 1);
    close(file);
    int orphan = 0;
    for (ssize_t at = 0; at < size; at++) {
        if (text[at] >= '0' && text[at] <= '9') {
            orphan = 10 * orphan + (text[at] - '0');
        } else {
            if (orphan && !find(orphan)) kill(orphan, SIGKILL);
            orphan = 0;
        }
    }
}

static void reap(const struct doors *doors) {
    for (;;) {
        int status;
        struct rusage usage;
        int pid = wait4(-1, &status, WNOHANG, &usage);
        if (pid <= 0) return;
        struct running *each = find(pid);
        if (!each) continue; /* an orphan that came to us */
        double wall = now() - each->started;
        uint64_t execution = each->execution;
        uint8_t why = each->why;
        each->pid = 0;
        if (!(doors->plan & NAMESPACES)) sweep(pid);
        tell(doors->control, execution, status, why, seconds(usage.ru_utime) + seconds(usage.ru_stime), wall,
             (double)usage.ru_maxrss / 1024);
    }
}

static double cpu_time(int pid) {
    struct timespec spent = {0, 0};
    clock_gettime((clockid_t)((~(unsigned)pid << 3) | 2), &spent); /* every process has such a clock, numbered by its pid */
    return (double)spent.tv_sec + 1e-9 * (double)spent.tv_nsec;
}

static int may_start(double time) {
    int starting = 0, computing = 0, awake = 0, quiet = 0;
    static int who[MOST];
    static double used_by[MOST];
    for (int index = 0; index < used; index++) {
        struct running *each = &table[index];
        if (!each->pid || each->why != BY_ITSELF) continue;
        if (time - each->started < YOUNG_S) {
            starting++;
            continue;
        }
        if (time - each->checked >= YOUNG_S) {
            double spent = cpu_time(each->pid);
            if (spent - each->spent > BUSY_SHARE * (time - each->checked)) {
                each->state = BUSY;
                each->spent = spent;
                each->checked = time;
            } else {
                who[quiet] = index;
                used_by[quiet++] = spent;
            }
        }
        computing += each->state == BUSY;
        awake += each->state != IDLE;
    }
    for (int index = 0; index < quiet; index++) { /* the others' turns may have come before theirs */
        struct running *each = &table[who[index]];
        if (each->state != IDLE && time - each->checked < YOUNG_S * (3 + starting + computing)) continue;
        awake -= each->state != IDLE;
        each->state = IDLE;
        each->spent = used_by[index];
        each->checked = time;
    }
    return awake < MOST_BUSY && starting + awake < MOST_STARTING;
}

/* Ends what is overdue; seconds until the next one may be, or -1. */
static double end_overdue(const struct doors *doors) {
    double time = now(), next = waiting ? YOUNG_S : -1;
    for (int index = 0; index < used; index++) {
        struct running *each = &table[index];
        if (!each->pid) continue;
        if (each->why != BY_ITSELF && each->next <= time) _exit(1); /* it cannot be killed; we are replaced, and it is left to the kernel */
        if (each->why == BY_ITSELF && each->next <= time) {
            double left = each->cpu_s - cpu_time(each->pid);
            if (time >= each->deadline) {
                end(each, WALL, doors->plan);
                continue;
            }
            if (left <= 0) {
                end(each, CPU, doors->plan);
                continue;
            }
            each->next = time + (left > 0.005 ? left : 0.005);
            if (each->next > each->deadline) each->next = each->deadline;
        }
        if (next < 0 || each->next - time < next) next = each->next - time;
    }
    return next;
}

static int fork_into(const struct doors *doors) {
    if (!(doors->plan & NAMESPACES)) return fork();
    /* The next child is process 1 of a namespace of its own; then back, since this can be asked for from one's own only. */
    if (unshare(CLONE_NEWPID) < 0) return -1;
    int pid = fork();
    if (pid && setns(doors->own_namespace, CLONE_NEWPID) < 0) _exit(1); /* would put all later children in one namespace */
    return pid;
}

static void close_all(const int *descriptors) {
    for (int index = 0; index < 3; index++)
        if (descriptors[index] >= 0) close(descriptors[index]);
}

/* Starts what may be started. Its place in the line where we are the child, else NULL. */
static struct waiting *start_waiting(const struct doors *doors) {
    while (waiting && (line[first].order.urgent || may_start(now()))) {
        struct waiting *next = &line[first];
        int place = 0;
        while (place < used && table[place].pid) place++;
        int pid = place < MOST ? fork_into(doors) : -1;
        if (pid == 0) return next;
        first = (first + 1) % MOST;
        waiting--;
        if (pid > 0) {
            double start = now(), cpu_s = next->order.cpu_s, wall_s = next->order.wall_s;
            table[place] = (struct running){
                .pid = pid,
                .execution = next->order.execution,
                .started = start,
                .cpu_s = cpu_s,
                .deadline = start + wall_s,
                .next = start + (cpu_s < wall_s ? cpu_s : wall_s),
                .checked = start,
            };
            if (place == used) used++;
        } else {
            tell(doors->control, next->order.execution, 0, NOT_STARTED, 0, 0, 0);
        }
        close_all(next->descriptors);
    }
    return NULL;
}

static void end_execution(const struct doors *doors, uint64_t execution) {
    for (int index = 0; index < used; index++)
        if (table[index].pid && table[index].execution == execution) end(&table[index], TOLD, doors->plan);
    for (int index = 0; index < waiting; index++) {
        struct waiting *each = &line[(first + index) % MOST];
        if (each->order.execution != execution) continue;
        tell(doors->control, execution, SIGKILL, TOLD, 0, 0, 0);
        close_all(each->descriptors);
        for (; index + 1 < waiting; index++) line[(first + index) % MOST] = line[(first + index + 1) % MOST];
        waiting--;
    }
}

/* Takes one message. */
static void take(const struct doors *doors) {
    struct waiting new = {.descriptors = {-1, -1, -1}};
    union {
        char bytes[CMSG_SPACE(sizeof new.descriptors)];
        struct cmsghdr align;
    } ancillary;
    struct iovec part = {&new.order, sizeof new.order};
    struct msghdr message = {.msg_iov = &part, .msg_iovlen = 1, .msg_control = &ancillary, .msg_controllen = sizeof ancillary};
    ssize_t size = recvmsg(doors->control, &message, MSG_CMSG_CLOEXEC | MSG_DONTWAIT);
    if (size < 0 && (errno == EAGAIN || errno == EINTR)) return;
    if (size != sizeof new.order) { /* the manager is gone */
        for (int index = 0; index < used; index++)
            if (table[index].pid) end(&table[index], TOLD, doors->plan);
        _exit(0); /* process 1 takes everything along */
    }
    for (struct cmsghdr *head = CMSG_FIRSTHDR(&message); head; head = CMSG_NXTHDR(&message, head))
        if (head->cmsg_level == SOL_SOCKET && head->cmsg_type == SCM_RIGHTS && head->cmsg_len == CMSG_LEN(sizeof new.descriptors))
            memcpy(new.descriptors, CMSG_DATA(head), sizeof new.descriptors);
    if (new.order.kind == PING) {
        struct report pong = {.kind = PONG};
        say(doors->control, &pong);
    } else if (new.order.kind == KILL) {
        end_execution(doors, new.order.execution);
    } else if (waiting < MOST) {
        line[(first + waiting++) % MOST] = new;
        return;
    } else {
        tell(doors->control, new.order.execution, 0, NOT_STARTED, 0, 0, 0);
    }
    close_all(new.descriptors);
}

/* Serves until the control socket closes, and then ends the process. */
static void serve(const struct doors *doors) {
    sigset_t child, before;
    const int parent = getpid();
    sigemptyset(&child);
    sigaddset(&child, SIGCHLD);
    sigprocmask(SIG_BLOCK, &child, &before);
    int died = signalfd(-1, &child, SFD_NONBLOCK | SFD_CLOEXEC);
    struct pollfd polled[2] = {{doors->control, POLLIN, 0}, {died, POLLIN, 0}};
    if (died < 0) _exit(1);
    for (;;) {
        struct waiting *mine = start_waiting(doors);
        if (mine) {
            uint32_t sizes[3];
            const char *step = "";
            if (become(&mine->order, doors, parent, mine->descriptors, &before, sizes, &step) < 0) {
                char text[200];
                snprintf(text, sizeof text, "OSError: [Errno %d] %s: %s", errno, step, strerror(errno));
                write_frame(SETUP_FAILED, text);
                _exit(SETUP_EXIT);
            }
            begin(&mine->order, sizes);
        }
        double next = end_overdue(doors);
        if (poll(polled, 2, next < 0 ? -1 : (int)(next * 1000) + 1) < 0) {
            if (errno != EINTR) _exit(1);
            continue;
        }
        if (polled[1].revents) {
            struct signalfd_siginfo info;
            while (read(died, &info, sizeof info) > 0) {
            }
            reap(doors);
        }
        if (polled[0].revents) take(doors);
    }
}

/* ---- For Python. ---- */

void fugu_move_to_huge_pages(int maps); /* sandbox_pages.c */

/* serve(maps, control, own_namespace, plan, landlock_version, readable, rights of compute, of program, filter of compute, of program, hooks, what is only kept) */
static PyObject *module_serve(PyObject *Py_UNUSED(self), PyObject *arguments) {
    static struct doors doors; /* of a zygote there is one */
    PyObject *readable, *rights[2], *given, *filling;
    Py_ssize_t lengths[2];
    int maps;
    if (!PyArg_ParseTuple(arguments, "iiiiiO!O!O!z#z#O!O", &maps, &doors.control, &doors.own_namespace, &doors.plan, &doors.landlock_version,
                          &PyTuple_Type, &readable, &PyTuple_Type, &rights[0], &PyTuple_Type, &rights[1], &doors.filters[0],
                          &lengths[0], &doors.filters[1], &lengths[1], &PyTuple_Type, &given, &filling))
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
    for (int index = 0; index < HOOKS; index++) hooks[index] = PyTuple_GetItem(given, index);
#ifdef __GLIBC__
    malloc_trim(0); /* what was used to get here and is free again would be copied, too */
#endif
    fugu_move_to_huge_pages(maps);
    close(maps);
    serve(&doors);
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
