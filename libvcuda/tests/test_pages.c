/* The pages and the helper library. */
#include "harness.h"

#include <errno.h>
#include <pthread.h>
#include <signal.h>
#include <stdio.h>
#include <string.h>
#include <sys/resource.h>
#include <sys/wait.h>
#include <unistd.h>

static void test_limits(struct claim *c, const char *limits_path)
{
    struct vcuda_limits *other;
    struct vcuda_limit limit;
    static const uint8_t foreign[16] = {0xff};
    struct vcuda_limit set = {.generation = 42, .memory_bytes = 5 * GIB, .core_request = 10, .core_limit = 20}, bad;
    uint32_t gen = c->limits->gen;
    memcpy(set.gpu_uuid, gpu_uuid, 16);
    int index = vcuda_limits_set(c->limits, &set);
    vcuda_limits_get(c->limits, (uint32_t)index, &limit);
    expect(index == 0 && limit.generation == 42 && limit.memory_bytes == 5 * GIB && limit.core_limit == 20 &&
               limit.state == VCUDA_SLOT_OPEN && c->limits->gen == gen + 1,
           "a limit that was set is read back, and gen has moved");
    int refused = 0;
    refused += (bad = set, bad.core_request = 30, vcuda_limits_set(c->limits, &bad)) == -EINVAL;
    refused += (bad = set, bad.core_limit = 101, vcuda_limits_set(c->limits, &bad)) == -EINVAL;
    refused += (bad = set, bad.ceiling = 101, vcuda_limits_set(c->limits, &bad)) == -EINVAL;
    refused += (bad = set, bad.policy = VCUDA_POLICY_NATIVE + 1, vcuda_limits_set(c->limits, &bad)) == -EINVAL;
    expect(refused == 4 && c->limits->gen == gen + 1, "impossible shares and policies are refused and change nothing");
    expect(vcuda_limits_create(limits_path, foreign, &other) == -EEXIST, "another claim's page is not taken over");
    FILE *file = fopen(limits_path, "r+");
    fputc('x', file);
    fclose(file);
    expect(vcuda_limits_open(limits_path, 0, &other) == -EBADMSG, "a damaged page is refused");
}

static void test_usage(struct claim *c)
{
    struct vcuda_totals totals;
    int slot = pages_slot_take(c->usage);
    c->usage->process[slot].gpu[0].memory_bytes = 100;
    c->usage->process[slot].gpu[0].gpu_time_ns = 7;
    pid_t child = fork();
    if (child == 0) {
        int mine = pages_slot_take(c->usage);
        c->usage->process[mine].gpu[0].memory_bytes = 1000;
        c->usage->process[mine].gpu[0].gpu_time_ns = 70;
        kill(getpid(), SIGKILL);
    }
    waitpid(child, NULL, 0);
    vcuda_usage_totals(c->usage, 0, &totals);
    expect(totals.memory_bytes == 1100 && totals.processes == 2, "use is summed over the slots");
    expect(vcuda_usage_reap_dead(c->usage) == 1, "a killed process's slot is cleared");
    child = fork();
    if (child == 0) {
        int mine = pages_slot_take(c->usage);
        c->usage->process[mine].owner |= VCUDA_OWNER_CLEARER;
        kill(getpid(), SIGKILL);
    }
    waitpid(child, NULL, 0);
    expect(vcuda_usage_reap_dead(c->usage) == 1, "and so is one whose clearer was killed");
    vcuda_usage_totals(c->usage, 0, &totals);
    expect(totals.memory_bytes == 100 && totals.gpu_time_ns == 77 && totals.processes == 1,
           "its memory is gone from the sum, its GPU time stays counted");
    struct vcuda_process *foreign = &c->usage->process[slot];
    uint64_t owner = foreign->owner;
    foreign->owner = (1234ull << 32) | 999999;
    expect(vcuda_usage_reap_dead(c->usage) == 0, "a slot of another pid namespace is left alone");
    expect(vcuda_usage_reap(c->usage, 1234, 999999, foreign->start_time) == 1, "unless it is named by one who knows");
    (void)owner;
}

static void *sleep_long(void *nothing)
{
    pause_s(5);
    return nothing;
}

/* Not dead, though /proc shows a zombie, or nothing at all. */
static void test_alive(struct claim *c)
{
    int told[2], mine = pages_slot_take(c->usage);
    if (mine < 0 || pipe(told) != 0)
        return;
    pid_t child = fork();
    if (child == 0) {
        pthread_t thread;
        close(told[0]);
        pages_slot_take(c->usage);
        pthread_create(&thread, NULL, sleep_long, NULL);
        (void)!write(told[1], "x", 1);
        pthread_exit(NULL);
    }
    char byte;
    (void)!read(told[0], &byte, 1);
    pause_s(0.1);
    expect(vcuda_usage_reap_dead(c->usage) == 0, "a process whose main thread has ended keeps its slot");
    struct rlimit before, none;
    getrlimit(RLIMIT_NOFILE, &before);
    none = (struct rlimit){0, before.rlim_max};
    setrlimit(RLIMIT_NOFILE, &none);
    int cleared = vcuda_usage_reap_dead(c->usage);
    setrlimit(RLIMIT_NOFILE, &before);
    expect(cleared == 0, "nobody is taken for dead by a process that has no file descriptor left to look");
    kill(child, SIGKILL);
    waitpid(child, NULL, 0);
    expect(vcuda_usage_reap_dead(c->usage) == 1, "until it is really dead");
    close(told[0]);
    close(told[1]);
}

/* A page that was copied to another node with two of its three processes, whose clock is 70 s behind. */
static void test_arrival(struct claim *c)
{
    static struct vcuda_usage copy;
    memcpy(&copy, c->usage, sizeof copy);
    memset(copy.process, 0, sizeof copy.process);
    memset(copy.retired, 0, sizeof copy.retired);
    for (uint32_t i = 0; i < 3; i++) {
        struct vcuda_process *p = &copy.process[i];
        *p = (struct vcuda_process){.owner = (77ull << 32) | (500 + i), .start_time = 9000 + i};
        p->gpu[0] = (struct vcuda_gpu_usage){.memory_bytes = 100ull << i,
                                             .gpu_time_ns = 1000ull << i,
                                             .last_launch_ns = 100000000000ull,
                                             .last_end_ns = i ? 1000ull : 0,
                                             .yielded = 5};
    }
    copy.slots_used = 3;
    copy.bucket[0] = (struct vcuda_bucket){.refilled_ns = 100000000000ull, .credit_ns = -7, .holes = {1, 2, 3, 4}};
    struct vcuda_arrival came[] = {{.pid = 500, .start_time = 11}, {.pid = 502, .start_time = 13}};
    struct vcuda_totals totals;
    struct vcuda_process_info info[4];
    int arrived = vcuda_usage_arrive(&copy, 88, came, 2, -70000000000ll);
    int live = vcuda_usage_processes(&copy, info, 4);
    vcuda_usage_totals(&copy, 0, &totals);
    expect(arrived == 2 && live == 2 && info[1].slot == 2 && info[1].pid == 502 && info[1].pidns == 88 &&
               info[1].start_time == 13,
           "processes that were carried here go on in their slots, under their new names");
    expect(totals.memory_bytes == 500 && totals.gpu_time_ns == 7000 && totals.processes == 2,
           "who stayed behind holds no memory, and what it used stays counted, once: %llu, %llu",
           (unsigned long long)totals.memory_bytes, (unsigned long long)totals.gpu_time_ns);
    expect(copy.bucket[0].refilled_ns == 30000000000ull && copy.bucket[0].busy_until_ns == 0 &&
               copy.bucket[0].credit_ns == -7 && !copy.bucket[0].holes[0] && totals.last_launch_ns == 30000000000ull &&
               copy.process[2].gpu[0].last_end_ns == 1 && !copy.process[2].gpu[0].yielded,
           "moments are this machine's, credit and debt are kept");
}

void test_pages(void)
{
    struct claim claim;
    char path[400];
    claim_make(&claim, GIB, 100);
    snprintf(path, sizeof path, "%s/limits", claim.directory);
    expect(strstr(vcuda_abi_describe(), "\"vcuda_limits\":{\"size\":4096") &&
               strstr(vcuda_abi_describe(), "\"vcuda_usage\":{\"size\":561152") &&
               strstr(vcuda_abi_describe(), "\"native\":6}}"),
           "the layout describes itself");
    test_usage(&claim);
    test_alive(&claim);
    test_arrival(&claim);
    test_limits(&claim, path);
    claim_end(&claim);
}
