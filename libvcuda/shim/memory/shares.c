/* Memory that several processes may hold: which of them pays, and until when.
 *
 * - The maker pays for as long as it holds a handle, or any process has a descriptor of the open file to which it was
 *   exported. An importer keeps a descriptor for as long as it holds the memory, so that the maker knows.
 * - The maker's pid is the file's owner. An importer that finds there a process with a slot in its claim's page pays
 *   nothing, but reports in its own slot how much it holds. When a slot is cleared, all such memory counts
 *   (account_used) until its holder has checked again; so the claim's sum never misses it.
 * - If there is no such process (it ended, or belongs to another claim), the importer pays: it becomes the owner, and
 *   from then on acts as the maker for the others. If two do so at once, the one that is not the owner takes its charge
 *   back. */
#include "shares.h"

#include "descriptors.h"
#include "account.h"

#include <stdlib.h>
#include <unistd.h>

#define LOOK_NS 50000000ull
/* After this time, no other importer that found no owner is still about to become it. */
#define ADOPTED_NS 50000000ull

struct watch {
    uint64_t key;
    uint32_t index; /* index among the file's objects */
    int seen;
    struct watch *next;
};

static struct memory *listed; /* with descriptors, or imported */
static struct memory *ended;
/* These are read without the lock, too. */
static uint64_t looked_ns;
static int count;     /* of those listed */
static int unsettled; /* some wait for a descriptor to be closed, or were adopted a moment ago */

static uint64_t load(const uint64_t *word)
{
    return __atomic_load_n(word, __ATOMIC_SEQ_CST);
}

static void set_unsettled(int value)
{
    __atomic_store_n(&unsettled, value, __ATOMIC_RELAXED);
}

static void list(struct memory *m)
{
    if (m->is_listed)
        return;
    __atomic_fetch_add(&count, 1, __ATOMIC_RELAXED);
    m->is_listed = 1;
    m->next = listed;
    m->link = &listed;
    if (listed)
        listed->link = &m->next;
    listed = m;
}

static void unlist(struct memory *m)
{
    __atomic_fetch_sub(&count, 1, __ATOMIC_RELAXED);
    *m->link = m->next;
    if (m->next)
        m->next->link = m->link;
}

/* ---- Payers ---- */

static void count_imported(const struct memory *m, int sign)
{
    uint64_t *imported = &shim_usage(m->slot)->imported_bytes;
    __atomic_fetch_add(imported, sign > 0 ? m->bytes : -m->bytes, __ATOMIC_SEQ_CST);
}

static int is_payer(int slot, uint64_t attached_ns)
{
    const struct vcuda_process *p = &shim.usage->process[slot];
    return pages_is_process(load(&p->owner)) && load(&p->start_time) && load(&p->attached_ns) == attached_ns;
}

/* Return the slot of this process in the claim's page, or -1. */
static int slot_of_process(pid_t pid)
{
    uint64_t owner = pages_pidns() << 32 | (uint32_t)pid;
    uint32_t n = __atomic_load_n(&shim.usage->slots_used, __ATOMIC_SEQ_CST);
    for (uint32_t i = 0; pid && i < n && i < VCUDA_MAX_PROCESSES; i++)
        if (load(&shim.usage->process[i].owner) == owner && load(&shim.usage->process[i].start_time))
            return (int)i;
    return -1;
}

/* Find the payer by the open file; 0: none in this claim. A payer that replaced itself by another program (exec) is the
 * same process in another slot, and no longer holds anything. */
static int find_payer(struct memory *m)
{
    pid_t pid = m->kept < 0 ? 0 : descriptors_payer(m->kept);
    int slot = slot_of_process(pid);
    uint64_t attached = slot < 0 ? 0 : load(&shim.usage->process[slot].attached_ns);
    if (slot < 0 || (pid == m->payer_pid && attached != m->payer_attached_ns) || !is_payer(slot, attached))
        return 0;
    m->payer = slot;
    m->payer_attached_ns = attached;
    m->payer_pid = pid;
    return 1;
}

static void watch(struct memory *m, int fd, uint32_t index)
{
    struct watch *w = malloc(sizeof *w);
    uint64_t key = w ? descriptors_watch(fd) : 0;
    list(m);
    if (!key) {
        free(w);
        m->is_forever = 1;
        return;
    }
    *w = (struct watch){key, index, 1, m->watches};
    m->watches = w;
}

static void let_go(struct memory *m)
{
    /* The other end of the file belongs to the driver: close it after the lock is released. */
    struct memory *closing = calloc(1, sizeof *closing);
    if (!closing)
        return;
    *closing = (struct memory){.kept = m->kept, .next = ended};
    __atomic_store_n(&ended, closing, __ATOMIC_RELAXED);
    m->kept = -1;
}

/* Make this process the payer, and record that at the open file. If a process of another claim does so too, it stays
 * the owner. */
static void adopt(struct memory *m)
{
    pid_t payer = m->kept < 0 ? -1 : descriptors_payer(m->kept);
    int is_free = payer >= 0 && (!payer || payer == getpid() || !pages_start_time((uint32_t)payer));
    m->is_paid = 1;
    m->adopted_ns = shim_now();
    set_unsettled(1);
    if (m->kept >= 0 && !(is_free && descriptors_set_payer(m->kept, getpid())))
        let_go(m);
}

/* Settle a payer by adoption: it no longer keeps the file, but watches it as a maker does. If it cannot be watched, the
 * others pay, too. */
static void settle_adopted(struct memory *m)
{
    uint64_t key = descriptors_watch(m->kept);
    struct watch *w = key ? malloc(sizeof *w) : NULL;
    if (w) {
        *w = (struct watch){key, 0, 1, m->watches};
        m->watches = w;
    } else {
        descriptors_set_payer(m->kept, 0);
    }
    let_go(m);
}

static void look_at_adopted(struct memory *m, uint64_t now)
{
    pid_t payer = descriptors_payer(m->kept);
    if (payer == getpid()) {
        if (now - m->adopted_ns > ADOPTED_NS)
            settle_adopted(m);
        else
            set_unsettled(1);
    } else if (find_payer(m)) {
        m->is_paid = 0;
        count_imported(m, 1);
        account_refund(m->slot, m->bytes);
    } else {
        adopt(m);
    }
}

static void look_at_payers(uint64_t now)
{
    uint64_t clearings = load(&shim.usage->clearings);
    for (struct memory *m = listed; m; m = m->next) {
        if (m->is_paid && m->kept >= 0)
            look_at_adopted(m, now);
        if (m->is_paid || is_payer(m->payer, m->payer_attached_ns) || find_payer(m))
            continue;
        /* Charged without a check: the memory exists already. A claim that is above its limit now gets nothing new. */
        __atomic_fetch_add(&shim_usage(m->slot)->memory_bytes, m->bytes, __ATOMIC_SEQ_CST);
        count_imported(m, -1);
        adopt(m);
    }
    __atomic_store_n(&shim.self->imports_seen, clearings, __ATOMIC_SEQ_CST);
}

/* ---- Ends ---- */

static void end_if_unheld(struct memory *m)
{
    if (m->handles || m->is_forever)
        return;
    if (m->is_paid && m->kept >= 0)
        settle_adopted(m);
    if (m->watches)
        return;
    if (m->is_paid)
        account_refund_kind(m->slot, m->bytes, m->is_movable);
    else
        count_imported(m, -1);
    if (!m->is_listed) {
        free(m);
        return;
    }
    unlist(m);
    m->next = ended;
    __atomic_store_n(&ended, m, __ATOMIC_RELAXED);
}

int shares_drop(struct memory *m)
{
    if (!m || --m->handles)
        return 0;
    int may_linger = m->is_listed;
    if (may_linger)
        set_unsettled(1);
    end_if_unheld(m);
    return may_linger;
}

/* Not locked: close and free memory that has ended. */
static void bury(void)
{
    if (!__atomic_load_n(&ended, __ATOMIC_RELAXED))
        return;
    pthread_mutex_lock(&objects_mutex);
    struct memory *gone = ended;
    __atomic_store_n(&ended, NULL, __ATOMIC_RELAXED);
    pthread_mutex_unlock(&objects_mutex);
    for (struct memory *next; gone; gone = next) {
        next = gone->next;
        descriptors_let_go(gone->kept);
        free(gone);
    }
}

static void see(uint64_t key)
{
    for (struct memory *m = listed; m; m = m->next)
        for (struct watch *w = m->watches; w; w = w->next)
            w->seen |= w->key == key;
}

static void drop_watches(struct memory *m, int (*is_gone)(const struct watch *w, const void *what), const void *what)
{
    for (struct watch **at = &m->watches; *at;) {
        struct watch *w = *at;
        if (!is_gone(w, what)) {
            at = &w->next;
            continue;
        }
        *at = w->next;
        free(w);
    }
}

static int is_unseen(const struct watch *w, const void *what)
{
    (void)what;
    return !w->seen && !descriptors_is_lost(w->key);
}

static void look_at_descriptors(void)
{
    for (struct memory *m = listed; m; m = m->next)
        for (struct watch *w = m->watches; w; w = w->next)
            w->seen = 0;
    if (!descriptors_scan(see))
        return;
    for (struct memory *m = listed, *next; m; m = next) {
        next = m->next;
        drop_watches(m, is_unseen, NULL);
        if (m->handles)
            continue;
        end_if_unheld(m);
        if (m->watches)
            set_unsettled(1);
    }
}

void shares_settle(void)
{
    bury();
    if (!__atomic_load_n(&count, __ATOMIC_RELAXED) || !shim.self)
        return;
    pthread_mutex_lock(&objects_mutex);
    if (listed) {
        int lingers = __atomic_load_n(&unsettled, __ATOMIC_RELAXED);
        uint64_t now = shim_now();
        set_unsettled(0);
        __atomic_store_n(&looked_ns, now, __ATOMIC_RELAXED);
        look_at_payers(now);
        if (lingers)
            look_at_descriptors();
    }
    pthread_mutex_unlock(&objects_mutex);
    bury();
}

void shares_tick(uint64_t now)
{
    if (!__atomic_load_n(&count, __ATOMIC_RELAXED) || !shim.self)
        return;
    int is_new = load(&shim.usage->clearings) != load(&shim.self->imports_seen);
    uint64_t looked = __atomic_load_n(&looked_ns, __ATOMIC_RELAXED);
    if (is_new || (__atomic_load_n(&unsettled, __ATOMIC_RELAXED) && now - looked > LOOK_NS))
        shares_settle();
}

/* ---- Exports and imports ---- */

void shares_export(struct memory *m, int fd, uint32_t index)
{
    watch(m, fd, index);
    descriptors_set_payer(fd, getpid());
}

static int is_replaced(const struct watch *w, const void *what)
{
    const struct watch *by = what;
    return w->key == by->key && w->index == by->index;
}

void shares_unexport(int fd, uint32_t index)
{
    struct watch by = {.index = index, .key = listed ? descriptors_watch(fd) : 0};
    for (struct memory *m = listed, *next; by.key && m; m = next) {
        next = m->next;
        drop_watches(m, is_replaced, &by);
        end_if_unheld(m);
    }
}

struct memory *shares_import(uint64_t bytes, int slot, int fd)
{
    struct memory *m = malloc(sizeof *m);
    if (!m)
        return NULL;
    *m = (struct memory){.bytes = bytes, .slot = slot, .handles = 1, .kept = descriptors_keep(fd)};
    pthread_mutex_lock(&objects_mutex);
    int is_others = find_payer(m);
    if (is_others) {
        list(m);
        count_imported(m, 1);
    }
    pthread_mutex_unlock(&objects_mutex);
    if (is_others) {
        shares_tick(0); /* known to be paid by another process, unlike other imports */
        return m;
    }
    if (!account_take(slot, bytes)) {
        descriptors_let_go(m->kept);
        free(m);
        return NULL;
    }
    pthread_mutex_lock(&objects_mutex);
    adopt(m);
    list(m);
    pthread_mutex_unlock(&objects_mutex);
    bury();
    return m;
}

void shares_forget(void)
{
    descriptors_forget();
    listed = ended = NULL;
    unsettled = count = 0;
    looked_ns = 0;
}
