/* Limits of control groups on a GPU's memory, as the driver keeps them from r615 on (nvml_limits.c sets them).
 *
 * A group is known by the inode of its directory in the tree of version 2: the kernel gives the number to no other group, and
 * it is the same inside a container that sees a part of the tree. What a process takes counts in the groups in which it was
 * when it came to the GPU, and in all above them, as far as it sees those.
 */
#include "node.h"

#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <sys/stat.h>

#define PATH 512

/* Where the tree of version 2 is mounted, and what of it (proc_pid_mountinfo(5)). 0: nowhere. */
static int find_tree(char mount[PATH], char root[PATH])
{
    char line[2 * PATH + 256];
    FILE *file = fopen("/proc/self/mountinfo", "re");
    int found = 0;
    while (file && !found && fgets(line, sizeof line, file))
        found = strstr(line, " - cgroup2 ") && sscanf(line, "%*s %*s %*s %511s %511s", root, mount) == 2;
    if (file)
        fclose(file);
    return found;
}

/* The calling process's group, below the root of the tree. 0: not told. */
static int read_group(char path[PATH])
{
    char line[PATH + 16];
    FILE *file = fopen("/proc/self/cgroup", "re");
    int found = 0;
    while (file && !found && fgets(line, sizeof line, file)) {
        found = !strncmp(line, "0::/", 4);
        if (found)
            snprintf(path, PATH, "%.*s", (int)strcspn(line + 3, "\n"), line + 3);
    }
    if (file)
        fclose(file);
    return found;
}

void sim_find_groups(uint64_t group[SIM_DEPTH])
{
    char mount[PATH], root[PATH], below[PATH], path[2 * PATH];
    struct stat st;
    memset(group, 0, SIM_DEPTH * sizeof *group);
    if (!find_tree(mount, root) || !read_group(below))
        return;
    size_t skipped = strcmp(root, "/") && !strncmp(below, root, strlen(root)) ? strlen(root) : 0;
    size_t length = (size_t)snprintf(path, sizeof path, "%s%s", mount, below + skipped), least = strlen(mount);
    for (int i = 0; i < SIM_DEPTH && length >= least; i++) {
        path[length] = 0;
        group[i] = stat(path, &st) == 0 ? st.st_ino : 0;
        while (length > least && path[length - 1] != '/')
            length--;
        length--;
    }
}

static int is_below(const struct sim_client *client, uint64_t group)
{
    for (int i = 0; i < SIM_DEPTH; i++)
        if (client->group[i] == group)
            return 1;
    return 0;
}

uint64_t sim_group_used(const struct sim_gpu *gpu, uint64_t group)
{
    uint64_t used = 0;
    for (int i = 0; i < SIM_MAX_CLIENTS; i++)
        if (gpu->client[i].pid && is_below(&gpu->client[i], group))
            used += gpu->client[i].memory_bytes;
    return used;
}

uint64_t sim_group_room(const struct sim_gpu *gpu, const struct sim_client *client, uint64_t *total)
{
    uint64_t room = UINT64_MAX;
    *total = UINT64_MAX;
    for (int i = 0; i < SIM_MAX_LIMITS; i++) {
        const struct sim_limit *limit = &gpu->limit[i];
        if (!limit->group || limit->hard_bytes == SIM_NO_LIMIT || !is_below(client, limit->group))
            continue;
        uint64_t used = sim_group_used(gpu, limit->group);
        uint64_t left = used < limit->hard_bytes ? limit->hard_bytes - used : 0;
        room = left < room ? left : room;
        *total = limit->hard_bytes < *total ? limit->hard_bytes : *total;
    }
    return room;
}

struct sim_limit *sim_limit_of(struct sim_gpu *gpu, uint64_t group, const char *path)
{
    struct sim_limit *vacant = NULL;
    struct stat st;
    for (int i = 0; i < SIM_MAX_LIMITS; i++) {
        struct sim_limit *limit = &gpu->limit[i];
        if (limit->group == group)
            return limit;
        /* With a group its limit goes. */
        int is_gone = limit->group && (stat(limit->path, &st) != 0 || st.st_ino != limit->group);
        if (!vacant && (!limit->group || is_gone))
            vacant = limit;
    }
    if (!path || !vacant)
        return NULL;
    *vacant = (struct sim_limit){.group = group, .hard_bytes = SIM_NO_LIMIT};
    snprintf(vacant->path, sizeof vacant->path, "%s", path);
    return vacant;
}
