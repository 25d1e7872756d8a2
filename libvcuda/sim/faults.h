/* The simulated driver's doors (made from driver.h by doors.awk), and what can be made to go wrong at them.
 *
 * GPUCLOUD_SIM_FAULTS names calls that fail, by rules parted by commas:
 *
 *     cuMemAlloc_v2:3=2       the third call of it answers 2 and does nothing
 *     cuEventCreate:5+=999    from the fifth call on
 *     *:17=719                the seventeenth call of any function (looking up and naming errors not counted)
 *     cuEventQuery:1+=500us   each takes half a millisecond longer
 *     cuLaunchKernel:2=!46    the GPU is lost: that call and every later one of any function answer 46
 *
 * GPUCLOUD_SIM_CUDA_VERSION=12040 simulates an older driver: entries that came later are absent.
 */
#ifndef SIM_FAULTS_H
#define SIM_FAULTS_H

#include "driver.h"

struct sim_door {
    const char *name;
    int counted; /* -1: not yet known whether a `*` counts it, and whether it waits while the process is locked */
};

struct sim_symbol {
    const char *name;
    void *address;
};

extern const struct sim_symbol sim_symbols[];
extern const size_t sim_symbol_count;

/* Wait while this process is locked by another (checkpoint.c), then return the error that this call must return without
 * being carried out; 0: none. Every call of it is followed by one of the other. */
CUresult sim_door_open(struct sim_door *door);
void sim_door_close(const struct sim_door *door);
/* The simulated driver is too old for this entry. */
int sim_is_hidden(const char *name);
/* The CUDA version of the simulated driver, and the one in which an entry came. */
int sim_driver_version(void);
int sim_available_from(const char *name);

#endif
