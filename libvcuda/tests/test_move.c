/* Processes that are brought to another GPU by a restore: the maps that are taken, the room, the account. */
#include "driver.h"
#include "harness.h"
#include "node.h"

#include <dlfcn.h>
#include <fcntl.h>
#include <signal.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <sys/mman.h>
#include <sys/stat.h>
#include <unistd.h>

static struct {
    __typeof__(cuCheckpointProcessLock) *lock;
    __typeof__(cuCheckpointProcessCheckpoint) *checkpoint;
    __typeof__(cuCheckpointProcessRestore) *restore;
    __typeof__(cuCheckpointProcessUnlock) *unlock;
    __typeof__(cuCheckpointProcessGetState) *state;
} driver;

static uint8_t gpu[2][16];

static void find_gpus(void)
{
    struct player p;
    char name[16];
    memcpy(gpu[0], gpu_uuid, 16);
    setenv("CUDA_VISIBLE_DEVICES", "1", 1);
    play(&p, NULL, BARE, "about", NULL);
    unsetenv("CUDA_VISIBLE_DEVICES");
    finish(&p);
    for (int i = 0; i < 16; i++) {
        snprintf(name, sizeof name, "uuid%d", i);
        gpu[1][i] = (uint8_t)figure_of(&p, name);
    }
}

static int find_driver(void)
{
    char path[700];
    snprintf(path, sizeof path, "%s/libcuda.so.1", getenv("LD_LIBRARY_PATH"));
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

static CUresult suspend(pid_t pid)
{
    CUcheckpointLock args = {.timeout_ms = 5000};
    CUresult error = driver.lock(pid, &args);
    return error ? error : driver.checkpoint(pid, NULL);
}

/* Restore by a map of so many pairs: from, to, from, to. */
static CUresult restore(pid_t pid, unsigned count, const int *map)
{
    CUcheckpointPair pairs[4];
    for (unsigned i = 0; i < count; i++) {
        memcpy(pairs[i].from.bytes, gpu[map[2 * i]], 16);
        memcpy(pairs[i].to.bytes, gpu[map[2 * i + 1]], 16);
    }
    CUcheckpointRestore args = {.pairs = pairs, .count = count};
    return driver.restore(pid, &args);
}

static const int SWAP[] = {0, 1, 1, 0}, SAME[] = {0, 0, 1, 1}, DOUBLE[] = {0, 1, 1, 1}, TWICE[] = {0, 1, 0, 1};

static int state_of(pid_t pid)
{
    int state = -1;
    return driver.state(pid, &state) ? -1 : state;
}

static void start(struct player *p, const struct claim *claim, const char *mib)
{
    play(p, claim, claim ? PRELOADED : BARE, "suspend_work", mib, "1000000", NULL);
    wait_for(p, "works");
}

static int end(struct player *p)
{
    kill(p->pid, SIGTERM);
    return finish_within(p, 10) && figure_of(p, "error") == 0;
}

static void test_maps(const char *visible)
{
    struct player p;
    if (visible)
        setenv("CUDA_VISIBLE_DEVICES", visible, 1);
    start(&p, NULL, "512");
    unsetenv("CUDA_VISIBLE_DEVICES");
    uint64_t used = gpu_memory_of(0, p.pid);
    CUresult saved = suspend(p.pid), part = restore(p.pid, 1, SWAP), twice = restore(p.pid, 2, TWICE),
             both = restore(p.pid, 2, DOUBLE);
    int state = state_of(p.pid);
    expect(!saved && part == CUDA_ERROR_INVALID_VALUE && twice == part && both == part &&
               state == CU_PROCESS_CHECKPOINTED,
           "a map that does not name both GPUs once each way is refused, and nothing is lost: %d %d %d, state %d", part,
           twice, both, state);
    CUresult moved = restore(p.pid, 2, SWAP), open = driver.unlock(p.pid, NULL);
    pause_s(0.2);
    expect(!moved && !open && gpu_memory_of(0, p.pid) == 0 && gpu_memory_of(1, p.pid) == used,
           "a whole map brings it to the other GPU: %.0f of %.0f MiB there", (double)gpu_memory_of(1, p.pid) / MIB,
           (double)used / MIB);
    CUresult again = suspend(p.pid), back = restore(p.pid, 2, SWAP);
    driver.unlock(p.pid, NULL);
    pause_s(0.2);
    uint64_t returned = gpu_memory_of(0, p.pid);
    again = again ? again : suspend(p.pid);
    CUresult same = restore(p.pid, 2, SAME);
    driver.unlock(p.pid, NULL);
    expect(!again && !back && !same && returned == used && gpu_memory_of(0, p.pid) == used && end(&p),
           "the same map brings it back, the map of each to itself leaves it, and it notices nothing");
}

static void test_room_there(void)
{
    struct player p, other;
    start(&p, NULL, "12288");
    CUresult saved = suspend(p.pid);
    setenv("CUDA_VISIBLE_DEVICES", "1", 1);
    start(&other, NULL, "20480");
    unsetenv("CUDA_VISIBLE_DEVICES");
    CUresult first = restore(p.pid, 2, SWAP), home = restore(p.pid, 2, SAME), none = driver.restore(p.pid, NULL);
    expect(!saved && first == CUDA_ERROR_OUT_OF_MEMORY && home == CUDA_ERROR_OPERATING_SYSTEM && none == home,
           "without room there it is lost, also for the GPU that it came from: %d %d %d", first, home, none);
    kill(p.pid, SIGKILL);
    finish(&p);
    expect(end(&other), "and who had the room keeps it");
}

static void test_a_container(void)
{
    struct player p;
    setenv("GPUCLOUD_SIM_HIDDEN", "1", 1);
    start(&p, NULL, "64");
    unsetenv("GPUCLOUD_SIM_HIDDEN");
    CUresult saved = suspend(p.pid), swap = restore(p.pid, 2, SWAP), there = restore(p.pid, 1, SWAP),
             same = restore(p.pid, 1, SAME);
    driver.unlock(p.pid, NULL);
    expect(!saved && swap == CUDA_ERROR_INVALID_VALUE && there == swap && !same && end(&p),
           "a program that has only its own GPU's files stays there: %d %d %d", swap, there, same);
}

/* ---- Under libvcuda ---- */

static void test_the_claims_slot(void)
{
    struct claim claim;
    struct player p;
    struct vcuda_totals before, after, later;
    struct vcuda_limit limit;
    claim_make(&claim, 4 * GIB, 50);
    setenv("CUDA_VISIBLE_DEVICES", "0", 1);
    start(&p, &claim, "512");
    unsetenv("CUDA_VISIBLE_DEVICES");
    pause_s(0.5);
    vcuda_usage_totals(claim.usage, 0, &before);
    CUresult saved = suspend(p.pid);
    int slot = vcuda_limits_move(claim.limits, gpu[0], gpu[1]);
    CUresult moved = restore(p.pid, 2, SWAP);
    driver.unlock(p.pid, NULL);
    pause_s(1.5);
    vcuda_usage_totals(claim.usage, 0, &after);
    pause_s(1);
    vcuda_usage_totals(claim.usage, 0, &later);
    vcuda_limits_get(claim.limits, 0, &limit);
    double share = (double)(later.gpu_time_ns - after.gpu_time_ns) / 1e9;
    expect(!saved && !moved && slot == 0 && !memcmp(limit.gpu_uuid, gpu[1], 16) &&
               after.memory_bytes == before.memory_bytes && gpu_memory_of(1, p.pid) > 512 * MIB,
           "the slot moves with it, and so does its memory: %.0f and %.0f MiB", (double)before.memory_bytes / MIB,
           (double)after.memory_bytes / MIB);
    expect(share > 0.3 && share < 0.62, "its limit of 50 %% holds on the other GPU: %.2f s in one", share);
    expect(end(&p), "and it has no error");
    expect(vcuda_limits_move(claim.limits, gpu[0], gpu[1]) < 0, "a slot that is not there is not moved");
    claim_end(&claim);
}

/* ---- As if brought to another node by CRIU: its node's file knows nothing of it ---- */

static void *map_node(size_t *size)
{
    struct stat st;
    int fd = open(getenv("GPUCLOUD_SIM_NODE"), O_RDWR | O_CLOEXEC);
    void *node = fd >= 0 && fstat(fd, &st) == 0
                     ? mmap(NULL, *size = (size_t)st.st_size, PROT_READ | PROT_WRITE, MAP_SHARED, fd, 0)
                     : MAP_FAILED;
    if (fd >= 0)
        close(fd);
    return node == MAP_FAILED ? NULL : node;
}

static void forget_process(struct sim_node *node, pid_t pid)
{
    for (int i = 0; i < SIM_MAX_PROCESSES; i++)
        if (node->process[i].pid == (uint32_t)pid)
            node->process[i] = (struct sim_process){.pid = 1, .state = CU_PROCESS_RUNNING};
    for (uint32_t g = 0; g < node->gpus; g++)
        for (int i = 0; i < SIM_MAX_CLIENTS; i++)
            if (node->gpu[g].client[i].pid == (uint32_t)pid)
                memset(&node->gpu[g].client[i], 0, sizeof node->gpu[g].client[i]);
}

static void test_another_node(void)
{
    struct player p, stranger;
    size_t size;
    struct sim_node *node = map_node(&size);
    if (!node)
        return;
    start(&p, NULL, "512");
    uint64_t used = gpu_memory_of(0, p.pid);
    CUresult saved = suspend(p.pid);
    forget_process(node, p.pid);
    uint64_t forgotten = gpu_memory_of(0, p.pid);
    pause_s(0.2);
    int state = state_of(p.pid);
    expect(!saved && used && !forgotten && state == CU_PROCESS_CHECKPOINTED,
           "a process that another node does not know is found by what it keeps itself: state %d", state);
    start(&stranger, NULL, "64");
    CUresult part = restore(p.pid, 1, SWAP), back = restore(p.pid, 2, SWAP);
    expect(part == CUDA_ERROR_INVALID_VALUE && !back && gpu_memory_of(1, p.pid) == used,
           "it is restored there by a whole map of the GPUs it came from: %d %d, %.0f of %.0f MiB", part, back,
           (double)gpu_memory_of(1, p.pid) / MIB, (double)used / MIB);
    driver.unlock(p.pid, NULL);
    pause_s(0.3);
    uint64_t there = gpu_memory_of(1, p.pid), left = gpu_memory_of(0, p.pid);
    int ended = end(&p);
    expect(there == used && !left && ended, "and works on, with no error: %.0f and %.0f MiB, %d, error %.0f",
           (double)there / MIB, (double)left / MIB, ended, figure_of(&p, "error"));
    expect(end(&stranger), "as does who had begun there");
    munmap(node, size);
}

void test_move(void)
{
    if (on_real_gpu || simulated_kernel || !find_driver())
        return;
    find_gpus();
    test_maps(NULL);
    test_maps("0");
    test_room_there();
    test_a_container();
    test_another_node();
    test_the_claims_slot();
}
