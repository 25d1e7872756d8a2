/* A wall clock that is off by what a file says: preloaded into every part of a platform under test.
 *
 * CLOCK_OFFSETS names a file of two 64-bit numbers of seconds: the first is for the agents, the second for all else.
 * CLOCK_MONOTONIC stays the machine's, as when a real clock is set. */
#define _GNU_SOURCE
#include <dlfcn.h>
#include <fcntl.h>
#include <stdint.h>
#include <stdlib.h>
#include <string.h>
#include <sys/mman.h>
#include <sys/time.h>
#include <time.h>
#include <unistd.h>

static int (*machines)(clockid_t, struct timespec *);
static const volatile int64_t *offset;

static int is_agent(void) {
    static const char agent[] = "-m\0agent\0";
    char command[4096];
    int file = open("/proc/self/cmdline", O_RDONLY | O_CLOEXEC);
    ssize_t length = file < 0 ? 0 : read(file, command, sizeof command);
    if (file >= 0)
        close(file);
    return length > 0 && memmem(command, (size_t)length, agent, sizeof agent - 1) != NULL;
}

__attribute__((constructor)) static void start(void) {
    const char *path = getenv("CLOCK_OFFSETS");
    int file = path ? open(path, O_RDONLY | O_CLOEXEC) : -1;
    if (file < 0)
        return;
    void *page = mmap(NULL, 2 * sizeof *offset, PROT_READ, MAP_SHARED, file, 0);
    close(file);
    if (page != MAP_FAILED)
        offset = (const volatile int64_t *)page + (is_agent() ? 0 : 1);
}

int clock_gettime(clockid_t clock, struct timespec *now) {
    if (!machines)
        machines = (int (*)(clockid_t, struct timespec *))dlsym(RTLD_NEXT, "clock_gettime");
    int result = machines(clock, now);
    if (result == 0 && offset && (clock == CLOCK_REALTIME || clock == CLOCK_REALTIME_COARSE))
        now->tv_sec += *offset;
    return result;
}

int gettimeofday(struct timeval *restrict now, void *restrict zone) {
    struct timespec precise;
    (void)zone;
    clock_gettime(CLOCK_REALTIME, &precise);
    now->tv_sec = precise.tv_sec;
    now->tv_usec = precise.tv_nsec / 1000;
    return 0;
}

time_t time(time_t *also) {
    struct timespec now;
    clock_gettime(CLOCK_REALTIME, &now);
    if (also)
        *also = now.tv_sec;
    return now.tv_sec;
}
