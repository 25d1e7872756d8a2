/* The message for a process that is refused CUDA: the reason and the remedy, in one line on standard error when the
 * program asks for CUDA.
 *
 * A program that was started under a claim must not run without its limits, whatever happened to the claim's pages. So
 * cuInit fails, and the reason, which the driver's error code does not tell, is printed here. */
#include "refusal.h"

#include <errno.h>
#include <limits.h>
#include <stdio.h>
#include <string.h>
#include <unistd.h>

static char reason[PATH_MAX + 300];

/* Return the remedy, as shown to the user who started the program. */
static const char *cure_of(int error)
{
    switch (error) {
    case -ENOENT:
    case -ENOTDIR:
        return "is the claim on this node, and is its directory mounted here?";
    case -EACCES:
    case -EPERM:
        return "let this user in by `gpucloud-agent give`, or start the program by `gpucloud-agent exec`";
    case -EROFS:
        return "mount the claim's usage page writable";
    case -EBADMSG:
        return "start the program anew by `gpucloud-agent exec`: the agent makes the page anew once none of the "
               "claim's "
               "programs runs";
    default:
        return "start the program anew";
    }
}

static const char *fault_of(int error)
{
    return error == -EBADMSG ? "it is damaged, or of another version" : strerror(-error);
}

void refusal_note_page(const char *path, int error)
{
    snprintf(reason, sizeof reason, "%s cannot be used: %s (uid %u); %s", path, fault_of(error), (unsigned)geteuid(),
             cure_of(error));
}

void refusal_note_required(const char *file)
{
    snprintf(reason, sizeof reason, "%s requires limits, and the program has no claim: start it under one", file);
}

void refusal_print(void)
{
    static int printed;
    if (!__atomic_exchange_n(&printed, 1, __ATOMIC_ACQ_REL))
        dprintf(2, "libvcuda: %s. CUDA is refused.\n", reason);
}
