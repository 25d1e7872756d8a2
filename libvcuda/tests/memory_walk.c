/* Walks through every way in which a program takes device memory, under a limit, and prints after each step what the
 * library accounts and what NVML shows of the process. With the kernel's calls as the account they are equal. */
#include "steps.h"

#include <stdio.h>
#include <stdlib.h>
#include <string.h>

static const char usage[] =
    "usage: memory_walk [--real] [--calls] [GIB]\n\n"
    "Takes and gives back device memory in every way that CUDA has, under a limit of GIB (24), and prints the "
    "library's\n"
    "account and NVML's figure after each step. --real: on the machine's first GPU instead of the simulated driver.\n"
    "--calls: the simulated driver without a kernel of its own, as a driver that the library does not know below its "
    "API.\n"
    "Exit status: 0 where the two are equal at every step, else 1.\n";

static void print_step(const struct player *player, const struct account *account)
{
    const char *name = strstr(player->text, "at ");
    int length = name ? (int)strcspn(name + 3, "\n") : 0;
    printf("%-34.*s error %-4.0f account %10.3f MiB  managed %8.3f  nvml %10.3f  %s\n", length, name ? name + 3 : "",
           figure_of(player, "error"), (double)account->bytes / MIB, (double)account->managed / MIB,
           (double)account->nvml / MIB, account_differs(account) ? "DIFFERENT" : "equal");
    fflush(stdout);
}

static void walk(uint64_t limit)
{
    struct claim claim;
    struct steps steps;
    int different = 0;
    uint32_t accounting = 0;
    claim_make(&claim, limit, 100);
    steps_begin(&steps, &claim, "walk", NULL, NULL);
    while (steps_next(&steps)) {
        struct account account = account_of(&claim, 0, steps.player.pid);
        print_step(&steps.player, &account);
        different += account_differs(&account);
        accounting = account.accounting ? account.accounting : accounting;
    }
    expect(!different && steps.player.status == 0, "the account by %s and NVML's figure are equal: %d steps differ",
           accounting == VCUDA_ACCOUNTING_KERNEL ? "the kernel's calls" : "the hooks", different);
    claim_end(&claim);
}

int main(int argc, char **argv)
{
    uint64_t limit = 24;
    if (argc > 2 && !strcmp(argv[1], "--role"))
        return !strcmp(argv[2], "walk") ? role_walk() : role_play(argc - 2, argv + 2);
    simulated_kernel = 1;
    for (int i = 1; i < argc; i++) {
        char *end;
        uint64_t number = strtoull(argv[i], &end, 10);
        if (!strcmp(argv[i], "--real")) {
            on_real_gpu = 1;
        } else if (!strcmp(argv[i], "--calls")) {
            simulated_kernel = 0;
        } else if (number && !*end) {
            limit = number;
        } else {
            fputs(usage, stderr);
            return 2;
        }
    }
    simulated_kernel = simulated_kernel && !on_real_gpu;
    if (!harness_begin()) {
        fputs("memory_walk: no GPU, real or simulated, to walk on\n", stderr);
        return 2;
    }
    walk(limit * GIB);
    return harness_end();
}
