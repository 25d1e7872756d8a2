/* Memory that steps aside: what a review of it found. */
#include "lending_node.h"

#include <signal.h>
#include <stdlib.h>

/* The driver takes and gives back memory of its own with each piece: none of it can leave. */
static void test_books(void)
{
    struct claim claim;
    struct player p;
    unsigned long made = 0, trips = test_count(20);
    lending_begin(&claim, REQUEST, 2 * GIB, GIB);
    setenv("GPUCLOUD_SIM_TABLES", "2097152", 1);
    play(&p, &claim, PRELOADED, "lend_hold", "4", BLOCK, "0", "300", "100000", NULL);
    unsetenv("GPUCLOUD_SIM_TABLES");
    wait_for(&p, "ready");
    uint64_t movable = lending_of(&claim).movable_bytes, used = used_by(&claim);
    for (; made < trips; made++) {
        lending_order(1, 0);
        if (!lending_out_becomes(&claim, 24 * MIB, 5))
            break;
        lending_order(0, 1);
        if (!lending_out_becomes(&claim, 0, 5))
            break;
    }
    /* A piece is in before its books are. */
    struct vcuda_lending l = lending_of(&claim);
    for (double begin = now_s(); l.movable_bytes != movable && now_s() - begin < 2; l = lending_of(&claim))
        pause_s(0.01);
    uint64_t after = used_by(&claim);
    kill(p.pid, SIGTERM);
    finish(&p);
    expect(made == trips && figure_of(&p, "error") == 0 && movable == 24 * MIB && l.movable_bytes == movable &&
               after == used,
           "the driver's own memory within a move is not movable: %llu MiB, %llu after %lu trips",
           (unsigned long long)(movable / MIB), (unsigned long long)(l.movable_bytes / MIB), made);
    lending_end(&claim);
}

/* Work that a thread of the program lets go: it does not wait for the mover, which waits for the work. */
static void test_held_work(void)
{
    struct claim claim;
    struct player p;
    lending_begin(&claim, REQUEST, 2 * GIB, GIB);
    play(&p, &claim, PRELOADED, "lent_held", BLOCK, NULL);
    wait_for(&p, "ready");
    lending_order(1, 0);
    int released = says_within(&p, "let_go", 10);
    expect(released && figure_of(&p, "error") == 0 && figure_of(&p, "longest_ms") < (SANITIZED ? 500 : 100),
           "a thread that is to let work go may ask about memory that is wanted: %.1f ms", figure_of(&p, "longest_ms"));
    int out = lending_out_becomes(&claim, 6 * MIB, 5);
    kill(p.pid, released ? SIGTERM : SIGKILL);
    finish(&p);
    expect(out && figure_of(&p, "wrong") == 0, "then it leaves");
    lending_end(&claim);
}

/* Memory of a program with two contexts, both at work. */
static void test_contexts(void)
{
    struct claim claim;
    struct player p;
    unsigned long made = 0, trips = test_count(50);
    lending_begin(&claim, 2 * REQUEST, 2 * GIB, GIB);
    setenv("GPUCLOUD_SIM_UNMAP_CHECK", "1", 1);
    play(&p, &claim, PRELOADED, "lent_contexts", BLOCK, NULL);
    unsetenv("GPUCLOUD_SIM_UNMAP_CHECK");
    wait_for(&p, "ready");
    for (; made < trips; made++) {
        lending_order(1, 0);
        if (!lending_out_becomes(&claim, 12 * MIB, 5))
            break;
        lending_order(0, 1);
        if (!lending_out_becomes(&claim, 0, 5))
            break;
    }
    lending_order(0, 0);
    kill(p.pid, SIGTERM);
    wait_for(&p, "one");
    struct vcuda_lending l = lending_of(&claim);
    expect(figure_of(&p, "ready") == 0 && made == trips && figure_of(&p, "error") == 0 && figure_of(&p, "wrong") == 0 &&
               figure_of(&p, "launched") > 8,
           "memory of two contexts leaves while both work: %lu times, %.0f words wrong, error %.0f", made,
           figure_of(&p, "wrong"), figure_of(&p, "error"));
    expect(figure_of(&p, "ended") == 0 && l.movable_bytes == 6 * MIB && l.host_bytes == 6 * MIB,
           "a context that ends takes its own with it: %llu MiB are left", (unsigned long long)(l.movable_bytes / MIB));
    lending_order(1, 0);
    int out = lending_out_becomes(&claim, 6 * MIB, 5);
    kill(p.pid, SIGTERM);
    finish(&p);
    expect(out && figure_of(&p, "wrong_later") == 0, "the rest still leaves");
    lending_end(&claim);
}

static void test_destroyed_capture(void)
{
    struct claim claim;
    struct player p;
    lending_begin(&claim, REQUEST, 2 * GIB, GIB);
    play(&p, &claim, PRELOADED, "lent_capture", BLOCK, "1", NULL);
    wait_for(&p, "ready");
    lending_order(1, 0);
    int out = lending_out_becomes(&claim, 6 * MIB, 5);
    kill(p.pid, SIGTERM);
    finish(&p);
    expect(figure_of(&p, "ready") == 0 && out && figure_of(&p, "wrong") == 0,
           "a capture whose stream is destroyed keeps nothing: %llu MiB left",
           (unsigned long long)(lending_of(&claim).out_bytes / MIB));
    lending_end(&claim);
}

static uint32_t orders_done(const struct claim *claim)
{
    return __atomic_load_n(&claim->usage->process[0].orders_done, __ATOMIC_SEQ_CST);
}

/* What owners want is not taken again, and nothing moves that would not be enough. */
static void test_wants(void)
{
    struct claim claim;
    struct player p;
    lending_begin(&claim, REQUEST, 2 * GIB, GIB);
    struct vcuda_memory_turn *turn = &lending_turns->memory[0];
    turn->wanted_ns = UINT64_MAX / 2; /* as one that goes on */
    play(&p, &claim, PRELOADED, "lend_hold", "4", BLOCK, "0", "300", "100000", NULL);
    wait_for(&p, "ready");
    uint64_t begun = lending_of(&claim).out_bytes;
    turn->wanted_ns = 0;
    lending_order(0, 1);
    int back = lending_out_becomes(&claim, 0, 5);
    expect(begun == 24 * MIB && back, "a block that is made while owners want memory begins outside: %llu MiB",
           (unsigned long long)(begun / MIB));
    turn->wanted_bytes = 1ull << 50;
    turn->lent_bytes = 0;
    turn->give_bytes = 1;
    __atomic_fetch_add(&turn->number, 1, __ATOMIC_SEQ_CST);
    for (double until = now_s() + 5; orders_done(&claim) != turn->number && now_s() < until;)
        pause_s(0.001);
    expect(orders_done(&claim) == turn->number && !lending_of(&claim).out_bytes,
           "where all that is lent would not be enough, nothing moves");
    kill(p.pid, SIGTERM);
    finish(&p);
    lending_end(&claim);
}

/* Start a program that holds four blocks while some calls into the driver go wrong. */
static void play_with_faults(struct claim *claim, struct player *p, const char *faults)
{
    lending_begin(claim, REQUEST, 2 * GIB, GIB);
    setenv("GPUCLOUD_SIM_FAULTS", faults, 1);
    play(p, claim, PRELOADED, "lend_hold", "4", BLOCK, "0", "300", "100000", NULL);
    unsetenv("GPUCLOUD_SIM_FAULTS");
    wait_for(p, "ready");
}

/* An order is followed when something has left, not when it was tried. */
static void test_refused_copy(void)
{
    struct claim claim;
    struct player p;
    play_with_faults(&claim, &p, "cuMemcpyAsync:1=2");
    struct vcuda_memory_turn *turn = &lending_turns->memory[0];
    lending_order(1, 0);
    int out = lending_out_becomes(&claim, 24 * MIB, 5);
    expect(out, "a copy that the driver refuses is tried again: %llu MiB left",
           (unsigned long long)(lending_of(&claim).out_bytes / MIB));
    lending_order(0, 1);
    int back = lending_out_becomes(&claim, 0, 5);
    turn->wanted_bytes = 0; /* as an arbiter that does not know it */
    turn->lent_bytes = 1ull << 51;
    turn->give_bytes = 1ull << 50;
    turn->back = 0;
    __atomic_fetch_add(&turn->number, 1, __ATOMIC_SEQ_CST);
    out = lending_out_becomes(&claim, 24 * MIB, 5);
    kill(p.pid, SIGTERM);
    finish(&p);
    expect(back && out && figure_of(&p, "wrong") == 0, "without a word of all that is wanted, its part is");
    lending_end(&claim);
}

/* What is free may be wanted by the time at which the program stands still. */
static void test_late_want(void)
{
    struct claim claim;
    struct player p;
    play_with_faults(&claim, &p, "cuCtxRecordEvent:2+=500000us");
    struct vcuda_memory_turn *turn = &lending_turns->memory[0];
    lending_order(1, 0);
    int out = lending_out_becomes(&claim, 24 * MIB, 5);
    lending_order(0, 1);
    pause_s(0.05);
    __atomic_store_n(&turn->wanted_ns, UINT64_MAX / 2, __ATOMIC_SEQ_CST);
    pause_s(2);
    expect(out && lending_of(&claim).out_bytes == 24 * MIB,
           "what is wanted while the GPU drains is not taken: %llu MiB",
           (unsigned long long)(lending_of(&claim).out_bytes / MIB));
    __atomic_store_n(&turn->wanted_ns, 0, __ATOMIC_SEQ_CST);
    int back = lending_out_becomes(&claim, 0, 5);
    kill(p.pid, SIGTERM);
    finish(&p);
    expect(back && figure_of(&p, "wrong") == 0, "later it is");
    lending_end(&claim);
}

/* A capture that begins when the mover's time is over, but amid its question to the driver: the question would end it. */
static void test_late_capture(void)
{
    struct claim claim;
    struct player p;
    play_with_faults(&claim, &p, "cuCtxRecordEvent:1=1500000us");
    lending_order(1, 0);
    pause_s(0.1);
    kill(p.pid, SIGUSR2);
    pause_s(2.5);
    kill(p.pid, SIGUSR2);
    int out = lending_out_becomes(&claim, 24 * MIB, 10);
    kill(p.pid, SIGTERM);
    finish(&p);
    expect(out && figure_of(&p, "stands1") == 0 && figure_of(&p, "error") == 0 && figure_of(&p, "wrong") == 0,
           "a capture that begins amid a look at the contexts is not lost: error %.0f", figure_of(&p, "error"));
    lending_end(&claim);
}

static int is_overdue(void)
{
    return __atomic_load_n(&node.turns[1]->memory[0].overdue, __ATOMIC_SEQ_CST) != 0;
}

/* What cannot be made to move: a capture without an end. */
static void test_endless(void)
{
    lending_begin_pair();
    lending_hold_fast();
    double asked = now_s();
    lending_play_owner(0.2);
    int named = becomes(is_overdue, 8);
    double after = now_s() - asked;
    node_stop(1); /* as the agent does */
    finish(&node.player[0]);
    double took = figure_of(&node.player[0], "took_ms");
    node.player[0].pid = 0;
    expect(named && after > 3.9 && (SANITIZED || after < 5.5), "a capture without an end is named after %.1f s", after);
    expect(figure_of(&node.player[0], "error") == 0 && (SANITIZED || took < 8000),
           "its process ended, the owner has its memory: %.0f ms", took);
    expect(!is_overdue(), "and nobody is named any more");
    lending_end_pair();
}

/* What an arbiter said last does not hold for ever. */
static void test_left_alone(void)
{
    lending_begin_pair();
    lending_hold_fast(); /* else it would follow a last order */
    lending_play_owner(0.2);
    int wanted = becomes(owner_wants, 5);
    double killed = now_s();
    arbiter_end(SIGKILL);
    int ended = finish_within(&node.player[0], 15);
    double waited = now_s() - killed;
    node.player[0].pid = 0;
    expect(wanted && ended && figure_of(&node.player[0], "error") == 2 && waited > 2 && waited < (SANITIZED ? 10 : 6),
           "an arbiter is killed and none follows: an owner waits %.1f s for the next one, no longer", waited);
    node.arbiter = arbiter_start(node_directory);
    lending_let_go();
    pause_s(1);
    lending_play_owner(0.2);
    finish(&node.player[0]);
    node.player[0].pid = 0;
    expect(figure_of(&node.player[0], "error") == 0, "with the next one owners get what is theirs: %.0f ms",
           figure_of(&node.player[0], "took_ms"));
    lending_expect_sound("afterwards");
    lending_end_pair();
}

void test_lent(void)
{
    int before = simulated_kernel;
    simulated_kernel = !on_real_gpu;
    test_held_work();
    test_contexts();
    test_destroyed_capture();
    if (!on_real_gpu) {
        test_wants();
        test_refused_copy();
        test_late_want();
        test_late_capture();
        test_books();
        test_endless();
        test_left_alone();
    }
    simulated_kernel = before;
}
