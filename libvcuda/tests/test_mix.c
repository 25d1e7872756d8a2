/* The limit under programs that launch several kinds of kernels and wait for them every few launches.
 *
 * A cell of the matrix is a program (kinds of kernels by what they differ in and by their durations, launches between two
 * waits, the way of waiting, streams, processes) and a limit. The program runs without the library first. Then, where it
 * wants more GPU time than the limit, it must get nine tenths of the limit and never more than the limit and a point; and
 * its launches a second must be within 5 % of what that GPU time allows. The GPU time is the program's own reckoning
 * (tools/mix.h), not the usage page's.
 *
 * VCUDA_TEST_COUNT says how many cells are thrown beside the fixed ones; which follows from VCUDA_TEST_SEED. */
#include "harness.h"

#include <math.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>

#define MOST_KINDS 8
#define MOST_PROCESSES 3
#define BARE_SECONDS 0.3
#define BARE_WARM_SECONDS 0.1
#define LIMITED_SECONDS 0.8
/* Of kernels so long that a few of them are a point of that. */
#define LONG_US 5000
#define LONG_SECONDS 1.6
/* Every kind is measured alone first, predictions settle, and the credit of the start is spent. */
#define WARM_SECONDS 0.6
/* Several processes do not begin at the same time. */
#define TOGETHER_SECONDS 0.3
/* What launches, gaps and events cost an H200's programs. */
#define COSTS "launch=3000,gap=950,event=1280,spin=100000"
#define GAP_NS 950
/* How exactly events tell what a kernel takes, in the mean. */
#define MEASURED_US 0.15
/* How far the page may be from what the kernels took, and the time over which the two are compared: the page is behind by
 * 10 ms of work at most. */
#define CHARGED_POINTS 2.0
#define CHARGED_SECONDS 1.5
/* The work between two waits: at 10 % of the GPU a step of it must still end within a measurement. */
#define STEP_MOST_US 20000
/* Giving the GPU from one process to another takes it 175 us in 2.1 ms. */
#define SWITCHING 0.92
/* Under a limit streams overlap less than bare, and their time is charged in full: 0.90 to 0.97 on an H200. */
#define OVERLAPPING 0.9
/* Several processes of shorter kernels would measure this machine's processors: each of them launches and waits by spinning. */
#define TOGETHER_LEAST_US 100

struct cell {
    unsigned kinds;
    unsigned us[MOST_KINDS];
    unsigned wait_every;
    const char *wait;
    unsigned streams, processes;
    uint32_t limit;
    const char *differ;
    unsigned cpu_us;
};

/* One of each way in which ordinary programs were starved, or might be. */
static const struct cell fixed[] = {
    {5, {10, 5000, 10000, 20, 5}, 1, "event", 2, 1, 50, "grid", 0},
    {3, {5, 200, 10}, 20, "copy", 4, 1, 25, "both", 0},
    {2, {50, 5}, 2, "device", 1, 1, 50, "function", 0},
    {1, {3}, 1, "stream", 1, 1, 90, "function", 0},
    {1, {3}, 1, "stream", 1, 1, 25, "function", 0},
    {3, {20, 60, 200}, 3, "event", 1, 1, 50, "function", 0},
    {8, {3, 10, 30, 60, 100, 200, 500, 1000}, 10, "stream", 1, 1, 25, "both", 0},
    {4, {100, 5, 300, 20}, 4, "copy", 1, 1, 75, "function", 0},
    {2, {200, 10}, 5, "poll", 1, 1, 50, "grid", 0},
    {4, {500, 50, 200, 20}, 8, "device", 4, 1, 50, "function", 0},
    {3, {400, 30, 100}, 6, "stream", 1, 3, 50, "function", 0},
    /* Short kernels that end within another stream's or process's long ones. */
    {3, {100, 2000, 10}, 4, "device", 2, 2, 75, "function", 0},
    {2, {10, 5000}, 1, "stream", 3, 2, 75, "both", 0},
    {6, {8, 20, 300, 50, 120, 10}, 60, "stream", 1, 1, 50, "argument", 0},
    {6, {8, 20, 300, 50, 120, 10}, 12, "device", 1, 1, 25, "argument", 10},
    /* Controls: one kind, which was always right. */
    {1, {200}, 10, "stream", 1, 1, 50, "function", 0},
    {1, {5}, 100, "stream", 1, 1, 50, "function", 0},
};
#define FIXED (sizeof fixed / sizeof *fixed)

static unsigned longest_us(const struct cell *cell)
{
    unsigned most = 0;
    for (unsigned i = 0; i < cell->kinds; i++)
        most = cell->us[i] > most ? cell->us[i] : most;
    return most;
}

static double mean_us(const struct cell *cell)
{
    double sum = 0;
    for (unsigned i = 0; i < cell->kinds; i++)
        sum += cell->us[i];
    return sum / cell->kinds;
}

static double limited_seconds(const struct cell *cell)
{
    return longest_us(cell) < LONG_US ? LIMITED_SECONDS : LONG_SECONDS;
}

struct figures {
    double share, least_share, rate, longest_launch_us;
    int error;
};

static void join(char *text, size_t size, const char *name, const struct cell *cell, unsigned more_ns, int in_ns)
{
    size_t at = (size_t)snprintf(text, size, "--%s", name);
    for (unsigned i = 0; i < cell->kinds; i++)
        at += (size_t)snprintf(text + at, size - at, "%c%u", i ? ',' : '=',
                               in_ns ? cell->us[i] * 1000 + more_ns : cell->us[i]);
}

/* What the simulated GPU's kernels take is known; a real one's are calibrated by each bare process. */
static char queued[200], alone[200];
static void learn_durations(const struct player *player, const struct cell *cell)
{
    size_t a = (size_t)snprintf(alone, sizeof alone, "--alone-ns"),
           q = (size_t)snprintf(queued, sizeof queued, "--queued-ns");
    for (unsigned i = 0; i < cell->kinds; i++) {
        char name[24];
        snprintf(name, sizeof name, "alone%u", i);
        a += (size_t)snprintf(alone + a, sizeof alone - a, "%c%.0f", i ? ',' : '=', figure_of(player, name));
        snprintf(name, sizeof name, "queued%u", i);
        q += (size_t)snprintf(queued + q, sizeof queued - q, "%c%.0f", i ? ',' : '=', figure_of(player, name));
    }
}

static void begin_process(struct player *player, const struct claim *claim, const struct cell *cell, double seconds)
{
    char kinds[24], every[24], streams[24], wait[24], differ[24], cpu[24], length[16], us[200];
    snprintf(kinds, sizeof kinds, "--kinds=%u", cell->kinds);
    snprintf(every, sizeof every, "--wait-every=%u", cell->wait_every);
    snprintf(streams, sizeof streams, "--streams=%u", cell->streams);
    snprintf(wait, sizeof wait, "--wait=%s", cell->wait);
    snprintf(differ, sizeof differ, "--differ=%s", cell->differ);
    snprintf(cpu, sizeof cpu, "--cpu-us=%u", cell->cpu_us);
    snprintf(length, sizeof length, "%.2f", seconds);
    join(us, sizeof us, "durations-us", cell, 0, 0);
    int calibrates = on_real_gpu && !claim;
    play(player, claim, claim ? PRELOADED : BARE, "mix", length, kinds, us, every, wait, streams, differ, cpu,
         calibrates ? "--calibrate" : alone, calibrates ? NULL : queued, NULL);
}

struct row {
    double at, busy_ns, extra_ns, least_ns, launches;
};

/* The next row of the text from `*at` on; 0: there is none. */
static int read_row(const char **at, struct row *row)
{
    while (*at && (*at = strstr(*at, "row "))) {
        const char *line = (*at)++;
        if (sscanf(line, "row %lf %lf %lf %lf %lf", &row->at, &row->busy_ns, &row->extra_ns, &row->least_ns,
                   &row->launches) == 5)
            return 1;
    }
    return 0;
}

static struct row last_row(const struct player *player)
{
    struct row row = {0}, next;
    for (const char *text = player->text; read_row(&text, &next);)
        row = next;
    return row;
}

/* What the process had got by then: between two rows as if it had come evenly. */
static struct row row_at(const struct player *player, double at)
{
    struct row before = {0}, next = {0};
    const char *text = player->text;
    while (read_row(&text, &next) && next.at < at)
        before = next;
    if (!before.at || next.at < at)
        return next;
    double part = (at - before.at) / (next.at - before.at);
    return (struct row){at, before.busy_ns + part * (next.busy_ns - before.busy_ns),
                        before.extra_ns + part * (next.extra_ns - before.extra_ns),
                        before.least_ns + part * (next.least_ns - before.least_ns),
                        before.launches + part * (next.launches - before.launches)};
}

/* From when on there is something to measure: of a single process, from the end of a step. */
static double begins_at(const struct player *player, const struct cell *cell, double warm)
{
    struct row row;
    const char *text = player->text;
    if (!read_row(&text, &row))
        return 0;
    double begin = row.at + warm;
    while (cell->processes == 1 && row.at < begin && read_row(&text, &row))
        ;
    return row.at > begin ? row.at : begin;
}

static void add_process(struct figures *all, const struct player *player, const struct cell *cell, double begin,
                        double end)
{
    double launch = figure_of(player, "longest_launch_us"), ns = (end - begin) * 1e9;
    struct row first = row_at(player, begin), last = row_at(player, end);
    double busy = last.busy_ns - first.busy_ns, least = last.least_ns - first.least_ns;
    all->longest_launch_us = launch > all->longest_launch_us ? launch : all->longest_launch_us;
    if (ns <= 0)
        return; /* starved: not a step in all that time */
    all->share += 100 * busy / ns;
    all->least_share += 100 * (cell->processes > 1 ? least : busy - (last.extra_ns - first.extra_ns)) / ns;
    all->rate += (last.launches - first.launches) / ns * 1e9;
}

/* Run the cell's program in all its processes, under the claim, or without the library. */
static struct figures run_cell(const struct cell *cell, const struct claim *claim)
{
    struct player p[MOST_PROCESSES];
    struct figures all = {0};
    double warm = claim ? WARM_SECONDS : BARE_WARM_SECONDS, begin = 0, end = 1e18;
    double seconds =
        warm + (claim ? limited_seconds(cell) : BARE_SECONDS) + (cell->processes > 1 ? TOGETHER_SECONDS : 0);
    for (unsigned i = 0; i < cell->processes; i++)
        begin_process(&p[i], claim, cell, seconds);
    for (unsigned i = 0; i < cell->processes; i++) {
        all.error |= !finish_within(&p[i], seconds + 30) || figure_of(&p[i], "error") != 0;
        double from = begins_at(&p[i], cell, warm), to = last_row(&p[i]).at;
        begin = from > begin ? from : begin;
        end = to < end ? to : end;
    }
    for (unsigned i = 0; i < cell->processes; i++)
        add_process(&all, &p[i], cell, begin, end);
    if (on_real_gpu && !claim)
        learn_durations(&p[0], cell);
    return all;
}

/* What the limit must give: points of GPU time, and launches a second. */
struct bounds {
    double least, most, least_rate;
};

static struct bounds bounds_of(const struct cell *cell, const struct figures *bare)
{
    double whole = bare->share < 100 ? bare->share : 100, limit = cell->limit;
    double part = limit < whole ? limit / whole : 1, lost = cell->processes > 1 ? SWITCHING : 1;
    /* The kernel that each process was just running, and the first quantum, are not held against it. */
    double running = (double)longest_us(cell) * 1e-6 * cell->processes;
    return (struct bounds){
        .least = 0.9 * part * whole * lost,
        .most = limit * (1 + MEASURED_US / mean_us(cell)) + 1 + 100 * (running + 0.005) / limited_seconds(cell),
        .least_rate = (cell->streams > 1 ? OVERLAPPING : 0.95) * part * bare->rate * lost,
    };
}

/* A machine that is busy with something else may hold a program up: what is too low is measured again, four times at most, the bare
 * program too. What is too high is never excused. */
static void test_cell(const struct cell *cell)
{
    char us[100];
    struct figures bare, got;
    struct bounds bounds;
    join(us, sizeof us, "durations-us", cell, 0, 0);
    join(alone, sizeof alone, "alone-ns", cell, 0, 1);
    join(queued, sizeof queued, "queued-ns", cell, GAP_NS, 1);
    for (int try = 0; try < 5; try++) {
        struct claim claim;
        bare = run_cell(cell, NULL);
        claim_make(&claim, 4 * GIB, cell->limit);
        got = run_cell(cell, &claim);
        claim_end(&claim);
        bounds = bounds_of(cell, &bare);
        if (bare.error || got.error || got.least_share > bounds.most ||
            (got.share >= bounds.least && got.rate >= bounds.least_rate))
            break;
    }
    int ok = !bare.error && !got.error && got.share >= bounds.least && got.least_share <= bounds.most &&
             got.rate >= bounds.least_rate;
    expect(ok,
           "limit %u %%, --kinds %u %s --differ %s --wait-every %u --wait %s --streams %u, processes %u: "
           "%.1f %% (%.1f to %.1f; bare %.1f), %.0f launches/s (at least %.0f; bare %.0f), longest launch %.1f ms",
           cell->limit, cell->kinds, us, cell->differ, cell->wait_every, cell->wait, cell->streams, cell->processes,
           got.share, bounds.least, bounds.most, bare.share, got.rate, bounds.least_rate, bare.rate,
           got.longest_launch_us / 1e3);
}

#define PICK(list) list[(unsigned)rand_r(seed) % (sizeof list / sizeof *list)]

static struct cell throw_cell(unsigned *seed)
{
    static const unsigned kinds[] = {1, 2, 3, 5, 8}, every[] = {1, 2, 3, 5, 10, 20, 50, 100}, many[] = {1, 1, 2, 3, 4};
    static const unsigned us[] = {3, 5, 10, 20, 50, 100, 200, 500, 1000, 2000, 5000, 10000}, processes[] = {1, 1, 2, 3};
    static const uint32_t limits[] = {10, 25, 50, 75, 90, 100};
    static const char *const waits[] = {"stream", "event", "device", "copy", "poll"};
    static const char *const differ[] = {"function", "grid", "both", "argument"};
    struct cell cell = {.kinds = PICK(kinds)};
    unsigned sum;
    cell.processes = PICK(processes);
    do {
        sum = 0;
        for (unsigned i = 0; i < cell.kinds; i++)
            sum += cell.us[i] = PICK(us);
    } while (cell.processes > 1 && sum < TOGETHER_LEAST_US * cell.kinds);
    cell.wait_every = PICK(every);
    while (cell.wait_every > 1 && cell.wait_every * sum / cell.kinds > STEP_MOST_US)
        cell.wait_every /= 2;
    cell.wait = PICK(waits);
    cell.streams = PICK(many);
    cell.limit = PICK(limits);
    cell.differ = PICK(differ);
    return cell;
}

/* GPU time in percent: as charged, by the program's own reckoning, and without what events cannot tell. */
struct charge {
    double page, own, least;
    int error;
};

static struct charge charge_without_limit(const struct cell *cell)
{
    struct claim claim;
    struct player p;
    struct vcuda_totals from, to;
    struct charge found;
    claim_make(&claim, 4 * GIB, 100);
    begin_process(&p, &claim, cell, WARM_SECONDS + CHARGED_SECONDS + 2 * TOGETHER_SECONDS);
    wait_for(&p, "row");
    pause_s(WARM_SECONDS);
    double begin = now_s();
    vcuda_usage_totals(claim.usage, 0, &from);
    pause_s(CHARGED_SECONDS);
    double end = now_s(), ns = (end - begin) * 1e9;
    vcuda_usage_totals(claim.usage, 0, &to);
    found.error = !finish_within(&p, 30) || figure_of(&p, "error") != 0;
    claim_end(&claim);
    struct row first = row_at(&p, begin), last = row_at(&p, end);
    found.page = 100 * (double)(to.gpu_time_ns - from.gpu_time_ns) / ns;
    found.own = 100 * (last.busy_ns - first.busy_ns) / ns;
    found.least = found.own - 100 * (last.extra_ns - first.extra_ns) / ns;
    return found;
}

/* Without a limit few launches are measured (shim/compute/burst.c); the page must be right all the same. */
static void test_charged(const struct cell *cell)
{
    char us[100];
    join(us, sizeof us, "durations-us", cell, 0, 0);
    join(alone, sizeof alone, "alone-ns", cell, 0, 1);
    join(queued, sizeof queued, "queued-ns", cell, GAP_NS, 1);
    if (on_real_gpu)
        run_cell(cell, NULL);
    struct charge found = charge_without_limit(cell);
    for (int again = 0; again < 2 && fabs(found.page - found.own) > CHARGED_POINTS; again++)
        found = charge_without_limit(cell);
    expect(!found.error && found.page <= found.own + CHARGED_POINTS && found.page >= found.least - CHARGED_POINTS,
           "without a limit, --kinds %u %s --differ %s --wait-every %u --wait %s --streams %u: the page says %.2f %%, "
           "the kernels took %.2f (%.2f at least)",
           cell->kinds, us, cell->differ, cell->wait_every, cell->wait, cell->streams, found.page, found.own,
           found.least);
}

/* The simulated driver's prices are charged, and where there are none, nothing is. */
static void test_costs(void)
{
    struct player p;
    for (int priced = 1; priced >= 0; priced--, unsetenv("GPUCLOUD_SIM_COSTS")) {
        play(&p, NULL, BARE, "mix", "0.01", "--kinds=1", "--durations-us=50", "--calibrate", NULL);
        finish(&p);
        double least = 50000 + priced * GAP_NS - 100;
        expect(figure_of(&p, "queued0") >= least && figure_of(&p, "queued0") <= least + 200,
               "simulated, %s: a kernel of 50 us behind another takes %.2f us",
               priced ? "with a price of gaps" : "free", figure_of(&p, "queued0") / 1e3);
    }
}

void test_mix(void)
{
    unsigned seed = test_seed();
    unsigned long count = test_count(0); /* some that can be thrown overlap bare as no limited program can */
    setenv("GPUCLOUD_SIM_COSTS", COSTS, 1);
    for (size_t i = 0; i < FIXED; i++)
        test_cell(&fixed[i]);
    printf("      cells by seed %u\n", seed);
    for (unsigned long i = 0; i < count; i++) {
        struct cell cell = throw_cell(&seed);
        test_cell(&cell);
    }
    if (!on_real_gpu)
        test_costs();
}

/* Several processes without an arbiter measure one another's slices, whatever is measured how often. */
void test_charges(void)
{
    setenv("GPUCLOUD_SIM_COSTS", COSTS, 1);
    for (size_t i = 0; i < FIXED; i++)
        if (fixed[i].processes == 1)
            test_charged(&fixed[i]);
    unsetenv("GPUCLOUD_SIM_COSTS");
}
