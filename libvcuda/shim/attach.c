/* The top layer: joining the claim. Chooses the mode, maps the pages, and connects the layers below to those above them. */
#include "account.h"
#include "compat.h"
#include "credit.h"
#include "devices.h"
#include "entries.h"
#include "kernel.h"
#include "layers.h"
#include "lending.h"
#include "meter.h"
#include "pools.h"
#include "refusal.h"
#include "watcher.h"

#include <errno.h>
#include <limits.h>
#include <stdio.h>
#include <stdlib.h>
#include <unistd.h>

#ifndef VCUDA_REQUIRE_FILE
#define VCUDA_REQUIRE_FILE "/etc/gpucloud/require-limits"
#endif

/* Map the pages of the claim; return SHIM_ACTIVE, or SHIM_REFUSED with the reason noted. */
static int open_pages(const char *directory)
{
    char path[PATH_MAX];
    struct vcuda_limits *limits;
    struct vcuda_usage *usage;
    int error = -ENAMETOOLONG;
    if (snprintf(path, sizeof path, "%s/" VCUDA_LIMITS_FILE, directory) < (int)sizeof path)
        error = vcuda_limits_open(path, 0, &limits);
    if (error) {
        refusal_note_page(path, error);
        return SHIM_REFUSED;
    }
    snprintf(path, sizeof path, "%s/" VCUDA_USAGE_FILE, directory);
    error = vcuda_usage_open(path, 1, &usage);
    if (error) {
        vcuda_limits_unmap(limits);
        refusal_note_page(path, error);
        return SHIM_REFUSED;
    }
    snprintf(path, sizeof path, "%s/" VCUDA_TURNS_FILE, directory);
    shim_set_pages(limits, usage, path);
    return SHIM_ACTIVE;
}

/* Choose the mode. A program that names a claim runs under its limits or not at all, since tenants can damage pages. */
static int choose_mode(void)
{
    const char *directory = getenv(VCUDA_CLAIM_DIR_ENV);
    if (directory && *directory)
        return open_pages(directory);
    if (access(VCUDA_REQUIRE_FILE, F_OK) == 0) {
        refusal_note_required(VCUDA_REQUIRE_FILE);
        return SHIM_REFUSED;
    }
    int mode = compat_prepare(&directory);
    return mode == SHIM_ACTIVE ? open_pages(directory) : mode;
}

/* Forget everything of the parent above the process's state, in a forked child. */
static void forget_parent(void)
{
    devices_forget();
    table_forget(&table_blocks);
    pools_forget();
    vmm_forget();
    contexts_forget();
    captures_forget();
    kernel_forget();
    lending_forget();
    meter_forget_all();
    watcher_forget();
}

const struct shim_callbacks shim_callbacks = {
    .choose_mode = choose_mode,
    .start_watcher = watcher_start,
    .forget_parent = forget_parent,
    .lower_credit = credit_lower,
    .uses_mps = devices_use_mps,
    .cuda_entries = entries_cuda,
    .nvml_entries = entries_nvml,
};
