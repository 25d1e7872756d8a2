/* The costs of launches, events and waits on a real GPU. All of it is free here, unless GPUCLOUD_SIM_COSTS names prices in
 * nanoseconds, e.g. for an H200
 *
 *     GPUCLOUD_SIM_COSTS=launch=3000,gap=950,event=1280,spin=100000
 *
 * launch   processor time of a launch, before the GPU hears of it
 * gap      GPU time between two kernels that follow one another in a stream
 * event    GPU time between the end of a kernel, or another timing event, and the moment that a timing event tells
 * spin     a wait with no more than this left spins, as the real driver does, instead of sleeping
 */
#ifndef SIM_COSTS_H
#define SIM_COSTS_H

#include <stdint.h>

#define SIM_COSTS_ENV "GPUCLOUD_SIM_COSTS"

struct sim_costs {
    uint64_t launch_ns, gap_ns, event_ns, spin_ns;
};

/* Return the prices of this process; all zero without the variable. */
const struct sim_costs *sim_costs(void);
/* Occupy the processor until the clock shows `until_ns`. */
void sim_spin_until(uint64_t until_ns);

#endif
