/* Stream memory operations: a stream waits for a value in host memory, or writes one. See memops.h for what stands behind. */
#include "memops.h"

#include <signal.h>
#include <stdlib.h>
#include <sys/prctl.h>
#include <time.h>

/* A released wait is noticed this often, whatever the program's threads do. */
#define LOOK_NS 20000
/* A wait looks at its value this long before the stream gets there: of a value that is there already, the GPU must not be
 * idle until somebody looks. */
#define AHEAD_NS 500000

/* Taken before sim_process_mutex and the GPU's. */
static pthread_mutex_t mutex = PTHREAD_MUTEX_INITIALIZER;
static pthread_cond_t changed = PTHREAD_COND_INITIALIZER;
static struct sim_kept *first, **last = &first;
static uint64_t numbers;
static int kept_count; /* read without the mutex, too */
static int is_watched; /* a forked child has no driver, and so needs no thread of its own */
static pthread_key_t thread_key;

/* Nearly always nothing is kept, and then nobody needs the mutex. */
static int lock_if_kept(void)
{
    return __atomic_load_n(&kept_count, __ATOMIC_ACQUIRE) && !pthread_mutex_lock(&mutex);
}

/* Return whether work of `s` that is put there later waits for all of `earlier`: the null stream and blocking ones do so. */
static int is_before(const struct sim_stream *earlier, const struct sim_stream *s)
{
    if (earlier == s)
        return 1;
    const struct sim_stream *null = &s->context->null_stream;
    return earlier->context == s->context && ((s == null && earlier->blocking) || (earlier == null && s->blocking));
}

/* A write that is only waiting for its mark holds up nothing: what is behind it has later marks. */
static int holds(const struct sim_kept *k, const struct sim_stream *s)
{
    return !k->marked && is_before(k->stream, s);
}

static int is_held_at(const struct sim_kept *end, const struct sim_stream *s)
{
    for (const struct sim_kept *k = first; k != end; k = k->next)
        if (holds(k, s))
            return 1;
    return 0;
}

/* The program writes there however it likes. */
__attribute__((no_sanitize("thread"))) static int is_there(const struct sim_kept *k)
{
    unsigned now = __atomic_load_n(k->address, __ATOMIC_ACQUIRE);
    switch (k->flags & CU_WAIT_VALUE_CONDITIONS) {
    case CU_WAIT_VALUE_GEQ:
        return (int32_t)(now - k->value) >= 0;
    case CU_WAIT_VALUE_EQ:
        return now == k->value;
    case CU_WAIT_VALUE_AND:
        return (now & k->value) != 0;
    default:
        return ~(now | k->value) != 0;
    }
}

__attribute__((no_sanitize("thread"))) static void write_value(const struct sim_kept *k)
{
    __atomic_store_n(k->address, k->value, __ATOMIC_RELEASE);
}

/* Of two writes in a stream with the same mark the first comes first, whenever the clock is read. */
static int is_due(struct sim_kept *write)
{
    if (!write->marked)
        write->mark = sim_put_nothing(write->stream);
    write->marked = 1;
    for (const struct sim_kept *k = first; k != write; k = k->next)
        if (k->kind == SIM_WRITE_VALUE && k->stream == write->stream)
            return 0;
    return sim_is_past(write->stream, write->mark);
}

static int is_ready(struct sim_kept *k)
{
    if (!k->marked && is_held_at(k, k->stream))
        return 0;
    if (k->kind == SIM_WAIT_VALUE)
        return is_there(k) && sim_time_until(k->stream) <= AHEAD_NS;
    return k->kind == SIM_WRITE_VALUE ? is_due(k) : k->kind != SIM_WAIT_EVENT || !k->behind;
}

/* Those that wait for an event's record hear its mark. */
static void tell(uint64_t record, uint64_t mark)
{
    for (struct sim_kept *k = first; k; k = k->next)
        if (k->behind == record) {
            k->behind = 0;
            k->mark = mark;
        }
}

static void carry_out(struct sim_kept *k)
{
    switch (k->kind) {
    case SIM_WAIT_VALUE:
        sim_put_nothing(k->stream);
        break;
    case SIM_WRITE_VALUE:
        write_value(k);
        break;
    case SIM_WORK:
        sim_put_work(k->stream, k->ns);
        break;
    case SIM_RECORD:
        tell(k->number, k->event ? sim_put_record(k->event, k->stream) : sim_put_nothing(k->stream));
        break;
    case SIM_WAIT_EVENT:
        sim_put_wait(k->stream, k->mark);
        break;
    case SIM_HOST_CALL:
        sim_put_host_call(k->host_call);
        break;
    }
}

/* Take it off the list, and free it. */
static void end(struct sim_kept **at)
{
    struct sim_kept *k = *at;
    *at = k->next;
    if (last == &k->next)
        last = at;
    sim_count_kept(k->stream, -1);
    __atomic_sub_fetch(&kept_count, 1, __ATOMIC_RELEASE);
    free(k);
}

static void run(void)
{
    int ended = 0;
    for (struct sim_kept **at = &first; *at;) {
        if (!is_ready(*at)) {
            at = &(*at)->next;
            continue;
        }
        carry_out(*at);
        end(at);
        ended = 1;
    }
    if (ended)
        pthread_cond_broadcast(&changed);
}

static void *watch(void *nothing)
{
    struct timespec pause = {0, LOOK_NS};
    prctl(PR_SET_TIMERSLACK, 1000ul, 0, 0, 0);
    pthread_mutex_lock(&mutex);
    for (;;) {
        while (!first)
            pthread_cond_wait(&changed, &mutex);
        run();
        pthread_mutex_unlock(&mutex);
        nanosleep(&pause, NULL);
        pthread_mutex_lock(&mutex);
    }
    return nothing;
}

/* A thread that goes leaves its own stream's memory. */
static void leave(void *stream)
{
    if (!sim_is_orphan())
        sim_kept_without_stream(stream);
}

static int start_watching(void)
{
    pthread_t thread;
    sigset_t all, before;
    if (is_watched)
        return 1;
    if (pthread_key_create(&thread_key, leave) != 0)
        return 0;
    /* The program's signals are for its own threads. */
    sigfillset(&all);
    pthread_sigmask(SIG_SETMASK, &all, &before);
    is_watched = pthread_create(&thread, NULL, watch, NULL) == 0;
    pthread_sigmask(SIG_SETMASK, &before, NULL);
    if (is_watched)
        pthread_detach(thread);
    else
        pthread_key_delete(thread_key);
    return is_watched;
}

static struct sim_kept *record_of(const struct sim_event *event)
{
    for (struct sim_kept *k = first; k; k = k->next)
        if (k->kind == SIM_RECORD && k->event == event)
            return k;
    return NULL;
}

static int append(struct sim_stream *s, const struct sim_kept *what)
{
    struct sim_kept *k = start_watching() ? malloc(sizeof *k) : NULL;
    if (!k)
        return -1;
    *k = *what;
    k->stream = s;
    k->number = ++numbers;
    k->next = NULL;
    if (k->kind == SIM_WAIT_EVENT) {
        const struct sim_kept *record = record_of(k->event);
        k->behind = record ? record->number : 0;
        k->mark = k->event->recorded && !record ? k->event->mark : 0;
        k->event = NULL;
    }
    if (k->kind == SIM_RECORD)
        sim_begin_record(k->event, s);
    if (s->of_thread)
        pthread_setspecific(thread_key, s);
    *last = k;
    last = &k->next;
    __atomic_add_fetch(&kept_count, 1, __ATOMIC_RELEASE);
    sim_count_kept(s, 1);
    pthread_cond_broadcast(&changed);
    return 1;
}

/* As many launches as a stream takes are kept; the next waits, as it does behind launches that run. */
static int is_full(const struct sim_stream *s)
{
    int count = 0;
    for (const struct sim_kept *k = first; k; k = k->next)
        count += k->stream == s && k->kind == SIM_WORK;
    return count >= SIM_QUEUE;
}

int sim_keep(struct sim_stream *s, const struct sim_kept *what)
{
    int is_operation = what->kind == SIM_WAIT_VALUE || what->kind == SIM_WRITE_VALUE;
    if (is_operation)
        pthread_mutex_lock(&mutex);
    else if (!lock_if_kept())
        return 0;
    run();
    while (what->kind == SIM_WORK && is_full(s))
        pthread_cond_wait(&changed, &mutex);
    int needed = is_operation || is_held_at(NULL, s) || (what->kind == SIM_WAIT_EVENT && record_of(what->event));
    int result = needed ? append(s, what) : 0;
    if (is_operation)
        run();
    pthread_mutex_unlock(&mutex);
    return result;
}

void sim_run_kept(void)
{
    if (!lock_if_kept())
        return;
    run();
    pthread_mutex_unlock(&mutex);
}

int sim_is_held(const struct sim_stream *s)
{
    if (!lock_if_kept())
        return 0;
    run();
    int held = is_held_at(NULL, s);
    pthread_mutex_unlock(&mutex);
    return held;
}

int sim_context_is_held(CUcontext context)
{
    if (!lock_if_kept())
        return 0;
    run();
    const struct sim_kept *k = first;
    while (k && (k->marked || k->stream->context != context))
        k = k->next;
    pthread_mutex_unlock(&mutex);
    return k != NULL;
}

void sim_wait_held(const struct sim_stream *s, CUcontext context, const struct sim_event *event)
{
    if (!lock_if_kept())
        return;
    run();
    uint64_t until = numbers;
    for (;;) {
        const struct sim_kept *k = first;
        while (k && k->number <= until && !(s && holds(k, s)) && !(!k->marked && k->stream->context == context) &&
               !(event && k->kind == SIM_RECORD && k->event == event))
            k = k->next;
        if (!k || k->number > until)
            break;
        pthread_cond_wait(&changed, &mutex);
    }
    pthread_mutex_unlock(&mutex);
}

void sim_kept_without_event(const struct sim_event *event)
{
    if (!lock_if_kept())
        return;
    struct sim_kept *k = record_of(event);
    if (k)
        k->event = NULL;
    pthread_cond_broadcast(&changed);
    pthread_mutex_unlock(&mutex);
}

/* The copy is never given back: what is behind it may be anywhere. */
void sim_kept_without_stream(struct sim_stream *s)
{
    struct sim_stream *copy = NULL;
    if (!lock_if_kept())
        return;
    for (struct sim_kept *k = first; k; k = k->next) {
        if (k->stream != s)
            continue;
        if (!copy && (copy = malloc(sizeof *copy)))
            *copy = *s;
        if (!copy)
            abort();
        k->stream = copy;
        if (k->host_call)
            sim_move_host_call(k->host_call, copy);
    }
    pthread_mutex_unlock(&mutex);
}

void sim_kept_without_context(CUcontext context)
{
    if (!lock_if_kept())
        return;
    for (struct sim_kept **at = &first; *at;) {
        struct sim_kept *k = *at;
        if (k->stream->context != context) {
            at = &k->next;
            continue;
        }
        if (k->kind == SIM_RECORD)
            tell(k->number, 0);
        if (k->event)
            sim_end_record(k->event);
        if (k->host_call)
            sim_drop_host_call(k->host_call);
        end(at);
    }
    pthread_cond_broadcast(&changed);
    pthread_mutex_unlock(&mutex);
}

static CUresult operate(CUstream stream, CUdeviceptr address, struct sim_kept what, unsigned known_flags)
{
    struct sim_stream *s = sim_resolve(stream);
    unsigned type;
    if (!s)
        return CUDA_ERROR_INVALID_CONTEXT;
    if (!address || address % sizeof(uint32_t) || what.flags & ~known_flags)
        return CUDA_ERROR_INVALID_VALUE;
    if (s->capture)
        return CUDA_ERROR_STREAM_CAPTURE_UNSUPPORTED;
    if (!cuPointerGetAttribute(&type, CU_POINTER_MEMORY_TYPE, address))
        return CUDA_ERROR_NOT_SUPPORTED; /* the simulated GPU's memory holds nothing */
    what.address = (uint32_t *)(uintptr_t)address;
    return sim_keep(s, &what) < 0 ? CUDA_ERROR_OUT_OF_MEMORY : CUDA_SUCCESS;
}

CUresult cuStreamWaitValue32_v2(CUstream stream, CUdeviceptr address, unsigned value, unsigned flags)
{
    return operate(stream, address, (struct sim_kept){.kind = SIM_WAIT_VALUE, .value = value, .flags = flags},
                   CU_WAIT_VALUE_CONDITIONS | CU_WAIT_VALUE_FLUSH);
}

CUresult cuStreamWaitValue32_v2_ptsz(CUstream stream, CUdeviceptr address, unsigned value, unsigned flags)
{
    return cuStreamWaitValue32_v2(stream, address, value, flags);
}

CUresult cuStreamWriteValue32_v2(CUstream stream, CUdeviceptr address, unsigned value, unsigned flags)
{
    return operate(stream, address, (struct sim_kept){.kind = SIM_WRITE_VALUE, .value = value, .flags = flags},
                   CU_WRITE_VALUE_NO_BARRIER);
}

CUresult cuStreamWriteValue32_v2_ptsz(CUstream stream, CUdeviceptr address, unsigned value, unsigned flags)
{
    return cuStreamWriteValue32_v2(stream, address, value, flags);
}
