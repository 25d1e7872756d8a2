/* See lending_node.h. */
#include "lending_node.h"

#include <limits.h>
#include <linux/futex.h>
#include <signal.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <sys/syscall.h>
#include <unistd.h>

struct vcuda_turns *lending_turns;

void lending_set_borrower(struct claim *claim, uint64_t request, uint64_t limit, uint64_t host)
{
    struct vcuda_limit terms = {.assignment_uid = {7},
                                .generation = ++claim->generation,
                                .memory_bytes = limit,
                                .memory_request = request,
                                .host_memory_bytes = host,
                                .core_limit = 100,
                                .flags = VCUDA_FLAG_BORROWS | VCUDA_FLAG_BEST_EFFORT};
    memcpy(terms.gpu_uuid, gpu_uuid, 16);
    vcuda_limits_set(claim->limits, &terms);
}

/* A claim whose orders this program gives. */
void lending_begin(struct claim *claim, uint64_t request, uint64_t limit, uint64_t host)
{
    char path[400];
    claim_make(claim, limit, 100);
    lending_set_borrower(claim, request, limit, host);
    snprintf(path, sizeof path, "%s/turns", claim->directory);
    if (vcuda_turns_create(path, &lending_turns))
        exit(2);
    lending_turns->memory[0].known = 1;
    lending_turns->memory[0].looked_ns = UINT64_MAX / 2; /* as an arbiter that never sleeps */
}

void lending_end(struct claim *claim)
{
    vcuda_turns_unmap(lending_turns);
    claim_end(claim);
}

struct vcuda_lending lending_of(const struct claim *claim)
{
    struct vcuda_lending l;
    vcuda_usage_lending(claim->usage, 0, &l);
    return l;
}

uint64_t used_by(const struct claim *claim)
{
    struct vcuda_totals t;
    vcuda_usage_totals(claim->usage, 0, &t);
    return t.memory_bytes + t.context_bytes;
}

void lending_order(uint64_t give, uint32_t back)
{
    struct vcuda_memory_turn *turn = &lending_turns->memory[0];
    /* All that is missing is more than anybody has: then the part that it is to give decides. */
    __atomic_store_n(&turn->wanted_bytes, give ? 1ull << 50 : 0, __ATOMIC_SEQ_CST);
    __atomic_store_n(&turn->lent_bytes, give ? 1ull << 51 : 0, __ATOMIC_SEQ_CST);
    __atomic_store_n(&turn->give_bytes, give, __ATOMIC_SEQ_CST);
    __atomic_store_n(&turn->back, back, __ATOMIC_SEQ_CST);
    __atomic_fetch_add(&turn->number, 1, __ATOMIC_SEQ_CST);
    syscall(SYS_futex, &turn->number, FUTEX_WAKE, INT_MAX, NULL, NULL, 0);
}

/* Wait until this many bytes are out; return 0 if that does not become so. */
int lending_out_becomes(const struct claim *claim, uint64_t bytes, double seconds)
{
    double until = now_s() + seconds;
    while (lending_of(claim).out_bytes != bytes && now_s() < until)
        pause_s(0.0002);
    return lending_of(claim).out_bytes == bytes;
}

uint64_t lending_whole; /* of the GPU */
static int holds;       /* signals sent to the borrower */

char *lending_text(uint64_t bytes)
{
    static char text[4][24];
    static int i;
    snprintf(text[++i % 4], 24, "%llu", (unsigned long long)bytes);
    return text[i % 4];
}

/* Claim 0 owns half of the GPU; claim 1 borrows, and has all but an eighth of the GPU. */
void lending_begin_pair(void)
{
    node_begin();
    holds = 0;
    lending_whole = 24 * GIB;
    for (int i = 0; i < 2; i++)
        node_add_claim(i ? 0 : 50, 100);
    struct vcuda_limit owner = {
        .generation = 2, .memory_bytes = lending_whole / 2, .core_request = 50, .core_limit = 100};
    memcpy(owner.gpu_uuid, gpu_uuid, 16);
    vcuda_limits_set(node.claim[0].limits, &owner);
    lending_set_borrower(&node.claim[1], GIB, lending_whole, lending_whole);
    pause_s(1.3); /* the arbiter knows it, and goes on looking */
    play(&node.player[1], &node.claim[1], PRELOADED, "lend_hold", "4", BLOCK,
         lending_text(lending_whole / 8 * 7 - 600 * MIB), "300", "100000", NULL);
    wait_for(&node.player[1], "ready");
}

void lending_end_pair(void)
{
    kill(node.arbiter, 0) ? 0 : arbiter_end(SIGTERM);
    node_end();
}

uint64_t out_of_borrower(void)
{
    return lending_of(&node.claim[1]).out_bytes;
}

int nothing_out(void)
{
    return out_of_borrower() == 0;
}

int something_out(void)
{
    return out_of_borrower() != 0;
}

int owner_wants(void)
{
    return lending_of(&node.claim[0]).wanted_bytes != 0;
}

/* Not by SIGSTOP, which may catch a process with a lock of the simulated driver. */
void lending_hold_fast(void)
{
    char name[24];
    snprintf(name, sizeof name, "stands%d", holds += 1);
    kill(node.player[1].pid, SIGUSR2);
    wait_for(&node.player[1], name);
}

void lending_let_go(void)
{
    holds++;
    kill(node.player[1].pid, SIGUSR2);
}

void lending_play_owner(double seconds)
{
    char text[24];
    snprintf(text, sizeof text, "%.1f", seconds);
    play(&node.player[0], &node.claim[0], PRELOADED, "lend_take", lending_text(lending_whole / 2 - 2 * context_cost),
         text, NULL);
}

/* End the borrower and judge it. */
void lending_expect_sound(const char *after)
{
    kill(node.player[1].pid, SIGTERM);
    int ended = finish_within(&node.player[1], 30);
    node.player[1].pid = 0;
    expect(ended && figure_of(&node.player[1], "wrong") == 0 && figure_of(&node.player[1], "error") == 0 &&
               figure_of(&node.player[1], "freed") == 0,
           "%s, the borrower goes on with its contents: %.0f wrong, error %.0f", after,
           figure_of(&node.player[1], "wrong"), figure_of(&node.player[1], "error"));
}
