/* The GPU's utilisation, as NVML reports it.
 *
 * Of the whole GPU: over the last half second. Of a process: once in 200 ms, and right only while it is alone: between
 * processes that share the GPU a real H200 tells two that have equal parts apart as 60 and 40, and so does this.
 */
#include "node.h"

static void note_busy(struct sim_gpu *gpu, uint64_t now)
{
    if (gpu->samples && now - gpu->sample[(gpu->samples - 1) % SIM_SAMPLES].wall_ns < SIM_SAMPLE_NS)
        return;
    uint32_t at = gpu->samples++ % SIM_SAMPLES;
    gpu->sample[at] = (struct sim_sample){now, gpu->busy_ns};
    for (int i = 0; i < SIM_MAX_CLIENTS; i++)
        if (gpu->client[i].pid)
            gpu->client[i].sample[at] = (struct sim_sample){now, gpu->client[i].service_ns};
}

/* The first of those that ran is told a fifth too much, the others as much too little. */
static void tell_percents(struct sim_gpu *gpu, uint64_t now)
{
    uint64_t passed = now - gpu->told_ns, ran[SIM_MAX_CLIENTS], sum = 0;
    int first = -1;
    if (passed < SIM_TOLD_NS)
        return;
    for (int i = 0; i < SIM_MAX_CLIENTS; i++) {
        struct sim_client *c = &gpu->client[i];
        ran[i] = c->pid && c->service_ns > c->told_service_ns ? c->service_ns - c->told_service_ns : 0;
        c->told_service_ns = c->service_ns;
        sum += ran[i];
        first = first < 0 && ran[i] ? i : first;
    }
    uint64_t others = first < 0 ? 0 : sum - ran[first];
    uint64_t extra = first < 0 ? 0 : ran[first] / 5 < others / 2 ? ran[first] / 5 : others / 2;
    for (int i = 0; i < SIM_MAX_CLIENTS; i++) {
        uint64_t told = i == first ? ran[i] + extra
                        : others   ? ran[i] - (uint64_t)((double)extra * (double)ran[i] / (double)others)
                                   : 0;
        gpu->client[i].told_percent = (uint32_t)((told * 100 + passed / 2) / passed);
    }
    gpu->told_ns = now;
}

void sim_take_samples(struct sim_gpu *gpu, uint64_t now)
{
    note_busy(gpu, now);
    tell_percents(gpu, now);
}

unsigned sim_utilisation(const struct sim_gpu *gpu, int client)
{
    const struct sim_sample *samples = client < 0 ? gpu->sample : gpu->client[client].sample;
    uint64_t busy = client < 0 ? gpu->busy_ns : gpu->client[client].service_ns;
    uint64_t now = gpu->advanced_ns;
    for (uint32_t back = 1; back <= SIM_SAMPLES && back <= gpu->samples; back++) {
        const struct sim_sample *s = &samples[(gpu->samples - back) % SIM_SAMPLES];
        if (!s->wall_ns || s->busy_ns > busy || now - s->wall_ns < 500000000ull)
            continue;
        return (unsigned)(((busy - s->busy_ns) * 100 + (now - s->wall_ns) / 2) / (now - s->wall_ns));
    }
    return 0;
}
