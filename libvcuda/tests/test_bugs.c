/* Regression tests. */
#include "harness.h"

#include <stdio.h>
#include <stdlib.h>
#include <sys/wait.h>

static void test_pools(void)
{
    struct claim claim;
    struct player p;
    claim_make(&claim, 2 * GIB, 100);
    play(&p, &claim, PRELOADED, "pools", NULL);
    finish(&p);
    expect(p.status == 0 && figure_of(&p, "bad") == 0,
           "four hundred pools made and destroyed: status %d, %.0f failures", p.status, figure_of(&p, "bad"));
    expect(figure_of(&p, "free") >= (double)(2 * GIB - context_cost - 64 * MIB), "and nothing of them stays counted");
    expect(figure_of(&p, "big") == 2, "a pool after them ends at the limit: error %.0f", figure_of(&p, "big"));
    expect(figure_of(&p, "elsewhere") == 800, "a pool on a GPU outside the claim gives nothing: error %.0f",
           figure_of(&p, "elsewhere"));
    /* Where the kernel's calls account, none need be watched: they are made, and give nothing. */
    expect(figure_of(&p, "crowd") == (was_by_kernel(&claim) ? 0 : 2),
           "more pools at once than can be watched are refused");
    claim_end(&claim);
}

static void test_exit(void)
{
    struct claim claim;
    struct player p;
    claim_make(&claim, 2 * GIB, 50);
    double begin = now_s();
    play(&p, &claim, PRELOADED, "exits", NULL);
    finish(&p);
    expect(p.status == 0 && now_s() - begin < 8,
           "a program ends while its thread waits for credit: status %d after %.1f s", p.status, now_s() - begin);
    claim_end(&claim);
}

static void test_exec(void)
{
    struct claim claim;
    struct player p;
    uint64_t limit = 2 * GIB;
    claim_make(&claim, limit, 100);
    play(&p, &claim, PRELOADED, "execs", "1073741824", NULL);
    finish(&p);
    expect(figure_of(&p, "got") >= (double)(limit - context_cost - 64 * MIB),
           "a program that replaced itself pays for itself alone: %.0f MiB", figure_of(&p, "got") / MIB);
    claim_end(&claim);
}

static void test_pitch(void)
{
    struct claim claim;
    struct player p;
    uint64_t limit = 2 * GIB;
    if (on_real_gpu)
        return;
    claim_make(&claim, limit, 100);
    setenv("GPUCLOUD_SIM_PITCH", "131072", 1); /* every row twice as long as the program's */
    play(&p, &claim, PRELOADED, "fill", "pitch", "67108864", "8589934592", NULL);
    unsetenv("GPUCLOUD_SIM_PITCH");
    finish(&p);
    double really = 2 * figure_of(&p, "got"), most = (double)(limit - context_cost);
    expect(figure_of(&p, "error") == 2 && really <= most && really >= most - 256.0 * MIB,
           "rows padded beyond what is expected count in full: %.0f of %.0f MiB", really / MIB, most / MIB);
    claim_end(&claim);
}

static void test_maps(void)
{
    struct claim claim;
    struct player p;
    claim_make(&claim, 2 * GIB, 100);
    play(&p, &claim, PRELOADED, "maps", NULL);
    finish(&p);
    expect(p.status == 0 && figure_of(&p, "mapped") == 64 && figure_of(&p, "bad_unmap") > 0 &&
               figure_of(&p, "still") == 64,
           "a mapping keeps its memory counted when the handle is gone, and when an unmapping fails");
    expect(figure_of(&p, "freed_async") == 0 && figure_of(&p, "freed_plainly") == 0,
           "a plain block freed in a stream's order is refunded, and one of a pool freed at once: %.0f, %.0f MiB",
           figure_of(&p, "freed_async"), figure_of(&p, "freed_plainly"));
    expect(figure_of(&p, "unmapped") == 0, "and no longer once it is unmapped: %.0f MiB", figure_of(&p, "unmapped"));
    claim_end(&claim);
}

static void test_per_thread(void)
{
    struct claim claim;
    struct player p;
    struct vcuda_totals t;
    claim_make(&claim, 2 * GIB, 100);
    play(&p, &claim, PRELOADED, "per_thread", NULL);
    wait_for(&p, "worked");
    vcuda_usage_totals(claim.usage, 0, &t);
    expect((double)t.gpu_time_ns >= 0.85 * figure_of(&p, "worked"),
           "work on a thread's own stream is charged though another thread waits: %.0f of %.0f ms",
           (double)t.gpu_time_ns / 1e6, figure_of(&p, "worked") / 1e6);
    finish(&p);
    claim_end(&claim);
}

static void test_beside_capture(void)
{
    struct claim claim;
    struct player p;
    struct vcuda_totals t;
    claim_make(&claim, 2 * GIB, 100);
    play(&p, &claim, PRELOADED, "beside_capture", NULL);
    wait_for(&p, "launched");
    vcuda_usage_totals(claim.usage, 0, &t);
    expect(figure_of(&p, "launched") == 1 && t.inflight_ns == 0 && t.gpu_time_ns >= 9 * 800000,
           "work beside a capture without an end does not stay in flight: %.3f ms, of %.1f ms",
           (double)t.inflight_ns / 1e6, (double)t.gpu_time_ns / 1e6);
    finish(&p);
    claim_end(&claim);
}

/* Launches without events count as in flight until the next burst, and there is none. */
static void test_pause(void)
{
    struct claim claim;
    struct player p;
    struct vcuda_totals t;
    claim_make(&claim, 2 * GIB, 50);
    play(&p, &claim, PRELOADED, "waits", NULL);
    wait_for(&p, "worked");
    vcuda_usage_totals(claim.usage, 0, &t);
    double part = (double)t.gpu_time_ns / figure_of(&p, "worked");
    expect(t.inflight_ns == 0 && t.launches == figure_of(&p, "launches") &&
               (on_real_gpu || SANITIZED || (part > 0.8 && part < 1.2)),
           "a program that waited for each kernel and pauses has nothing in flight: %.3f ms, %.2f of its work charged",
           (double)t.inflight_ns / 1e6, part);
    finish(&p);
    claim_end(&claim);
}

/* A launch that takes the host long leaves its kernel's time vague. That must not be measured again and again; and the
 * launches without events that a measurement interrupts go on after it. Bursts of one kernel behind itself measure it. */
static void test_events(void)
{
    static const struct {
        const char *costs, *ns, *sizes, *how, *what;
        double most;
    } programs[] = {
        {"launch=25000,gap=950,event=1280", "3000", "1", "apart", "kernels that cannot be measured", 40},
        {"launch=3000,gap=950,event=1280", "1000", "24", "apart", "kernels of 24 sizes", 18},
        {"launch=3000,gap=950,event=1280", "20000", "1", "behind", "kernels behind one another", 25},
    };
    for (size_t i = 0; i < sizeof programs / sizeof *programs; i++) {
        struct claim claim;
        struct player p;
        claim_make(&claim, 2 * GIB, 100);
        setenv("GPUCLOUD_SIM_COSTS", programs[i].costs, 1);
        play(&p, &claim, PRELOADED, "events", programs[i].ns, programs[i].sizes, programs[i].how, NULL);
        unsetenv("GPUCLOUD_SIM_COSTS");
        finish(&p);
        double part = 1000 * figure_of(&p, "events") / figure_of(&p, "launches");
        expect(p.status == 0 && (SANITIZED || part <= programs[i].most),
               "%s get few timing events: %.1f of at most %.0f per thousand", programs[i].what, part, programs[i].most);
        claim_end(&claim);
    }
}

static void test_debt(void)
{
    struct claim claim;
    struct player p;
    claim_make(&claim, 2 * GIB, 100);
    play(&p, &claim, PRELOADED, "owes", NULL);
    wait_for(&p, "worked");
    claim_set(&claim, 2 * GIB, 2);
    finish(&p);
    expect(figure_of(&p, "waited") >= 0 && figure_of(&p, "waited") < 0.5,
           "what was used without a limit is no debt under one: %.2f s of waiting", figure_of(&p, "waited"));
    claim_end(&claim);
}

static void test_contexts(void)
{
    struct claim claim;
    struct player p;
    struct vcuda_totals t;
    if (on_real_gpu)
        return; /* a hundred contexts take half a minute there */
    claim_make(&claim, 4 * GIB, 100);
    play(&p, &claim, PRELOADED, "contexts", NULL);
    wait_for(&p, "worked");
    vcuda_usage_totals(claim.usage, 0, &t);
    expect(figure_of(&p, "worked") == 1 && t.gpu_time_ns >= 12000000 && t.gpu_time_ns < 25000000,
           "work in a process's hundredth context is still measured: %.1f of 14.9 ms", (double)t.gpu_time_ns / 1e6);
    finish(&p);
    claim_end(&claim);
}

static void test_second_context(void)
{
    struct claim claim;
    struct player p;
    struct vcuda_totals t;
    if (on_real_gpu)
        return; /* the kernel is the primary context's there */
    claim_make(&claim, 4 * GIB, 100);
    play(&p, &claim, PRELOADED, "second_context", NULL);
    wait_for(&p, "worked");
    vcuda_usage_totals(claim.usage, 0, &t);
    expect(figure_of(&p, "worked") == 1 && t.gpu_time_ns > 190000000,
           "work of a second context is charged though the primary one ended: %.1f of 200 ms",
           (double)t.gpu_time_ns / 1e6);
    finish(&p);
    claim_end(&claim);
}

static void test_short_streams(void)
{
    struct claim claim;
    struct player p;
    struct vcuda_totals t;
    claim_make(&claim, 2 * GIB, 100);
    play(&p, &claim, PRELOADED, "short_streams", NULL);
    wait_for(&p, "worked");
    vcuda_usage_totals(claim.usage, 0, &t);
    finish(&p);
    expect(p.status == 0 && t.inflight_ns == 0 && (SANITIZED || t.gpu_time_ns >= 15 * 900000),
           "streams destroyed with work in them are left alone, and their work is charged: status %d, %.1f of 16.2 ms",
           p.status, (double)t.gpu_time_ns / 1e6);
    claim_end(&claim);
}

void test_bugs(void)
{
    test_maps();
    test_pitch();
    test_pools();
    test_exit();
    test_exec();
    test_per_thread();
    test_beside_capture();
    test_pause();
    test_events();
    test_debt();
    test_contexts();
    test_second_context();
    test_short_streams();
}
