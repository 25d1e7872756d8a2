/* The contexts of this process, and the end of their work.
 *
 * Memory may move while no context of the process has work on the GPU, as an address means the same in all of them. One
 * event for each context takes in the work of all its streams, and of its green contexts. It is queried again and again, so
 * that no lock is held while the GPU works: whoever must let that work go on may need the lock. A context that is about to
 * be destroyed keeps all moves from beginning. */
#include "lending.h"

#define MOST 32

static struct known {
    CUcontext context;
    CUevent event; /* NULL: none is made yet */
    int waits;
} known[MOST];
static int count;
/* Contexts that cannot be waited for: there were too many; the primary one has no handle yet, as it was made for a green one. */
static int crowded, unnamed;
/* Calls in progress that may destroy contexts. */
static int ending;

static struct known *find(CUcontext context)
{
    for (int i = 0; i < count; i++)
        if (known[i].context == context)
            return &known[i];
    return NULL;
}

void lending_meet_context(CUcontext context, int is_primary)
{
    lending_lock();
    if (context && !find(context)) {
        crowded |= count == MOST;
        if (count < MOST)
            known[count++] = (struct known){.context = context};
    }
    unnamed = is_primary ? !context : unnamed;
    lending_unlock();
}

int contexts_know(CUcontext context)
{
    lending_lock();
    int all = !unnamed && !crowded && real.cuCtxRecordEvent && real.cuEventQuery && (!context || find(context));
    lending_unlock();
    return all;
}

void contexts_drop(CUcontext context)
{
    for (int i = count; i--;)
        if (!context || known[i].context == context)
            known[i] = known[--count];
    if (!context)
        unnamed = crowded = ending = 0;
}

void lending_begin_end(void)
{
    lending_lock();
    ending++;
    lending_unlock();
}

void lending_finish_end(void)
{
    lending_lock();
    ending--;
    lending_unlock();
}

int contexts_are_ending(void)
{
    return ending != 0;
}

/* Begin to wait for what the context has in flight. */
static int record(struct known *k)
{
    CUcontext popped;
    if (real.cuCtxPushCurrent_v2(k->context))
        return 0;
    k->waits = (k->event || !real.cuEventCreate(&k->event, CU_EVENT_DISABLE_TIMING)) &&
               !real.cuCtxRecordEvent(k->context, k->event);
    real.cuCtxPopCurrent_v2(&popped);
    return k->waits;
}

/* Return 1 if its work has ended, 0 if not yet, -1 after an error, which no wait would end. */
static int is_done(struct known *k)
{
    CUcontext popped;
    CUresult result;
    if (!k->waits)
        return 1;
    if (real.cuCtxPushCurrent_v2(k->context))
        return -1;
    result = real.cuEventQuery(k->event);
    real.cuCtxPopCurrent_v2(&popped);
    k->waits = result != CUDA_SUCCESS;
    return result == CUDA_ERROR_NOT_READY ? 0 : result ? -1 : 1;
}

/* Visit every context; stop at the first that is not done. */
static int visit(int (*step)(struct known *))
{
    int state = 1;
    if (!shim_begin_query())
        return -1;
    lending_lock();
    for (int i = 0; i < count && state == 1 && !ending; i++)
        state = step(&known[i]);
    state = ending ? -1 : state;
    lending_unlock();
    shim_end_query();
    return state;
}

int contexts_begin_drain(void)
{
    return contexts_know(NULL) && visit(record) == 1;
}

int contexts_are_drained(void)
{
    return visit(is_done);
}
