/* See share.h. The level is found by visiting the claims in the order in which they fill up: a claim that is full
 * leaves the rest to the others, and the first one that does not fill up marks the level of all after it. */
#include "share.h"

struct vessel {
    uint32_t claim;
    uint64_t room, weight;
};

static uint64_t least(uint64_t a, uint64_t b)
{
    return a < b ? a : b;
}

void share_terms_of(const struct vcuda_limit *limit, struct share_terms *terms)
{
    uint32_t parts = limit->parts ? limit->parts : 1;
    uint32_t most = (uint32_t)least(limit->core_limit, 100) * 100;
    *terms = (struct share_terms){.demand = SHARE_WHOLE, .weight = limit->weight ? limit->weight : 1, .limit = most};
    terms->guarantee = (uint32_t)least(limit->core_request * 100ull, most);
    if (limit->core_limit == 0)
        return;
    switch ((enum vcuda_policy)limit->policy) {
    case VCUDA_POLICY_BURST:
    case VCUDA_POLICY_NATIVE: /* no turns: see gpu.c */
        break;
    case VCUDA_POLICY_FIXED:
        terms->limit = terms->guarantee;
        break;
    case VCUDA_POLICY_FAIR:
        terms->weight = 1; /* fall through */
    case VCUDA_POLICY_WEIGHTED:
        terms->guarantee = 0;
        terms->limit = SHARE_WHOLE;
        break;
    case VCUDA_POLICY_AVERAGE:
        terms->guarantee = terms->limit = SHARE_WHOLE / (uint32_t)least(parts, SHARE_WHOLE);
        break;
    case VCUDA_POLICY_PREEMPT:
        if (limit->flags & VCUDA_FLAG_BEST_EFFORT) {
            terms->guarantee = 0;
            terms->limit = SHARE_WHOLE;
            terms->tier = 1;
        }
        break;
    }
}

static void sort_by_level(struct vessel *vessels, uint32_t n)
{
    for (uint32_t i = 1; i < n; i++) {
        struct vessel v = vessels[i];
        uint32_t at = i;
        for (; at && v.room * vessels[at - 1].weight < vessels[at - 1].room * v.weight; at--)
            vessels[at] = vessels[at - 1];
        vessels[at] = v;
    }
}

/* Pour `amount` over vessels of room > 0 and weight > 0, adding to the claims' shares. */
static void pour(struct vessel *vessels, uint32_t n, uint64_t amount, uint32_t *shares)
{
    uint64_t weights = 0;
    uint32_t i = 0;
    for (uint32_t k = 0; k < n; k++)
        weights += vessels[k].weight;
    sort_by_level(vessels, n);
    for (; i < n && vessels[i].room * weights <= amount * vessels[i].weight; i++) {
        shares[vessels[i].claim] += (uint32_t)vessels[i].room;
        amount -= vessels[i].room;
        weights -= vessels[i].weight;
    }
    for (; i < n; i++)
        shares[vessels[i].claim] += (uint32_t)(amount * vessels[i].weight / weights);
}

/* Fill one tier; return what is left of the amount. */
static uint64_t fill_tier(const struct share_terms *claims, uint32_t n, uint32_t tier, uint64_t amount,
                          uint32_t *shares)
{
    struct vessel vessels[SHARE_MAX_CLAIMS];
    uint64_t guaranteed = 0, given = 0;
    uint32_t used = 0;
    for (uint32_t i = 0; i < n; i++)
        if (claims[i].tier == tier)
            guaranteed += least(least(claims[i].guarantee, claims[i].limit), claims[i].demand);
    int enough = guaranteed <= amount;
    for (uint32_t i = 0; i < n; i++) {
        const struct share_terms *c = &claims[i];
        uint64_t high = least(c->limit, c->demand), low = least(c->guarantee, high);
        struct vessel v = {i, enough ? high - low : low, enough ? (c->weight ? c->weight : 1) : c->guarantee};
        if (c->tier != tier)
            continue;
        shares[i] = enough ? (uint32_t)low : 0;
        if (v.room)
            vessels[used++] = v;
    }
    pour(vessels, used, enough ? amount - guaranteed : amount, shares);
    for (uint32_t i = 0; i < n; i++)
        given += claims[i].tier == tier ? shares[i] : 0;
    return amount - given;
}

void share_fill(const struct share_terms *claims, uint32_t n, uint32_t ceiling, uint32_t *shares)
{
    n = (uint32_t)least(n, SHARE_MAX_CLAIMS);
    uint64_t left = fill_tier(claims, n, 0, least(ceiling, SHARE_WHOLE), shares);
    fill_tier(claims, n, 1, left, shares);
}
