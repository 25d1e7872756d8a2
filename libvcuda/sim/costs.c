/* See costs.h. */
#include "costs.h"

#include "node.h"

#include <pthread.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>

static struct sim_costs costs;
static pthread_once_t once = PTHREAD_ONCE_INIT;

/* Read one NAME=NUMBER; 0 where it is none. */
static int read_cost(const char *text, size_t length)
{
    const struct {
        const char *name;
        uint64_t *value;
    } known[] = {
        {"launch=", &costs.launch_ns}, {"gap=", &costs.gap_ns}, {"event=", &costs.event_ns}, {"spin=", &costs.spin_ns}};
    for (size_t i = 0; i < sizeof known / sizeof *known; i++) {
        size_t name = strlen(known[i].name);
        char *end;
        if (length <= name || strncmp(text, known[i].name, name) != 0)
            continue;
        *known[i].value = strtoull(text + name, &end, 10);
        return end == text + length;
    }
    return 0;
}

static void read_costs(void)
{
    const char *text = getenv(SIM_COSTS_ENV);
    while (text && *text) {
        size_t length = strcspn(text, ",");
        if (!read_cost(text, length))
            fprintf(stderr, "libcuda (simulated): " SIM_COSTS_ENV ": '%.*s' is not launch, gap, event or spin=NUMBER\n",
                    (int)length, text);
        text += length + (text[length] == ',');
    }
}

const struct sim_costs *sim_costs(void)
{
    pthread_once(&once, read_costs);
    return &costs;
}

void sim_spin_until(uint64_t until_ns)
{
    while (sim_now() < until_ns)
        ;
}
