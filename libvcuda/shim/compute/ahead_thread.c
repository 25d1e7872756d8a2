/* See ahead_thread.h. It polls while held work runs, waits for the turn while none may, and sleeps while there is none. */
#include "ahead_thread.h"

#include <limits.h>
#include <linux/futex.h>
#include <pthread.h>
#include <signal.h>
#include <sys/prctl.h>
#include <sys/syscall.h>
#include <time.h>
#include <unistd.h>

#define POLL_NS 10000
/* Look for new work for this long before sleeping. */
#define LINGER_NS 1000000ull
#define SLEEP_NS 10000000
/* Another process of the claim that was killed counts as having work in flight until its slot is cleared. */
#define REAP_NS 1000000000ull

static int started;
static uint32_t pokes, asleep;

static void doze(long ns)
{
    nanosleep(&(struct timespec){0, ns}, NULL);
}

static void *attend(void *nothing)
{
    uint64_t idle_since = 0, reaped = shim_now();
    int slot = 0;
    prctl(PR_SET_NAME, "vcuda-ahead", 0, 0, 0);
    prctl(PR_SET_TIMERSLACK, 1ul, 0, 0, 0);
    while (!__atomic_load_n(&shim.stopping, __ATOMIC_ACQUIRE)) {
        uint32_t seen = __atomic_load_n(&pokes, __ATOMIC_SEQ_CST);
        enum ahead_left left = ahead_step(&slot);
        uint64_t now = shim_now();
        idle_since = left != AHEAD_NOTHING ? 0 : idle_since ? idle_since : now;
        if (left == AHEAD_HELD && now - reaped > REAP_NS) {
            reaped = now;
            vcuda_usage_reap_dead(shim.usage);
        }
        if (left == AHEAD_HELD) {
            gate_wait_to_let_go(slot);
        } else if (left == AHEAD_RUNNING || now - idle_since < LINGER_NS) {
            doze(POLL_NS);
        } else {
            __atomic_store_n(&asleep, 1, __ATOMIC_SEQ_CST);
            syscall(SYS_futex, &pokes, FUTEX_WAIT_PRIVATE, seen, &(struct timespec){0, SLEEP_NS}, NULL, 0);
            __atomic_store_n(&asleep, 0, __ATOMIC_SEQ_CST);
        }
    }
    ahead_step(&slot);
    return nothing;
}

int ahead_thread_start(void)
{
    sigset_t all, old;
    pthread_t thread;
    if (started)
        return 1;
    /* Signals must be delivered to the program's own threads. */
    sigfillset(&all);
    pthread_sigmask(SIG_SETMASK, &all, &old);
    started = pthread_create(&thread, NULL, attend, NULL) == 0;
    pthread_sigmask(SIG_SETMASK, &old, NULL);
    if (started)
        pthread_detach(thread);
    return started;
}

void ahead_thread_poke(void)
{
    __atomic_fetch_add(&pokes, 1, __ATOMIC_SEQ_CST);
    if (__atomic_exchange_n(&asleep, 0, __ATOMIC_SEQ_CST))
        syscall(SYS_futex, &pokes, FUTEX_WAKE_PRIVATE, INT_MAX, NULL, NULL, 0);
}

void ahead_thread_forget(void)
{
    started = 0;
    asleep = 0;
}
