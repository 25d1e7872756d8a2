/* What the driver cannot move of a process, as the agent reads it in the usage page before it suspends a claim. */
#include "shared.h"

#include <stdio.h>
#include <string.h>

enum {
    NOTHING = 0,
    MANAGED = VCUDA_UNMOVABLE_MANAGED,
    IMPORTED = VCUDA_UNMOVABLE_IMPORTED,
    EXPORTED = VCUDA_UNMOVABLE_EXPORTED,
};

static uint32_t unmovable_of(const struct circle *circle, int i)
{
    struct vcuda_process_info infos[VCUDA_MAX_PROCESSES];
    int count = vcuda_usage_processes(circle->claim[i]->usage, infos, VCUDA_MAX_PROCESSES);
    while (count-- > 0)
        if (infos[count].pid == (uint32_t)circle->party[i].steps.player.pid)
            return infos[count].unmovable;
    return UINT32_MAX;
}

/* What is done, and what is then said of the process that did it. */
struct line {
    const char *what;
    uint32_t unmovable;
};

static void test_lines(const char *sentence, const struct line *lines)
{
    struct claim claim;
    struct circle circle;
    char wrong[160] = "";
    claim_make(&claim, 8 * GIB, 100);
    circle_begin(&circle, &claim);
    for (const struct line *l = lines; l->what && !*wrong; l++) {
        int error = circle_do(&circle, l->what), fails = strchr(l->what, '!') != NULL;
        uint32_t found = unmovable_of(&circle, *l->what - 'A');
        if (fails == !error || found != l->unmovable)
            snprintf(wrong, sizeof wrong, "after '%s' (error %d) the page says %u, not %u", l->what, error, found,
                     l->unmovable);
    }
    expect(!*wrong, "%s%s%s", sentence, *wrong ? ": " : "", wrong);
    circle_end(&circle);
    claim_end(&claim);
}

#define LINES(sentence, ...) test_lines(sentence, (const struct line[]){__VA_ARGS__, {NULL, 0}})
#define B_HAS_AN_EXPORT                                                                                                \
    {"B take 2", NOTHING}, {"A make 0 256", NOTHING}, {"A map 0", NOTHING}, {"A export 0 0", EXPORTED},                \
        {"A send 0 B", EXPORTED},                                                                                      \
    {                                                                                                                  \
        "B receive 0", NOTHING                                                                                         \
    }

/* An import waits while the claim is to be suspended: nothing is opened after the agent has looked. */
static void test_a_late_import(void)
{
    struct claim claim;
    struct circle circle;
    struct vcuda_limit limit = {.assignment_uid = {7}, .memory_bytes = 8 * GIB, .core_request = 100, .core_limit = 100};
    memcpy(limit.gpu_uuid, gpu_uuid, 16);
    claim_make(&claim, 8 * GIB, 100);
    circle_begin(&circle, &claim);
    circle_do(&circle, "A take 2");
    circle_do(&circle, "A ipcget");
    circle_do(&circle, "B take 2");
    limit.flags = VCUDA_FLAG_SUSPENDED;
    limit.generation = ++claim.generation;
    vcuda_limits_set(claim.limits, &limit);
    struct party *b = &circle.party[1];
    dprintf(b->orders, "ipcopen 0\n");
    pause_s(0.5);
    uint32_t meanwhile = unmovable_of(&circle, 1);
    double begun = now_s();
    limit.flags = 0;
    limit.generation = ++claim.generation;
    vcuda_limits_set(claim.limits, &limit);
    int opened = steps_next(&b->steps) && figure_of(&b->steps.player, "error") == 0;
    uint32_t after = unmovable_of(&circle, 1);
    expect(!meanwhile && opened && after == IMPORTED && now_s() - begun < 2,
           "an import waits for the end of a suspension: %u meanwhile, %u afterwards", meanwhile, after);
    circle_end(&circle);
    claim_end(&claim);
}

void test_movable(void)
{
    int before = simulated_kernel;
    /* The simulated driver exports what its kernel made. */
    simulated_kernel = !on_real_gpu;
    LINES("managed memory counts until it is freed", {"A take 2", NOTHING}, {"A manage 64", MANAGED},
          {"A give", NOTHING}, {"A manage 1", MANAGED}, {"A give", NOTHING});
    LINES("imported memory until it has neither a handle nor a mapping", B_HAS_AN_EXPORT, {"B import 0 0", IMPORTED},
          {"B close 0", IMPORTED}, {"B map 0", IMPORTED}, {"B release 0", IMPORTED}, {"B unmap 0", NOTHING});
    LINES("in either order", B_HAS_AN_EXPORT, {"B import 0 0", IMPORTED}, {"B close 0", IMPORTED},
          {"B map 0", IMPORTED}, {"B unmap 0", IMPORTED}, {"B release 0", NOTHING});
    LINES("and both of two imports", B_HAS_AN_EXPORT, {"B import 0 0", IMPORTED}, {"B import 1 0", IMPORTED},
          {"B close 0", IMPORTED}, {"B release 1", IMPORTED}, {"B release 0", NOTHING});
    LINES("an import that fails does not count", {"A take 2", NOTHING}, {"A import 0 0 !", NOTHING});
    LINES("memory of its own beside it is not confused with it", B_HAS_AN_EXPORT, {"B import 0 0", IMPORTED},
          {"B make 1 64", IMPORTED}, {"B map 1", IMPORTED}, {"B release 0", NOTHING}, {"B release 1", NOTHING},
          {"B unmap 1", NOTHING});
    LINES("exports count for the process's life", {"A make 0 64", NOTHING}, {"A export 0 0", EXPORTED},
          {"A close 0", EXPORTED}, {"A release 0", EXPORTED});
    LINES("handles of 64 bytes, too", {"A take 2", NOTHING}, {"A ipcget", EXPORTED}, {"B take 2", NOTHING},
          {"B ipcopen", IMPORTED}, {"B ipcclose", NOTHING}, {"B ipcclose !", NOTHING});
    LINES("and pools, for the life of the process", {"B take 2", NOTHING}, {"A take 2", NOTHING},
          {"A poolexport 0", EXPORTED}, {"A send 0 B", EXPORTED}, {"B receive 0", NOTHING},
          {"B poolimport 0", IMPORTED}, {"B close 0", IMPORTED});
    test_a_late_import();
    simulated_kernel = before;
}
