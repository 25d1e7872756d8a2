/* The thread that follows the arbiter's orders to give borrowed memory back, and takes it again when there is room.
 *
 * An order names the process's part of what owners want, and all that they want. The process moves its part, but no more
 * than is missing on the GPU; if that was not enough, the next order follows, and each allows a little more. Where all that
 * is lent would not do, nothing moves. What is out comes back when the arbiter says that it may, as far as there is room. Where host memory cannot be mapped
 * at a block's address, the barrier stays closed while anything is out. */
#include "lending.h"

#include "account.h"

#include <linux/futex.h>
#include <pthread.h>
#include <signal.h>
#include <sys/prctl.h>
#include <sys/syscall.h>
#include <time.h>
#include <unistd.h>

#define LOOK_NS 50000000l
/* Without what the driver keeps for itself, an allocation of exactly what is free fails. */
#define SLACK_BYTES (64ull << 20)
/* Left free when memory comes back, so that a small need of an owner does not send it out again at once. */
#define SPARE_BYTES (256ull << 20)
/* Moved in at a time: some 30 ms on a PCIe 5 machine, in which the program stands still. */
#define BACK_BYTES (1ull << 30)
/* Work in flight of an unlimited program ends within 50 ms where predictions are right. Kernels that reach what is out take
 * several times as long as predicted (a quarter of a second was seen): giving up then means to wait for it twice. */
#define PATIENCE_NS 1000000000ull
#define PATIENCE_MOST_NS 2000000000ull
#define AGAIN_NS 2000000
/* After a standstill in vain the program goes on for so long at least. */
#define REST_NS 20000000

static int started;

struct borrower {
    uint32_t number;
    uint64_t patience_ns, closed_ns;
    int closed; /* stays so while what is out cannot be reached */
};

static int reaches_out(void)
{
    for (const struct block *b = lending_blocks; b; b = b->next)
        for (unsigned i = 0; i < b->count; i++)
            if (b->piece[i].out && !b->piece[i].host)
                return 0;
    return 1;
}

/* Let the program go on, and count how long it stood. */
static void release(struct borrower *b)
{
    barrier_open();
    b->closed = 0;
    __atomic_fetch_add(&shim.self->stood_ns, shim_now() - b->closed_ns, __ATOMIC_RELAXED);
}

/* Close the barrier. It waits for the GPU and for the program's threads, so no lock is held. */
static int close_barrier(struct borrower *b)
{
    if (b->closed)
        return 1;
    if (!contexts_know(NULL))
        return 0;
    b->closed_ns = shim_now();
    if (barrier_close(b->patience_ns)) {
        b->patience_ns = PATIENCE_NS;
        return b->closed = 1;
    }
    uint64_t stood = shim_now() - b->closed_ns;
    __atomic_fetch_add(&shim.self->stood_ns, stood, __ATOMIC_RELAXED);
    if (stood >= b->patience_ns) {
        b->patience_ns = b->patience_ns * 2 < PATIENCE_MOST_NS ? b->patience_ns * 2 : PATIENCE_MOST_NS;
        nanosleep(&(struct timespec){0, REST_NS}, NULL);
    }
    return 0;
}

/* Close the barrier and take the lock, in a context in which memory can move. */
static int begin(struct borrower *b)
{
    if (!close_barrier(b))
        return 0;
    lending_lock();
    CUcontext context = lending_blocks ? lending_blocks->context : NULL;
    if (context && !contexts_are_ending() && !__atomic_load_n(&shim.suspended, __ATOMIC_SEQ_CST) &&
        !__atomic_load_n(&shim.stopping, __ATOMIC_SEQ_CST) && !real.cuCtxPushCurrent_v2(context))
        return 1;
    int goes_on = reaches_out(); /* also when the program freed what was out */
    lending_unlock();
    if (goes_on)
        release(b);
    return 0;
}

static void end(struct borrower *b)
{
    CUcontext context;
    int goes_on = reaches_out();
    real.cuCtxPopCurrent_v2(&context);
    lending_unlock();
    if (goes_on)
        release(b);
}

static uint64_t free_bytes(void)
{
    size_t bytes = 0, total;
    return real.cuMemGetInfo_v2(&bytes, &total) ? 0 : bytes;
}

/* Return how much to move for an order; 0: nothing is missing, or what is lent would not be enough. */
static uint64_t bytes_to_give(const struct vcuda_memory_turn *turn, uint64_t have)
{
    uint64_t part = __atomic_load_n(&turn->give_bytes, __ATOMIC_SEQ_CST);
    uint64_t wanted = __atomic_load_n(&turn->wanted_bytes, __ATOMIC_SEQ_CST);
    uint64_t lent = __atomic_load_n(&turn->lent_bytes, __ATOMIC_SEQ_CST); /* by the others */
    struct vcuda_lending mine = {0};
    vcuda_usage_lending(shim.usage, lending_slot(), &mine);
    wanted = wanted < part ? part : wanted; /* an older arbiter does not say what is wanted altogether */
    /* Each try in vain shows that owners need more than they say. */
    uint64_t slack = SLACK_BYTES * (1 + __atomic_load_n(&turn->tries, __ATOMIC_SEQ_CST));
    if (!part || wanted + slack <= have || wanted > have + lent + mine.movable_bytes)
        return 0;
    uint64_t missing = wanted + slack - have;
    return missing < part + slack ? missing : part + slack;
}

/* Return 1 if the order was followed. */
static int give(struct borrower *b, const struct vcuda_memory_turn *turn, uint32_t number)
{
    if (!begin(b))
        return 0;
    uint64_t bytes = bytes_to_give(turn, free_bytes());
    int could = moves_out(bytes) >= bytes || !moves_left();
    end(b);
    if (!could) { /* the driver refuses, for want of memory of its own, say: others are asked meanwhile */
        nanosleep(&(struct timespec){0, REST_NS}, NULL);
        return 0;
    }
    b->number = number;
    __atomic_store_n(&shim.self->orders_done, number, __ATOMIC_SEQ_CST);
    return 1;
}

static int may_come_back(const struct vcuda_memory_turn *turn)
{
    return __atomic_load_n(&turn->back, __ATOMIC_ACQUIRE) && !__atomic_load_n(&shim.captures, __ATOMIC_RELAXED) &&
           __atomic_load_n(&shim.self->out_bytes, __ATOMIC_RELAXED);
}

/* Return how much may come back now; 0 if that is less than the next piece. The program goes on meanwhile. */
static uint64_t room_for_next(void)
{
    uint64_t have = 0, next;
    lending_lock();
    next = moves_next_in();
    CUcontext context = next ? lending_blocks->context : NULL;
    if (context && !contexts_are_ending() && !real.cuCtxPushCurrent_v2(context)) {
        have = free_bytes();
        real.cuCtxPopCurrent_v2(&context);
    }
    lending_unlock();
    have = have > SPARE_BYTES ? have - SPARE_BYTES : 0;
    return next && have >= next ? (have < BACK_BYTES ? have : BACK_BYTES) : 0;
}

/* Return 1 if something came back. */
static int take_back(struct borrower *b, const struct vcuda_memory_turn *turn)
{
    uint64_t most = room_for_next(), moved = 0;
    if (!most || !begin(b))
        return 0;
    /* The barrier can have taken a second to close: what was free may be wanted by now. */
    if (may_come_back(turn) && !lending_is_wanted())
        moved = moves_in(most);
    end(b);
    return moved > 0;
}

static void follow(struct borrower *b, const struct vcuda_turns *turns)
{
    const struct vcuda_memory_turn *turn = &turns->memory[lending_slot()];
    uint32_t number = __atomic_load_n(&turn->number, __ATOMIC_SEQ_CST);
    uint64_t wanted = __atomic_load_n(&turn->give_bytes, __ATOMIC_SEQ_CST);
    struct timespec pause = {0, number == b->number ? LOOK_NS : AGAIN_NS};
    int done = 0;
    if (number != b->number && !wanted) { /* the want ended before we came to it */
        b->number = number;
        __atomic_store_n(&shim.self->orders_done, number, __ATOMIC_SEQ_CST);
    } else if (number != b->number && !__atomic_load_n(&shim.captures, __ATOMIC_RELAXED))
        done = give(b, turn, number);
    else if (!wanted && may_come_back(turn))
        done = take_back(b, turn);
    if (done)
        return;
    if (number != b->number)
        nanosleep(&pause, NULL); /* a capture, or work that does not end: try again soon */
    else
        syscall(SYS_futex, &turn->number, FUTEX_WAIT, number, &pause, NULL, 0);
}

static void *attend(void *nothing)
{
    struct borrower b = {.patience_ns = PATIENCE_NS};
    int mode = CU_CAPTURE_RELAXED;
    prctl(PR_SET_NAME, "vcuda-borrow", 0, 0, 0);
    if (real.cuThreadExchangeStreamCaptureMode)
        real.cuThreadExchangeStreamCaptureMode(&mode);
    account_never_waits = 1;
    while (!__atomic_load_n(&shim.stopping, __ATOMIC_ACQUIRE)) {
        const struct vcuda_turns *turns = __atomic_load_n(&shim.turns, __ATOMIC_ACQUIRE);
        if (turns && !__atomic_load_n(&shim.suspended, __ATOMIC_ACQUIRE))
            follow(&b, turns);
        else
            nanosleep(&(struct timespec){0, LOOK_NS}, NULL);
    }
    return nothing;
}

void borrower_start(void)
{
    if (__atomic_exchange_n(&started, 1, __ATOMIC_ACQ_REL))
        return;
    sigset_t all, old;
    pthread_attr_t attributes;
    pthread_t thread;
    /* Signals must be delivered to the program's own threads. */
    sigfillset(&all);
    pthread_sigmask(SIG_SETMASK, &all, &old);
    pthread_attr_init(&attributes);
    pthread_attr_setdetachstate(&attributes, PTHREAD_CREATE_DETACHED);
    pthread_attr_setstacksize(&attributes, 256 << 10);
    if (pthread_create(&thread, &attributes, attend, NULL) != 0)
        __atomic_store_n(&started, 0, __ATOMIC_RELEASE);
    pthread_attr_destroy(&attributes);
    pthread_sigmask(SIG_SETMASK, &old, NULL);
}

void borrower_forget(void)
{
    started = 0;
}
