/* See claims.h. */
#include "claims.h"

#include <dirent.h>
#include <errno.h>
#include <fcntl.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <sys/stat.h>
#include <unistd.h>

static void claim_free_turns(struct claim *claim)
{
    for (uint32_t i = 0; i < VCUDA_MAX_GPUS; i++)
        if (__atomic_load_n(&claim->turns->turn[i].ends_ns, __ATOMIC_SEQ_CST) != VCUDA_TURN_FREE)
            vcuda_turns_set(claim->turns, i, VCUDA_TURN_FREE, 0);
}

/* Open the claim's usage page. The tenant may replace the file, so FIFOs and links are refused. */
static void open_usage(int directory_fd, struct claim *claim)
{
    char path[300];
    struct stat st;
    snprintf(path, sizeof path, "%s/" VCUDA_USAGE_FILE, claim->name);
    if (fstatat(directory_fd, path, &st, AT_SYMLINK_NOFOLLOW) != 0 || !S_ISREG(st.st_mode))
        return;
    if (claim->usage_fd >= 0 && st.st_ino == claim->usage_inode)
        return;
    int fd = openat(directory_fd, path, O_RDONLY | O_CLOEXEC | O_NOFOLLOW | O_NONBLOCK);
    if (fd < 0 || fstat(fd, &st) != 0 || !S_ISREG(st.st_mode)) {
        if (fd >= 0)
            close(fd);
        return;
    }
    claim->usage_inode = st.st_ino;
    if (claim->usage_fd < 0) {
        __atomic_store_n(&claim->usage_fd, fd, __ATOMIC_RELEASE);
        return;
    }
    /* The descriptor's number stays the same, so that a thread that is about to read from it reads the new file. */
    dup3(fd, claim->usage_fd, O_CLOEXEC);
    close(fd);
}

static int map_pages(int directory_fd, struct claim *claim)
{
    char path[400];
    /* The pages library takes paths; this one leads through the open directory. */
    snprintf(path, sizeof path, "/proc/self/fd/%d/%s/" VCUDA_LIMITS_FILE, directory_fd, claim->name);
    int error = vcuda_limits_open(path, 0, &claim->limits);
    if (error)
        return error;
    snprintf(path, sizeof path, "/proc/self/fd/%d/%s/" VCUDA_TURNS_FILE, directory_fd, claim->name);
    error = vcuda_turns_create(path, &claim->turns);
    if (error)
        vcuda_limits_unmap(claim->limits);
    return error;
}

/* Map the claim's pages. A directory that is being created has no page yet, so every scan tries again. */
static int adopt(int directory_fd, struct claim *claim)
{
    int error = map_pages(directory_fd, claim);
    if (!error) {
        /* Undo turns that an earlier arbiter gave. */
        claim_free_turns(claim);
        vcuda_turns_heartbeat(claim->turns);
        return 1;
    }
    claim->limits = NULL;
    if (error != -ENOENT && error != -ENOTDIR && !claim->complained++)
        fprintf(stderr, "vcuda-arbiter: claim %s is given no turns: its pages cannot be used: %s\n", claim->name,
                strerror(-error));
    return 0;
}

static struct claim *meet(struct claim **claims, const char *name, ino_t inode)
{
    struct claim *claim = calloc(1, sizeof *claim);
    if (!claim)
        return NULL;
    snprintf(claim->name, sizeof claim->name, "%s", name);
    claim->directory = inode;
    claim->usage_fd = -1;
    claim->references = 1;
    for (int i = 0; i < VCUDA_MAX_PROCESSES; i++)
        claim->watched[i].pidfd = -1;
    claim->next = *claims;
    return *claims = claim;
}

struct claim *claim_hold(struct claim *claim)
{
    __atomic_fetch_add(&claim->references, 1, __ATOMIC_SEQ_CST);
    return claim;
}

void claim_drop(struct claim *claim)
{
    if (__atomic_sub_fetch(&claim->references, 1, __ATOMIC_SEQ_CST) > 0)
        return;
    if (claim->limits) {
        vcuda_limits_unmap(claim->limits);
        vcuda_turns_unmap(claim->turns);
    }
    if (claim->usage_fd >= 0)
        close(claim->usage_fd);
    free(claim);
}

static struct claim *find(struct claim *claims, const char *name, ino_t inode)
{
    while (claims && (claims->directory != inode || strcmp(claims->name, name) != 0))
        claims = claims->next;
    return claims;
}

/* Remove the claims that the last scan did not see. */
static int forget_gone(struct claim **claims)
{
    int changed = 0;
    for (struct claim **at = claims; *at;) {
        struct claim *claim = *at;
        if (!claim->unseen) {
            at = &claim->next;
            continue;
        }
        *at = claim->next;
        __atomic_store_n(&claim->gone, 1, __ATOMIC_SEQ_CST);
        processes_unwatch(claim);
        claim_drop(claim);
        changed++;
    }
    return changed;
}

void claims_leave(struct claim **claims)
{
    for (struct claim *claim = *claims; claim; claim = claim->next) {
        claim->unseen = 1;
        if (claim->limits)
            claim_free_turns(claim);
    }
    forget_gone(claims);
}

int claims_scan(int directory_fd, struct claim **claims)
{
    int changed = 0, fd = openat(directory_fd, ".", O_RDONLY | O_DIRECTORY | O_CLOEXEC);
    DIR *directory = fd >= 0 ? fdopendir(fd) : NULL;
    if (!directory)
        return -errno;
    for (struct claim *claim = *claims; claim; claim = claim->next)
        claim->unseen = 1;
    for (struct dirent *entry; (entry = readdir(directory));) {
        if (entry->d_name[0] == '.' || (entry->d_type != DT_DIR && entry->d_type != DT_UNKNOWN))
            continue;
        struct claim *claim = find(*claims, entry->d_name, entry->d_ino);
        if (!claim && !(claim = meet(claims, entry->d_name, entry->d_ino)))
            continue;
        claim->unseen = 0;
        if (!claim->limits)
            changed += adopt(directory_fd, claim);
        if (claim->limits)
            open_usage(directory_fd, claim);
    }
    closedir(directory);
    return changed + forget_gone(claims);
}
