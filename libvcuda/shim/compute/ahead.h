/* Bursts that are handed to the GPU before they may run: see ahead.c. */
#ifndef SHIM_AHEAD_H
#define SHIM_AHEAD_H

#include "lane.h"

/* Return 1 if bursts of this lane can be handed over ahead. */
int ahead_serves(const struct meter_lane *lane);
/* Return 1 if another burst may be handed over. */
int ahead_has_room(void);
/* Hand nothing over for a moment, so that work that cannot be gets its turn. */
void ahead_pause(void);
/* Wait until there is room, a millisecond at most. */
void ahead_wait_for_room(void);
/* Hold the burst that the lane opens, of `ns` of predicted work. Return its number; 0: it is not held. */
uint32_t ahead_open(struct meter_lane *lane, uint64_t ns);
/* More admitted work joins the lane's open burst, which is held. */
void ahead_join(const struct meter_lane *lane, const struct admission *admitted);
/* The lane's open burst, which is held, is complete. `others_ns` of work in flight has joined it. */
void ahead_close(const struct meter_lane *lane, uint64_t others_ns);
/* Likewise, but nothing on the GPU will tell its end. */
void ahead_give_up(const struct meter_lane *lane, uint64_t others_ns);
/* Return 1 if there are bursts that may not run yet. What is launched behind them cannot run either. */
int ahead_is_holding(void);
/* Correct the times of a burst that ended: it was handed over before it could run. */
void ahead_settle(struct meter_burst *burst);
/* Let everything go that is held: the process or a context may be about to end. */
void ahead_end(void);
/* The context, or (NULL) the GPU's last one, has ended. */
void ahead_forget_context(CUcontext context, int slot);
void ahead_forget_all(void); /* in a forked child */

#endif
