/* Moves this process's memory, with its addresses as they are, into huge pages: data, and the code of the interpreter and the C library.
 *
 * A fork copies a table entry for each page of data, and its end takes each down again; of pages that belong to one huge page the
 * kernel does as many at once as lie side by side. Code it does not copy at all, so that every child meets it fault by fault; as data,
 * beside the rest, it comes along for next to nothing (benchmarks/sandbox.py, huge_pages). Where there are no huge pages to be had,
 * nothing is moved. ``maps`` is an open /proc/self/maps; there must be no other thread. */
#include "sandbox.h"

#include <stdio.h>
#include <string.h>
#include <sys/mman.h>
#include <unistd.h>

enum { REGIONS = 64 };
static const size_t HUGE_PAGE = 2u << 20, DATA = 64u << 10, CODE = 1u << 20; /* smaller ones are not worth it */

struct region {
    char *start;
    size_t size;
    int rights;
};

static int is_resident(const struct region *region) {
    static unsigned char pages[1 << 14];
    size_t count = region->size / (size_t)sysconf(_SC_PAGESIZE), there = 0;
    if (count > sizeof pages || mincore(region->start, region->size, pages) < 0) return 0;
    for (size_t index = 0; index < count; index++) there += pages[index] & 1;
    return 2 * there > count;
}

static int find_regions(int maps, struct region *regions) {
    static char text[1 << 16];
    size_t size = 0;
    int count = 0;
    for (ssize_t part; (part = read(maps, text + size, sizeof text - 1 - size)) > 0;) size += (size_t)part;
    for (char *at = text, *end; count < REGIONS && (end = strchr(at, '\n')); at = end + 1) {
        unsigned long start, stop;
        char kind[5], path[16] = "";
        if (sscanf(at, "%lx-%lx %4s %*s %*s %*s%*[ ]%15[^\n]", &start, &stop, kind, path) < 3 || kind[0] != 'r' || kind[3] != 'p') continue;
        struct region region = {(char *)start, stop - start, PROT_READ};
        if (kind[1] == 'w') {
            region.rights |= PROT_WRITE;
            if (kind[2] == 'x') continue; /* code in the making, which nobody may be allowed to make a second time */
            if (region.size < DATA || (path[0] == '[' && strcmp(path, "[heap]")) || !is_resident(&region)) continue;
        } else {
            if (kind[2] == 'x') region.rights |= PROT_EXEC;
            if (region.size < CODE || path[0] != '/') continue;
        }
        regions[count++] = region;
    }
    return count;
}

void fugu_move_to_huge_pages(int maps) {
    struct region regions[REGIONS];
    int count = find_regions(maps, regions);
    size_t total = 0;
    for (int index = 0; index < count; index++) total += regions[index].size;
    total = (total + HUGE_PAGE - 1) / HUGE_PAGE * HUGE_PAGE;
    char *room = mmap(NULL, total + HUGE_PAGE, PROT_READ | PROT_WRITE, MAP_PRIVATE | MAP_ANONYMOUS, -1, 0);
    if (room == MAP_FAILED) return;
    char *next = (char *)(((uintptr_t)room + HUGE_PAGE - 1) / HUGE_PAGE * HUGE_PAGE);
    if (!madvise(next, total, MADV_HUGEPAGE)) {
        memset(next, 0, total);
        if (!madvise(next, total, 25 /* MADV_COLLAPSE, since Linux 6.1: they are huge now, or it fails */))
            for (int index = 0; index < count; index++) {
                const struct region *each = &regions[index];
                memcpy(next, each->start, each->size);
                /* Here already: the kernel sees to it once per huge page, and there may be more code to come in this one. */
                if (each->rights & PROT_EXEC) __builtin___clear_cache(next, next + each->size);
                if (!mprotect(next, each->size, each->rights))
                    mremap(next, each->size, each->size, MREMAP_MAYMOVE | MREMAP_FIXED, each->start);
                next += each->size;
            }
    }
    munmap(room, total + HUGE_PAGE);
}
