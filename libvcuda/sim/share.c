/* Memory that several processes hold, and the open files that hold it too.
 *
 * A descriptor of exported memory is a named pipe here. Its lock belongs to the open file, so it goes with the last descriptor
 * of it, in whatever process and however that one ended: whoever can take the lock knows that nobody has the file any more.
 */
#include "node.h"

#include "pages.h"

#include <errno.h>
#include <fcntl.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <sys/file.h>
#include <sys/stat.h>
#include <unistd.h>

static int path_of(char path[4096], uint32_t pid, uint32_t number)
{
    const char *node = getenv(SIM_NODE_ENV);
    return node && snprintf(path, 4096, "%s.fd-%u-%u", node, pid, number) < 4096;
}

int sim_descriptor_open(void)
{
    static uint32_t opened;
    char path[4096];
    /* A program that replaced itself by another counts anew. */
    do {
        uint32_t number = __atomic_add_fetch(&opened, 1, __ATOMIC_RELAXED);
        if (!path_of(path, (uint32_t)getpid(), number))
            return -1;
    } while (mkfifo(path, 0600) && errno == EEXIST);
    return open(path, O_RDWR | O_CLOEXEC);
}

static uint64_t inode_of(int fd)
{
    struct stat st;
    return fstat(fd, &st) == 0 && S_ISFIFO(st.st_mode) ? st.st_ino : 0;
}

/* The numbers in the name of an open descriptor's file. */
static int numbers_of(int fd, struct sim_descriptor *d)
{
    char link[64], path[4096];
    snprintf(link, sizeof link, "/proc/self/fd/%d", fd);
    ssize_t length = readlink(link, path, sizeof path - 1);
    if (length < 0)
        return 0;
    path[length] = 0;
    const char *name = strstr(path, ".fd-");
    return name && sscanf(name, ".fd-%u-%u", &d->pid, &d->number) == 2;
}

int sim_share_make(struct sim_gpu *gpu, uint64_t bytes)
{
    struct sim_client *mine = sim_client_take(gpu);
    for (int i = 0; mine && i < SIM_SHARES; i++) {
        if (gpu->share[i].bytes)
            continue;
        gpu->share[i] = (struct sim_share){.bytes = bytes};
        mine->memory_bytes -= bytes;
        sim_share_join(gpu, i);
        return i;
    }
    return -1;
}

int sim_share_export(struct sim_gpu *gpu, int share, int fd)
{
    struct sim_descriptor made = {.inode = inode_of(fd), .share = (uint32_t)share};
    if (!made.inode || !numbers_of(fd, &made) || flock(fd, LOCK_EX | LOCK_NB))
        return 0;
    for (int i = 0; i < SIM_DESCRIPTORS; i++)
        if (!gpu->descriptor[i].inode) {
            gpu->descriptor[i] = made;
            return 1;
        }
    return 0;
}

int sim_share_of(const struct sim_gpu *gpu, int fd)
{
    uint64_t inode = inode_of(fd);
    for (int i = 0; inode && i < SIM_DESCRIPTORS; i++)
        if (gpu->descriptor[i].inode == inode)
            return (int)gpu->descriptor[i].share;
    return -1;
}

int sim_share_join(struct sim_gpu *gpu, int share)
{
    struct sim_share *s = &gpu->share[share];
    if (s->holders == SIM_HOLDERS)
        return 0;
    struct sim_holder *h = &s->holder[s->holders++];
    sim_find_self(&h->pid, &h->pidns, &h->start_time);
    return 1;
}

static void remove_holder(struct sim_share *s, uint32_t i)
{
    s->passed |= i == 0;
    memmove(&s->holder[i], &s->holder[i + 1], (--s->holders - i) * sizeof *s->holder);
}

static int is_described(const struct sim_gpu *gpu, int share)
{
    for (int i = 0; i < SIM_DESCRIPTORS; i++)
        if (gpu->descriptor[i].inode && gpu->descriptor[i].share == (uint32_t)share)
            return 1;
    return 0;
}

static void end_unheld(struct sim_gpu *gpu, int share)
{
    if (!gpu->share[share].holders && !is_described(gpu, share))
        gpu->share[share].bytes = 0;
}

void sim_share_leave(struct sim_gpu *gpu, int share)
{
    struct sim_share *s = &gpu->share[share];
    uint32_t pid = (uint32_t)getpid(), i = 0;
    while (i < s->holders && s->holder[i].pid != pid)
        i++;
    if (i < s->holders)
        remove_holder(s, i);
    sim_share_collect(gpu);
}

/* NVML shows memory at its oldest holder. Of memory whose maker is gone that is the descriptor, which is nobody's. */
uint64_t sim_share_bytes(const struct sim_gpu *gpu, uint32_t pid, uint64_t pidns)
{
    uint64_t sum = 0;
    for (int i = 0; i < SIM_SHARES; i++) {
        const struct sim_share *s = &gpu->share[i];
        if (s->bytes && s->holders && s->holder[0].pid == pid && s->holder[0].pidns == pidns)
            sum += s->passed && is_described(gpu, i) ? 0 : s->bytes;
    }
    return sum;
}

/* Nobody has the file open any more: it is removed. */
static int is_closed(const struct sim_descriptor *d)
{
    char path[4096];
    if (!path_of(path, d->pid, d->number))
        return 0;
    int fd = open(path, O_RDWR | O_NONBLOCK | O_CLOEXEC);
    if (fd < 0)
        return 1;
    int closed = flock(fd, LOCK_EX | LOCK_NB) == 0;
    if (closed)
        unlink(path);
    close(fd);
    return closed;
}

void sim_share_clear_dead(struct sim_gpu *gpu)
{
    uint64_t pidns = pages_pidns();
    for (int i = 0; i < SIM_SHARES; i++) {
        struct sim_share *s = &gpu->share[i];
        for (uint32_t h = 0; s->bytes && h < s->holders;) {
            const struct sim_holder *o = &s->holder[h];
            if (o->pidns != pidns && !sim_pid_here(o->pid, o->pidns, o->start_time))
                remove_holder(s, h);
            else
                h++;
        }
    }
}

void sim_share_collect(struct sim_gpu *gpu)
{
    uint64_t pidns = pages_pidns();
    for (int i = 0; i < SIM_DESCRIPTORS; i++)
        if (gpu->descriptor[i].inode && is_closed(&gpu->descriptor[i]))
            gpu->descriptor[i].inode = 0;
    for (int i = 0; i < SIM_SHARES; i++) {
        struct sim_share *s = &gpu->share[i];
        for (uint32_t h = 0; s->bytes && h < s->holders;)
            if (s->holder[h].pidns == pidns && pages_start_time(s->holder[h].pid) != s->holder[h].start_time)
                remove_holder(s, h);
            else
                h++;
        end_unheld(gpu, i);
    }
}
