/* All behaviours, in chapters; on the simulated driver, or with --real on the machine's first GPU. */
#include "harness.h"

#include <stdio.h>
#include <string.h>

static const char usage[] =
    "usage: suite [--real] [--list] [--timed | --untimed] [CHAPTER...]\n\n"
    "Runs the chapters named, or all but the long ones. --real: on the machine's first GPU instead of the simulated\n"
    "driver. --timed, --untimed: of all, those that measure by the clock and want the machine to themselves, or the\n"
    "others. VCUDA_TEST_COUNT: how often the chapters that repeat something do it; VCUDA_TEST_SEED: where their dice\n"
    "begin. VCUDA_TEST_KERNEL: memory is accounted at the simulated kernel's boundary in every chapter.\n";

enum kind { SHORT, TIMED, LONG };

static const struct chapter {
    const char *name;
    void (*run)(void);
    enum kind kind;
    const char *about;
} chapters[] = {
    {"pages", test_pages, SHORT, "the pages and the helper library"},
    {"lookup", test_lookup, SHORT, "however a program finds the driver, it finds the limit"},
    {"memory", test_memory, SHORT, "each way to allocate, racing processes, limits that move"},
    {"legacy", test_legacy, TIMED, "old and rare entries: first versions, contexts for graphics, stacks, old launches"},
    {"views", test_views, SHORT, "what CUDA and NVML show"},
    {"mig", test_mig, SHORT, "GPUs in MIG mode: instances made and removed, programs in them"},
    {"kernel", test_kernel, SHORT, "memory as the kernel gives it: every path, to the byte"},
    {"exports", test_exports, SHORT, "memory that several processes hold: exports, imports, deaths"},
    {"movable", test_movable, SHORT, "what keeps a process from being suspended, as its page says it"},
    {"compat", test_compat, TIMED, "limits by other programs' environment variables; a page that is required"},
    {"drift", test_drift, LONG, "NVML's figure beside the kernel's: a look every ten seconds"},
    {"ioctls", test_ioctls, LONG, "no test: the driver's calls around exports and imports, written down"},
    {"compute", test_compute, TIMED, "shares, sharing within a claim, graphs and captures"},
    {"mps", test_mps, TIMED, "clients of MPS: parts of the GPU, credit below them, no server"},
    {"copies", test_copies, TIMED, "copies within the GPU's memory: each entry is charged, a flood is held"},
    {"memops", test_memops, TIMED, "the driver: streams that wait for a value in host memory, and that write one"},
    {"life", test_life, SHORT, "forks within a claim"},
    {"damage", test_damage, SHORT, "pages that a claim names and that cannot be used: no CUDA"},
    {"bugs", test_bugs, SHORT, "what once broke"},
    {"fork", test_forks, SHORT, "children, however they are made"},
    {"faults", test_faults, SHORT, "calls into the driver that fail, a GPU that is lost, no NVML"},
    {"rounds", test_rounds, SHORT, "what the arbiter decides, in made-up time"},
    {"orders", test_lent_orders, SHORT, "who gives lent memory back, in made-up time"},
    {"arbiter", test_arbiter, TIMED, "the arbiter as a process: deaths, lies, live changes"},
    {"turns", test_turns, TIMED, "tenants under libvcuda that share a GPU by turns"},
    {"ahead", test_ahead, TIMED, "best-effort work that is handed to the GPU before its turn"},
    {"sweep", test_sweep, TIMED, "limits by lengths of kernels by ways to launch; moved limits"},
    {"mix", test_mix, TIMED, "several kinds of kernels with waits between them: 1-8 kinds, 5 ways to wait, limits"},
    {"charges", test_charges, TIMED, "the same programs without a limit: what their pages say they used"},
    {"suspend", test_suspend, TIMED, "GPU memory moved to host memory and back while programs run"},
    {"lending", test_lending, TIMED, "memory of a claim that borrows steps aside for its owner, and comes back"},
    {"lent", test_lent, TIMED, "the same memory: second contexts, captures, books, deaths, what no giving cures"},
    {"syscalls", test_syscalls, SHORT, "no system call on the way of a launch"},
    {"kill", test_kill, SHORT, "processes killed at random moments (VCUDA_TEST_COUNT of them)"},
};
#define CHAPTERS (sizeof chapters / sizeof *chapters)

static int list(void)
{
    static const char *const notes[] = {"", " (by the clock)", " (long)"};
    for (size_t i = 0; i < CHAPTERS; i++)
        printf("%-12s%s%s\n", chapters[i].name, chapters[i].about, notes[chapters[i].kind]);
    return 0;
}

/* What --timed and --untimed choose; LONG: neither was given. */
static enum kind wanted = LONG;

static const struct chapter *find(const char *name)
{
    for (size_t i = 0; i < CHAPTERS; i++)
        if (!strcmp(chapters[i].name, name))
            return &chapters[i];
    return NULL;
}

/* 1: go on; else the exit status is in `status`. */
static int read_arguments(int argc, char **argv, int *status)
{
    for (int i = 1; i < argc; i++) {
        if (!strcmp(argv[i], "--real")) {
            on_real_gpu = 1;
        } else if (!strcmp(argv[i], "--timed") || !strcmp(argv[i], "--untimed")) {
            wanted = argv[i][2] == 't' ? TIMED : SHORT;
        } else if (!strcmp(argv[i], "--list")) {
            *status = list();
            return 0;
        } else if (!find(argv[i])) {
            int help = !strcmp(argv[i], "--help") || !strcmp(argv[i], "-h");
            if (!help)
                fprintf(stderr, "suite: no chapter '%s'; --list shows them\n\n", argv[i]);
            fputs(usage, help ? stdout : stderr);
            *status = help ? 0 : 2;
            return 0;
        }
    }
    return 1;
}

static int is_chosen(const struct chapter *chapter, int argc, char **argv)
{
    int named = 0;
    for (int i = 1; i < argc; i++) {
        if (!strcmp(argv[i], chapter->name))
            return 1;
        named += find(argv[i]) != NULL;
    }
    return !named && chapter->kind != LONG && (wanted == LONG || chapter->kind == wanted);
}

static int play_role(int argc, char **argv)
{
    static int (*const roles[])(int, char **) = {
        role_kernel, role_kill,   role_fork,    role_faults,     role_syscalls, role_lookup, role_views,
        role_legacy, role_shared, role_arbiter, role_namespaces, role_copies,   role_mix,    role_suspend,
        role_mig,    role_ahead,  role_memops,  role_lending,    role_lent};
    for (size_t i = 0; i < sizeof roles / sizeof *roles; i++) {
        int status = roles[i](argc, argv);
        if (status >= 0)
            return status;
    }
    return role_play(argc, argv);
}

int main(int argc, char **argv)
{
    int status;
    if (argc > 2 && !strcmp(argv[1], "--role"))
        return play_role(argc - 2, argv + 2);
    if (!read_arguments(argc, argv, &status))
        return status;
    if (!harness_begin()) {
        fputs("suite: no GPU, real or simulated, to test on\n", stderr);
        return 2;
    }
    for (size_t i = 0; i < CHAPTERS; i++)
        if (is_chosen(&chapters[i], argc, argv))
            chapters[i].run();
    return harness_end();
}
