/* The zygote's loop, as src/fugu/coding/sandbox/loop.py has it: that is the readable reference and the fallback, step by step the same;
 * tests run both. The zygote allocates nothing and reads nothing an agent wrote. */
#include "sandbox.h"

#include <errno.h>
#include <fcntl.h>
#include <poll.h>
#include <sched.h>
#include <stdio.h>
#include <string.h>
#include <sys/resource.h>
#include <sys/signalfd.h>
#include <sys/socket.h>
#include <sys/wait.h>
#include <time.h>
#include <unistd.h>

enum { RUN = 1, KILL = 2, PING = 3 };
enum { DONE = 3, PONG = 4 };
enum { BY_ITSELF = 0, WALL = 1, CPU = 2, TOLD = 3, NOT_STARTED = 4, MEMORY = 5 };
enum { MOST = 1024 };

/* wire.REPORT */
struct __attribute__((packed)) report {
    uint8_t kind;
    uint64_t execution;
    int32_t status;
    uint8_t why;
    double cpu_s, wall_s, max_rss_mb, own_mb;
};

struct running {
    int pid; /* 0: free */
    uint8_t why, state, tree, looked; /* tree: it may have several processes; looked: they were looked for, or counted by a group */
    uint64_t execution, memory;
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
static const double PAUSE_S = 0.01, LONGEST_PAUSE_S = 0.1, FASTEST_B_S = 8192.0 * (1 << 20); /* as tree.py has them */
enum { MOST_STARTING = 4, MOST_BUSY = 2 };
enum { UNKNOWN, BUSY, IDLE };

static double now(void) {
    struct timespec time;
    clock_gettime(CLOCK_MONOTONIC, &time);
    return (double)time.tv_sec + 1e-9 * (double)time.tv_nsec;
}

static double seconds(struct timeval time) { return (double)time.tv_sec + 1e-6 * (double)time.tv_usec; }

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

PyObject *fugu_trees[TREES];

/* Python is asked only where it must be: every call of it writes to a hundred pages that children have in common with us, and each is
 * copied. This one tells, of all processes of a program together, the seconds until the next look, or the reason to end it, below 0. */
static double look(struct running *each) {
    each->looked = 1;
    PyObject *answer = PyObject_CallFunction(fugu_trees[TREE_LOOK], "Kidd", (unsigned long long)each->execution, each->pid, each->cpu_s,
                                             (double)each->memory / (1 << 20));
    double pause = answer ? PyFloat_AsDouble(answer) : -1;
    Py_XDECREF(answer);
    if (PyErr_Occurred()) _exit(1); /* what cannot be counted must not go on; we are replaced */
    return pause;
}

/* tree.first_look_s */
static double first_look_s(const struct order *order) {
    static int cores;
    cpu_set_t usable;
    if (!cores) cores = sched_getaffinity(0, sizeof usable, &usable) ? 1024 : CPU_COUNT(&usable);
    double memory_s = (double)order->memory / FASTEST_B_S, first = (order->cpu_s < memory_s ? order->cpu_s : memory_s) / cores;
    return first < PAUSE_S ? PAUSE_S : first > LONGEST_PAUSE_S ? LONGEST_PAUSE_S : first;
}

static int begin_tree(const struct order *order) {
    PyObject *nothing = PyObject_CallFunction(fugu_trees[TREE_BEGIN], "KK", (unsigned long long)order->execution,
                                              (unsigned long long)(order->memory + order->disk_bytes));
    if (!nothing) PyErr_Clear();
    Py_XDECREF(nothing);
    return nothing ? 0 : -1;
}

static void add_up(uint64_t execution, uint8_t *why, double *cpu_s, double *memory_mb) {
    double together[2] = {0, 0};
    int too_much = 0;
    PyObject *answer = PyObject_CallFunction(fugu_trees[TREE_END], "K", (unsigned long long)execution);
    if (!answer || !PyArg_ParseTuple(answer, "ddp", &together[0], &together[1], &too_much)) _exit(1);
    Py_DECREF(answer);
    if (too_much && *why == BY_ITSELF) *why = MEMORY;
    if (together[0] > *cpu_s) *cpu_s = together[0];
    if (together[1] > *memory_mb) *memory_mb = together[1];
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
        double cpu_s = seconds(usage.ru_utime) + seconds(usage.ru_stime), memory_mb = (double)usage.ru_maxrss / 1024;
        if (each->looked) add_up(execution, &why, &cpu_s, &memory_mb);
        each->pid = 0;
        if (!(doors->plan & NAMESPACES)) sweep(pid);
        tell(doors->control, execution, status, why, cpu_s, wall, memory_mb);
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
            double pause = left > 0.005 ? left : 0.005, until = each->tree ? look(each) : pause;
            if (until < 0) {
                end(each, (uint8_t)-until, doors->plan);
                continue;
            }
            each->next = time + (until < pause ? until : pause);
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
        uint8_t tree = next->order.program && fugu_trees[TREE_LOOK] != Py_None;
        uint8_t counted = tree && doors->group >= 0;
        int pid = place < MOST && !(counted && begin_tree(&next->order)) ? fork_into(doors) : -1;
        if (pid == 0) return next;
        first = (first + 1) % MOST;
        waiting--;
        if (pid > 0) {
            double start = now(), cpu_s = next->order.cpu_s, wall_s = next->order.wall_s;
            double first_look = tree ? first_look_s(&next->order) : wall_s;
            table[place] = (struct running){
                .tree = tree,
                .looked = counted,
                .memory = next->order.memory,
                .pid = pid,
                .execution = next->order.execution,
                .started = start,
                .cpu_s = cpu_s,
                .deadline = start + wall_s,
                .next = start + (cpu_s < first_look ? cpu_s : first_look),
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

void fugu_serve(const struct doors *doors) {
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
        if (mine) fugu_run_program(&mine->order, doors, parent, mine->descriptors, &before);
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
