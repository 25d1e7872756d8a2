/* simnode: makes and shows virtual nodes for the simulated driver. */
#include "mig.h"

#include <errno.h>
#include <getopt.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <unistd.h>

static const char usage[] =
    "usage: simnode create PATH [--name NAME] [--gpus N] [--memory SIZE] [--reserved SIZE] [--model MODEL]\n"
    "                           [--switch-us N] [--driver VERSION] [--mig GPU,GPU...] [--keep]\n"
    "       simnode show PATH\n"
    "       simnode fault PATH GPU NAME=NUMBER...\n"
    "       simnode driver PATH VERSION\n"
    "       simnode mig PATH GPU 0|1\n\n"
    "Makes (or shows) the file of a virtual node with simulated GPUs. Programs use it with\n"
    "LD_LIBRARY_PATH=.../build/sim and GPUCLOUD_SIM_NODE=PATH. The GPUs' UUIDs follow from the name.\n"
    "  --name NAME     sim-1      --gpus N      4 (at most 16)\n"
    "  --memory SIZE   24GiB      --model MODEL 'NVIDIA SIM-24'\n"
    "  --reserved SIZE 615MiB: what the card keeps for itself, beside --memory; NVML's total is both\n"
    "  --keep          keep the node that is there, and make anew one of another version of this driver\n"
    "  --mig 0,1: these GPUs are in MIG mode; of a model with A100, H100 or H200 in its name, whose profiles they "
    "have.\n"
    "    All GPUs then have that model's memory. A node has 16 places for GPUs and, of each in MIG mode, 7 instances.\n"
    "    `simnode mig` changes the mode of one that has no instance and no program, as nvidia-smi does.\n"
    "  --driver VERSION, see below: from 615 on, NVML can limit the memory of control groups\n"
    "  --switch-us N   175: what giving the GPU from one process to another costs, in microseconds\n"
    "Faults, as NVML shows them: xid=79 (an error that is told once), lost=1, ecc=2 (uncorrected errors so far),\n"
    "  ecc-corrected=5, slowdown=64 (reasons, by NVML's bits), remap-pending=1, remap-failed=1, pages-pending=1;\n"
    "  0 ends them. no-ecc=1 and no-gpm=1: a card without ECC, one without GPM.\n";

static uint64_t parse_size(const char *text)
{
    char *unit;
    uint64_t n = strtoull(text, &unit, 10);
    switch (*unit) {
    case 'T':
    case 't':
        return n << 40;
    case 'G':
    case 'g':
        return n << 30;
    case 'M':
    case 'm':
        return n << 20;
    case 'K':
    case 'k':
        return n << 10;
    default:
        return n;
    }
}

static int set_mode(const char *path, const char *index, const char *mode)
{
    struct sim_node *node = sim_node_open(path);
    uint32_t gpu = (uint32_t)strtoul(index, NULL, 10);
    if (!node || gpu >= node->gpus || !sim_mig_table_of(node->gpu[gpu].name)) {
        fprintf(stderr, "simnode: %s is no virtual node with a GPU %s that has MIG\n", path, index);
        return 1;
    }
    sim_lock(&node->gpu[0]);
    int is_used = sim_mig_next(node, &node->gpu[gpu], NULL) != NULL;
    sim_unlock(&node->gpu[0]);
    if (is_used || sim_mig_is_busy(&node->gpu[gpu])) {
        fprintf(stderr, "simnode: GPU %s is in use\n", index);
        return 1;
    }
    __atomic_store_n(&node->gpu[gpu].mig.mode, *mode == '1', __ATOMIC_RELEASE);
    return 0;
}

static void show_instances(struct sim_node *node, struct sim_gpu *gpu)
{
    for (struct sim_gpu *g = NULL; (g = sim_mig_next(node, gpu, g));) {
        char uuid[48];
        sim_uuid_text(g, uuid);
        printf("  instance %u %s %s at %u:%u%s\n", g->mig.id, g->mig.compute ? uuid : "-", g->name, g->mig.start,
               g->mig.size, sim_mig_is_busy(g) ? " busy" : "");
    }
}

static int show(const char *path)
{
    struct sim_node *node = sim_node_open(path);
    if (!node) {
        fprintf(stderr, "simnode: %s is no virtual node\n", path);
        return 1;
    }
    printf("%s: %u GPUs\n", node->name, node->gpus);
    for (uint32_t i = 0; i < node->gpus; i++) {
        struct sim_gpu *gpu = &node->gpu[i];
        char uuid[48];
        sim_uuid_text(gpu, uuid);
        sim_lock(gpu);
        sim_clear_dead_everywhere(gpu);
        printf("%u %s %s %llu/%llu MiB %u%%\n", i, uuid, gpu->name, (unsigned long long)sim_memory_used(gpu) >> 20,
               (unsigned long long)gpu->memory_bytes >> 20, sim_utilisation(gpu, -1));
        for (int c = 0; c < SIM_MAX_CLIENTS; c++)
            if (gpu->client[c].pid)
                printf("  pid %u %llu MiB %u%%\n", gpu->client[c].pid,
                       (unsigned long long)gpu->client[c].memory_bytes >> 20, sim_utilisation(gpu, c));
        for (int l = 0; l < SIM_MAX_LIMITS; l++)
            if (gpu->limit[l].group && gpu->limit[l].hard_bytes != SIM_NO_LIMIT)
                printf("  limit %llu MiB %s\n", (unsigned long long)gpu->limit[l].hard_bytes >> 20, gpu->limit[l].path);
        sim_unlock(gpu);
        show_instances(node, gpu);
    }
    return 0;
}

static int set_fault(struct sim_faults *faults, const char *text)
{
    const struct {
        const char *name;
        uint32_t *value;
    } known[] = {{"lost", &faults->lost},
                 {"slowdown", &faults->slowdown},
                 {"no-ecc", &faults->no_ecc},
                 {"no-gpm", &faults->no_gpm},
                 {"remap-pending", &faults->remap_pending},
                 {"remap-failed", &faults->remap_failed},
                 {"pages-pending", &faults->pages_pending}};
    const char *equals = strchr(text, '=');
    size_t length = equals ? (size_t)(equals - text) : 0;
    uint32_t value = equals ? (uint32_t)strtoul(equals + 1, NULL, 10) : 0;
    int corrected = length == 13 && !strncmp(text, "ecc-corrected", 13);
    if (corrected || (length == 3 && !strncmp(text, "ecc", 3))) {
        __atomic_store_n(corrected ? &faults->ecc_corrected : &faults->ecc, value, __ATOMIC_RELEASE);
        return 0;
    }
    if (length == 3 && !strncmp(text, "xid", 3)) {
        faults->xid[faults->xids % SIM_XIDS] = value;
        __atomic_fetch_add(&faults->xids, 1, __ATOMIC_RELEASE);
        return 0;
    }
    for (size_t i = 0; i < sizeof known / sizeof *known; i++)
        if (length == strlen(known[i].name) && !strncmp(text, known[i].name, length)) {
            __atomic_store_n(known[i].value, value, __ATOMIC_RELEASE);
            return 0;
        }
    fprintf(stderr, "simnode: %s is no fault\n", text);
    return 2;
}

static int fault(const char *path, const char *index, char **faults)
{
    struct sim_node *node = sim_node_open(path);
    uint32_t gpu = (uint32_t)strtoul(index, NULL, 10);
    if (!node || gpu >= node->gpus) {
        fprintf(stderr, "simnode: %s is no virtual node with a GPU %s\n", path, index);
        return 1;
    }
    int result = 0;
    for (; *faults && !result; faults++)
        result = set_fault(&node->gpu[gpu].faults, *faults);
    return result;
}

static int set_driver(const char *path, const char *version)
{
    struct sim_node *node = sim_node_open(path);
    if (!node) {
        fprintf(stderr, "simnode: %s is no virtual node\n", path);
        return 1;
    }
    snprintf(node->driver, sizeof node->driver, "%s", version);
    return 0;
}

/* 0: the list names no GPUs of the node, or the model has no known profiles, or there are too few places. */
static int set_mig(struct sim_shape *shape, const char *list, int has_memory)
{
    const struct sim_mig_table *table = sim_mig_table_of(shape->model);
    uint32_t places = shape->gpus;
    if (!*list)
        return 1;
    for (const char *word = list; *word; word += strcspn(word, ","), word += *word == ',') {
        char *end;
        unsigned long index = strtoul(word, &end, 10);
        if (end == word || (*end && *end != ',') || index >= shape->gpus)
            return 0;
        places += shape->mig >> index & 1 ? 0 : SIM_MIG_MOST;
        shape->mig |= 1u << index;
    }
    if (table && !has_memory)
        shape->memory_bytes = sim_mig_whole_bytes(table);
    return table && places <= SIM_MAX_GPUS;
}

static int create(const char *path, int argc, char **argv)
{
    static const struct option options[] = {
        {"name", 1, NULL, 'n'},      {"gpus", 1, NULL, 'g'},     {"memory", 1, NULL, 'm'}, {"model", 1, NULL, 'o'},
        {"switch-us", 1, NULL, 's'}, {"reserved", 1, NULL, 'r'}, {"driver", 1, NULL, 'd'}, {"keep", 0, NULL, 'k'},
        {"mig", 1, NULL, 'i'},       {NULL, 0, NULL, 0}};
    int keep = 0, has_memory = 0;
    const char *mig = "";
    struct sim_shape shape = {"sim-1", "NVIDIA SIM-24", 4, 24ull << 30, SIM_RESERVED_BYTES, SIM_SWITCH_NS, "", 0};
    for (int c; (c = getopt_long(argc, argv, "", options, NULL)) != -1;)
        switch (c) {
        case 'n':
            shape.name = optarg;
            break;
        case 'g':
            shape.gpus = (uint32_t)strtoul(optarg, NULL, 10);
            break;
        case 'm':
            shape.memory_bytes = parse_size(optarg);
            has_memory = 1;
            break;
        case 'i':
            mig = optarg;
            break;
        case 'r':
            shape.reserved_bytes = parse_size(optarg);
            break;
        case 'd':
            shape.driver = optarg;
            break;
        case 'o':
            shape.model = optarg;
            break;
        case 'k':
            keep = 1;
            break;
        case 's':
            shape.switch_ns = strtoull(optarg, NULL, 10) * 1000;
            break;
        default:
            fputs(usage, stderr);
            return 2;
        }
    if (shape.gpus < 1 || shape.gpus > SIM_MAX_GPUS || shape.memory_bytes < (64ull << 20)) {
        fputs("simnode: 1 to 16 GPUs of at least 64 MiB\n", stderr);
        return 2;
    }
    if (!set_mig(&shape, mig, has_memory)) {
        fputs("simnode: --mig: GPUs of this node, a model with A100, H100 or H200 in its name, 16 places in all\n",
              stderr);
        return 2;
    }
    if (keep && sim_node_open(path))
        return 0;
    if (keep)
        unlink(path);
    int error = sim_node_create(path, &shape);
    if (error)
        fprintf(stderr, "simnode: %s: %s\n", path, strerror(-error));
    return error ? 1 : 0;
}

int main(int argc, char **argv)
{
    if (argc == 2 && (!strcmp(argv[1], "--help") || !strcmp(argv[1], "-h")))
        return fputs(usage, stdout) < 0;
    /* An option in its place is no name of a file. */
    if (argc >= 3 && !strcmp(argv[1], "create") && argv[2][0] != '-')
        return create(argv[2], argc - 2, argv + 2);
    if (argc == 3 && !strcmp(argv[1], "show"))
        return show(argv[2]);
    if (argc >= 5 && !strcmp(argv[1], "fault"))
        return fault(argv[2], argv[3], argv + 4);
    if (argc == 5 && !strcmp(argv[1], "mig"))
        return set_mode(argv[2], argv[3], argv[4]);
    if (argc == 4 && !strcmp(argv[1], "driver"))
        return set_driver(argv[2], argv[3]);
    fputs(usage, stderr);
    return 2;
}
