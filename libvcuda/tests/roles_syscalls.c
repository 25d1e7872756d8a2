/* A role that launches, and one that traces another thread's system calls while it does.
 *
 * The launching process marks the stretch that counts by two system calls that nobody else makes (getppid); its tracer stops
 * it at every system call in between. Those of the simulated driver's own locks do not count: they wait on words that lie in
 * its library or in the virtual node, and a real driver has none of them. */
#include "harness.h"
#include "tenant.h"

#include <errno.h>
#include <signal.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <sys/ptrace.h>
#include <sys/syscall.h>
#include <sys/user.h>
#include <sys/wait.h>
#include <unistd.h>

#define WARM_UP 20000

/* Launch kernels of 1 us, `pause_us` apart, so that neither credit nor the driver's queue makes anyone wait. */
static void launch_some(const struct tenant *t, int count, double pause_us)
{
    for (int i = 0; i < count; i++) {
        cuda_spin(t->spin, 1, 1000, t->stream);
        for (double due = now_s() + pause_us * 1e-6; now_s() < due;)
            ;
    }
}

static int launches(int count, double pause_us)
{
    struct tenant t;
    if (tenant_begin(&t))
        return 1;
    launch_some(&t, WARM_UP, pause_us);
    raise(SIGSTOP); /* the tracer attaches */
    syscall(SYS_getppid);
    launch_some(&t, count, pause_us);
    syscall(SYS_getppid);
    return 0;
}

#ifdef __x86_64__

/* The word that a futex call waits on or wakes lies in the simulated driver? */
static int is_the_drivers(pid_t pid, unsigned long address)
{
    char path[64], line[600];
    snprintf(path, sizeof path, "/proc/%d/maps", pid);
    FILE *maps = fopen(path, "re");
    int found = 0;
    char before[600] = "";
    while (maps && !found && fgets(line, sizeof line, maps)) {
        unsigned long from, to;
        if (sscanf(line, "%lx-%lx", &from, &to) == 2 && address >= from && address < to) {
            /* A library's zeroed data has no name, but follows its named parts. */
            const char *named = strchr(line, '/') ? line : before;
            found = strstr(named, "libcuda.so") || strstr(named, "/node");
            break;
        }
        if (strchr(line, '/'))
            snprintf(before, sizeof before, "%s", line);
    }
    if (maps)
        fclose(maps);
    return found;
}

static int counted(pid_t pid, const struct user_regs_struct *r)
{
    return !(r->orig_rax == SYS_futex && is_the_drivers(pid, r->rdi));
}

static void trace(pid_t pid)
{
    int status, inside = 0, entering = 0, counting = 0, calls = 0, last = -1;
    ptrace(PTRACE_SEIZE, pid, NULL, (void *)(long)PTRACE_O_TRACESYSGOOD);
    kill(pid, SIGCONT);
    ptrace(PTRACE_INTERRUPT, pid, NULL, NULL);
    while (waitpid(pid, &status, 0) == pid && WIFSTOPPED(status)) {
        struct user_regs_struct r;
        int is_call = WSTOPSIG(status) == (SIGTRAP | 0x80);
        if (is_call && !ptrace(PTRACE_GETREGS, pid, NULL, &r)) {
            entering = !inside;
            inside = !inside;
            if (entering && r.orig_rax == SYS_getppid)
                counting = !counting;
            else if (entering && counting && counted(pid, &r)) {
                calls++;
                last = (int)r.orig_rax;
            }
        }
        ptrace(PTRACE_SYSCALL, pid, NULL, NULL);
    }
    say("calls", calls);
    say("last", last);
}

/* Start the launching program (with the environment that this one has) and count. */
static int counts_syscalls(char **argv)
{
    int status;
    pid_t pid = fork();
    if (pid == 0) {
        execl("/proc/self/exe", "suite", "--role", "launches", argv[1], argv[2], NULL);
        _exit(127);
    }
    if (waitpid(pid, &status, WUNTRACED) != pid || !WIFSTOPPED(status))
        return 1;
    trace(pid);
    return 0;
}

#else

static int counts_syscalls(char **argv)
{
    (void)argv;
    say("calls", -1);
    return 0;
}

#endif

int role_syscalls(int argc, char **argv)
{
    if (argc == 3 && !strcmp(argv[0], "launches"))
        return launches(atoi(argv[1]), atof(argv[2]));
    if (argc == 3 && !strcmp(argv[0], "counts_syscalls"))
        return counts_syscalls(argv);
    return -1;
}
