/* The barrier: while memory of the process moves, no call that takes an address of it may enter the driver, and no work may
 * be on the GPU.
 *
 * A call counts itself in before it looks at the gate; the mover closes the gate before it looks at the count: one of the
 * two sees the other. A program may make one thread's call wait for what another thread launches next, so the mover never
 * waits without an end: until it has found everything drained, any thread that comes to the gate after the time reopens
 * it, and the mover tries again later. */
#include "lending.h"

#include "ahead.h"

#include <errno.h>
#include <limits.h>
#include <linux/futex.h>
#include <sys/syscall.h>
#include <time.h>
#include <unistd.h>

/* Amid a visit of the contexts nobody reopens the gate when the time is over: a capture that began then would be lost. */
enum { OPEN, CLOSING, VISITING, CLOSED };
/* A visit asks and does not wait; should the driver hold one up, the program waits for so long only. */
#define VISIT_NS 4000000000ull
#define POLL_NS 20000
#define LOOK_NS 5000000

static uint32_t gate, inside;
static uint64_t patience_until;

static void wake_all(void)
{
    syscall(SYS_futex, &gate, FUTEX_WAKE_PRIVATE, INT_MAX, NULL, NULL, 0);
}

static int change(uint32_t from, uint32_t to)
{
    int changed = __atomic_compare_exchange_n(&gate, &from, to, 0, __ATOMIC_SEQ_CST, __ATOMIC_SEQ_CST);
    if (changed && to == OPEN)
        wake_all();
    return changed;
}

static int is_over_since(uint64_t ns)
{
    return shim_now() > __atomic_load_n(&patience_until, __ATOMIC_ACQUIRE) + ns;
}

static int is_over(void)
{
    return is_over_since(0);
}

int barrier_enter_slow(void)
{
    int saved = errno;
    for (;;) {
        __atomic_fetch_add(&inside, 1, __ATOMIC_SEQ_CST);
        uint32_t seen = __atomic_load_n(&gate, __ATOMIC_SEQ_CST);
        /* At the end of the process nobody moves anything any more. */
        if (seen == OPEN || __atomic_load_n(&shim.stopping, __ATOMIC_ACQUIRE))
            break;
        __atomic_fetch_sub(&inside, 1, __ATOMIC_SEQ_CST);
        int may_reopen = seen == CLOSING ? is_over() : seen == VISITING && is_over_since(VISIT_NS);
        if (may_reopen && change(seen, OPEN))
            continue;
        struct timespec pause = {0, LOOK_NS};
        syscall(SYS_futex, &gate, FUTEX_WAIT_PRIVATE, seen, &pause, NULL, 0);
    }
    errno = saved;
    return 1;
}

void barrier_leave_slow(void)
{
    __atomic_fetch_sub(&inside, 1, __ATOMIC_SEQ_CST);
}

static int is_empty(void)
{
    while (__atomic_load_n(&inside, __ATOMIC_SEQ_CST)) {
        if (is_over() || __atomic_load_n(&gate, __ATOMIC_SEQ_CST) != CLOSING)
            return 0;
        nanosleep(&(struct timespec){0, POLL_NS}, NULL);
    }
    return 1;
}

/* Return what the visit says; -1 if the gate was reopened. */
static int visit(int (*contexts)(void))
{
    if (!change(CLOSING, VISITING))
        return -1;
    int state = contexts();
    return change(VISITING, CLOSING) ? state : -1;
}

/* Return 1 once the process has no work on the GPU. */
static int is_drained(void)
{
    int state = visit(contexts_begin_drain) == 1 ? visit(contexts_are_drained) : -1;
    while (!state && !is_over()) {
        nanosleep(&(struct timespec){0, POLL_NS}, NULL);
        state = visit(contexts_are_drained);
    }
    return state == 1;
}

int barrier_close(uint64_t patience_ns)
{
    __atomic_store_n(&patience_until, shim_now() + patience_ns, __ATOMIC_RELEASE);
    if (!change(OPEN, CLOSING))
        return 0;
    int drained = is_empty() && !__atomic_load_n(&shim.captures, __ATOMIC_SEQ_CST);
    if (drained) {
        ahead_end(); /* else it would wait for a turn */
        drained = is_drained();
    }
    if (drained && change(CLOSING, CLOSED))
        return 1;
    change(CLOSING, OPEN);
    return 0;
}

void barrier_open(void)
{
    change(CLOSED, OPEN);
}

void barrier_forget(void)
{
    gate = OPEN;
    inside = 0;
}
