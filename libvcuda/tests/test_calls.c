/* The kernel driver's calls by themselves, on the simulated kernel: their forms, handles, failures; drivers that the library
 * does not know below the API; two GPUs. */
#include "steps.h"

#include <stdio.h>
#include <stdlib.h>
#include <string.h>

static void test_forms(void)
{
    static const struct {
        const char *name;
        double mib;
        const char *sentence;
    } rows[] = {
        {"long", 64, "an allocation"},
        {"short", 96, "one in the older form"},
        {"wrapped", 128, "one inside a transfer"},
        {"sizes", 144, "with parameters as long as is needed, or of the class's length"},
        {"too_short", 144, "what has no size passes"},
        {"host", 144, "so does memory of the host"},
        {"released", 0, "all of it freed"},
        {"dup", 64, "a second handle costs nothing"},
        {"first_gone", 64, "and holds the memory when the first is gone"},
        {"both_gone", 0, "until it goes too"},
        {"second_client", 32, "another client's memory"},
        {"device_gone", 0, "goes with its device"},
        {"client_gone", 0, "or with its client"},
        {"after_over", 0, "what is refused costs nothing"},
        {"child_freed", 16, "a forked child that frees a handle refunds nothing"},
        {"exported", 16, "what a descriptor holds stays charged"},
        {"closed", 0, "until it is closed"},
    };
    struct claim claim;
    struct player p;
    claim_make(&claim, 4 * GIB, 100);
    play(&p, &claim, PRELOADED, "calls", NULL);
    finish(&p);
    for (size_t i = 0; i < sizeof rows / sizeof *rows; i++)
        expect(figure_of(&p, rows[i].name) == rows[i].mib, "the kernel's calls: %s: %.0f MiB", rows[i].sentence,
               figure_of(&p, rows[i].name));
    expect(figure_of(&p, "over") == 0x51 && figure_of(&p, "errno") == 77,
           "over the limit the kernel's own status, and errno as it was");
    expect(figure_of(&p, "other_ioctl") == 1, "other ioctls reach the kernel");
    expect(p.status == 0, "and the program ends well");
    claim_end(&claim);
}

/* One allocation of `mib` under a limit of 64 MiB and an environment: status, charge, and what the GPU really gave. */
static void test_one(const char *name, const char *value, const char *mib, double status, double charged,
                     const char *sentence)
{
    struct claim claim;
    struct steps s;
    uint64_t really = 0;
    claim_make(&claim, 64 * MIB, 100);
    setenv(name, value, 1);
    steps_begin(&s, &claim, "calls", mib, NULL);
    unsetenv(name);
    if (steps_next(&s))
        really = account_of(&claim, 0, s.player.pid).nvml;
    expect(figure_of(&s.player, "status") == status && figure_of(&s.player, "charged") == charged &&
               (double)really == charged * MIB,
           "%s: status %.0f, %.0f MiB charged, %.0f taken", sentence, figure_of(&s.player, "status"),
           figure_of(&s.player, "charged"), (double)really / MIB);
    while (steps_next(&s))
        ;
    claim_end(&claim);
}

static void test_unknown(const char *value, int by_kernel, const char *sentence)
{
    struct claim claim;
    struct player p;
    claim_make(&claim, GIB, 100);
    if (value)
        setenv("GPUCLOUD_SIM_KERNEL_GID", value, 1);
    play(&p, &claim, PRELOADED, "fill", "plain", "67108864", "8589934592", NULL);
    unsetenv("GPUCLOUD_SIM_KERNEL_GID");
    finish(&p);
    double got = figure_of(&p, "got");
    expect(was_by_kernel(&claim) == by_kernel && figure_of(&p, "error") == 2 && got <= (double)(GIB - context_cost) &&
               got > (double)(GIB - context_cost - 64 * MIB),
           "%s: accounted by %s, %.0f MiB had", sentence, was_by_kernel(&claim) ? "the kernel's calls" : "the hooks",
           got / MIB);
    claim_end(&claim);
}

static void test_half_context(void)
{
    struct claim claim;
    struct steps s;
    claim_make(&claim, GIB, 100);
    setenv("GPUCLOUD_SIM_KERNEL_FAIL", "3", 1);
    steps_begin(&s, &claim, "retain", "2", NULL);
    unsetenv("GPUCLOUD_SIM_KERNEL_FAIL");
    steps_next(&s);
    struct account half = account_of(&claim, 0, s.player.pid);
    double error = figure_of(&s.player, "error");
    steps_next(&s);
    struct account whole = account_of(&claim, 0, s.player.pid);
    expect(error == 2 && half.bytes == 0 && half.nvml == 0 && figure_of(&s.player, "error") == 0 &&
               whole.bytes == whole.nvml && whole.bytes > 0,
           "a context that fails half-way leaves nothing; the next one is charged once: %.0f, %.0f MiB",
           (double)half.bytes / MIB, (double)whole.bytes / MIB);
    while (steps_next(&s))
        ;
    claim_end(&claim);
}

/* The UUID of the node's second GPU, as a program without us sees it. */
static void second_uuid(uint8_t uuid[16])
{
    struct player p;
    char name[16];
    play(&p, NULL, BARE, "uuid", "1", NULL);
    finish(&p);
    for (int i = 0; i < 16; i++) {
        snprintf(name, sizeof name, "uuid%d", i);
        uuid[i] = (uint8_t)figure_of(&p, name);
    }
}

static void test_two(void)
{
    struct claim claim;
    struct steps s;
    uint64_t limit[2] = {GIB, GIB + 512 * MIB};
    struct vcuda_limit second = {.assignment_uid = {9}, .generation = 1, .memory_bytes = limit[1], .core_limit = 100};
    claim_make(&claim, limit[0], 100);
    steps_begin(&s, &claim, "two", NULL, NULL);
    steps_next(&s);
    expect(figure_of(&s.player, "error0") == 2 && figure_of(&s.player, "error1") == 800 &&
               figure_of(&s.player, "got1") == 0,
           "of two GPUs the claim has one: the other gives nothing, error %.0f", figure_of(&s.player, "error1"));
    while (steps_next(&s))
        ;
    second_uuid(second.gpu_uuid);
    vcuda_limits_set(claim.limits, &second);
    vcuda_usage_reap_dead(claim.usage);
    steps_begin(&s, &claim, "two", NULL, NULL);
    steps_next(&s);
    int right = 1;
    for (unsigned gpu = 0; gpu < 2; gpu++) {
        struct account now = account_of(&claim, gpu, s.player.pid);
        right &= !account_differs(&now) && now.bytes <= limit[gpu] && now.bytes + 32 * MIB > limit[gpu];
    }
    expect(right, "two GPUs in one process, each to its own limit: %.0f and %.0f MiB",
           figure_of(&s.player, "got0") / MIB, figure_of(&s.player, "got1") / MIB);
    while (steps_next(&s))
        ;
    claim_end(&claim);
}

void test_calls(void)
{
    test_forms();
    test_one("GPUCLOUD_SIM_KERNEL_FAIL", "1", "16", 0x1a, 0, "what the kernel refuses is refunded");
    test_one("GPUCLOUD_SIM_KERNEL_ROUND", "33554432", "16", 0, 32, "what it takes beyond is charged");
    test_one("GPUCLOUD_SIM_KERNEL_ROUND", "100663296", "16", 0x51, 0, "and given back where it does not fit");
    test_unknown(NULL, 1, "a driver whose calls are known");
    test_unknown("none", 0, "a driver that tells no UUID");
    test_unknown("other", 1, "a MIG device, whose UUID the kernel does not tell");
    setenv("GPUCLOUD_SIM_KERNEL_SHORT", "1", 1);
    test_unknown(NULL, 1, "a driver that makes the older calls, wrapped");
    unsetenv("GPUCLOUD_SIM_KERNEL_SHORT");
    test_half_context();
    test_two();
}

/* The account becomes `bytes`, within the time of a few looks at NVML. */
static int becomes(const struct claim *claim, pid_t pid, uint64_t bytes)
{
    for (double end = now_s() + 40; now_s() < end; pause_s(0.1))
        if (account_of(claim, 0, pid).bytes == bytes)
            return 1;
    return 0;
}

void test_drift(void)
{
    struct claim claim;
    struct steps s;
    if (on_real_gpu)
        return;
    int before = simulated_kernel;
    simulated_kernel = 1;
    claim_make(&claim, GIB, 100);
    steps_begin(&s, &claim, "hidden", NULL, NULL);
    steps_next(&s);
    uint64_t first = account_of(&claim, 0, s.player.pid).bytes;
    steps_next(&s);
    expect(becomes(&claim, s.player.pid, first + 96 * MIB),
           "memory that the kernel gave unseen is found by NVML, and counts");
    steps_next(&s);
    expect(becomes(&claim, s.player.pid, first), "until it is gone");
    while (steps_next(&s))
        ;
    claim_end(&claim);
    simulated_kernel = before;
}
