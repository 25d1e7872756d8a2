/* The claims' shares of one GPU: water-filling by policy. Pure: no clock, no I/O, integers only.
 *
 * Shares are hundredths of a percent of one GPU (10000: all of it). */
#ifndef ARBITER_SHARE_H
#define ARBITER_SHARE_H

#include "vcuda_pages.h"

#define SHARE_WHOLE 10000u
#define SHARE_MAX_CLAIMS 256u

/* A claim's terms: its limits as interpreted by its policy. */
struct share_terms {
    uint32_t guarantee;
    uint32_t limit; /* 0: paused */
    uint32_t demand;
    uint32_t weight;
    uint32_t tier; /* 0 is served first, 1 gets what tier 0 leaves */
};

#pragma GCC visibility push(default)

/* Compute the terms of a claim with full demand. */
void share_terms_of(const struct vcuda_limit *limit, struct share_terms *terms);

/* Fill `shares` for n <= SHARE_MAX_CLAIMS claims whose sum may reach `ceiling`. With lo = min(guarantee, demand) and
 * hi = min(limit, demand), each claim of a tier gets lo + min(weight * t, hi - lo), where the level t is the one at which
 * the sum is min(ceiling, sum of hi); where the guarantees alone pass the ceiling, min(lo, t * guarantee). Rounded down: up
 * to a hundredth of a percent a claim stays unused. The order of the claims does not matter. */
void share_fill(const struct share_terms *claims, uint32_t n, uint32_t ceiling, uint32_t *shares);

#pragma GCC visibility pop

#endif
