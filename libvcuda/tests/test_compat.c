/* Limits by the environment variables of HAMi-core and vgpu-manager; and a machine that requires a page. */
#include "harness.h"

#include <fcntl.h>
#include <signal.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <sys/stat.h>
#include <unistd.h>

/* Play with up to two variables set. */
static void play_with(struct player *p, const struct claim *claim, const char *name, const char *value,
                      const char *other, const char *other_value, const char *role)
{
    setenv(name, value, 1);
    if (other)
        setenv(other, other_value, 1);
    if (!strcmp(role, "fill"))
        play(p, claim, PRELOADED, "fill", "plain", "67108864", "8589934592", NULL);
    else if (!strcmp(role, "busy"))
        play(p, claim, PRELOADED, "busy", "1.2", NULL);
    else
        play(p, claim, PRELOADED, role, NULL);
    unsetenv(name);
    if (other)
        unsetenv(other);
    finish(p);
}

static void expect_memory(const char *name, const char *value, const char *other, const char *other_value,
                          uint64_t limit)
{
    struct player p;
    play_with(&p, NULL, name, value, other, other_value, "fill");
    double got = figure_of(&p, "got"), most = (double)(limit - context_cost);
    expect(figure_of(&p, "error") == 2 && got <= most && got >= most - 64.0 * MIB &&
               figure_of(&p, "total") == (double)limit,
           "%s=%s%s%s%s%s: memory ends at %.0f MiB, and %.0f are shown", name, value, other ? " " : "",
           other ? other : "", other ? "=" : "", other ? other_value : "", (double)limit / MIB,
           figure_of(&p, "total") / MIB);
}

static void expect_share(const char *name, const char *other, const char *other_value)
{
    struct player p;
    double share = -1;
    for (int attempt = 0; attempt < 3 && share < 24; attempt++) {
        play_with(&p, NULL, name, "30", other, other_value, "busy");
        share = figure_of(&p, "later");
    }
    expect(share >= 24 && share <= 36, "%s=30: %.0f %%", name, share);
}

static void test_names(void)
{
    expect_memory("CUDA_DEVICE_MEMORY_LIMIT", "2g", NULL, NULL, 2 * GIB);
    expect_memory("CUDA_DEVICE_MEMORY_LIMIT_0", "1024m", "CUDA_DEVICE_MEMORY_LIMIT", "4G", GIB);
    expect_memory("CUDA_DEVICE_MEMORY_LIMIT", "1073741824", "CUDA_DEVICE_MEMORY_LIMIT_1", "3g", GIB);
    expect_memory("CUDA_DEVICE_MEMORY_LIMIT_0", "0", "CUDA_DEVICE_MEMORY_LIMIT", "1.5GiB", 3 * GIB / 2);
    expect_memory("CUDA_MEM_LIMIT_0", "2048M", NULL, NULL, 2 * GIB);
    expect_memory("CUDA_MEM_LIMIT", "3g", "CUDA_MEM_RATIO", "1.5", 2 * GIB);
    expect_memory("CUDA_DEVICE_MEMORY_LIMIT", "2g", "CUDA_OVERSUBSCRIBE", "true", 2 * GIB);
    expect_share("CUDA_DEVICE_SM_LIMIT", NULL, NULL);
    expect_share("CUDA_CORE_LIMIT_0", "CUDA_CORE_LIMIT", "90");
    expect_share("CUDA_CORE_SOFT_LIMIT", "CUDA_CORE_LIMIT", "10");
}

/* Others give host memory beyond the card's. */
static void test_beyond_the_card(void)
{
    struct player p;
    play_with(&p, NULL, "CUDA_DEVICE_MEMORY_LIMIT", "900g", "CUDA_OVERSUBSCRIBE", "true", "nvml_only");
    double shown = figure_of(&p, "total");
    expect(shown > 5.0 * GIB && shown < 900.0 * GIB, "a limit above the card shows the card: %.0f MiB", shown / MIB);
}

/* nvidia-smi is the first thing that people try. */
static void test_without_cuda(void)
{
    struct player p;
    play_with(&p, NULL, "CUDA_DEVICE_MEMORY_LIMIT", "5g", NULL, NULL, "nvml_only");
    expect(figure_of(&p, "total") == 5.0 * GIB && figure_of(&p, "used") == 0,
           "a program that asks NVML alone sees the limit: %.0f", figure_of(&p, "total") / MIB);
    play_with(&p, NULL, "CUDA_DEVICE_MEMORY_LIMIT_1", "5g", NULL, NULL, "nvml_only");
    expect(figure_of(&p, "total") > 5.0 * GIB, "unless it depends on how CUDA would number the GPUs");
    expect_memory("CUDA_DEVICE_MEMORY_LIMIT", "5g", NULL, NULL, 5 * GIB);
}

static void test_shared(void)
{
    struct player holder, next;
    setenv("CUDA_DEVICE_MEMORY_LIMIT", "2g", 1);
    setenv("STAY", "1", 1);
    play(&holder, NULL, PRELOADED, "fill", "plain", "67108864", "8589934592", NULL);
    unsetenv("STAY");
    wait_for(&holder, "filled");
    play(&next, NULL, PRELOADED, "fill", "plain", "67108864", "8589934592", NULL);
    finish(&next);
    expect(figure_of(&holder, "got") > 0 && figure_of(&next, "got") <= 0,
           "two processes with the same settings share them");
    setenv("CUDA_DEVICE_MEMORY_LIMIT", "1g", 1);
    play(&next, NULL, PRELOADED, "fill", "plain", "67108864", "8589934592", NULL);
    finish(&next);
    unsetenv("CUDA_DEVICE_MEMORY_LIMIT");
    expect(figure_of(&next, "got") > 0, "one with other settings has its own");
    kill(holder.pid, SIGKILL);
    finish(&holder);
}

static void test_page_wins(void)
{
    struct claim claim;
    struct player p;
    claim_make(&claim, 2 * GIB, 100);
    play_with(&p, &claim, "CUDA_DEVICE_MEMORY_LIMIT", "8g", "CUDA_CORE_LIMIT", "rubbish", "fill");
    expect(figure_of(&p, "error") == 2 && figure_of(&p, "got") <= (double)(2 * GIB - context_cost) &&
               figure_of(&p, "got") > 0,
           "a claim's page wins over variables, whatever they say: %.0f MiB", figure_of(&p, "got") / MIB);
    play_with(&p, NULL, "CUDA_DEVICE_MEMORY_LIMIT", "0", "CUDA_DEVICE_SM_LIMIT", "0", "init");
    expect(figure_of(&p, "init") == 0, "a limit of 0 is none");
    claim_end(&claim);
}

static void test_unreadable(void)
{
    static const char *const values[][2] = {
        {"CUDA_DEVICE_MEMORY_LIMIT", "much"},
        {"CUDA_DEVICE_MEMORY_LIMIT_3", "1gx"},
        {"CUDA_DEVICE_MEMORY_LIMIT", "-1g"},
        {"CUDA_DEVICE_MEMORY_LIMIT", "99999999999t"},
        {"CUDA_DEVICE_SM_LIMIT", "50%"},
        {"CUDA_DEVICE_SM_LIMIT_0", "101"},
        {"CUDA_MEM_LIMIT", "inf"},
        {"CUDA_CORE_LIMIT_0", "1e1"},
        {"CUDA_CORE_SOFT_LIMIT", "0x10"},
        {"CUDA_MEM_RATIO", "two"},
    };
    struct player p;
    for (size_t i = 0; i < sizeof values / sizeof *values; i++) {
        char text[100];
        play_with(&p, NULL, values[i][0], values[i][1], NULL, NULL, "init");
        snprintf(text, sizeof text, "libvcuda: %s=%s is not ", values[i][0], values[i][1]);
        const char *line = strstr(p.text, text);
        expect(figure_of(&p, "init") == 1 && figure_of(&p, "again") == 1 && line && !strstr(line + 1, "libvcuda:"),
               "%s=%s refuses cuInit, and says so once", values[i][0], values[i][1]);
    }
}

/* The file that says so is looked for in the current directory by a library built for this test. */
static void test_required(void)
{
    struct claim claim;
    struct player p;
    int here = open(".", O_RDONLY | O_DIRECTORY | O_CLOEXEC);
    claim_make(&claim, 2 * GIB, 100);
    expect(here >= 0 && chdir(claim.directory) == 0, "a directory of its own");
    preload_library = "tests/required/libvcuda.so";
    play(&p, NULL, PRELOADED, "init", NULL);
    finish(&p);
    expect(figure_of(&p, "init") == 0, "where no limits are required, a program without a claim runs");
    close(open("require-limits", O_CREAT | O_WRONLY | O_CLOEXEC, 0644));
    play(&p, NULL, PRELOADED, "init", NULL);
    finish(&p);
    expect(figure_of(&p, "init") == 800, "where limits are required, cuInit is refused without a claim: %.0f",
           figure_of(&p, "init"));
    play_with(&p, NULL, "CUDA_DEVICE_MEMORY_LIMIT", "64g", NULL, NULL, "init");
    expect(figure_of(&p, "init") == 800, "limits by variables are none of these");
    play(&p, &claim, PRELOADED, "init", NULL);
    finish(&p);
    expect(figure_of(&p, "init") == 0, "with a claim the program runs");
    preload_library = "libvcuda.so";
    if (fchdir(here) != 0)
        perror("fchdir");
    close(here);
    claim_end(&claim);
}

void test_compat(void)
{
    /* What is made for the variables goes where the suite clears up. */
    struct claim place;
    claim_make(&place, 2 * GIB, 100);
    setenv("XDG_RUNTIME_DIR", place.directory, 1);
    test_names();
    test_without_cuda();
    test_beyond_the_card();
    test_shared();
    test_page_wins();
    test_unreadable();
    test_required();
    unsetenv("XDG_RUNTIME_DIR");
    claim_end(&place);
}
