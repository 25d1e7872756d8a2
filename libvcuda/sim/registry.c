/* The processes that use the driver, and the gate that a locked one's calls wait at.
 *
 * A call enters before it looks at the state, and whoever locks changes the state before it looks at who is inside: one of
 * the two sees the other. A killed process leaves its place to the next one that needs one.
 */
#include "driver.h"
#include "node.h"
#include "pages.h"

#include <linux/futex.h>
#include <signal.h>
#include <stdlib.h>
#include <string.h>
#include <sys/syscall.h>
#include <time.h>
#include <unistd.h>

struct sim_saved sim_saved;
/* What this thread's present call has entered; NULL: nothing. */
static _Thread_local struct sim_process *entered;

#define HELD_NS 2000000

static int is_gone(const struct sim_process *p)
{
    return !sim_pid_here(p->pid, p->pidns, p->start_time);
}

/* Take a place whose `pid` is `from`; one word, so that two cannot have it. */
static int take(struct sim_process *p, uint32_t from)
{
    uint32_t pid;
    uint64_t pidns, start_time;
    sim_find_self(&pid, &pidns, &start_time);
    if (!__atomic_compare_exchange_n(&p->pid, &from, pid, 0, __ATOMIC_SEQ_CST, __ATOMIC_SEQ_CST))
        return 0;
    *p = (struct sim_process){.pid = pid, .pidns = pidns, .start_time = start_time, .mps = getenv(SIM_MPS_ENV) != NULL};
    __atomic_store_n(&sim_saved.self, p, __ATOMIC_RELEASE);
    return 1;
}

uint32_t sim_process_sees(const struct sim_node *node)
{
    const char *hidden = getenv(SIM_HIDDEN_ENV);
    uint32_t seen = (1u << node->gpus) - 1;
    while (hidden && *hidden) {
        seen &= ~(1u << strtoul(hidden, NULL, 10) % SIM_MAX_GPUS);
        hidden += strcspn(hidden, ",");
        hidden += *hidden == ',';
    }
    return seen;
}

uint32_t sim_process_moves(void)
{
    struct sim_process *me = __atomic_load_n(&sim_saved.self, __ATOMIC_ACQUIRE);
    return me ? __atomic_load_n(&me->moves, __ATOMIC_ACQUIRE) : 0;
}

uint32_t sim_process_at(uint32_t gpu)
{
    struct sim_process *me = __atomic_load_n(&sim_saved.self, __ATOMIC_ACQUIRE);
    return me ? me->at[gpu] : gpu;
}

static void begin(const struct sim_node *node)
{
    struct sim_process *me = __atomic_load_n(&sim_saved.self, __ATOMIC_ACQUIRE);
    for (uint32_t i = 0; me && i < SIM_MAX_GPUS; i++)
        me->at[i] = (uint8_t)i;
    if (me)
        me->seen = sim_process_sees(node);
}

static void take_place(struct sim_node *node)
{
    uint32_t pid;
    uint64_t pidns, start_time;
    sim_find_self(&pid, &pidns, &start_time);
    /* This process before an exec. */
    for (int i = 0; i < SIM_MAX_PROCESSES; i++)
        if (node->process[i].pid == pid && node->process[i].pidns == pidns && take(&node->process[i], pid))
            return;
    for (int i = 0; i < SIM_MAX_PROCESSES; i++)
        if (!node->process[i].pid && take(&node->process[i], 0))
            return;
    for (int i = 0; i < SIM_MAX_PROCESSES; i++)
        if (is_gone(&node->process[i]) && take(&node->process[i], node->process[i].pid))
            return;
}

void sim_process_register(struct sim_node *node)
{
    take_place(node);
    begin(node);
}

struct sim_process *sim_process_admit(struct sim_node *node, const struct sim_process *as)
{
    for (int round = 0; round < 2; round++)
        for (int i = 0; i < SIM_MAX_PROCESSES; i++) {
            struct sim_process *p = &node->process[i];
            uint32_t from = p->pid;
            if (from && (!round || !is_gone(p)))
                continue;
            if (__atomic_compare_exchange_n(&p->pid, &from, as->pid, 0, __ATOMIC_SEQ_CST, __ATOMIC_SEQ_CST)) {
                *p = *as;
                return p;
            }
        }
    return NULL;
}

struct sim_process *sim_process_find(struct sim_node *node, uint32_t pid)
{
    for (int i = 0; i < SIM_MAX_PROCESSES; i++) {
        struct sim_process *p = &node->process[i];
        if (p->pid && sim_pid_here(p->pid, p->pidns, p->start_time) == pid)
            return p;
    }
    return NULL;
}

static void wait_while(struct sim_process *p, uint32_t state)
{
    syscall(SYS_futex, &p->state, FUTEX_WAIT, state, NULL, NULL, 0);
}

int sim_process_enter(void)
{
    struct sim_process *me;
    /* It has another place where it was brought to another node. */
    while ((me = __atomic_load_n(&sim_saved.self, __ATOMIC_ACQUIRE))) {
        __atomic_add_fetch(&me->inside, 1, __ATOMIC_SEQ_CST);
        uint32_t state = __atomic_load_n(&me->state, __ATOMIC_SEQ_CST);
        int held = __atomic_load_n(&sim_saved.held, __ATOMIC_SEQ_CST);
        int is_mine = me == __atomic_load_n(&sim_saved.self, __ATOMIC_SEQ_CST);
        if (__builtin_expect(state == CU_PROCESS_RUNNING && !held && is_mine, 1)) {
            entered = me;
            return 1;
        }
        __atomic_sub_fetch(&me->inside, 1, __ATOMIC_SEQ_CST);
        if (held) {
            /* On another node the place may be anybody's: it is not waited on. */
            nanosleep(&(struct timespec){0, HELD_NS}, NULL);
        } else if (is_mine && state == CU_PROCESS_FAILED) {
            return 0;
        } else if (is_mine) {
            wait_while(me, state);
        }
    }
    return 1;
}

void sim_process_query(void)
{
    const struct sim_process *me = __atomic_load_n(&sim_saved.self, __ATOMIC_ACQUIRE);
    if (me && __atomic_load_n(&me->state, __ATOMIC_SEQ_CST) == CU_PROCESS_CHECKPOINTED)
        raise(SIGSEGV);
}

void sim_process_leave(void)
{
    if (entered)
        __atomic_sub_fetch(&entered->inside, 1, __ATOMIC_SEQ_CST);
    entered = NULL;
}

#define COUNT(name, field, params, more)                                                                               \
    void name params                                                                                                   \
    {                                                                                                                  \
        if (sim_saved.self)                                                                                            \
            __atomic_add_fetch(&sim_saved.self->field, (uint32_t)(more), __ATOMIC_SEQ_CST);                            \
    }
COUNT(sim_process_count_managed, managed, (int more), more)
COUNT(sim_process_count_opened, opened, (int more), more)
COUNT(sim_process_count_imported, imported, (int more), more)
COUNT(sim_process_count_pool, pools_imported, (void), 1)
