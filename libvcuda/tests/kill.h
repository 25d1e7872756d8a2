/* What the survivors of the killing share with the suite: a file in the claim's directory. */
#ifndef TESTS_KILL_H
#define TESTS_KILL_H

#include <stdint.h>

#define KILL_SURVIVORS 2
#define KILL_STAGE "stage"
#define KILL_HOLD (64ull << 20) /* what a survivor keeps while it rests */

struct kill_stage {
    uint32_t rest; /* raised to an odd number: rest; to an even one: go on */
    uint32_t seen[KILL_SURVIVORS];
    uint64_t beats[KILL_SURVIVORS];
    uint64_t last_beat_ns[KILL_SURVIVORS], longest_ns[KILL_SURVIVORS];
    uint32_t errors[KILL_SURVIVORS];
};

#endif
