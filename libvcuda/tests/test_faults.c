/* Whatever the driver answers, the library passes on, and counts neither more nor less than the GPU gave. */
#include "harness.h"

#include <stdio.h>
#include <stdlib.h>
#include <sys/stat.h>
#include <unistd.h>

#define LIMIT (4 * GIB)
#define PATIENCE_S 20
/* The program's calls reach the driver one to one: it must see the failure. The library's own calls are its own business. */
static const struct {
    const char *name;
    int seen;
} functions[] = {
    {"cuInit", 1},
    {"cuDevicePrimaryCtxRetain", 1},
    {"cuDevicePrimaryCtxGetState", 0},
    {"cuDeviceGetUuid_v2", 0},
    {"cuCtxGetCurrent", 0},
    {"cuCtxGetDevice", 0},
    {"cuCtxCreate_v2", 1},
    {"cuCtxDestroy_v2", 1},
    {"cuMemAlloc_v2", 1},
    {"cuMemAllocManaged", 1},
    {"cuMemAllocPitch_v2", 1},
    {"cuMemFree_v2", 1},
    {"cuMemAllocAsync", 1},
    {"cuMemAllocFromPoolAsync", 0},
    {"cuMemFreeAsync", 1},
    {"cuDeviceGetMemPool", 0},
    {"cuDeviceGetDefaultMemPool", 0},
    {"cuMemPoolGetAttribute", 0},
    {"cuArrayCreate_v2", 1},
    {"cuArrayDestroy", 1},
    {"cuMemCreate", 1},
    {"cuMemMap", 1},
    {"cuMemUnmap", 1},
    {"cuMemRelease", 1},
    {"cuMemGetInfo_v2", 0},
    {"cuLaunchKernel", 1},
    {"cuGraphLaunch", 1},
    {"cuStreamBeginCapture_v2", 1},
    {"cuStreamEndCapture", 1},
    {"cuStreamSynchronize", 1},
    {"cuCtxSynchronize", 1},
    {"cuEventSynchronize", 1},
    {"cuEventCreate", 0},
    {"cuEventRecord", 0},
    {"cuEventQuery", 0},
    {"cuEventElapsedTime", 0},
    {"cuEventDestroy_v2", 0},
    {"cuStreamIsCapturing", 0},
    {"cuThreadExchangeStreamCaptureMode", 0},
};
#define FUNCTIONS (sizeof functions / sizeof *functions)

/* Play with these faults and judge what holds for all of them; what is wrong, or NULL. */
static const char *play_trouble(struct player *p, const struct claim *claim, const char *faults)
{
    setenv("GPUCLOUD_SIM_FAULTS", faults, 1);
    play(p, claim, PRELOADED, "trouble", "998", NULL);
    unsetenv("GPUCLOUD_SIM_FAULTS");
    if (!finish_within(p, PATIENCE_S))
        return "it hung";
    if (p->status != 0)
        return "it ended badly";
    double given = figure_of(p, "given") > 0 ? figure_of(p, "given") : 0;
    double counted =
        figure_of(p, "counted_memory") < 0 ? 0 : figure_of(p, "counted_memory") + figure_of(p, "counted_context");
    if (counted < given)
        return "less is counted than the GPU gave";
    /* Contexts whose ending could not be learned of, and what a pool gave back without saying so, may stay counted. */
    return counted > given + (double)context_cost + 64 * MIB ? "more is counted than the GPU gave" : NULL;
}

static void report(const struct player *p, const char *faults, const char *wrong)
{
    expect(!wrong, "%s: %s (status %d; counted %.1f + %.1f MiB, given %.1f)", faults, wrong ? wrong : "all is well",
           p->status, figure_of(p, "counted_memory") / MIB, figure_of(p, "counted_context") / MIB,
           figure_of(p, "given") / MIB);
}

static void test_functions(void)
{
    static const char *const when[] = {"1", "2", "1+", "3+"};
    struct claim claim;
    struct player p;
    int wrong_in_all = 0, tried = 0;
    claim_make(&claim, LIMIT, 60);
    const char *trouble = play_trouble(&p, &claim, "");
    expect(!trouble && figure_of(&p, "refused") == 0 &&
               figure_of(&p, "counted_memory") + figure_of(&p, "counted_context") == figure_of(&p, "given"),
           "control: where nothing fails, the count is the GPU's: %.0f + %.0f of %.0f MiB",
           figure_of(&p, "counted_memory") / MIB, figure_of(&p, "counted_context") / MIB, figure_of(&p, "given") / MIB);
    for (size_t i = 0; i < FUNCTIONS; i++)
        for (size_t w = 0; w < sizeof when / sizeof *when; w++) {
            char faults[100];
            snprintf(faults, sizeof faults, "%s:%s=998", functions[i].name, when[w]);
            const char *wrong = play_trouble(&p, &claim, faults);
            if (!wrong && functions[i].seen && w % 2 == 0 && figure_of(&p, "met") < 1)
                wrong = "the program was not told";
            if (wrong)
                report(&p, faults, wrong);
            wrong_in_all += wrong != NULL;
            tried++;
        }
    expect(wrong_in_all == 0,
           "each of %zu functions fails at its first, its second, at every and after its second call: "
           "%d of %d programs came to harm",
           FUNCTIONS, wrong_in_all, tried);
    claim_end(&claim);
}

/* Without events nothing can be measured, but the program's launches are no business of the library's trouble. */
static void test_launches_go(void)
{
    static const char *const broken[] = {"cuEventCreate:1+=998",       "cuEventRecord:1+=998",
                                         "cuEventQuery:1+=998",        "cuEventElapsedTime:1+=998",
                                         "cuStreamIsCapturing:1+=998", "cuThreadExchangeStreamCaptureMode:1+=998",
                                         "cuEventQuery:1+=2000us"};
    struct claim claim;
    struct player p;
    claim_make(&claim, LIMIT, 60);
    for (size_t i = 0; i < sizeof broken / sizeof *broken; i++) {
        const char *wrong = play_trouble(&p, &claim, broken[i]);
        expect(!wrong && figure_of(&p, "launched") == 24, "%s: every launch goes: %.0f of 24%s%s", broken[i],
               figure_of(&p, "launched"), wrong ? ", but " : "", wrong ? wrong : "");
    }
    claim_end(&claim);
}

/* The n-th call, whichever it is; and the GPU lost at it. */
static void test_anywhere(void)
{
    struct claim claim;
    struct player p;
    unsigned seed = test_seed();
    unsigned long count = test_count(40);
    int harmed = 0;
    claim_make(&claim, LIMIT, 60);
    for (unsigned long i = 0; i < count; i++) {
        static const char *const answers[] = {"998", "2", "!46", "!214", "!719"};
        char faults[60];
        unsigned at = (unsigned)rand_r(&seed) % 450 + 1;
        snprintf(faults, sizeof faults, "*:%u%s=%s", at, rand_r(&seed) % 4 ? "" : "+", answers[rand_r(&seed) % 5]);
        const char *wrong = play_trouble(&p, &claim, faults);
        harmed += wrong != NULL;
        if (wrong)
            report(&p, faults, wrong);
    }
    expect(!harmed, "a call fails or the GPU is lost at %lu random moments: %d programs came to harm", count, harmed);
    struct vcuda_totals t;
    vcuda_usage_reap_dead(claim.usage);
    vcuda_usage_totals(claim.usage, 0, &t);
    expect(t.memory_bytes == 0 && t.context_bytes == 0, "and when they have ended nothing is counted");
    claim_end(&claim);
}

/* A container without NVML: only libcuda is where libraries are looked for. */
static void test_without_nvml(void)
{
    struct claim claim;
    struct player p;
    char old[700], directory[300], from[800], to[400];
    snprintf(old, sizeof old, "%s", getenv("LD_LIBRARY_PATH"));
    claim_make(&claim, LIMIT, 100);
    snprintf(directory, sizeof directory, "%s/lib", claim.directory);
    snprintf(from, sizeof from, "%s/libcuda.so.1", old);
    snprintf(to, sizeof to, "%s/libcuda.so.1", directory);
    int made = mkdir(directory, 0700) == 0 && symlink(from, to) == 0;
    setenv("LD_LIBRARY_PATH", directory, 1);
    play(&p, &claim, PRELOADED, "fill", "plain", "67108864", "8589934592", NULL);
    int ended = finish_within(&p, PATIENCE_S);
    setenv("LD_LIBRARY_PATH", old, 1);
    expect(made && ended && p.status == 0 && figure_of(&p, "error") == 2 && figure_of(&p, "got") <= (double)LIMIT &&
               figure_of(&p, "got") > (double)(LIMIT - context_cost - 64 * MIB),
           "without NVML the limit holds: %.0f MiB, error %.0f", figure_of(&p, "got") / MIB, figure_of(&p, "error"));
    claim_end(&claim);
}

void test_faults(void)
{
    if (on_real_gpu)
        return; /* a real driver does not fail when asked to */
    test_functions();
    test_launches_go();
    test_anywhere();
    test_without_nvml();
}
