/* Streams that wait for a value in host memory, and that write one: the simulated driver does as the real one. Without the
 * library throughout: what is tested here is what it stands on. */
#include "harness.h"

#include "driver.h"

#include <stdio.h>
#include <stdlib.h>

static struct player p;

static double said(const char *name)
{
    return figure_of(&p, name);
}

static void expect_order(void)
{
    expect(said("order_bad") == 0 && said("launch_s") < 0.04 && said("query") == CUDA_ERROR_NOT_READY &&
               said("query_later") == CUDA_ERROR_NOT_READY && said("query_after") == 0,
           "a launch behind a wait returns at once (%.3f s), and starts when the value is there", said("launch_s"));
    expect(said("event_query") == CUDA_ERROR_NOT_READY && said("event_query_before") == 0,
           "an event behind the wait has not happened, one before it has");
    expect(said("other_s") < 0.2 && said("overtaken_ms") > 50, "another stream overtakes: by %.0f ms",
           said("overtaken_ms"));
    expect(said("sync_waits") == 1, "a thread that waits for the stream waits until another stores the value");
    double more = said("elapsed_ms") - said("held_ms");
    expect(more > 1 && more < (SANITIZED ? 100 : 20),
           "events tell when it happened: %.2f ms after the value, work and all", more);
}

static void expect_writes(void)
{
    expect(said("written_early") == 0 && said("written") == 8 && said("write_bad") == 0,
           "a value is written when the kernel before it is done, not sooner: %.0f, and %.0f early", said("written"),
           said("written_early"));
    expect(said("written_alone") == 9, "it is written though nobody calls the driver");
    expect(said("let_go") == 2, "one stream lets another go by what it writes");
}

static void expect_company(void)
{
    expect(said("by_event_query") == CUDA_ERROR_NOT_READY && said("by_event_waits") == 1 && said("by_event_bad") == 0,
           "what waits for an event behind a wait, waits too; a later record of the event changes nothing");
    expect(said("context_waits") == 1, "a wait for the context waits for its streams' waits");
    expect(said("blocking_beside") == 0 && said("null_query") == CUDA_ERROR_NOT_READY &&
               said("blocking_query") == CUDA_ERROR_NOT_READY && said("apart_query") == 0 && said("null_bad") == 0,
           "the null stream waits for a blocking stream's wait, another blocking stream for the null stream's work");
    expect(said("copy_waits") == 1, "and so does a copy that blocks");
    expect(said("gone_query") == CUDA_ERROR_NOT_READY && said("gone_query_destroyed") == CUDA_ERROR_NOT_READY &&
               said("gone_bad") == 0,
           "a stream that is gone before the value is there still does its work");
    expect(said("child_query") == CUDA_ERROR_NOT_INITIALIZED, "a forked child has no driver, and no wait");
}

static void test_one_process(void)
{
    play(&p, NULL, BARE, "memops", NULL);
    expect(finish_within(&p, 60) && p.status == 0 && said("done") == 1, "waits and writes of streams end");
    expect_order();
    expect_writes();
    expect_company();
    expect(said("alone_bad") == 0 && said("noticed_us") < (SANITIZED ? 5000 : 500),
           "a value is noticed though no thread calls the driver: within %.0f us", said("noticed_us"));
    expect(said("many_bad") == 0 && said("many_launch_s") < (SANITIZED ? 5 : 1) && said("many_s") > 0.019,
           "1000 launches are taken behind a wait (%.3f s), and done after it (%.3f s)", said("many_launch_s"),
           said("many_s"));
    expect(said("no_address") == CUDA_ERROR_INVALID_VALUE && said("no_address_written") == CUDA_ERROR_INVALID_VALUE &&
               said("wrapped") == 0,
           "no address is an error; values are a circle");
    expect(on_real_gpu || (said("captured") == CUDA_ERROR_STREAM_CAPTURE_UNSUPPORTED &&
                           said("captured_written") == CUDA_ERROR_STREAM_CAPTURE_UNSUPPORTED),
           "the simulated driver captures neither");
}

static void test_neighbour(void)
{
    struct player load;
    double share = 0;
    for (int again = 0; again < 3 && share < 90; again++) {
        play(&p, NULL, BARE, "memops_blocked", "1", NULL);
        wait_for(&p, "blocked");
        play(&load, NULL, BARE, "load", "5000000", "0", "0.6", "10", NULL);
        finish(&load);
        finish(&p);
        share = figure_of(&load, "overall");
    }
    expect(share >= 90 && said("bad") == 0 && said("blocked") == 0,
           "beside a process whose work waits for a value, another has the GPU to itself: %.1f %%", share);
}

/* Work that may not start is work: a checkpoint waits for it, in vain here. */
static void test_lock(void)
{
    struct player lock;
    char pid[16];
    play(&p, NULL, BARE, "memops_blocked", "1.5", NULL);
    wait_for(&p, "blocked");
    snprintf(pid, sizeof pid, "%d", (int)p.pid);
    play(&lock, NULL, BARE, "memops_lock", pid, NULL);
    finish(&lock);
    finish(&p);
    expect(figure_of(&lock, "locked") == CUDA_ERROR_NOT_READY && said("bad") == 0,
           "a process whose work waits for a value is not locked for a checkpoint: %.0f", figure_of(&lock, "locked"));
}

static void test_names(void)
{
    play(&p, NULL, BARE, "memops_names", NULL);
    finish(&p);
    expect(said("exported") == 1 && said("lookup") == 0 && said("lookup_same") == 1 && said("answer") == 0,
           "both entries are found by name and by version");
    if (on_real_gpu)
        return;
    setenv("GPUCLOUD_SIM_CUDA_VERSION", "11060", 1);
    play(&p, NULL, BARE, "memops_names", NULL);
    finish(&p);
    unsetenv("GPUCLOUD_SIM_CUDA_VERSION");
    expect(p.status == 0 && said("exported") == 0 && said("lookup") == CUDA_ERROR_NOT_FOUND, "CUDA 11.6 has neither");
    setenv("GPUCLOUD_SIM_FAULTS", "cuStreamWaitValue32_v2:1=801", 1);
    play(&p, NULL, BARE, "memops_names", NULL);
    finish(&p);
    unsetenv("GPUCLOUD_SIM_FAULTS");
    expect(said("answer") == CUDA_ERROR_NOT_SUPPORTED, "and a driver that has them may refuse");
}

void test_memops(void)
{
    test_names();
    test_one_process();
    test_neighbour();
    if (!on_real_gpu)
        test_lock();
}
