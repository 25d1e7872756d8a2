/* The table of lanes; see lane.c. */
#ifndef SHIM_LANE_H
#define SHIM_LANE_H

#include "meter.h"

#define LANES 1024

extern struct meter_lane *lanes[LANES];
extern uint32_t lane_count;

CUstream lane_stream(CUstream stream, int per_thread);
struct meter_lane *lane_of(CUcontext context, CUstream stream, int slot, int create);
int lane_take(struct meter_lane *lane); /* try to own the launching side */
void lane_leave(struct meter_lane *lane);
void lane_clear(struct meter_lane *lane);
void lane_forget_all(void);

#endif
