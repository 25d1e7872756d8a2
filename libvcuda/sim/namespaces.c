/* Processes of other pid namespaces: containers, as the machine's own NVML sees them.
 *
 * A process writes its number in its own namespace and which that is. Whoever reads it from a namespace around that one
 * finds the process in /proc under another number. From the machine's first namespace all can be seen: what is not in /proc
 * has ended. From within a container nothing can be said of the others.
 */
#include "node.h"
#include "pages.h"

#include <ctype.h>
#include <dirent.h>
#include <errno.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <sys/stat.h>

/* PROC_PID_INIT_INO of the kernel: the first pid namespace. */
#define FIRST_NAMESPACE 0xeffffffcull

/* The process's number in its innermost namespace; 0: that is its number here; SIM_PID_UNKNOWN: it may not be read. */
static uint32_t inner_pid(const char *number)
{
    char path[300], line[300];
    uint32_t inner = SIM_PID_UNKNOWN;
    snprintf(path, sizeof path, "/proc/%s/status", number);
    FILE *file = fopen(path, "re");
    if (!file)
        return errno == ENOENT || errno == ESRCH ? 0 : SIM_PID_UNKNOWN;
    while (inner == SIM_PID_UNKNOWN && fgets(line, sizeof line, file)) {
        if (strncmp(line, "NSpid:\t", 7) != 0)
            continue;
        char *last = strrchr(line, '\t');
        inner = last == line + 6 ? 0 : (uint32_t)strtoul(last, NULL, 10);
    }
    fclose(file);
    return inner;
}

/* Return 1 if it lives in another namespace; 0 if that is not permitted to know: number and start are the same then. */
static int is_elsewhere(const char *number, uint64_t pidns)
{
    char path[300];
    struct stat st;
    snprintf(path, sizeof path, "/proc/%s/ns/pid", number);
    return stat(path, &st) == 0 && (uint32_t)st.st_ino != pidns;
}

uint32_t sim_pid_here(uint32_t pid, uint64_t pidns, uint64_t start_time)
{
    struct dirent *entry;
    uint32_t found = 0;
    if (pidns == pages_pidns())
        return pages_start_time(pid) == start_time ? pid : 0;
    DIR *proc = opendir("/proc");
    int is_all = proc && pages_pidns() == FIRST_NAMESPACE;
    while (proc && !found && (entry = readdir(proc))) {
        if (!isdigit((unsigned char)entry->d_name[0]))
            continue;
        uint32_t here = (uint32_t)strtoul(entry->d_name, NULL, 10), inner = inner_pid(entry->d_name);
        is_all &= inner != SIM_PID_UNKNOWN;
        if (inner == pid && pages_start_time(here) == start_time && !is_elsewhere(entry->d_name, pidns))
            found = here;
    }
    if (proc)
        closedir(proc);
    return found || is_all ? found : SIM_PID_UNKNOWN;
}
