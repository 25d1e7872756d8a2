/* pagectl: what an agent does to a claim's pages, by hand. For tests and measurements. */
#include "vcuda_pages.h"

#include <errno.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <sys/stat.h>

static const char usage[] =
    "usage: pagectl DIR create                            make a claim's pages\n"
    "       pagectl DIR set GPU-UUID MEMORY CORE [GEN]    memory in bytes, KiB, MiB, GiB or 'none'; core in percent\n"
    "                                                     (CORE: LIMIT, or REQUEST-LIMIT)\n"
    "           [policy=NAME] [weight=N] [ceiling=PERCENT] [parts=N] [best-effort] [no-turns] [mps]\n"
    "           [borrows=REQUEST] [host=MEMORY]           memory beyond REQUEST is borrowed, with so much host memory\n"
    "           policies: burst fixed fair weighted average preempt native\n"
    "       pagectl DIR close GPU-UUID [GEN]\n"
    "       pagectl DIR move GPU-UUID GPU-UUID            give a slot to another GPU\n"
    "       pagectl DIR show                              use, one line a GPU and a process\n";

static struct vcuda_limits *limits;
static struct vcuda_usage *use;

static int parse_uuid(const char *text, uint8_t uuid[16])
{
    unsigned byte;
    text += strncmp(text, "GPU-", 4) == 0 ? 4 : 0;
    for (int i = 0; i < 16; i++) {
        text += *text == '-';
        if (sscanf(text, "%2x", &byte) != 1)
            return 0;
        uuid[i] = (uint8_t)byte;
        text += 2;
    }
    return 1;
}

static uint64_t parse_size(const char *text)
{
    char *unit;
    double n = strtod(text, &unit);
    if (!strcmp(text, "none"))
        return VCUDA_NO_MEMORY_LIMIT;
    return (uint64_t)(n * (*unit == 'G' ? 1073741824.0 : *unit == 'M' ? 1048576.0 : *unit == 'K' ? 1024.0 : 1.0));
}

static int open_pages(const char *directory, int create)
{
    static const uint8_t uid[16] = {1};
    char path[4096];
    if (create)
        mkdir(directory, 0755);
    snprintf(path, sizeof path, "%s/" VCUDA_LIMITS_FILE, directory);
    int error = create ? vcuda_limits_create(path, uid, &limits) : vcuda_limits_open(path, 1, &limits);
    if (error)
        return error;
    snprintf(path, sizeof path, "%s/" VCUDA_USAGE_FILE, directory);
    return create ? vcuda_usage_create(path, &use) : vcuda_usage_open(path, 1, &use);
}

static void show(void)
{
    vcuda_usage_reap_dead(use);
    for (uint32_t i = 0; i < VCUDA_MAX_GPUS; i++) {
        struct vcuda_limit limit;
        struct vcuda_totals t;
        if (vcuda_limits_get(limits, i, &limit) || limit.state == VCUDA_SLOT_UNUSED)
            continue;
        vcuda_usage_totals(use, i, &t);
        printf("gpu %u state %u generation %llu core %u memory_limit %llu memory %llu context %llu gpu_time_ns %llu "
               "throttled_ns %llu launches %llu refused %llu observed %lld processes %u\n",
               i, limit.state, (unsigned long long)limit.generation, limit.core_limit,
               (unsigned long long)limit.memory_bytes, (unsigned long long)t.memory_bytes,
               (unsigned long long)t.context_bytes, (unsigned long long)t.gpu_time_ns,
               (unsigned long long)t.throttled_ns, (unsigned long long)t.launches, (unsigned long long)t.refused,
               (long long)t.observed_generation, t.processes);
    }
}

static int parse_policy(const char *name)
{
    for (int i = 0; vcuda_policy_name((uint32_t)i); i++)
        if (!strcmp(name, vcuda_policy_name((uint32_t)i)))
            return i;
    return -1;
}

/* 0: no such option. A bare number is the generation. */
static int parse_option(struct vcuda_limit *limit, const char *text)
{
    const char *value = strchr(text, '=');
    uint32_t number = value ? (uint32_t)strtoul(value + 1, NULL, 10) : 0;
    if (!strcmp(text, "best-effort"))
        limit->flags |= VCUDA_FLAG_BEST_EFFORT;
    else if (!strcmp(text, "no-turns"))
        limit->flags |= VCUDA_FLAG_NO_TURNS;
    else if (!strcmp(text, "mps"))
        limit->flags |= VCUDA_FLAG_NO_TURNS | VCUDA_FLAG_MPS;
    else if (!strncmp(text, "policy=", 7) && parse_policy(value + 1) >= 0)
        limit->policy = (uint32_t)parse_policy(value + 1);
    else if (!strncmp(text, "borrows=", 8)) {
        limit->flags |= VCUDA_FLAG_BORROWS;
        limit->memory_request = parse_size(value + 1);
    } else if (!strncmp(text, "host=", 5))
        limit->host_memory_bytes = parse_size(value + 1);
    else if (!strncmp(text, "weight=", 7))
        limit->weight = number;
    else if (!strncmp(text, "ceiling=", 8))
        limit->ceiling = number;
    else if (!strncmp(text, "parts=", 6))
        limit->parts = number;
    else if (*text >= '0' && *text <= '9')
        limit->generation = strtoull(text, NULL, 10);
    else
        return 0;
    return 1;
}

static int run(int argc, char **argv)
{
    uint8_t gpu[16];
    const char *verb = argv[2];
    if (!strcmp(verb, "create"))
        return 0;
    if (!strcmp(verb, "show")) {
        show();
        return 0;
    }
    if (argc < 4 || !parse_uuid(argv[3], gpu))
        return -EINVAL;
    struct vcuda_limit old = {0};
    vcuda_limits_get(limits, 0, &old);
    if (!strcmp(verb, "close"))
        return vcuda_limits_close_gpu(limits, gpu, argc > 4 ? strtoull(argv[4], NULL, 10) : old.generation + 1);
    uint8_t other[16];
    if (!strcmp(verb, "move"))
        return argc > 4 && parse_uuid(argv[4], other) ? vcuda_limits_move(limits, gpu, other) : -EINVAL;
    if (strcmp(verb, "set") || argc < 6)
        return -EINVAL;
    struct vcuda_limit limit = {.assignment_uid = {2}, .memory_bytes = parse_size(argv[4])};
    memcpy(limit.gpu_uuid, gpu, 16);
    char *rest;
    limit.core_request = limit.core_limit = (uint32_t)strtoul(argv[5], &rest, 10);
    if (*rest == '-')
        limit.core_limit = (uint32_t)strtoul(rest + 1, NULL, 10);
    limit.generation = old.generation + 1;
    for (int i = 6; i < argc; i++)
        if (!parse_option(&limit, argv[i]))
            return -EINVAL;
    return vcuda_limits_set(limits, &limit);
}

int main(int argc, char **argv)
{
    if (argc < 3) {
        fputs(usage, stderr);
        return 2;
    }
    int error = open_pages(argv[1], !strcmp(argv[2], "create"));
    if (!error)
        error = run(argc, argv);
    if (error < 0)
        fprintf(stderr, "pagectl: %s\n", strerror(-error));
    return error < 0;
}
