/* The watcher: one thread per process that notices changed limits, retires finished work, and now and then compares the
 * account of memory with NVML's.
 *
 * It sleeps in a futex wait on the limits page's gen, so a change wakes it at once: it reads the limits again, and
 * echoes the generation without waiting for a launch. Launches that wait for credit sleep on the same word and wake by
 * themselves. */
#include "watcher.h"

#include "account.h"
#include "meter.h"
#include "shares.h"

#include <linux/futex.h>
#include <limits.h>
#include <pthread.h>
#include <signal.h>
#include <sys/prctl.h>
#include <sys/syscall.h>
#include <unistd.h>

#define BUSY_NS 1000000ull
/* The numbers are not urgent, and every look takes the driver's locks. */
#define BUSY_UNLIMITED_NS 5000000ull
#define IDLE_NS 100000000ull
/* Stay quick for this long after the last launch, so that a loop that launches and waits does not pay for wake-ups. */
#define LINGER_NS 50000000ull
#define TRUE_UP_NS 250000000ull
#define FIND_TURNS_NS 500000000ull
/* A wait that took this much longer than it should: the whole process was stopped, or was checkpointed and restored. */
#define STOOD_STILL_NS 1000000000ull
/* While turns are given, the GPU is handed on when this process is known to be drained. The launching threads may be
 * waiting for their next turn, so this thread looks if they have not seen the end this long after it was due. */
#define DRAIN_LATE_NS 100000ull
#define SWEEP_TURN_NS 200000ull

static int started;

struct rounds {
    uint64_t looked, trued, active, seen_pokes, seen_memory;
    int suspended;
};

static int is_open(int slot)
{
    return __atomic_load_n(&shim.gpu[slot].state, __ATOMIC_RELAXED) == VCUDA_SLOT_OPEN;
}

static int is_limited(void)
{
    for (int i = 0; i < VCUDA_MAX_GPUS; i++)
        if (is_open(i) && gate_limit(i) < 100)
            return 1;
    return 0;
}

static int turns_given(void)
{
    for (int i = 0; i < VCUDA_MAX_GPUS; i++)
        if (is_open(i) && gate_gives_turns(i))
            return 1;
    return 0;
}

static void look_around(struct rounds *r, uint64_t now)
{
    uint64_t pokes = __atomic_load_n(&shim.watcher_pokes, __ATOMIC_RELAXED);
    uint64_t memory = __atomic_load_n(&shim.memory_ended, __ATOMIC_RELAXED);
    if (meter_retire() > 0 || pokes != r->seen_pokes)
        r->active = now;
    r->seen_pokes = pokes;
    shares_tick(now);
    meter_probe();
    meter_sweep(turns_given() ? SWEEP_TURN_NS : is_limited() ? BUSY_NS : BUSY_UNLIMITED_NS);
    if (now - r->looked > FIND_TURNS_NS) {
        r->looked = now;
        shim_find_turns();
    }
    /* Something changed since, or eight times the interval has passed (stacks and modules grow without an
     * allocation). */
    if (now - r->trued > TRUE_UP_NS && (memory != r->seen_memory || now - r->trued > 8 * TRUE_UP_NS)) {
        r->seen_memory = memory;
        r->trued = now;
        account_true_up();
    }
}

static uint64_t pause_ns(int idle)
{
    if (idle)
        return IDLE_NS;
    for (int i = 0; i < VCUDA_MAX_GPUS; i++) {
        if (!__atomic_load_n(&shim.self->gpu[i].inflight_ns, __ATOMIC_RELAXED) || !gate_gives_turns(i))
            continue;
        uint64_t due = gate_drained_at(i) + DRAIN_LATE_NS, now = shim_now();
        return due < now + DRAIN_LATE_NS ? DRAIN_LATE_NS : due - now < BUSY_NS ? due - now : BUSY_NS;
    }
    return is_limited() || turns_given() ? BUSY_NS : BUSY_UNLIMITED_NS;
}

/* Return 1 while the claim is suspended: every call into the driver or NVML would wait there, or find nothing. */
static int is_quiet(struct rounds *r, uint64_t now)
{
    int suspended = __atomic_load_n(&shim.suspended, __ATOMIC_ACQUIRE);
    if (r->suspended && !suspended) {
        meter_restart();
        r->active = r->trued = now;
    }
    return r->suspended = suspended;
}

static void *watch(void *nothing)
{
    struct rounds r = {0};
    int mode = CU_CAPTURE_RELAXED;
    prctl(PR_SET_NAME, "vcuda", 0, 0, 0);
    prctl(PR_SET_TIMERSLACK, 1ul, 0, 0, 0);
    /* This thread's event queries must not break a stream capture of the program. */
    if (real.cuThreadExchangeStreamCaptureMode)
        real.cuThreadExchangeStreamCaptureMode(&mode);
    r.trued = shim_now();
    while (!__atomic_load_n(&shim.stopping, __ATOMIC_ACQUIRE)) {
        uint32_t gen = __atomic_load_n(&shim.limits->gen, __ATOMIC_ACQUIRE);
        shim_refresh();
        uint64_t now = shim_now();
        int quiet = is_quiet(&r, now);
        if (!quiet)
            look_around(&r, now);
        int idle = quiet || now - r.active > LINGER_NS;
        struct timespec ts = {0, (long)pause_ns(idle)};
        __atomic_store_n(&shim.watcher_sleeps, idle, __ATOMIC_RELEASE);
        now = shim_now();
        syscall(SYS_futex, &shim.limits->gen, FUTEX_WAIT, gen, &ts, NULL, 0);
        if (shim_now() - now > STOOD_STILL_NS)
            meter_restart();
    }
    return nothing;
}

void watcher_start(void)
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
    if (pthread_create(&thread, &attributes, watch, NULL) != 0)
        __atomic_store_n(&started, 0, __ATOMIC_RELEASE);
    pthread_attr_destroy(&attributes);
    pthread_sigmask(SIG_SETMASK, &old, NULL);
}

void watcher_forget(void)
{
    started = 0;
}
