/* The open files to which memory is exported.
 *
 * Exported memory lives as long as any process has a descriptor of that open file. Two things that the kernel keeps for
 * every open file give the facts that accounting needs, without a hook on close and whatever becomes of the
 * descriptors:
 *
 * - An epoll set forgets a file when its last descriptor is closed, in any process, and does not hold it itself. Its
 *   list is shown in /proc. The set is never waited on.
 * - A file's owner (F_SETOWN) is the process to which it would send a signal; without O_ASYNC it sends none. It is the
 *   same for all holders of the file, and is empty once that process has ended. Here it names the process that pays.
 *
 * A program may close all descriptors, ours too. So the set has a witness: if the list lacks it, the set is lost, and
 * files that it watched are never known to be closed. */
#include "descriptors.h"

#include <errno.h>
#include <fcntl.h>
#include <stdio.h>
#include <string.h>
#include <sys/epoll.h>
#include <sys/eventfd.h>
#include <sys/resource.h>
#include <sys/stat.h>
#include <unistd.h>

#define WITNESS 0x766375646177ull
/* The range of kept descriptors: above the lowest, which programs expect to get, and below the last quarter. */
#define LOW 1000
#define MOST_KEPT 65536
#define NAMESAKES 64

/* Protected by the caller's lock, except `kept`. */
static int set = -1;
static uint64_t generation = 1, next_key = 1;
static uint64_t kept[MOST_KEPT / 64]; /* a bit for each number that is ours */

/* Replace a number that is in the program's way by another; -1: none is left. */
static int move_away(int fd, int is_copy)
{
    struct rlimit limit;
    if (getrlimit(RLIMIT_NOFILE, &limit))
        return -1;
    int low = limit.rlim_cur / 2 < LOW ? (int)(limit.rlim_cur / 2) : LOW;
    int moved = fcntl(fd, F_DUPFD_CLOEXEC, low);
    if (!is_copy)
        close(fd);
    if (moved >= 0 && (moved >= MOST_KEPT || (rlim_t)moved >= limit.rlim_cur - limit.rlim_cur / 4)) {
        close(moved);
        return -1;
    }
    return moved;
}

struct line {
    int fd;
    unsigned long long key;
};

/* Call `each` for the lines of the set's list; return 1 if the witness was among them. */
static int read_list(void (*each)(const struct line *line, void *context), void *context)
{
    char path[64], text[4096];
    size_t length = 0;
    ssize_t n;
    int witnessed = 0;
    snprintf(path, sizeof path, "/proc/thread-self/fdinfo/%d", set);
    int list = set < 0 ? -1 : open(path, O_RDONLY | O_CLOEXEC);
    if (list < 0)
        return 0;
    while ((n = read(list, text + length, sizeof text - 1 - length)) > 0) {
        char *at = text, *end;
        length += (size_t)n;
        text[length] = 0;
        for (; (end = strchr(at, '\n')); at = end + 1) {
            struct line line;
            if (sscanf(at, "tfd: %d events: %*x data: %llx", &line.fd, &line.key) != 2)
                continue;
            witnessed |= line.key == WITNESS;
            each(&line, context);
        }
        length -= (size_t)(at - text);
        memmove(text, at, length);
    }
    close(list);
    return witnessed && n == 0;
}

static void ignore(const struct line *line, void *context)
{
    (void)line, (void)context;
}

/* Return the intact set. A lost one is not touched, as its number may be the program's by now. */
static int find_set(void)
{
    struct epoll_event event = {.data.u64 = WITNESS};
    if (read_list(ignore, NULL))
        return 1;
    generation += set >= 0;
    set = epoll_create1(EPOLL_CLOEXEC);
    set = set < 0 ? -1 : move_away(set, 0);
    int witness = set < 0 ? -1 : eventfd(0, EFD_CLOEXEC | EFD_NONBLOCK);
    witness = witness < 0 ? -1 : move_away(witness, 0);
    return witness >= 0 && !epoll_ctl(set, EPOLL_CTL_ADD, witness, &event) && read_list(ignore, NULL);
}

/* The keys under which the set lists a number: that of its present file, and those of files that it meant before and
 * that other processes still have open. */
struct namesakes {
    int fd, count;
    uint64_t key[NAMESAKES];
};

static void find_namesake(const struct line *line, void *context)
{
    struct namesakes *all = context;
    if (line->fd == all->fd && all->count < NAMESAKES)
        all->key[all->count++] = line->key;
}

static int is_among(const struct namesakes *all, uint64_t key)
{
    for (int i = 0; i < all->count; i++)
        if (all->key[i] == key)
            return 1;
    return 0;
}

/* Return the key of a file that this number watches already: the one that leaves the list when the number gets another
 * file. */
static uint64_t find_key(int fd, uint64_t other)
{
    struct namesakes before = {.fd = fd}, after = {.fd = fd};
    struct epoll_event event = {.data.u64 = other};
    if (!read_list(find_namesake, &before) || epoll_ctl(set, EPOLL_CTL_MOD, fd, &event))
        return 0;
    read_list(find_namesake, &after);
    for (int i = 0; i < before.count; i++) {
        event.data.u64 = before.key[i];
        if (!is_among(&after, before.key[i]) && !epoll_ctl(set, EPOLL_CTL_MOD, fd, &event))
            return before.key[i];
    }
    return 0;
}

uint64_t descriptors_watch(int fd)
{
    int saved = errno;
    uint64_t key = 0;
    if (find_set()) {
        key = generation << 48 | next_key++;
        struct epoll_event event = {.data.u64 = key};
        if (epoll_ctl(set, EPOLL_CTL_ADD, fd, &event))
            key = errno == EEXIST ? find_key(fd, key) : 0;
    }
    errno = saved;
    return key;
}

static void pass_on(const struct line *line, void *context)
{
    void (**alive)(uint64_t) = context;
    if (line->key != WITNESS)
        (*alive)(line->key);
}

int descriptors_scan(void (*alive)(uint64_t key))
{
    int saved = errno, known = read_list(pass_on, &alive);
    errno = saved;
    return known;
}

int descriptors_is_lost(uint64_t key)
{
    return key >> 48 != generation;
}

int descriptors_keep(int fd)
{
    int saved = errno, copy = move_away(fd, 1);
    if (copy >= 0)
        __atomic_fetch_or(&kept[copy / 64], 1ull << copy % 64, __ATOMIC_RELAXED);
    errno = saved;
    return copy;
}

/* Close our descriptor. A program that closed all descriptors may use this number for another file, so the type is
 * checked: ours is a device, or in simulation a pipe. */
void descriptors_let_go(int copy)
{
    struct stat st;
    int saved = errno;
    if (copy < 0)
        return;
    __atomic_fetch_and(&kept[copy / 64], ~(1ull << copy % 64), __ATOMIC_RELAXED);
    if (!fstat(copy, &st) && (S_ISCHR(st.st_mode) || S_ISFIFO(st.st_mode)))
        close(copy);
    errno = saved;
}

pid_t descriptors_payer(int fd)
{
    int saved = errno, owner = fcntl(fd, F_GETOWN);
    errno = saved;
    return owner > 0 ? owner : 0;
}

int descriptors_set_payer(int fd, pid_t pid)
{
    int saved = errno, failed = fcntl(fd, F_SETOWN, pid);
    errno = saved;
    return !failed;
}

void descriptors_forget(void)
{
    for (int i = 0; i < MOST_KEPT; i++)
        if (!kept[i / 64])
            i |= 63;
        else if (kept[i / 64] >> i % 64 & 1)
            descriptors_let_go(i);
    set = -1;
}
