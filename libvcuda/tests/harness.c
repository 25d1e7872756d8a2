/* See harness.h. */
#include "harness.h"

#include "nvidia_ml.h"

#include <dlfcn.h>
#include <errno.h>
#include <fcntl.h>
#include <poll.h>
#include <signal.h>
#include <stdarg.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <sys/stat.h>
#include <sys/wait.h>
#include <time.h>
#include <unistd.h>

int on_real_gpu, simulated_kernel;
uint8_t gpu_uuid[16];
uint64_t context_cost;
const char *preload_before, *preload_behind, *preload_library = "libvcuda.so";

static int passed, failed;
static char build[600], work[128], self[600];

double now_s(void)
{
    return (double)pages_clock(CLOCK_MONOTONIC) / 1e9;
}

void pause_s(double seconds)
{
    struct timespec ts = {(time_t)seconds, (long)((seconds - (double)(time_t)seconds) * 1e9)};
    nanosleep(&ts, NULL);
}

void expect(int ok, const char *sentence, ...)
{
    va_list arguments;
    va_start(arguments, sentence);
    fputs(ok ? "ok    " : "FAIL  ", stdout);
    vprintf(sentence, arguments);
    putchar('\n');
    fflush(stdout);
    va_end(arguments);
    ok ? passed++ : failed++;
}

void claim_make(struct claim *claim, uint64_t memory_bytes, uint32_t core)
{
    static int number;
    char path[400];
    uint8_t uid[16] = {(uint8_t)++number};
    memset(claim, 0, sizeof *claim);
    snprintf(claim->directory, sizeof claim->directory, "%s/claim-%d", work, number);
    mkdir(claim->directory, 0700);
    snprintf(path, sizeof path, "%s/limits", claim->directory);
    int error = vcuda_limits_create(path, uid, &claim->limits);
    snprintf(path, sizeof path, "%s/usage", claim->directory);
    if (error || vcuda_usage_create(path, &claim->usage)) {
        perror(path);
        exit(2);
    }
    claim_set(claim, memory_bytes, core);
}

void claim_set(struct claim *claim, uint64_t memory_bytes, uint32_t core)
{
    struct vcuda_limit limit = {.assignment_uid = {7},
                                .generation = ++claim->generation,
                                .memory_bytes = memory_bytes,
                                .core_request = core,
                                .core_limit = core};
    memcpy(limit.gpu_uuid, gpu_uuid, 16);
    vcuda_limits_set(claim->limits, &limit);
}

void claim_end(struct claim *claim)
{
    vcuda_limits_unmap(claim->limits);
    vcuda_usage_unmap(claim->usage);
}

int was_by_kernel(const struct claim *claim)
{
    struct vcuda_totals t;
    vcuda_usage_totals(claim->usage, 0, &t);
    return t.accounting == VCUDA_ACCOUNTING_KERNEL;
}

static void become(const struct claim *claim, int preloaded, char **argv)
{
    char path[2600];
    if (claim)
        setenv(VCUDA_CLAIM_DIR_ENV, claim->directory, 1);
    else
        unsetenv(VCUDA_CLAIM_DIR_ENV);
    if (preloaded) {
        const char *tests = "/tests/", *before = preload_before, *behind = preload_behind;
        snprintf(path, sizeof path, "%s%s%s %s/%s %s%s%s %s%s", before ? build : "", before ? tests : "",
                 before ? before : "", build, preload_library, behind ? build : "", behind ? tests : "",
                 behind ? behind : "", simulated_kernel ? build : "", simulated_kernel ? "/sim/libsimkernel.so" : "");
        setenv("LD_PRELOAD", path, 1);
    }
    execv(argv[0], argv);
    _exit(127);
}

void play(struct player *player, const struct claim *claim, int preloaded, const char *role, ...)
{
    char *argv[24] = {self, (char *)"--role", (char *)role};
    char linked[700];
    int pipes[2], n = 3;
    va_list arguments;
    /* The role "linked" is a program of its own: it is linked to libcuda instead of opening it. */
    if (!strcmp(role, "linked")) {
        snprintf(linked, sizeof linked, "%s/tests/linked", build);
        argv[0] = linked;
    }
    va_start(arguments, role);
    while (n < 23 && (argv[n] = va_arg(arguments, char *)))
        n++;
    va_end(arguments);
    memset(player, 0, sizeof *player);
    fflush(stdout);
    if (pipe2(pipes, O_CLOEXEC) != 0)
        exit(2);
    player->pid = fork();
    if (player->pid == 0) {
        dup2(pipes[1], 1);
        become(claim, preloaded, argv);
    }
    close(pipes[1]);
    player->fd = pipes[0];
}

static __typeof__(nvmlDeviceGetHandleByIndex_v2) *by_index;
static __typeof__(nvmlDeviceGetComputeRunningProcesses_v3) *running;
static __typeof__(nvmlDeviceGetMemoryInfo) *memory_info;

/* NVML as it is: the suite itself has no library of ours before it. */
static int find_nvml(void)
{
    char path[700];
    if (running)
        return 1;
    snprintf(path, sizeof path, on_real_gpu ? "libnvidia-ml.so.1" : "%s/sim/libnvidia-ml.so.1", build);
    void *library = dlopen(path, RTLD_NOW);
    __typeof__(nvmlInit_v2) *init = library ? dlsym(library, "nvmlInit_v2") : NULL;
    by_index = library ? dlsym(library, "nvmlDeviceGetHandleByIndex_v2") : NULL;
    memory_info = library ? dlsym(library, "nvmlDeviceGetMemoryInfo") : NULL;
    if (init && by_index && memory_info && !init())
        running = dlsym(library, "nvmlDeviceGetComputeRunningProcesses_v3");
    return running != NULL;
}

uint64_t gpu_memory_of(unsigned index, pid_t pid)
{
    nvmlDevice_t device;
    nvmlProcessInfo_t infos[256];
    unsigned count = 256;
    uint64_t sum = 0;
    if (!find_nvml() || by_index(index, &device) || running(device, &count, infos))
        return 0;
    for (unsigned i = 0; i < count; i++)
        sum += !pid || infos[i].pid == (unsigned)pid ? infos[i].used : 0;
    return sum;
}

uint64_t gpu_memory_used(void)
{
    return gpu_memory_of(0, 0);
}

uint64_t gpu_memory_real(unsigned index)
{
    nvmlDevice_t device;
    nvmlMemory_t memory;
    return find_nvml() && !by_index(index, &device) && !memory_info(device, &memory) ? memory.used : 0;
}

static int read_more(struct player *player)
{
    if (player->length >= sizeof player->text - 1)
        return 0;
    ssize_t n = read(player->fd, player->text + player->length, sizeof player->text - 1 - player->length);
    if (n > 0)
        player->length += (size_t)n;
    player->text[player->length] = 0;
    return n > 0;
}

double figure_of(const struct player *player, const char *name)
{
    size_t length = strlen(name);
    double value = -1e9;
    for (const char *line = player->text; line; line = strchr(line, '\n')) {
        line += *line == '\n';
        if (!strncmp(line, name, length) && line[length] == ' ')
            value = strtod(line + length, NULL);
        if (!*line)
            break;
    }
    return value;
}

int wait_for(struct player *player, const char *name)
{
    while (figure_of(player, name) < -1e8)
        if (!read_more(player))
            return 0;
    return 1;
}

int says_within(struct player *player, const char *name, double seconds)
{
    double end = now_s() + seconds, left;
    struct pollfd poller = {player->fd, POLLIN, 0};
    while (figure_of(player, name) < -1e8)
        if ((left = end - now_s()) <= 0 || poll(&poller, 1, (int)(left * 1e3) + 1) <= 0 || !read_more(player))
            return 0;
    return 1;
}

void finish(struct player *player)
{
    while (read_more(player))
        ;
    close(player->fd);
    waitpid(player->pid, &player->status, 0);
}

int finish_within(struct player *player, double seconds)
{
    double end = now_s() + seconds;
    struct pollfd poller = {player->fd, POLLIN, 0};
    for (;;) {
        double left = end - now_s();
        int ready = left > 0 ? poll(&poller, 1, (int)(left * 1e3) + 1) : 0;
        if (ready > 0 && read_more(player))
            continue;
        if (ready <= 0)
            kill(player->pid, SIGKILL);
        finish(player);
        return ready > 0;
    }
}

static int make_node(void)
{
    char path[300], command[2000];
    snprintf(path, sizeof path, "%s/node", work);
    snprintf(command, sizeof command, "%s/simnode create %s --name test --gpus 2 --memory 24GiB", build, path);
    if (system(command) != 0)
        return 0;
    snprintf(command, sizeof command, "%s/sim", build);
    setenv("LD_LIBRARY_PATH", command, 1);
    setenv("GPUCLOUD_SIM_NODE", path, 1);
    return 1;
}

int harness_use_node(const char *options)
{
    char path[300], command[2000];
    snprintf(path, sizeof path, "%s/%s", work, *options ? "own-node" : "node");
    unlink(*options ? path : "");
    snprintf(command, sizeof command, "%s/simnode create %s %s", build, path, options);
    setenv("GPUCLOUD_SIM_NODE", path, 1);
    return !*options || system(command) == 0;
}

int harness_begin(void)
{
    if (readlink("/proc/self/exe", self, sizeof self - 1) < 0)
        return 0;
    snprintf(build, sizeof build, "%s", self);
    for (int i = 0; i < 2; i++)
        *strrchr(build, '/') = 0;
    snprintf(work, sizeof work, "%s/vcuda-test-XXXXXX", access("/dev/shm", W_OK) == 0 ? "/dev/shm" : "/tmp");
    simulated_kernel |= !on_real_gpu && getenv("VCUDA_TEST_KERNEL") != NULL;
    unsetenv("LD_PRELOAD");
    unsetenv("CUDA_VISIBLE_DEVICES");
    if (!mkdtemp(work) || (!on_real_gpu && !make_node()))
        return 0;
    struct player player;
    play(&player, NULL, BARE, "about", NULL);
    finish(&player);
    char name[16];
    for (int i = 0; i < 16; i++) {
        snprintf(name, sizeof name, "uuid%d", i);
        gpu_uuid[i] = (uint8_t)figure_of(&player, name);
    }
    context_cost = (uint64_t)figure_of(&player, "context");
    return player.status == 0;
}

unsigned long test_count(unsigned long usual)
{
    const char *text = getenv("VCUDA_TEST_COUNT");
    unsigned long count = text ? strtoul(text, NULL, 10) : 0;
    return count ? count : usual;
}

unsigned test_seed(void)
{
    const char *text = getenv("VCUDA_TEST_SEED");
    return text ? (unsigned)strtoul(text, NULL, 10) : (unsigned)pages_clock(CLOCK_REALTIME) | 1;
}

int harness_end(void)
{
    char command[200];
    snprintf(command, sizeof command, "rm -rf %s", work);
    if (system(command) != 0)
        perror(command);
    printf("%d passed, %d failed\n", passed, failed);
    return failed != 0;
}
