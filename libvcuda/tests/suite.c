/* All behaviours; on the simulated driver, or with --real on the machine's first GPU. */
#include "harness.h"

#include <string.h>
#include <stdio.h>

int main(int argc, char **argv)
{
    if (argc > 2 && !strcmp(argv[1], "--role"))
        return role_play(argc - 2, argv + 2);
    if (!harness_begin(argc, argv)) {
        fputs("suite: no GPU, real or simulated, to test on\n", stderr);
        return 2;
    }
    test_pages();
    test_lookup();
    test_memory();
    test_views();
    test_compute();
    test_life();
    test_bugs();
    return harness_end();
}
