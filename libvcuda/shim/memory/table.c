/* A map from pointers to their charges: sharded open addressing, so that threads rarely contend and ten thousand live
 * blocks cost as much as one. A shard's mutex is never held across a driver call. */
#include "account.h"

#include <pthread.h>
#include <stdlib.h>
#include <string.h>

#define SHARDS 64

struct shard {
    pthread_mutex_t mutex;
    uint32_t capacity, count; /* capacity: a power of two */
    struct charge *slots;     /* key 0: empty */
};
struct table {
    struct shard shards[SHARDS];
};
#define EMPTY                                                                                                          \
    {                                                                                                                  \
        .shards = { [0 ... SHARDS - 1] = {.mutex = PTHREAD_MUTEX_INITIALIZER} }                                        \
    }
struct table table_blocks = EMPTY, table_contexts = EMPTY;

/* Allocations are aligned, so the low bits are constant. */
static uint64_t hash_of(uint64_t key)
{
    return (key ^ key >> 32) * 0x9e3779b97f4a7c15ull;
}

static struct shard *shard_of(struct table *table, uint64_t key)
{
    return &table->shards[hash_of(key) >> 58];
}

static uint32_t home(const struct shard *shard, uint64_t key)
{
    return (uint32_t)(hash_of(key) >> 20) & (shard->capacity - 1);
}

static void insert(struct shard *shard, const struct charge *charge)
{
    uint32_t i = home(shard, charge->key);
    while (shard->slots[i].key && shard->slots[i].key != charge->key)
        i = (i + 1) & (shard->capacity - 1);
    shard->count += shard->slots[i].key == 0;
    shard->slots[i] = *charge;
}

static int grow(struct shard *shard)
{
    struct shard bigger = {.capacity = shard->capacity ? shard->capacity * 2 : 64};
    bigger.slots = calloc(bigger.capacity, sizeof *bigger.slots);
    if (!bigger.slots)
        return 0;
    for (uint32_t i = 0; i < shard->capacity; i++)
        if (shard->slots[i].key)
            insert(&bigger, &shard->slots[i]);
    free(shard->slots);
    shard->slots = bigger.slots;
    shard->capacity = bigger.capacity;
    return 1;
}

int table_put(struct table *table, const struct charge *charge)
{
    struct shard *shard = shard_of(table, charge->key);
    pthread_mutex_lock(&shard->mutex);
    int room = shard->count * 4 < shard->capacity * 3 || grow(shard);
    if (room)
        insert(shard, charge);
    pthread_mutex_unlock(&shard->mutex);
    return room;
}

/* Close the gap at i: move back entries that probing would no longer find. */
static void remove_at(struct shard *shard, uint32_t i)
{
    uint32_t mask = shard->capacity - 1;
    for (uint32_t j = (i + 1) & mask; shard->slots[j].key; j = (j + 1) & mask) {
        uint32_t want = home(shard, shard->slots[j].key);
        if (((j - want) & mask) >= ((j - i) & mask)) {
            shard->slots[i] = shard->slots[j];
            i = j;
        }
    }
    shard->slots[i].key = 0;
    shard->count--;
}

int table_take(struct table *table, uint64_t key, struct charge *out)
{
    struct shard *shard = shard_of(table, key);
    int found = 0;
    pthread_mutex_lock(&shard->mutex);
    if (key && shard->capacity) {
        uint32_t i = home(shard, key);
        while (shard->slots[i].key && shard->slots[i].key != key)
            i = (i + 1) & (shard->capacity - 1);
        found = shard->slots[i].key == key;
        if (found) {
            *out = shard->slots[i];
            remove_at(shard, i);
        }
    }
    pthread_mutex_unlock(&shard->mutex);
    return found;
}

/* In a forked child: another thread of the parent may have held a mutex, so they are initialised again; the memory is
 * abandoned. */
void table_forget(struct table *table)
{
    *table = (struct table){0};
    for (int i = 0; i < SHARDS; i++)
        pthread_mutex_init(&table->shards[i].mutex, NULL);
}
