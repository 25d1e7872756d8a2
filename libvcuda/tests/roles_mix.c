/* The role of the mix chapter: a mixed load, its counts printed after whole steps. */
#include "harness.h"
#include "mix.h"

#include <stdio.h>
#include <stdlib.h>
#include <string.h>

#define ROW_NS 10000000

static struct mix_options options;

static void print_calibration(void)
{
    for (unsigned i = 0; i < options.kinds; i++)
        printf("alone%u %llu\nqueued%u %llu\n", i, (unsigned long long)options.alone_ns[i], i,
               (unsigned long long)options.queued_ns[i]);
}

/* Print the counts after whole steps, every so often, until the time is over. */
static CUresult run_for(double seconds)
{
    struct mix_counts counts = {0};
    CUresult error = CUDA_SUCCESS;
    uint64_t begin = mix_now(), now = begin, last = 0;
    while (!error && (double)(now - begin) < seconds * 1e9) {
        error = mix_step(&counts);
        now = mix_now();
        if (now - last < ROW_NS)
            continue;
        last = now;
        printf("row %.6f %llu %llu %llu %llu\n", (double)now / 1e9, (unsigned long long)counts.busy_ns,
               (unsigned long long)counts.extra_ns, (unsigned long long)counts.least_ns,
               (unsigned long long)counts.launches);
    }
    printf("longest_launch_us %.1f\nlongest_wait_us %.1f\nerror %d\n", (double)counts.longest_launch_ns / 1e3,
           (double)counts.longest_wait_ns / 1e3, error);
    return error;
}

static int mix(double seconds)
{
    const char *where = cuda_api_load();
    CUresult error = where ? -1 : mix_start(&options, &where);
    if (!error && options.calibrate) {
        error = mix_calibrate(&options);
        print_calibration();
    }
    return error || run_for(seconds);
}

/* mix SECONDS, then the options of gpumix. -1: another role. */
int role_mix(int argc, char **argv)
{
    if (argc < 2 || strcmp(argv[0], "mix") != 0)
        return -1;
    if (!mix_parse(argc - 1, argv + 1, &options))
        return 2;
    return mix(atof(argv[1]));
}
