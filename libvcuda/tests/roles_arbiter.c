/* A tenant of the arbiter without a GPU: it speaks the pages' protocol as libvcuda does. Its kernels run on a clock that all
 * tenants share: one word that says until when the GPU is taken. */
#include "harness.h"

#include <fcntl.h>
#include <linux/futex.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <sys/mman.h>
#include <sys/prctl.h>
#include <sys/syscall.h>
#include <time.h>
#include <unistd.h>

#define INFLIGHT_NS 2500000ull
#define QUEUE 64

static struct vcuda_turns *turns;
static struct vcuda_gpu_usage *own;
static uint64_t *taken_until, ends[QUEUE], kernel_ns;
static unsigned head, tail;

static uint64_t now_ns(void)
{
    return pages_clock(CLOCK_MONOTONIC);
}

static int open_pages(const char *clock_path)
{
    char path[400];
    struct vcuda_usage *usage;
    const char *directory = getenv(VCUDA_CLAIM_DIR_ENV);
    snprintf(path, sizeof path, "%s/turns", directory);
    for (int i = 0; i < 100 && vcuda_turns_open(path, 0, &turns); i++)
        pause_s(0.02);
    snprintf(path, sizeof path, "%s/usage", directory);
    int slot = turns && !vcuda_usage_open(path, 1, &usage) ? pages_slot_take(usage) : -1;
    int fd = open(clock_path, O_RDWR);
    void *map = fd >= 0 ? mmap(NULL, 4096, PROT_READ | PROT_WRITE, MAP_SHARED, fd, 0) : MAP_FAILED;
    if (slot < 0 || map == MAP_FAILED)
        return 0;
    taken_until = map;
    own = &usage->process[slot].gpu[0];
    return 1;
}

static void retire(void)
{
    while (tail != head && ends[tail % QUEUE] <= now_ns()) {
        __atomic_fetch_add(&own->gpu_time_ns, kernel_ns, __ATOMIC_RELAXED);
        __atomic_store_n(&own->last_end_ns, ends[tail % QUEUE], __ATOMIC_RELAXED);
        __atomic_fetch_sub(&own->inflight_ns, kernel_ns, __ATOMIC_SEQ_CST);
        tail++;
    }
}

static int turn_allows(void)
{
    uint64_t end = __atomic_load_n(&turns->turn[0].ends_ns, __ATOMIC_SEQ_CST);
    uint64_t inflight = __atomic_load_n(&own->inflight_ns, __ATOMIC_SEQ_CST);
    uint64_t silent = now_ns() - __atomic_load_n(&turns->heartbeat_ns, __ATOMIC_ACQUIRE);
    if (end == VCUDA_TURN_FREE || ((int64_t)silent > 0 && silent > VCUDA_TURNS_STALE_NS))
        return 1;
    return now_ns() < end && (inflight <= kernel_ns || now_ns() + inflight <= end);
}

/* Add, look again, take back: see vcuda_pages.h. */
static int launch(void)
{
    __atomic_fetch_add(&own->inflight_ns, kernel_ns, __ATOMIC_SEQ_CST);
    if (!turn_allows()) {
        __atomic_fetch_sub(&own->inflight_ns, kernel_ns, __ATOMIC_SEQ_CST);
        return 0;
    }
    uint64_t begin, free_at = __atomic_load_n(taken_until, __ATOMIC_SEQ_CST);
    do {
        begin = free_at > now_ns() ? free_at : now_ns();
    } while (
        !__atomic_compare_exchange_n(taken_until, &free_at, begin + kernel_ns, 0, __ATOMIC_SEQ_CST, __ATOMIC_SEQ_CST));
    ends[head++ % QUEUE] = begin + kernel_ns;
    __atomic_store_n(&own->last_launch_ns, now_ns(), __ATOMIC_RELAXED);
    return 1;
}

static void sleep_ns(uint64_t ns)
{
    struct timespec ts = {(time_t)(ns / 1000000000), (long)(ns % 1000000000)};
    nanosleep(&ts, NULL);
}

static void wait_for_turn(void)
{
    struct timespec ts = {0, 2000000};
    uint64_t begin = now_ns();
    uint32_t gen = __atomic_load_n(&turns->gen, __ATOMIC_SEQ_CST);
    __atomic_store_n(&own->waiting, 1, __ATOMIC_SEQ_CST);
    if (!turn_allows())
        syscall(SYS_futex, &turns->gen, FUTEX_WAIT, gen, &ts, NULL, 0);
    if (turn_allows())
        __atomic_store_n(&own->waiting, 0, __ATOMIC_SEQ_CST);
    __atomic_fetch_add(&own->throttled_ns, now_ns() - begin, __ATOMIC_RELAXED);
}

static void work(double seconds, uint64_t burst_ns, uint64_t pause_ns)
{
    uint64_t until = now_ns() + (uint64_t)(seconds * 1e9), asked = 0;
    while (now_ns() < until) {
        retire();
        if (burst_ns && asked >= burst_ns) {
            if (head != tail) {
                sleep_ns(200000);
                continue;
            }
            sleep_ns(pause_ns);
            asked = 0;
        }
        if ((head - tail + 1) * kernel_ns > INFLIGHT_NS && head - tail >= 2)
            sleep_ns(ends[tail % QUEUE] > now_ns() ? ends[tail % QUEUE] - now_ns() : 1);
        else if (launch())
            asked += kernel_ns;
        else if (head != tail)
            sleep_ns(100000);
        else
            wait_for_turn();
    }
}

/* A tenant that lies: numbers that cannot be, for every slot. */
static void lie(double seconds)
{
    struct vcuda_process *mine = (struct vcuda_process *)((char *)own - offsetof(struct vcuda_process, gpu));
    struct vcuda_usage *usage = (struct vcuda_usage *)((char *)mine - offsetof(struct vcuda_usage, process));
    uint64_t until = now_ns() + (uint64_t)(seconds * 1e9);
    usage->slots_used = UINT32_MAX;
    for (int i = 1; i < VCUDA_MAX_PROCESSES; i++) {
        usage->process[i].owner = UINT64_MAX - (uint64_t)i;
        usage->process[i].start_time = (uint64_t)i;
        memset(usage->process[i].gpu, 0xff, sizeof usage->process[i].gpu);
    }
    memset(mine->gpu, 0xff, sizeof mine->gpu);
    while (now_ns() < until)
        sleep_ns(10000000);
}

int role_arbiter(int argc, char **argv)
{
    prctl(PR_SET_TIMERSLACK, 1ul, 0ul, 0ul, 0ul);
    /* tenant CLOCK KERNEL_US SECONDS BURST_US PAUSE_US | liar CLOCK SECONDS */
    if (argc == 6 && !strcmp(argv[0], "tenant") && open_pages(argv[1])) {
        kernel_ns = strtoull(argv[2], NULL, 10) * 1000;
        printf("ready 1\n");
        fflush(stdout);
        work(atof(argv[3]), strtoull(argv[4], NULL, 10) * 1000, strtoull(argv[5], NULL, 10) * 1000);
        return 0;
    }
    if (argc == 3 && !strcmp(argv[0], "liar") && open_pages(argv[1])) {
        lie(atof(argv[2]));
        return 0;
    }
    return -1;
}
