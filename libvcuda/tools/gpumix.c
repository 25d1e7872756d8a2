/* gpumix: a GPU program of several kinds of kernels with a wait every few launches, for tests and measurements.
 *
 * It tells once per interval how many kernels finished and what share of the GPU's time they took, by its own reckoning
 * (mix.h). It knows nothing of limits; what it prints is what a tenant would see.
 */
#include "mix.h"

#include <signal.h>
#include <stdio.h>

static struct mix_options options;
static volatile sig_atomic_t ended;

static void on_signal(int number)
{
    (void)number;
    ended = 1;
}

static void print_list(const char *name, const uint64_t *values)
{
    printf(options.json ? ",\"%s\":[" : "  %s ", name);
    for (unsigned i = 0; i < options.kinds; i++)
        printf("%s%llu", i ? "," : "", (unsigned long long)values[i]);
    fputs(options.json ? "]" : "", stdout);
}

static void print_calibration(void)
{
    printf(options.json ? "{\"at\":%.6f,\"event\":\"calibrated\"" : "calibrated at %.6f", (double)mix_now() / 1e9);
    print_list("duration_ns", options.duration_ns);
    print_list("alone_ns", options.alone_ns);
    print_list("queued_ns", options.queued_ns);
    puts(options.json ? "}" : "");
    fflush(stdout);
}

static const char as_json[] = "{\"at\":%.6f,\"seconds\":%.3f,\"launches\":%llu,\"work_ns\":%llu,\"busy_ns\":%llu,"
                              "\"extra_ns\":%llu,\"share_percent\":%.2f,\"longest_launch_us\":%.1f,"
                              "\"longest_wait_us\":%.1f}\n";
static const char as_text[] =
    "at %.6f  %7.3f s  %8llu kernels  work %llu ns  busy %llu ns (%llu unsure)  share %6.2f %%  "
    "longest launch %.1f us, wait %.1f us\n";

/* Counts are of the whole run, the share and the longest waits of the interval. `at` is CLOCK_MONOTONIC. */
static void report(const struct mix_counts *counts, uint64_t busy_before, uint64_t start, uint64_t last, uint64_t at)
{
    double share = 100 * (double)(counts->busy_ns - busy_before) / (double)(at - last);
    printf(options.json ? as_json : as_text, (double)at / 1e9, (double)(at - start) / 1e9,
           (unsigned long long)counts->launches, (unsigned long long)counts->work_ns,
           (unsigned long long)counts->busy_ns, (unsigned long long)counts->extra_ns, share,
           (double)counts->longest_launch_ns / 1e3, (double)counts->longest_wait_ns / 1e3);
    fflush(stdout);
}

static CUresult run(void)
{
    struct mix_counts counts = {0};
    uint64_t start = mix_now(), last = start, busy = 0;
    while (!ended) {
        CUresult error = mix_step(&counts);
        uint64_t at = mix_now();
        if (error)
            return error;
        if ((double)(at - last) >= options.interval * 1e9) {
            report(&counts, busy, start, last, at);
            last = at;
            busy = counts.busy_ns;
            counts.longest_launch_ns = counts.longest_wait_ns = 0;
        }
        if (options.seconds > 0 && (double)(at - start) >= options.seconds * 1e9)
            break;
    }
    return CUDA_SUCCESS;
}

static int fail(const char *where, CUresult error)
{
    fprintf(stderr, "gpumix: %s: %s (%d)\n", where, cuda_error_name(error), error);
    return 1;
}

int main(int argc, char **argv)
{
    if (!mix_parse(argc, argv, &options))
        return 2;
    struct sigaction action = {.sa_handler = on_signal};
    sigaction(SIGTERM, &action, NULL);
    sigaction(SIGINT, &action, NULL);
    const char *where = cuda_api_load();
    if (where) {
        fprintf(stderr, "gpumix: %s not found\n", where);
        return 1;
    }
    CUresult error = mix_start(&options, &where);
    if (error)
        return fail(where, error);
    if (options.calibrate) {
        error = mix_calibrate(&options);
        if (error)
            return fail("calibrate", error);
        print_calibration();
    }
    error = run();
    return error ? fail("run", error) : 0;
}
