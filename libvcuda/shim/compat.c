/* A private claim, where nobody created one: limits set by environment variables (settings.c) become a private pair of
 * pages, and from then on everything works as under an agent. Processes of one user with the same settings share the
 * pages, if they see the same file system. An agent's page always wins: GPUCLOUD_CLAIM_DIR and a required page take
 * precedence. */
#include "compat.h"

#include "devices.h"
#include "real.h"
#include "settings.h"

#include <errno.h>
#include <fcntl.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <sys/file.h>
#include <sys/stat.h>
#include <unistd.h>

static struct setting settings[VCUDA_MAX_GPUS];
static char directory[200]; /* empty: no limits by environment */
static char complaint[300];

/* FNV-1a: only tells settings apart. */
static uint64_t hash_settings(void)
{
    uint64_t hash = 0xcbf29ce484222325ull;
    for (int i = 0; i < VCUDA_MAX_GPUS; i++) {
        uint64_t words[] = {settings[i].memory_bytes, settings[i].core_request, settings[i].core_limit};
        for (size_t b = 0; b < sizeof words; b++)
            hash = (hash ^ ((const uint8_t *)words)[b]) * 0x100000001b3ull;
    }
    return hash;
}

static void make_uid(uint8_t uid[16])
{
    uint64_t words[2] = {hash_settings(), VCUDA_ABI_VERSION};
    memcpy(uid, words, 16);
}

/* Create a folder that belongs to this user alone: /dev/shm is writable for everybody, so another user may have been
 * there first. */
static int make_folder(const char *parent)
{
    struct stat st;
    int n = snprintf(directory, sizeof directory, "%s/gpucloud-limits-%u-%u-%016llx", parent, VCUDA_ABI_VERSION,
                     (unsigned)geteuid(), (unsigned long long)hash_settings());
    if (n >= (int)sizeof directory || (mkdir(directory, 0700) != 0 && errno != EEXIST))
        return 0;
    return lstat(directory, &st) == 0 && S_ISDIR(st.st_mode) && st.st_uid == geteuid() && !(st.st_mode & 077);
}

static int open_limits(struct vcuda_limits **limits)
{
    char path[sizeof directory + 16];
    uint8_t uid[16];
    make_uid(uid);
    snprintf(path, sizeof path, "%s/" VCUDA_LIMITS_FILE, directory);
    return vcuda_limits_create(path, uid, limits) == 0;
}

static int make_pages(void)
{
    char path[sizeof directory + 16];
    struct vcuda_limits *limits;
    struct vcuda_usage *usage;
    if (!open_limits(&limits))
        return 0;
    vcuda_limits_unmap(limits);
    snprintf(path, sizeof path, "%s/" VCUDA_USAGE_FILE, directory);
    if (vcuda_usage_create(path, &usage) != 0)
        return 0;
    vcuda_usage_unmap(usage);
    return 1;
}

int compat_prepare(const char **claim_directory)
{
    const char *runtime = getenv("XDG_RUNTIME_DIR");
    switch (settings_read(settings, complaint, sizeof complaint)) {
    case SETTINGS_NONE:
        return SHIM_INERT;
    case SETTINGS_UNREADABLE:
        return SHIM_UNUSABLE;
    }
    int made = runtime && *runtime == '/' && make_folder(runtime) && make_pages();
    if (!made && !(make_folder("/dev/shm") && make_pages())) {
        snprintf(complaint, sizeof complaint,
                 "limits are set by environment variables, and neither XDG_RUNTIME_DIR nor "
                 "/dev/shm is a place to keep them");
        *directory = 0;
        return SHIM_UNUSABLE;
    }
    *claim_directory = directory;
    return SHIM_ACTIVE;
}

void compat_complain(void)
{
    static int said;
    if (!__atomic_exchange_n(&said, 1, __ATOMIC_ACQ_REL))
        dprintf(2, "libvcuda: %s; cuInit is refused\n", complaint);
}

/* Return the slot of this GPU; -1: none. */
static int find_slot(const struct vcuda_limits *page, const uint8_t uuid[16])
{
    struct vcuda_limit limit;
    for (uint32_t i = 0; i < VCUDA_MAX_GPUS; i++)
        if (vcuda_limits_get(page, i, &limit) == 0 && limit.state != VCUDA_SLOT_UNUSED &&
            !memcmp(limit.gpu_uuid, uuid, 16))
            return (int)i;
    return -1;
}

/* Return the slot of this GPU; create it unless another process with the same settings did. -1: no room. */
static int add_slot(struct vcuda_limits *page, const uint8_t uuid[16], const struct setting *s)
{
    struct vcuda_limit limit = {
        .generation = 1, .memory_bytes = s->memory_bytes, .core_request = s->core_request, .core_limit = s->core_limit};
    int slot = find_slot(page, uuid);
    if (slot >= 0)
        return slot;
    memcpy(limit.gpu_uuid, uuid, 16);
    slot = vcuda_limits_set(page, &limit);
    return slot < 0 ? -1 : slot;
}

/* Lock the folder, so that two processes that begin at once do not both take the first slot. -1: failed. */
static int lock_folder(void)
{
    int fd = open(directory, O_RDONLY | O_DIRECTORY | O_CLOEXEC), result = fd < 0 ? -1 : 0;
    while (fd >= 0 && (result = flock(fd, LOCK_EX)) != 0 && errno == EINTR)
        ;
    if (result != 0 && fd >= 0)
        close(fd);
    return result ? -1 : fd;
}

/* Add slots for these GPUs; return the slot of the last one, or -1. */
static int add_slots(uint8_t uuid[][16], int count)
{
    struct vcuda_limits *page;
    int fd = lock_folder(), opened = fd >= 0 && open_limits(&page), slot = -1;
    for (int i = 0; opened && i < count; i++) {
        slot = add_slot(page, uuid[i], &settings[i]);
        if (slot < 0)
            break;
    }
    if (opened)
        vcuda_limits_unmap(page);
    if (fd >= 0)
        close(fd);
    return slot;
}

int compat_fill(void)
{
    uint8_t uuid[VCUDA_MAX_GPUS][16];
    int count = 0, known = 0;
    if (!*directory)
        return 1;
    /* Ask the driver before locking, so that the lock is not held while it answers. */
    if (!real.cuDeviceGetCount || real.cuDeviceGetCount(&count))
        return 0;
    for (; known < count && known < VCUDA_MAX_GPUS; known++)
        if (!shim_uuid_of_device(known, uuid[known]))
            return 0;
    return !known || add_slots(uuid, known) >= 0;
}

int compat_slot_of(const uint8_t uuid[16])
{
    uint8_t one[1][16];
    if (!*directory)
        return -1;
    for (int i = 1; i < VCUDA_MAX_GPUS; i++)
        if (memcmp(&settings[i], &settings[0], sizeof settings[0]) != 0)
            return -1;
    memcpy(one[0], uuid, 16);
    return add_slots(one, 1);
}
