/* Processes that are locked, checkpointed and restored while they work: the calls, the room, the account, the arbiter. */
#include "arbiter_node.h"
#include "driver.h"
#include "harness.h"
#include "shared.h"

#include <dlfcn.h>
#include <signal.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <sys/wait.h>
#include <unistd.h>

static struct {
    __typeof__(cuCheckpointProcessLock) *lock;
    __typeof__(cuCheckpointProcessCheckpoint) *checkpoint;
    __typeof__(cuCheckpointProcessRestore) *restore;
    __typeof__(cuCheckpointProcessUnlock) *unlock;
    __typeof__(cuCheckpointProcessGetState) *state;
} driver;

static int find_driver(void)
{
    char path[700];
    snprintf(path, sizeof path, on_real_gpu ? "libcuda.so.1" : "%s/libcuda.so.1", getenv("LD_LIBRARY_PATH"));
    void *library = dlopen(path, RTLD_NOW);
    if (!library)
        return 0;
    driver.lock = dlsym(library, "cuCheckpointProcessLock");
    driver.checkpoint = dlsym(library, "cuCheckpointProcessCheckpoint");
    driver.restore = dlsym(library, "cuCheckpointProcessRestore");
    driver.unlock = dlsym(library, "cuCheckpointProcessUnlock");
    driver.state = dlsym(library, "cuCheckpointProcessGetState");
    return driver.lock && driver.checkpoint && driver.restore && driver.unlock && driver.state;
}

static int state_of(pid_t pid)
{
    int state = -1;
    return driver.state(pid, &state) ? -1 : state;
}

static CUresult lock(pid_t pid, unsigned timeout_ms)
{
    CUcheckpointLock args = {.timeout_ms = timeout_ms};
    return driver.lock(pid, &args);
}

static CUresult suspend(pid_t pid)
{
    CUresult error = lock(pid, 5000);
    return error ? error : driver.checkpoint(pid, NULL);
}

static CUresult resume(pid_t pid)
{
    CUresult error = driver.restore(pid, NULL);
    return error ? error : driver.unlock(pid, NULL);
}

static void start(struct player *p, const struct claim *claim, const char *mib, const char *kernel_ns)
{
    play(p, claim, claim ? PRELOADED : BARE, "suspend_work", mib, kernel_ns, NULL);
    wait_for(p, "works");
}

static int end(struct player *p)
{
    kill(p->pid, SIGTERM);
    return finish_within(p, 10) && figure_of(p, "error") == 0;
}

static void test_states(void)
{
    struct player p;
    start(&p, NULL, "256", "1000000");
    int before = state_of(p.pid);
    CUresult early = driver.checkpoint(p.pid, NULL), loose = driver.unlock(p.pid, NULL);
    CUresult locked = lock(p.pid, 5000), twice = lock(p.pid, 5000);
    int between = state_of(p.pid);
    CUresult saved = driver.checkpoint(p.pid, NULL), open = driver.unlock(p.pid, NULL);
    int after = state_of(p.pid);
    CUresult restored = driver.restore(p.pid, NULL);
    int back = state_of(p.pid);
    CUresult unlocked = driver.unlock(p.pid, NULL);
    expect(!before && between == CU_PROCESS_LOCKED && after == CU_PROCESS_CHECKPOINTED && back == CU_PROCESS_LOCKED &&
               !state_of(p.pid) && !locked && !saved && !restored && !unlocked,
           "running, locked, checkpointed, locked, running: %d %d %d %d, answers %d %d %d %d", before, between, after,
           back, locked, saved, restored, unlocked);
    expect(early && loose && twice && open, "calls out of order are refused: %d %d %d %d", early, loose, twice, open);
    int ended = end(&p);
    expect(ended, "the program noticed nothing: %.0f rounds, error %.0f", figure_of(&p, "rounds"),
           figure_of(&p, "error"));
    int state;
    CUresult gone = driver.state(p.pid, &state), none = driver.state(getpid(), &state);
    expect(gone == CUDA_ERROR_OPERATING_SYSTEM && none == CUDA_ERROR_NOT_INITIALIZED && lock(p.pid, 1000) != 0,
           "a process that has ended (%d) or uses no GPU (%d) has no state", gone, none);
}

static void test_a_locked_process_waits(void)
{
    struct claim claim;
    struct player p;
    struct vcuda_totals before, after;
    claim_make(&claim, 4 * GIB, 100);
    start(&p, &claim, "64", "1000000");
    CUresult error = lock(p.pid, 5000);
    vcuda_usage_totals(claim.usage, 0, &before);
    pause_s(0.5);
    vcuda_usage_totals(claim.usage, 0, &after);
    expect(!error && after.launches <= before.launches + 1, "a locked process launches nothing: %llu launches",
           (unsigned long long)(after.launches - before.launches));
    driver.unlock(p.pid, NULL);
    int ended = end(&p);
    expect(ended && figure_of(&p, "longest_s") > 0.4, "its call returned when it was unlocked, after %.2f s",
           figure_of(&p, "longest_s"));
    claim_end(&claim);
}

static void test_room(void)
{
    struct player p, other;
    uint64_t none = gpu_memory_real(0);
    start(&p, NULL, "12288", "1000000");
    uint64_t used = gpu_memory_real(0);
    CUresult error = suspend(p.pid);
    uint64_t left = gpu_memory_real(0);
    expect(!error && left <= none && used > none + 12 * GIB && gpu_memory_of(0, p.pid) == 0,
           "by NVML the GPU is as it was before: %.0f MiB, %.0f in between", (double)left / MIB, (double)used / MIB);
    if (on_real_gpu) {
        expect(!resume(p.pid) && end(&p), "and the program goes on");
        return;
    }
    start(&other, NULL, "20480", "1000000");
    expect(figure_of(&other, "ready") == 0, "another program has the room meanwhile");
    CUresult short_of = driver.restore(p.pid, NULL), again = driver.restore(p.pid, NULL);
    end(&other);
    CUresult late = driver.restore(p.pid, NULL);
    expect(short_of == CUDA_ERROR_OUT_OF_MEMORY && again == CUDA_ERROR_OPERATING_SYSTEM && again == late,
           "a restore without room fails (%d), and so does every later one (%d, %d)", short_of, again, late);
    kill(p.pid, SIGKILL);
    finish(&p);
    start(&p, NULL, "12288", "1000000");
    expect(!suspend(p.pid) && !resume(p.pid) && gpu_memory_real(0) >= used && end(&p),
           "with room it goes on, with all of its memory");
}

static void test_a_call_that_takes_long(void)
{
    struct player p;
    start(&p, NULL, "0", "1500000000");
    /* By then it has launched its next kernel, which takes five times as long. */
    pause_s(0.3);
    double begun = now_s();
    CUresult error = lock(p.pid, 200);
    expect(error == CUDA_ERROR_NOT_READY && state_of(p.pid) == CU_PROCESS_RUNNING && now_s() - begun < 1.2,
           "a lock whose time is over leaves the process running: %d after %.2f s", error, now_s() - begun);
    expect(!lock(p.pid, 10000) && !driver.unlock(p.pid, NULL), "one with more time waits for the work launched");
    expect(end(&p), "and the program goes on");
}

static void test_managed(void)
{
    struct player p;
    play(&p, NULL, BARE, "suspend_work", "64", "1000000", "managed", NULL);
    wait_for(&p, "works");
    CUresult locked = lock(p.pid, 5000), saved = driver.checkpoint(p.pid, NULL);
    expect(!locked && saved == CUDA_ERROR_NOT_SUPPORTED && !driver.unlock(p.pid, NULL) && end(&p),
           "managed memory cannot be moved (%d), and the process goes on", saved);
}

static void test_a_broken_process(void)
{
    struct player p;
    start(&p, NULL, "64", "1000000");
    setenv("GPUCLOUD_SIM_CHECKPOINT_BREAKS", "1", 1);
    CUresult saved = suspend(p.pid), restored = driver.restore(p.pid, NULL);
    unsetenv("GPUCLOUD_SIM_CHECKPOINT_BREAKS");
    wait_for(&p, "error");
    int state = state_of(p.pid);
    end(&p);
    expect(!saved && restored && state == CU_PROCESS_FAILED && figure_of(&p, "error") == CUDA_ERROR_UNKNOWN,
           "a process that a restore broke gets errors: state %d, error %.0f", state, figure_of(&p, "error"));
}

/* A driver's trap: memory of other processes goes out, and its holder never comes back. */
static void test_imported(void)
{
    struct claim claim;
    struct circle circle;
    claim_make(&claim, 8 * GIB, 100);
    circle_begin(&circle, &claim);
    int ready = !circle_do(&circle, "A take 64") && !circle_do(&circle, "A ipcget") &&
                !circle_do(&circle, "B take 64") && !circle_do(&circle, "B ipcopen") &&
                !circle_do(&circle, "B ipcclose");
    pid_t a = circle.party[0].steps.player.pid, b = circle.party[1].steps.player.pid;
    CUresult closed = suspend(b), back = resume(b);
    ready = ready && !circle_do(&circle, "B ipcopen");
    CUresult first = suspend(a), second = suspend(b);
    CUresult restored = resume(a), lost = driver.restore(b, NULL), again = driver.restore(b, NULL);
    expect(ready && !closed && !back, "what was imported and closed moves: %d, %d", closed, back);
    expect(!first && !second && !restored && lost && again == CUDA_ERROR_OPERATING_SYSTEM &&
               state_of(b) == CU_PROCESS_CHECKPOINTED,
           "what is open goes out (%d, %d), its maker comes back (%d), its holder never: %d, %d", first, second,
           restored, lost, again);
    kill(b, SIGKILL);
    circle.party[1].is_running = 0;
    circle_end(&circle);
    claim_end(&claim);
}

/* ---- Under libvcuda ---- */

static void set_suspended(struct claim *claim, int suspended)
{
    struct vcuda_limit limit = {.assignment_uid = {7},
                                .generation = ++claim->generation,
                                .memory_bytes = 4 * GIB,
                                .core_request = 50,
                                .core_limit = 50,
                                .flags = suspended ? VCUDA_FLAG_SUSPENDED : 0};
    memcpy(limit.gpu_uuid, gpu_uuid, 16);
    vcuda_limits_set(claim->limits, &limit);
}

static int has_echoed(const struct claim *claim)
{
    struct vcuda_totals t = {0};
    for (int i = 0; i < 100 && t.observed_generation != claim->generation; i++) {
        pause_s(0.02);
        vcuda_usage_totals(claim->usage, 0, &t);
    }
    return t.observed_generation == claim->generation;
}

static double gpu_seconds(const struct claim *claim)
{
    struct vcuda_totals t;
    vcuda_usage_totals(claim->usage, 0, &t);
    return (double)t.gpu_time_ns / 1e9;
}

static void test_account(const char *kernel_ns)
{
    struct claim claim;
    struct player p;
    claim_make(&claim, 4 * GIB, 50);
    start(&p, &claim, "256", kernel_ns);
    pause_s(1);
    set_suspended(&claim, 1);
    int echoed = has_echoed(&claim);
    CUresult error = suspend(p.pid);
    double before = gpu_seconds(&claim), begun = now_s();
    pause_s(3);
    double standing = gpu_seconds(&claim) - before;
    error = error ? error : resume(p.pid);
    /* In this moment the process runs and does not know it. */
    pause_s(0.2);
    set_suspended(&claim, 0);
    double resumed = now_s();
    pause_s(1);
    double counted = gpu_seconds(&claim) - before, most = 0.62 * (now_s() - resumed + 0.2) + 0.1;
    expect(!error && echoed && standing < 0.1, "a suspended program is charged nothing: %.3f s in %.1f", standing,
           resumed - begun);
    expect(counted > 0.1 && counted < most, "nor for it when it goes on: %.2f s of GPU time in %.2f s under 50 %%",
           counted, now_s() - resumed);
    expect(end(&p), "and it has no error");
    claim_end(&claim);
}

static void test_newcomers(void)
{
    struct claim claim;
    struct player p;
    struct vcuda_totals t;
    claim_make(&claim, 4 * GIB, 50);
    set_suspended(&claim, 1);
    play(&p, &claim, PRELOADED, "suspend_work", "256", "2000000", NULL);
    pause_s(1);
    vcuda_usage_totals(claim.usage, 0, &t);
    expect(t.processes == 0 && gpu_memory_of(0, p.pid) <= 2 * context_cost,
           "a program of a suspended claim waits before it takes anything");
    set_suspended(&claim, 0);
    expect(wait_for(&p, "works") && end(&p), "and begins when the claim goes on");
    claim_end(&claim);
}

/* The driver's lock does not hold queries: one that comes in between ends the program. With `faults` each takes so long
 * that one is always in progress. */
static void test_queries(const char *faults)
{
    struct claim claim;
    struct player p;
    int echoed = 1;
    CUresult error = CUDA_SUCCESS;
    claim_make(&claim, 4 * GIB, 50);
    if (faults)
        setenv("GPUCLOUD_SIM_FAULTS", faults, 1);
    play(&p, &claim, PRELOADED, "suspend_poll", NULL);
    unsetenv("GPUCLOUD_SIM_FAULTS");
    wait_for(&p, "works");
    for (int i = 0; i < 5 && !error; i++) {
        pause_s(0.1);
        set_suspended(&claim, 1);
        echoed &= has_echoed(&claim);
        error = suspend(p.pid);
        pause_s(0.1);
        error = error ? error : resume(p.pid);
        set_suspended(&claim, 0);
    }
    kill(p.pid, SIGTERM);
    int whole = finish_within(&p, 10);
    expect(whole && echoed && !error && !figure_of(&p, "error") && !figure_of(&p, "poll_error"),
           "queries%s wait while the program is suspended: %.0f were made, error %d", faults ? " that take long" : "",
           figure_of(&p, "queries"), error);
    claim_end(&claim);
}

static void test_queries_alone(void)
{
    struct player p;
    play(&p, NULL, BARE, "suspend_poll", NULL);
    wait_for(&p, "works");
    suspend(p.pid);
    finish_within(&p, 10);
    expect(WIFSIGNALED(p.status) && WTERMSIG(p.status) == SIGSEGV, "without libvcuda such a program ends by SIGSEGV");
}

static void set_turns(int i, int suspended)
{
    node_set_limit(
        i, (struct vcuda_limit){.core_request = 50, .core_limit = 100, .flags = suspended ? VCUDA_FLAG_SUSPENDED : 0});
}

static void test_turns_beside(void)
{
    node_begin();
    for (int i = 0; i < 2; i++)
        node_add_claim(50, 100);
    for (int i = 0; i < 2; i++) {
        play(&node.player[i], &node.claim[i], PRELOADED, "suspend_work", "64", "1000000", NULL);
        wait_for(&node.player[i], "works");
    }
    becomes(contended, 2);
    set_turns(0, 1);
    pause_s(0.3);
    CUresult error = suspend(node.player[0].pid);
    pause_s(0.3);
    double before = gpu_seconds(&node.claim[1]), begun = now_s();
    pause_s(1.5);
    double share = (gpu_seconds(&node.claim[1]) - before) / (now_s() - begun);
    expect(!error && share > 0.7, "beside a suspended claim the other has the GPU: %.0f %%", share * 100);
    error = resume(node.player[0].pid);
    set_turns(0, 0);
    pause_s(1);
    before = gpu_seconds(&node.claim[0]);
    begun = now_s();
    pause_s(1.5);
    share = (gpu_seconds(&node.claim[0]) - before) / (now_s() - begun);
    expect(!error && share > 0.38 && share < 0.6, "and afterwards both have their halves: %.0f %%", share * 100);
    for (int i = 0; i < 2; i++)
        kill(node.player[i].pid, SIGTERM);
    arbiter_end(SIGTERM);
    node_end();
}

void test_suspend(void)
{
    if (!find_driver()) {
        expect(on_real_gpu, "this driver cannot checkpoint processes");
        return;
    }
    test_states();
    test_a_locked_process_waits();
    test_room();
    test_a_call_that_takes_long();
    test_imported();
    if (!on_real_gpu) {
        test_managed();
        test_a_broken_process();
    }
    test_account("2000000");
    test_account("20000");
    test_newcomers();
    test_queries(NULL);
    if (!on_real_gpu) {
        test_queries("cuEventQuery:1+=100000us");
        test_queries_alone();
    }
    test_turns_beside();
    test_move();
}
