/* The usage page: process slots that never move.
 *
 * Taking a slot is one compare-and-swap on its owner word, so that two processes never get the same one and a process
 * killed right after has left its name there. Clearing a dead process's slot passes through the state "being cleared", so
 * that two clearers never retire the same counters twice. A clearer killed half-way costs one slot of 256, no memory: sums
 * skip it.
 */
#include "pages.h"

#include "file.h"

#include <errno.h>
#include <linux/futex.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <sys/mman.h>
#include <sys/stat.h>
#include <sys/syscall.h>
#include <unistd.h>

static int usage_valid(const struct vcuda_usage *page)
{
    return page->magic == VCUDA_USAGE_MAGIC && page->version == VCUDA_ABI_VERSION && page->size == sizeof *page;
}

int vcuda_usage_open(const char *path, int writable, struct vcuda_usage **page)
{
    void *map;
    int error = page_file_map(path, VCUDA_USAGE_SIZE, writable, &map);
    if (error)
        return error;
    if (!usage_valid(map)) {
        munmap(map, VCUDA_USAGE_SIZE);
        return -EBADMSG;
    }
    *page = map;
    return 0;
}

int vcuda_usage_create(const char *path, struct vcuda_usage **page)
{
    struct vcuda_usage *fresh = calloc(1, sizeof *fresh);
    if (!fresh)
        return -ENOMEM;
    fresh->magic = VCUDA_USAGE_MAGIC;
    fresh->version = VCUDA_ABI_VERSION;
    fresh->size = sizeof *fresh;
    int error = page_file_make(path, fresh, sizeof *fresh, 0600);
    free(fresh);
    if (error && error != -EEXIST)
        return error;
    return vcuda_usage_open(path, 1, page);
}

void vcuda_usage_unmap(struct vcuda_usage *page)
{
    munmap(page, VCUDA_USAGE_SIZE);
}

uint64_t pages_pidns(void)
{
    struct stat st;
    return stat("/proc/self/ns/pid", &st) == 0 ? (uint32_t)st.st_ino : 0;
}

/* What /proc shows is of the reader's time namespace. The agent makes that ahead by whole ticks. */
static uint64_t to_machine(uint64_t ticks)
{
    int64_t tick_ns = 1000000000 / sysconf(_SC_CLK_TCK);
    return ticks - (uint64_t)(pages_clock_ahead(CLOCK_BOOTTIME) / tick_ns);
}

/* The text after "(name)" of a process's stat: fields from the third on. A main thread that has ended shows as a zombie while
 * others run: the process is dead only where it is the last. */
static uint64_t read_start_time(const char *field)
{
    int ended = field[2] == 'Z';
    if (field[1] != ' ' || field[2] == 'X')
        return 0;
    for (int i = 3; i <= 22 && field; i++) {
        field = strchr(field + 1, ' ');
        if (field && i == 20 && ended && strtoull(field + 1, NULL, 10) <= 1)
            return 0;
    }
    return field ? to_machine(strtoull(field + 1, NULL, 10)) : 0;
}

uint64_t pages_start_time(uint32_t pid)
{
    char path[64], text[1024];
    snprintf(path, sizeof path, "/proc/%u/stat", pid);
    FILE *file = fopen(path, "re");
    if (!file)
        return errno == ENOENT || errno == ESRCH ? 0 : PAGES_NOT_KNOWN;
    size_t n = fread(text, 1, sizeof text - 1, file);
    fclose(file);
    text[n] = 0;
    /* The command's name may hold spaces and parentheses: fields are counted from its last one. */
    const char *field = strrchr(text, ')');
    return field ? read_start_time(field) : 0;
}

static uint32_t slots_used(const struct vcuda_usage *page)
{
    uint32_t n = __atomic_load_n(&page->slots_used, __ATOMIC_SEQ_CST);
    return n < VCUDA_MAX_PROCESSES ? n : VCUDA_MAX_PROCESSES;
}

static void raise_slots_used(struct vcuda_usage *page, uint32_t n)
{
    uint32_t seen = __atomic_load_n(&page->slots_used, __ATOMIC_SEQ_CST);
    while (seen < n && !__atomic_compare_exchange_n(&page->slots_used, &seen, n, 0, __ATOMIC_SEQ_CST, __ATOMIC_SEQ_CST))
        ;
}

/* What a process says of memory that moves: nothing yet, or no more. */
static void forget_lending(struct vcuda_process *p)
{
    p->lending_slot = p->orders_done = p->wanted_slot = 0;
    p->movable_bytes = p->out_bytes = p->host_bytes = 0;
    p->moved_out_bytes = p->moved_in_bytes = p->stood_ns = p->wanted_bytes = 0;
}

int pages_slot_take(struct vcuda_usage *page)
{
    uint32_t pid = (uint32_t)getpid();
    uint64_t owner = pages_pidns() << 32 | pid, begun = pages_start_time(pid);
    for (uint32_t i = 0; i < VCUDA_MAX_PROCESSES; i++) {
        struct vcuda_process *p = &page->process[i];
        uint64_t expected = VCUDA_OWNER_FREE;
        if (!__atomic_compare_exchange_n(&p->owner, &expected, owner, 0, __ATOMIC_SEQ_CST, __ATOMIC_SEQ_CST))
            continue;
        raise_slots_used(page, i + 1);
        p->attached_ns = pages_clock(CLOCK_BOOTTIME);
        p->observed_gen = 0;
        p->imports = p->exports = p->mps_percent = 0;
        p->imports_seen = __atomic_load_n(&page->clearings, __ATOMIC_SEQ_CST);
        memset(p->gpu, 0, sizeof p->gpu);
        forget_lending(p);
        __atomic_store_n(&p->start_time, begun == PAGES_NOT_KNOWN ? 0 : begun, __ATOMIC_SEQ_CST);
        return (int)i;
    }
    return -ENOSPC;
}

static uint64_t load(const uint64_t *word)
{
    return __atomic_load_n(word, __ATOMIC_RELAXED);
}

static int is_live(const struct vcuda_process *p)
{
    return pages_is_process(load(&p->owner)) && load(&p->start_time) != 0;
}

static uint64_t greatest(uint64_t a, uint64_t b)
{
    return a > b ? a : b;
}

int vcuda_usage_totals(const struct vcuda_usage *page, uint32_t gpu_index, struct vcuda_totals *out)
{
    if (gpu_index >= VCUDA_MAX_GPUS)
        return -ERANGE;
    const struct vcuda_gpu_usage *r = &page->retired[gpu_index];
    *out = (struct vcuda_totals){.gpu_time_ns = load(&r->gpu_time_ns),
                                 .throttled_ns = load(&r->throttled_ns),
                                 .launches = load(&r->launches),
                                 .refused = load(&r->refused),
                                 .observed_generation = UINT64_MAX};
    for (uint32_t i = 0, n = slots_used(page); i < n; i++) {
        const struct vcuda_gpu_usage *g = &page->process[i].gpu[gpu_index];
        if (!is_live(&page->process[i]))
            continue;
        out->memory_bytes += load(&g->memory_bytes);
        out->context_bytes += load(&g->context_bytes);
        out->gpu_time_ns += load(&g->gpu_time_ns);
        out->throttled_ns += load(&g->throttled_ns);
        out->launches += load(&g->launches);
        out->refused += load(&g->refused);
        out->inflight_ns += load(&g->inflight_ns);
        out->last_end_ns = greatest(out->last_end_ns, load(&g->last_end_ns));
        out->last_launch_ns = greatest(out->last_launch_ns, load(&g->last_launch_ns));
        out->yielded = greatest(out->yielded, load(&g->yielded));
        out->waiting += __atomic_load_n(&g->waiting, __ATOMIC_RELAXED);
        uint32_t accounting = __atomic_load_n(&g->accounting, __ATOMIC_RELAXED);
        out->accounting = accounting > out->accounting ? accounting : out->accounting;
        uint32_t longest = __atomic_load_n(&g->longest_us, __ATOMIC_RELAXED);
        out->longest_us = longest > out->longest_us ? longest : out->longest_us;
        uint64_t observed = load(&g->observed_generation);
        if (observed < out->observed_generation)
            out->observed_generation = observed;
        out->processes++;
    }
    return 0;
}

int vcuda_usage_lending(const struct vcuda_usage *page, uint32_t gpu_index, struct vcuda_lending *out)
{
    if (gpu_index >= VCUDA_MAX_GPUS)
        return -ERANGE;
    *out = (struct vcuda_lending){0};
    for (uint32_t i = 0, n = slots_used(page); i < n; i++) {
        const struct vcuda_process *p = &page->process[i];
        if (!is_live(p))
            continue;
        if (__atomic_load_n(&p->wanted_slot, __ATOMIC_RELAXED) == gpu_index)
            out->wanted_bytes += load(&p->wanted_bytes);
        if (__atomic_load_n(&p->lending_slot, __ATOMIC_RELAXED) != gpu_index)
            continue;
        out->movable_bytes += load(&p->movable_bytes);
        out->out_bytes += load(&p->out_bytes);
        out->host_bytes += load(&p->host_bytes);
        out->moved_out_bytes += load(&p->moved_out_bytes);
        out->moved_in_bytes += load(&p->moved_in_bytes);
        out->stood_ns += load(&p->stood_ns);
    }
    return 0;
}

/* Return VCUDA_UNMOVABLE_* of a process. */
static uint32_t find_unmovable(const struct vcuda_process *p)
{
    uint32_t found = __atomic_load_n(&p->imports, __ATOMIC_RELAXED) ? VCUDA_UNMOVABLE_IMPORTED : 0;
    found |= __atomic_load_n(&p->exports, __ATOMIC_RELAXED) ? VCUDA_UNMOVABLE_EXPORTED : 0;
    for (int i = 0; i < VCUDA_MAX_GPUS; i++)
        found |= load(&p->gpu[i].managed_bytes) ? VCUDA_UNMOVABLE_MANAGED : 0;
    return found;
}

int vcuda_usage_processes(const struct vcuda_usage *page, struct vcuda_process_info *out, uint32_t max)
{
    uint32_t found = 0;
    for (uint32_t i = 0, n = slots_used(page); i < n && found < max; i++) {
        const struct vcuda_process *p = &page->process[i];
        uint64_t owner = load(&p->owner);
        if (!is_live(p))
            continue;
        out[found++] = (struct vcuda_process_info){.slot = i,
                                                   .pid = (uint32_t)owner,
                                                   .pidns = owner >> 32,
                                                   .start_time = load(&p->start_time),
                                                   .observed_gen = __atomic_load_n(&p->observed_gen, __ATOMIC_RELAXED),
                                                   .unmovable = find_unmovable(p)};
    }
    return (int)found;
}

int vcuda_usage_process_gpu(const struct vcuda_usage *page, uint32_t slot, uint32_t gpu_index,
                            struct vcuda_gpu_usage *out)
{
    if (slot >= VCUDA_MAX_PROCESSES || gpu_index >= VCUDA_MAX_GPUS)
        return -ERANGE;
    memcpy(out, (const void *)&page->process[slot].gpu[gpu_index], sizeof *out);
    return 0;
}

static void move(uint64_t *to, uint64_t *from)
{
    __atomic_fetch_add(to, __atomic_exchange_n(from, 0, __ATOMIC_RELAXED), __ATOMIC_RELAXED);
}

/* Moved, not copied: whoever takes over from a killed clearer must not count anything twice. */
static void retire(struct vcuda_usage *page, struct vcuda_process *p)
{
    for (int i = 0; i < VCUDA_MAX_GPUS; i++) {
        struct vcuda_gpu_usage *r = &page->retired[i], *g = &p->gpu[i];
        move(&r->gpu_time_ns, &g->gpu_time_ns);
        move(&r->throttled_ns, &g->throttled_ns);
        move(&r->launches, &g->launches);
        move(&r->refused, &g->refused);
    }
}

static int clear_slot(struct vcuda_usage *page, struct vcuda_process *p, uint64_t owner)
{
    uint64_t clearer = pages_pidns() << 32 | VCUDA_OWNER_CLEARER | (uint32_t)getpid();
    if (!__atomic_compare_exchange_n(&p->owner, &owner, clearer, 0, __ATOMIC_SEQ_CST, __ATOMIC_SEQ_CST))
        return 0;
    /* Before its memory goes: those who imported some of it count it from now on. */
    __atomic_fetch_add(&page->clearings, 1, __ATOMIC_SEQ_CST);
    __atomic_store_n(&p->start_time, 0, __ATOMIC_SEQ_CST);
    retire(page, p);
    memset(p->gpu, 0, sizeof p->gpu);
    forget_lending(p);
    __atomic_store_n(&p->owner, VCUDA_OWNER_FREE, __ATOMIC_SEQ_CST);
    return 1;
}

int vcuda_usage_reap(struct vcuda_usage *page, uint64_t pidns, uint32_t pid, uint64_t start_time)
{
    uint64_t owner = pidns << 32 | pid;
    int cleared = 0;
    for (uint32_t i = 0, n = slots_used(page); i < n; i++) {
        struct vcuda_process *p = &page->process[i];
        if (load(&p->owner) != owner)
            continue;
        uint64_t start = load(&p->start_time);
        if (start == start_time || start == 0)
            cleared |= clear_slot(page, p, owner);
    }
    return cleared;
}

int vcuda_usage_reap_dead(struct vcuda_usage *page)
{
    uint64_t pidns = pages_pidns();
    int cleared = 0;
    for (uint32_t i = 0, n = slots_used(page); pidns && i < n; i++) {
        struct vcuda_process *p = &page->process[i];
        uint64_t owner = load(&p->owner), start = load(&p->start_time);
        if (owner == VCUDA_OWNER_FREE || owner >> 32 != pidns)
            continue;
        /* Of a slot that is being cleared this is the clearer: a killed one's work is taken over. */
        uint64_t now = pages_start_time((uint32_t)(owner & ~VCUDA_OWNER_CLEARER));
        if (now == PAGES_NOT_KNOWN)
            continue;
        /* start == 0: the owner is just setting up; it is dead only where its pid is gone. */
        if (now == 0 || (pages_is_process(owner) && start != 0 && now != start))
            cleared += clear_slot(page, p, owner);
    }
    return cleared;
}

int vcuda_usage_wait_echo(const struct vcuda_usage *page, uint32_t seen, uint64_t timeout_ns)
{
    struct timespec ts = {.tv_sec = (time_t)(timeout_ns / 1000000000ull),
                          .tv_nsec = (long)(timeout_ns % 1000000000ull)};
    uint32_t now = __atomic_load_n(&page->echo, __ATOMIC_ACQUIRE);
    if ((now & 0x7fffffffu) == (seen & 0x7fffffffu))
        syscall(SYS_futex, &page->echo, FUTEX_WAIT, now, &ts, NULL, 0);
    return (int)(__atomic_load_n(&page->echo, __ATOMIC_ACQUIRE) & 0x7fffffffu);
}
