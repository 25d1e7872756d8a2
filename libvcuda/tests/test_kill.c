/* SIGKILL at random moments: survivors go on, the account is theirs alone again, and everything can be had by the next.
 *
 * VCUDA_TEST_COUNT says how many are killed; VCUDA_TEST_SEED repeats a run, as far as the machine's timing lets it. */
#include "harness.h"
#include "kill.h"

#include <fcntl.h>
#include <signal.h>
#include <stdio.h>
#include <sys/mman.h>
#include <unistd.h>

#define LIMIT (4 * GIB)
#define BATCH 100u
#define PATIENCE_S 20

static struct kill_stage *make_stage(const struct claim *claim)
{
    char path[400];
    snprintf(path, sizeof path, "%s/" KILL_STAGE, claim->directory);
    int fd = open(path, O_RDWR | O_CREAT | O_CLOEXEC, 0600);
    void *map = MAP_FAILED;
    if (fd >= 0 && ftruncate(fd, sizeof(struct kill_stage)) == 0)
        map = mmap(NULL, sizeof(struct kill_stage), PROT_READ | PROT_WRITE, MAP_SHARED, fd, 0);
    close(fd);
    return map == MAP_FAILED ? NULL : map;
}

/* Tell the workers to rest; return 1 once they all do. */
static int make_workers_rest(struct kill_stage *stage)
{
    uint32_t word = __atomic_add_fetch(&stage->rest, 1, __ATOMIC_SEQ_CST);
    for (double end = now_s() + PATIENCE_S; now_s() < end; pause_s(0.002)) {
        int resting = 0;
        for (int i = 0; i < KILL_SURVIVORS; i++)
            resting += __atomic_load_n(&stage->seen[i], __ATOMIC_SEQ_CST) == word;
        if (resting == KILL_SURVIVORS)
            return 1;
    }
    return 0;
}

static unsigned slots_taken(const struct claim *claim)
{
    unsigned taken = 0;
    for (int i = 0; i < VCUDA_MAX_PROCESSES; i++)
        taken += claim->usage->process[i].owner != 0;
    return taken;
}

/* What is counted once the dead have been cleared, and what was launched has been measured. */
static struct vcuda_totals settled(const struct claim *claim)
{
    struct vcuda_totals t;
    double end = now_s() + 3;
    do {
        pause_s(0.01);
        vcuda_usage_reap_dead(claim->usage);
        vcuda_usage_totals(claim->usage, 0, &t);
    } while ((t.inflight_ns || t.waiting || t.processes != KILL_SURVIVORS ||
              t.memory_bytes + t.context_bytes != KILL_SURVIVORS * (KILL_HOLD + context_cost)) &&
             now_s() < end);
    return t;
}

static void test_account(const struct claim *claim, uint64_t before)
{
    struct vcuda_totals t = settled(claim);
    uint64_t held = KILL_SURVIVORS * (KILL_HOLD + context_cost), counted = t.memory_bytes + t.context_bytes;
    expect(t.processes == KILL_SURVIVORS && slots_taken(claim) == KILL_SURVIVORS && counted == held,
           "the account is the survivors' alone: %u slots (%u taken), %.1f of %.1f MiB", t.processes,
           slots_taken(claim), (double)counted / MIB, (double)held / MIB);
    expect(t.inflight_ns == 0 && t.waiting == 0, "nothing counts as running or waiting: %.3f ms, %u threads",
           (double)t.inflight_ns / 1e6, t.waiting);
    expect(gpu_memory_used() - before == held, "and the GPU agrees: %.1f MiB",
           (double)(gpu_memory_used() - before) / MIB);
}

static void test_everything_again(const struct claim *claim)
{
    struct player p;
    double room = (double)(LIMIT - KILL_SURVIVORS * (KILL_HOLD + context_cost) - context_cost);
    play(&p, claim, PRELOADED, "fill", "plain", "16777216", "8589934592", NULL);
    int ended = finish_within(&p, PATIENCE_S);
    expect(ended && figure_of(&p, "got") <= room && figure_of(&p, "got") > room - 16.0 * MIB,
           "a new process gets all the rest: %.0f of %.0f MiB", figure_of(&p, "got") / MIB, room / MIB);
}

static void kill_batch(const struct claim *claim, struct kill_stage *stage, unsigned seed, unsigned count)
{
    struct player p;
    char seed_text[16], count_text[16];
    uint64_t beats[KILL_SURVIVORS];
    for (int i = 0; i < KILL_SURVIVORS; i++)
        beats[i] = stage->beats[i];
    snprintf(seed_text, sizeof seed_text, "%u", seed);
    snprintf(count_text, sizeof count_text, "%u", count);
    play(&p, claim, PRELOADED, "nursery", seed_text, count_text, NULL);
    int ended = finish_within(&p, PATIENCE_S + count * 0.2);
    expect(ended && figure_of(&p, "killed") == count && figure_of(&p, "ended_otherwise") == 0,
           "%.0f processes killed at random moments (seed %u), none ended otherwise", figure_of(&p, "killed"), seed);
    int rested = make_workers_rest(stage);
    expect(rested && stage->beats[0] > beats[0] && stage->beats[1] > beats[1] && !stage->errors[0] && !stage->errors[1],
           "two survivors went on beside it: %llu and %llu rounds, the longest %.0f ms",
           (unsigned long long)(stage->beats[0] - beats[0]), (unsigned long long)(stage->beats[1] - beats[1]),
           (double)(stage->longest_ns[0] > stage->longest_ns[1] ? stage->longest_ns[0] : stage->longest_ns[1]) / 1e6);
}

void test_kill(void)
{
    struct claim claim;
    struct player survivors[KILL_SURVIVORS];
    unsigned long count = test_count(200);
    unsigned seed = test_seed();
    claim_make(&claim, LIMIT, 60);
    struct kill_stage *stage = make_stage(&claim);
    uint64_t before = gpu_memory_used();
    for (int i = 0; i < KILL_SURVIVORS; i++) {
        char number[16], own_seed[16];
        snprintf(number, sizeof number, "%d", i);
        snprintf(own_seed, sizeof own_seed, "%u", seed + (unsigned)i);
        play(&survivors[i], &claim, PRELOADED, "survivor", number, own_seed, NULL);
        if (!stage || !wait_for(&survivors[i], "ready"))
            expect(0, "survivors begin");
    }
    for (unsigned long done = 0; stage && done < count; done += BATCH) {
        unsigned batch = count - done < BATCH ? (unsigned)(count - done) : BATCH;
        kill_batch(&claim, stage, seed + (unsigned)done, batch);
        test_account(&claim, before);
        test_everything_again(&claim);
        __atomic_add_fetch(&stage->rest, 1, __ATOMIC_SEQ_CST);
    }
    for (int i = 0; i < KILL_SURVIVORS; i++) {
        kill(survivors[i].pid, SIGKILL);
        finish(&survivors[i]);
    }
    claim_end(&claim);
}
