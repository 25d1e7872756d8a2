/* However a program finds the driver, it finds the limit. */
#include "harness.h"

#include <stddef.h>

void test_lookup(void)
{
    static const char *const ways[] = {"dlsym_handle", "dlsym_default",      "dlsym_older",
                                       "proc_address", "proc_address_first", "proc_address_of_itself"};
    struct claim claim;
    struct player p;
    claim_make(&claim, 2 * GIB, 100);
    play(&p, &claim, PRELOADED, "lookup", NULL);
    finish(&p);
    for (size_t i = 0; i < sizeof ways / sizeof *ways; i++)
        expect(said(&p, ways[i]) == 2, "6 GiB are refused under a limit of 2 GiB, found by %s", ways[i]);
    expect(said(&p, "next_works") == 1, "RTLD_NEXT still counts from the program");
    expect(said(&p, "unknown_name") == 1 && said(&p, "unhooked_untouched") == 1,
           "names that we do not stand before pass");
    play(&p, &claim, PRELOADED, "linked", NULL);
    finish(&p);
    expect(said(&p, "linked") == 2, "a program linked to libcuda is limited too");
    play(&p, &claim, BARE, "lookup", NULL);
    finish(&p);
    expect(said(&p, "dlsym_handle") == 0, "control: without the library the same allocation is granted");
    play(&p, NULL, PRELOADED, "lookup", NULL);
    finish(&p);
    expect(said(&p, "dlsym_handle") == 0 && said(&p, "proc_address") == 0, "without a claim the library is inert");
    claim_end(&claim);
}
