/* Calls that fail when a test wants them to: see faults.h. */
#include "faults.h"
#include "mps.h"
#include "process.h"

#include <errno.h>
#include <pthread.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <time.h>

#define RULES 32
/* How a door's calls are counted, beside 0 (apart) and 1. */
#define QUERY 2

static struct rule {
    char name[64];
    unsigned long at; /* which call, from 1 */
    int onwards;      /* and all after it */
    int lost;
    CUresult answer;
    unsigned long delay_us;
    unsigned long calls;
} rules[RULES];
static int rule_count;
static CUresult lost_with;

/* One rule; 0 where it cannot be read. */
static int parse(const char *text, struct rule *rule)
{
    const char *colon = strchr(text, ':');
    if (!colon || colon == text || (size_t)(colon - text) >= sizeof rule->name)
        return 0;
    memcpy(rule->name, text, (size_t)(colon - text));
    char *at;
    rule->at = strtoul(colon + 1, &at, 10);
    rule->onwards = *at == '+';
    at += rule->onwards;
    if (!rule->at || *at++ != '=')
        return 0;
    rule->lost = *at == '!';
    unsigned long value = strtoul(at + rule->lost, &at, 10);
    if (!strncmp(at, "us", 2)) {
        rule->delay_us = value;
        at += 2;
    } else {
        rule->answer = (CUresult)value;
    }
    return value && (*at == ',' || !*at);
}

/* A rule that cannot be read would be a test that tests nothing: say so. */
static void read_rules(void)
{
    const char *text = getenv("GPUCLOUD_SIM_FAULTS");
    while (text && *text) {
        size_t length = strcspn(text, ",");
        struct rule rule = {0};
        if (rule_count < RULES && parse(text, &rule))
            rules[rule_count++] = rule;
        else
            fprintf(stderr,
                    "libcuda (simulated): GPUCLOUD_SIM_FAULTS: '%.*s' is not NAME:CALL[+]=[!]CODE or =DELAYus\n",
                    (int)length, text);
        text += length + (text[length] == ',');
    }
}

/* These say what went wrong, or where to find a function: they work on a lost GPU, and `*` does not count them. */
static int is_apart(const char *name)
{
    return !strncmp(name, "cuGetProcAddress", 16) || !strncmp(name, "cuGetError", 10) ||
           !strncmp(name, "cuCheckpoint", 12) || !strcmp(name, "cuDriverGetVersion");
}

/* The driver's lock for a checkpoint does not hold these (580, H100). They read what the GPU writes to host memory, which
 * the program does not have while it is checkpointed: it ends by SIGSEGV. */
static int is_query(const char *name)
{
    return !strncmp(name, "cuStreamQuery", 13) || !strcmp(name, "cuEventQuery") ||
           !strncmp(name, "cuEventElapsedTime", 18);
}

/* Calls within this thread's present one: a function of the program that the driver calls may call it again. */
static _Thread_local int depth;

static int is_counted(struct sim_door *door)
{
    int counted = __atomic_load_n(&door->counted, __ATOMIC_RELAXED);
    if (counted < 0) {
        counted = is_query(door->name) ? QUERY : !is_apart(door->name);
        __atomic_store_n(&door->counted, counted, __ATOMIC_RELAXED);
    }
    return counted;
}

static void delay(unsigned long us)
{
    struct timespec left = {(time_t)(us / 1000000), (long)(us % 1000000) * 1000};
    while (nanosleep(&left, &left) != 0 && errno == EINTR)
        ;
}

static CUresult apply(struct rule *rule, const struct sim_door *door, int counted)
{
    int any = rule->name[0] == '*' && !rule->name[1];
    if (any ? !counted : strcmp(rule->name, door->name) != 0)
        return CUDA_SUCCESS;
    unsigned long call = __atomic_add_fetch(&rule->calls, 1, __ATOMIC_RELAXED);
    if (rule->onwards ? call < rule->at : call != rule->at)
        return CUDA_SUCCESS;
    if (rule->delay_us)
        delay(rule->delay_us);
    if (rule->lost) {
        __atomic_store_n(&lost_with, rule->answer, __ATOMIC_RELAXED);
        sim_mps_fault();
    }
    return rule->answer;
}

CUresult sim_door_open(struct sim_door *door)
{
    static pthread_once_t once = PTHREAD_ONCE_INIT;
    pthread_once(&once, read_rules);
    int orphan = sim_is_orphan();
    int counted = is_counted(door);
    if (counted && !depth++ && !orphan && counted != QUERY) {
        if (!sim_process_enter())
            return CUDA_ERROR_UNKNOWN;
        sim_devices_follow();
    }
    CUresult gone = counted && !orphan ? sim_mps_error() : CUDA_SUCCESS;
    if (gone)
        return gone;
    if (!rule_count && !orphan && counted != QUERY)
        return CUDA_SUCCESS;
    CUresult lost = __atomic_load_n(&lost_with, __ATOMIC_RELAXED), answer = CUDA_SUCCESS;
    if ((orphan || lost) && counted)
        return orphan ? CUDA_ERROR_NOT_INITIALIZED : lost;
    for (int i = 0; i < rule_count && !answer; i++)
        answer = apply(&rules[i], door, counted);
    if (counted == QUERY && depth == 1)
        sim_process_query();
    return answer;
}

void sim_door_close(const struct sim_door *door)
{
    if (__atomic_load_n(&door->counted, __ATOMIC_RELAXED) && !--depth && door->counted != QUERY)
        sim_process_leave();
}
