/* vcuda-arbiter: one per node. It gives the claims that want the same GPU exclusive turns on it.
 *
 * The main thread scans for claims, handles the ends of processes, and writes a heartbeat to every claim every 100 ms.
 * If the heartbeat stops, libvcuda returns to each claim's own limit within a second. */
#include "gpu.h"

#include <errno.h>
#include <fcntl.h>
#include <getopt.h>
#include <signal.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <sys/epoll.h>
#include <sys/file.h>
#include <sys/mman.h>
#include <sys/signalfd.h>
#include <unistd.h>

enum { EXIT_USAGE = 2, EXIT_TAKEN = 3 };
/* A tenth of the age at which libvcuda takes a heartbeat for stale, so that a busy machine does not make the arbiter
 * look dead. */
#define BEAT_NS 100000000ull
/* The interval while there are no processes: none reads the heartbeat, and a new one is seen before it has a
 * context. */
#define DESERTED_BEAT_NS 250000000ull
#define ROUND_MS 50u
#define ROUND_LEAST_MS 10u
#define ROUND_MOST_MS 1000u

static const char help[] =
    "usage: vcuda-arbiter CLAIMS_DIRECTORY [--round-ms N] [--lock-file FILE]\n"
    "\n"
    "Gives the claims that share a GPU exclusive turns on it, by the limits in their pages. One per node.\n"
    "CLAIMS_DIRECTORY holds one directory per claim, with its `limits` and `usage` pages; `turns` is made there.\n"
    "\n"
    "  --round-ms N      wall time in which everyone has a turn, 10 to 1000; 50 unless set\n"
    "  --lock-file FILE  held while running, so that there is one arbiter; CLAIMS_DIRECTORY.arbiter.lock unless set\n"
    "  --help            this text\n"
    "\n"
    "SIGTERM or SIGINT: every claim is left to its own limit, and the arbiter ends with status 0.\n"
    "Exit status: 0 ended when asked to, 1 failed, 2 wrong usage, 3 another arbiter holds the lock.\n";

struct options {
    const char *directory;
    unsigned round_ms;
    char lock_file[4096];
};

static int fail(const char *what, const char *path)
{
    fprintf(stderr, "vcuda-arbiter: %s %s: %s\n", what, path, strerror(errno));
    return EXIT_FAILURE;
}

static int misused(const char *what)
{
    fprintf(stderr, "vcuda-arbiter: %s; --help tells more\n", what);
    return EXIT_USAGE;
}

static int parse_round(const char *text, unsigned *ms)
{
    char *end;
    unsigned long n = strtoul(text, &end, 10);
    *ms = (unsigned)n;
    return *text >= '0' && *text <= '9' && !*end && n >= ROUND_LEAST_MS && n <= ROUND_MOST_MS;
}

static void default_lock_file(struct options *o)
{
    size_t length = strlen(o->directory);
    while (length > 1 && o->directory[length - 1] == '/')
        length--;
    snprintf(o->lock_file, sizeof o->lock_file, "%.*s.arbiter.lock", (int)length, o->directory);
}

/* Return -1 to continue, else the exit status. */
static int parse_options(int argc, char **argv, struct options *o)
{
    static const struct option known[] = {
        {"round-ms", required_argument, NULL, 'r'},
        {"lock-file", required_argument, NULL, 'l'},
        {"help", no_argument, NULL, 'h'},
        {0},
    };
    *o = (struct options){.round_ms = ROUND_MS};
    for (int c; (c = getopt_long(argc, argv, "h", known, NULL)) != -1;) {
        if (c == 'h') {
            fputs(help, stdout);
            return EXIT_SUCCESS;
        }
        if (c == 'r' && !parse_round(optarg, &o->round_ms))
            return misused("--round-ms takes milliseconds from 10 to 1000");
        if (c == 'l' && (size_t)snprintf(o->lock_file, sizeof o->lock_file, "%s", optarg) >= sizeof o->lock_file)
            return misused("the path of --lock-file is too long");
        if (c == '?')
            return misused("unknown option or missing value");
    }
    if (argc - optind != 1)
        return misused("one CLAIMS_DIRECTORY is needed");
    o->directory = argv[optind];
    if (!*o->lock_file)
        default_lock_file(o);
    return -1;
}

/* Take the lock that ensures a single arbiter. It is released when the process ends, however it ends. */
static int take_lock(const char *path)
{
    int fd = open(path, O_RDWR | O_CREAT | O_CLOEXEC | O_NOFOLLOW, 0600);
    if (fd < 0)
        return fail("cannot open the lock file", path);
    if (flock(fd, LOCK_EX | LOCK_NB) == 0)
        return -1;
    if (errno != EWOULDBLOCK)
        return fail("cannot lock", path);
    fprintf(stderr, "vcuda-arbiter: another arbiter is at work on this directory (it holds %s)\n", path);
    return EXIT_TAKEN;
}

/* Handle SIGBUS from a page that was truncated while mapped. Its directory should be read-only for a tenant, but a
 * tenant who can write there must not end the turns of everyone else: an empty page, in which no GPU has an open slot,
 * replaces it. */
static void replace_page(int signal, siginfo_t *info, void *context)
{
    (void)context;
    uintptr_t size = (uintptr_t)sysconf(_SC_PAGESIZE);
    void *page = (void *)((uintptr_t)info->si_addr & ~(size - 1));
    int flags = MAP_PRIVATE | MAP_ANONYMOUS | MAP_FIXED;
    if (info->si_code != BUS_ADRERR || mmap(page, size, PROT_READ | PROT_WRITE, flags, -1, 0) == MAP_FAILED) {
        struct sigaction fallback = {.sa_handler = SIG_DFL};
        sigaction(signal, &fallback, NULL);
    }
}

static void survive_truncation(void)
{
    struct sigaction action = {.sa_sigaction = replace_page, .sa_flags = SA_SIGINFO | SA_RESTART};
    sigaction(SIGBUS, &action, NULL);
}

/* Create the epoll set for signals and ends of processes; a NULL pointer means a signal. */
static int make_epoll(void)
{
    sigset_t signals;
    sigemptyset(&signals);
    sigaddset(&signals, SIGTERM);
    sigaddset(&signals, SIGINT);
    /* Before any thread starts: threads inherit the mask. */
    sigprocmask(SIG_BLOCK, &signals, NULL);
    int fd = epoll_create1(EPOLL_CLOEXEC), signal_fd = signalfd(-1, &signals, SFD_CLOEXEC | SFD_NONBLOCK);
    struct epoll_event event = {.events = EPOLLIN};
    return fd >= 0 && signal_fd >= 0 && epoll_ctl(fd, EPOLL_CTL_ADD, signal_fd, &event) == 0 ? fd : -1;
}

static void beat(struct claim *claims)
{
    if (!gpus_alive())
        return; /* a thread hangs: without a heartbeat libvcuda follows each claim's own limit */
    for (struct claim *claim = claims; claim; claim = claim->next)
        if (claim->limits)
            vcuda_turns_heartbeat(claim->turns);
}

/* Handle events until then. Return 1 once a signal came. */
static int listen_until(int epoll_fd, uint64_t until)
{
    struct epoll_event events[16];
    for (;;) {
        uint64_t now = pages_clock(CLOCK_MONOTONIC);
        if (now >= until)
            return 0;
        int n = epoll_wait(epoll_fd, events, 16, (int)((until - now) / 1000000) + 1);
        if (n < 0 && errno != EINTR)
            return 1;
        for (int i = 0; i < n; i++) {
            if (!events[i].data.ptr)
                return 1;
            process_ended(events[i].data.ptr);
        }
    }
}

static int run(int directory_fd, int epoll_fd, const struct options *o)
{
    struct claim *claims = NULL;
    int error = 0;
    uint64_t pause;
    do {
        error = claims_scan(directory_fd, &claims);
        gpus_seat(claims, o->round_ms * 1000000ull);
        pause = processes_watch(claims, epoll_fd) ? BEAT_NS : DESERTED_BEAT_NS;
        beat(claims);
    } while (error >= 0 && !listen_until(epoll_fd, pages_clock(CLOCK_MONOTONIC) + pause));
    gpus_stop();
    claims_leave(&claims);
    if (error >= 0)
        return EXIT_SUCCESS;
    errno = -error;
    return fail("cannot read the claims directory", o->directory);
}

int main(int argc, char **argv)
{
    struct options options;
    int status = parse_options(argc, argv, &options);
    if (status >= 0)
        return status;
    int directory_fd = open(options.directory, O_RDONLY | O_DIRECTORY | O_CLOEXEC);
    if (directory_fd < 0)
        return fail("cannot open the claims directory", options.directory);
    status = take_lock(options.lock_file);
    if (status >= 0)
        return status;
    survive_truncation();
    int epoll_fd = make_epoll();
    if (epoll_fd < 0)
        return fail("cannot wait for signals", "");
    return run(directory_fd, epoll_fd, &options);
}
