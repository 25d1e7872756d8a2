/* nvidia-cuda-mps-control and nvidia-cuda-mps-server of the simulated machine: one program under two names.
 *
 *     nvidia-cuda-mps-control -f [-multiuser-server]      the control daemon, in the foreground
 *     echo COMMAND | nvidia-cuda-mps-control              quit, get_server_list, get_server_status PID
 *
 * The daemon listens at `control` in CUDA_MPS_PIPE_DIRECTORY and starts a server when the first client asks for one. A
 * server ends with its daemon, and its clients' connections with it. A fatal fault of one client is told to all; the server
 * then takes no new client until the last of them has gone, as NVIDIA's documentation says of theirs.
 *
 * Without -multiuser-server a server belongs to the user of its first client; NVIDIA's daemon lets another user's client
 * wait until that server has no client left, this one refuses it. */
#include "mps.h"

#include <errno.h>
#include <libgen.h>
#include <limits.h>
#include <poll.h>
#include <signal.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <sys/prctl.h>
#include <sys/socket.h>
#include <sys/stat.h>
#include <sys/un.h>
#include <sys/wait.h>
#include <time.h>
#include <unistd.h>

/* As many clients as one GPU of compute capability 7.0 and later can have. */
#define MOST_CLIENTS 48

static const char *pipe_directory, *log_directory;
static int multiuser;
static pid_t server_pid;
static uid_t server_uid;
static volatile sig_atomic_t ended;

static void on_signal(int number)
{
    (void)number;
    ended = 1;
}

static const char *directory_of(const char *name, const char *otherwise)
{
    const char *value = getenv(name);
    return value && *value ? value : otherwise;
}

static void note(const char *file, const char *words, long number)
{
    char path[PATH_MAX];
    snprintf(path, sizeof path, "%s/%s", log_directory, file);
    FILE *log = fopen(path, "ae");
    if (log) {
        fprintf(log, "[%ld %d] %s %ld\n", (long)time(NULL), (int)getpid(), words, number);
        fclose(log);
    }
}

static int listen_at(const char *name)
{
    struct sockaddr_un address = {.sun_family = AF_UNIX};
    int fd = socket(AF_UNIX, SOCK_STREAM | SOCK_CLOEXEC, 0);
    if (snprintf(address.sun_path, sizeof address.sun_path, "%s/%s", pipe_directory, name) >=
        (int)sizeof address.sun_path)
        return -1;
    unlink(address.sun_path);
    if (bind(fd, (void *)&address, sizeof address) || chmod(address.sun_path, 0666) || listen(fd, 64))
        return -1;
    return fd;
}

/* ---- The server ---- */

struct server {
    struct pollfd fds[MOST_CLIENTS + 2]; /* the daemon, the socket, then clients; -1: a free place */
    int faulty;
};

static int count_clients(const struct server *s)
{
    int n = 0;
    for (int i = 2; i < MOST_CLIENTS + 2; i++)
        n += s->fds[i].fd >= 0;
    return n;
}

static void admit(struct server *s, int fd)
{
    char line[SIM_MPS_LINE];
    int place = 2;
    while (place < MOST_CLIENTS + 2 && s->fds[place].fd >= 0)
        place++;
    if (!sim_mps_hear(fd, line) || strcmp(line, SIM_MPS_CLIENT) != 0 || s->faulty || place == MOST_CLIENTS + 2) {
        sim_mps_say(fd, s->faulty ? SIM_MPS_FAULT : SIM_MPS_ACTIVE);
        close(fd);
        return;
    }
    sim_mps_say(fd, SIM_MPS_ACTIVE);
    s->fds[place].fd = fd;
}

static void hear_client(struct server *s, int place)
{
    char line[SIM_MPS_LINE];
    if (sim_mps_hear(s->fds[place].fd, line)) {
        note("server.log", "A client had a fatal fault; clients:", count_clients(s));
        for (int i = 2; i < MOST_CLIENTS + 2; i++)
            if (s->fds[i].fd >= 0)
                sim_mps_say(s->fds[i].fd, SIM_MPS_FAULT);
        s->faulty = 1;
        return;
    }
    close(s->fds[place].fd);
    s->fds[place].fd = -1;
    if (!count_clients(s))
        s->faulty = 0;
}

static int serve(const char *daemon)
{
    struct server s = {0};
    char name[32];
    snprintf(name, sizeof name, "server-%d", (int)getpid());
    for (int i = 0; i < MOST_CLIENTS + 2; i++)
        s.fds[i] = (struct pollfd){.fd = -1, .events = POLLIN};
    s.fds[0].fd = atoi(daemon);
    s.fds[1].fd = listen_at(name);
    if (s.fds[1].fd < 0)
        return 1;
    note("server.log", "Server has started", 0);
    /* The daemon waits for this. */
    sim_mps_say(s.fds[0].fd, name);
    while (!ended) {
        if (poll(s.fds, MOST_CLIENTS + 2, -1) < 0)
            continue;
        if (s.fds[0].revents)
            break; /* the daemon has ended */
        for (int i = 2; i < MOST_CLIENTS + 2; i++)
            if (s.fds[i].fd >= 0 && s.fds[i].revents)
                hear_client(&s, i);
        if (s.fds[1].revents)
            admit(&s, accept4(s.fds[1].fd, NULL, NULL, SOCK_CLOEXEC));
    }
    return 0;
}

/* ---- The control daemon ---- */

static int server_lives(void)
{
    if (server_pid && waitpid(server_pid, NULL, WNOHANG) == server_pid) {
        note("control.log", "A server has exited:", server_pid);
        server_pid = 0;
    }
    return server_pid != 0;
}

/* Start a server; return the end of the connection by which it sees the daemon's end, < 0 if it does not come. */
static int start_server(uid_t uid)
{
    int pair[2];
    char path[PATH_MAX], number[16], line[SIM_MPS_LINE];
    ssize_t length = readlink("/proc/self/exe", path, sizeof path - 32);
    if (length < 0 || socketpair(AF_UNIX, SOCK_STREAM | SOCK_CLOEXEC, 0, pair))
        return -1;
    path[length] = 0;
    snprintf(strrchr(path, '/') + 1, 32, "nvidia-cuda-mps-server");
    server_pid = fork();
    if (!server_pid) {
        int kept = dup(pair[1]); /* without close-on-exec */
        snprintf(number, sizeof number, "%d", kept);
        execl(path, path, number, (char *)NULL);
        _exit(127);
    }
    close(pair[1]);
    server_uid = uid;
    note("control.log", "Starting new server for user", (long)uid);
    return sim_mps_hear(pair[0], line) ? pair[0] : -1;
}

static void answer_client(int fd)
{
    static int kept = -1;
    char line[SIM_MPS_LINE];
    struct ucred peer;
    socklen_t size = sizeof peer;
    getsockopt(fd, SOL_SOCKET, SO_PEERCRED, &peer, &size);
    note("control.log", "New client from user", (long)peer.uid);
    uid_t uid = multiuser ? getuid() : peer.uid;
    if (!server_lives()) {
        if (kept >= 0)
            close(kept);
        kept = start_server(uid);
    }
    if (server_uid != uid || !server_lives()) {
        sim_mps_say(fd, "not ready");
        return;
    }
    snprintf(line, sizeof line, "server server-%d", (int)server_pid);
    sim_mps_say(fd, line);
}

static void answer_status(int fd, const char *pid)
{
    char name[32], line[SIM_MPS_LINE];
    snprintf(name, sizeof name, "server-%.16s", pid);
    int server = sim_mps_dial(pipe_directory, name);
    int heard = server >= 0 && sim_mps_say(server, SIM_MPS_STATUS) && sim_mps_hear(server, line);
    sim_mps_say(fd, !heard ? "No such server" : !strcmp(line, SIM_MPS_FAULT) ? "FAULT" : "ACTIVE");
    if (server >= 0)
        close(server);
}

static void answer(int fd)
{
    char line[SIM_MPS_LINE];
    if (!sim_mps_hear(fd, line))
        return;
    if (!strcmp(line, SIM_MPS_CLIENT))
        answer_client(fd);
    else if (!strcmp(line, "quit"))
        ended = 1;
    else if (!strncmp(line, "get_server_status ", 18))
        answer_status(fd, line + 18);
    else if (!strcmp(line, "get_server_list") && server_lives()) {
        snprintf(line, sizeof line, "%d", (int)server_pid);
        sim_mps_say(fd, line);
    }
}

static int control(void)
{
    char path[PATH_MAX];
    int other = sim_mps_dial(pipe_directory, "control");
    if (other >= 0) {
        fputs("An instance of this daemon is already running\n", stderr);
        return 1;
    }
    mkdir(pipe_directory, 0755);
    mkdir(log_directory, 0755);
    int fd = listen_at("control");
    if (fd < 0) {
        fprintf(stderr, "Cannot listen in %s: %s\n", pipe_directory, strerror(errno));
        return 1;
    }
    note("control.log", "Starting control daemon; multi-user:", multiuser);
    while (!ended) {
        struct pollfd waiting = {.fd = fd, .events = POLLIN};
        if (poll(&waiting, 1, 200) > 0) {
            int client = accept4(fd, NULL, NULL, SOCK_CLOEXEC);
            answer(client);
            close(client);
        }
        server_lives();
    }
    if (server_pid)
        kill(server_pid, SIGTERM);
    snprintf(path, sizeof path, "%s/control", pipe_directory);
    unlink(path);
    return 0;
}

static int command(void)
{
    char line[SIM_MPS_LINE], heard[SIM_MPS_LINE];
    while (fgets(line, sizeof line, stdin)) {
        line[strcspn(line, "\n")] = 0;
        int fd = sim_mps_dial(pipe_directory, "control");
        if (fd < 0) {
            fputs("Cannot find MPS control daemon process\n", stderr);
            return 1;
        }
        sim_mps_say(fd, line);
        while (sim_mps_hear(fd, heard))
            puts(heard);
        close(fd);
    }
    return 0;
}

int main(int argc, char **argv)
{
    struct sigaction action = {.sa_handler = on_signal};
    int foreground = 0;
    pipe_directory = directory_of(SIM_MPS_PIPE_ENV, "/tmp/nvidia-mps");
    log_directory = directory_of("CUDA_MPS_LOG_DIRECTORY", "/var/log/nvidia-mps");
    sigaction(SIGTERM, &action, NULL);
    sigaction(SIGINT, &action, NULL);
    if (!strcmp(basename(argv[0]), "nvidia-cuda-mps-server"))
        return argc == 2 ? serve(argv[1]) : 2;
    for (int i = 1; i < argc; i++) {
        foreground |= !strcmp(argv[i], "-f");
        multiuser |= !strcmp(argv[i], "-multiuser-server");
        if (strcmp(argv[i], "-f") != 0 && strcmp(argv[i], "-multiuser-server") != 0) {
            fprintf(stderr, "Unknown option: %s\n", argv[i]);
            return 1;
        }
    }
    return foreground ? control() : command();
}
