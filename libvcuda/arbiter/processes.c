/* Ends of tenants' processes. A killed process leaves work in flight in its slot that never ends; its turn must be over
 * at once. A pidfd for each live slot reports that. Processes in containers are found on the node by their pid
 * namespace and their pid in it. If a process is not found (the arbiter itself runs in a container), its slot counts
 * after its end until the agent clears it, or until the arbiter gives up waiting for it. */
#include "claims.h"

#include <ctype.h>
#include <dirent.h>
#include <errno.h>
#include <fcntl.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <sys/epoll.h>
#include <sys/stat.h>
#include <sys/syscall.h>
#include <unistd.h>

/* Reading /proc costs milliseconds on a full node, and a tenant may forge slots whose process is never found. */
#define SEARCH_EVERY_NS 1000000000ull

static void forget(struct watched *w)
{
    __atomic_store_n(&w->pid, 0, __ATOMIC_RELEASE);
    __atomic_store_n(&w->stopped, 0, __ATOMIC_RELEASE);
    if (w->pidfd >= 0)
        close(w->pidfd); /* this also removes it from the epoll set */
    w->pidfd = -1;
}

void processes_unwatch(struct claim *claim)
{
    for (int i = 0; i < VCUDA_MAX_PROCESSES; i++)
        forget(&claim->watched[i]);
}

void process_ended(struct watched *w)
{
    __atomic_store_n(&w->dead, w->owner, __ATOMIC_RELEASE);
    forget(w);
}

/* Watch the process with this pid on the node. The start time tells it from a later process with the same pid. */
static int watch(struct watched *w, uint32_t pid, int epoll_fd)
{
    struct epoll_event event = {.events = EPOLLIN, .data.ptr = w};
    int fd = (int)syscall(SYS_pidfd_open, pid, 0);
    if (fd < 0 || pages_start_time(pid) != w->start_time || epoll_ctl(epoll_fd, EPOLL_CTL_ADD, fd, &event) != 0) {
        if (fd >= 0)
            close(fd);
        return 0;
    }
    w->pidfd = fd;
    __atomic_store_n(&w->pid, pid, __ATOMIC_RELEASE);
    return 1;
}

/* Return 1 if SIGSTOP or a debugger stopped the process: the third field of /proc/PID/stat, after a name that may
 * contain any character. */
static int is_stopped(uint32_t pid)
{
    char path[32], text[512];
    snprintf(path, sizeof path, "/proc/%u/stat", pid);
    int fd = open(path, O_RDONLY | O_CLOEXEC);
    ssize_t length = fd >= 0 ? read(fd, text, sizeof text - 1) : -1;
    if (fd >= 0)
        close(fd);
    text[length > 0 ? length : 0] = 0;
    const char *name_end = strrchr(text, ')');
    return name_end && name_end[1] && (name_end[2] == 'T' || name_end[2] == 't');
}

int processes_look_for_stopped(struct claim *claim)
{
    int any = 0;
    for (int i = 0; i < VCUDA_MAX_PROCESSES; i++) {
        struct watched *w = &claim->watched[i];
        uint32_t pid = __atomic_load_n(&w->pid, __ATOMIC_ACQUIRE);
        int stopped = pid && is_stopped(pid);
        __atomic_store_n(&w->stopped, (uint32_t)stopped, __ATOMIC_RELEASE);
        any |= stopped;
    }
    return any;
}

static uint64_t pidns_of(const char *pid)
{
    char path[300];
    struct stat st;
    snprintf(path, sizeof path, "/proc/%s/ns/pid", pid);
    return stat(path, &st) == 0 ? (uint32_t)st.st_ino : 0;
}

/* Return the pid in the process's innermost namespace. */
static uint32_t inner_pid(const char *pid)
{
    char path[300], line[256];
    uint32_t inner = 0;
    snprintf(path, sizeof path, "/proc/%s/status", pid);
    FILE *file = fopen(path, "re");
    while (file && fgets(line, sizeof line, file)) {
        char *last = strncmp(line, "NSpid:", 6) == 0 ? strrchr(line, '\t') : NULL;
        if (!last)
            continue;
        inner = (uint32_t)strtoul(last, NULL, 10);
        break;
    }
    if (file)
        fclose(file);
    return inner;
}

static void compare(struct claim *claims, const char *pid, int epoll_fd)
{
    uint64_t pidns = 0;
    uint32_t inner = 0;
    for (struct claim *claim = claims; claim; claim = claim->next)
        for (int i = 0; i < VCUDA_MAX_PROCESSES; i++) {
            struct watched *w = &claim->watched[i];
            if (!w->owner || w->pidfd >= 0 || w->dead == w->owner)
                continue;
            pidns = pidns ? pidns : pidns_of(pid);
            if (!pidns || w->owner >> 32 != pidns)
                continue;
            inner = inner ? inner : inner_pid(pid);
            if ((uint32_t)w->owner == inner)
                watch(w, (uint32_t)strtoul(pid, NULL, 10), epoll_fd);
        }
}

static void search(struct claim *claims, int epoll_fd)
{
    DIR *proc = opendir("/proc");
    for (struct dirent *entry; proc && (entry = readdir(proc));)
        if (isdigit((unsigned char)entry->d_name[0]))
            compare(claims, entry->d_name, epoll_fd);
    if (proc)
        closedir(proc);
}

/* Register the slot's process. Return 1 if /proc must be searched for it. */
static int notice(struct watched *w, uint64_t owner, uint64_t start_time, int epoll_fd)
{
    if (w->owner != owner || w->start_time != start_time) {
        forget(w);
        w->owner = owner;
        w->start_time = start_time;
        __atomic_store_n(&w->dead, 0, __ATOMIC_RELEASE);
        if (owner && owner >> 32 == pages_pidns() && !watch(w, (uint32_t)owner, epoll_fd)) {
            uint64_t begun = pages_start_time((uint32_t)owner);
            if (begun != start_time && begun != PAGES_NOT_KNOWN)
                process_ended(w);
        }
    }
    return owner && w->pidfd < 0 && w->dead != owner;
}

/* Notice that a stopped process continues. The thread that saw it stopped may not look again, as the claim may have
 * left that GPU. */
static void see_continued(struct watched *w)
{
    if (__atomic_load_n(&w->stopped, __ATOMIC_ACQUIRE) && !is_stopped(__atomic_load_n(&w->pid, __ATOMIC_ACQUIRE)))
        __atomic_store_n(&w->stopped, 0, __ATOMIC_RELEASE);
}

int processes_watch(struct claim *claims, int epoll_fd)
{
    static uint64_t searched_ns;
    uint64_t now = pages_clock(CLOCK_MONOTONIC);
    int unknown = 0, there = 0;
    for (struct claim *claim = claims; claim; claim = claim->next) {
        uint32_t n = claim_slots(claim);
        for (uint32_t i = 0; i < VCUDA_MAX_PROCESSES; i++) {
            uint64_t owner = 0, start_time = 0;
            if (i >= n && !claim->watched[i].owner)
                continue;
            if (i >= n || !claim_slot(claim, i, &owner, &start_time))
                owner = start_time = 0;
            unknown += notice(&claim->watched[i], owner, start_time, epoll_fd);
            see_continued(&claim->watched[i]);
            there += owner != 0;
        }
    }
    if (unknown && now - searched_ns >= SEARCH_EVERY_NS) {
        searched_ns = now;
        search(claims, epoll_fd);
    }
    return there;
}
