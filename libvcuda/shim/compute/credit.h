/* The claim's credit of GPU time on one GPU: see credit.c. */
#ifndef SHIM_CREDIT_H
#define SHIM_CREDIT_H

#include "shim.h"

/* Return the predicted work of all live processes of the claim that is not measured yet, ns. */
uint64_t credit_inflight(int slot);
/* Return 1 if another live process of the claim has work in flight. */
int credit_others_inflight(int slot);
/* Return 1 if the parts of the GPU that an MPS server gives the claim's processes are together within the limit. */
int credit_is_held_by_parts(int slot, uint32_t limit);
/* Return the nanoseconds that may be launched now under a limit in percent. If the result is 0, `*missing` is the time
 * until there is a quantum. `beside_ns` is the part of the work in flight that is on other streams than the launch's,
 * and so takes no time from it. */
int64_t credit_available(int slot, uint32_t limit, uint64_t beside_ns, int64_t *missing);
/* The limit is about to be lowered from `before`. */
void credit_lower(int slot, uint32_t before);
/* Charge finished work: its interval, and the part of it that counts. `debit`: take it from the credit too. */
void credit_charge(int slot, uint64_t start_ns, uint64_t end_ns, uint64_t spent_ns, int debit);

#endif
