/* Lines over the sockets between the simulated driver and the simulated nvidia-cuda-mps-control. */
#include "mps.h"

#include <errno.h>
#include <stdio.h>
#include <string.h>
#include <sys/socket.h>
#include <sys/un.h>
#include <unistd.h>

int sim_mps_dial(const char *directory, const char *name)
{
    struct sockaddr_un address = {.sun_family = AF_UNIX};
    int fd = socket(AF_UNIX, SOCK_STREAM | SOCK_CLOEXEC, 0);
    int length = snprintf(address.sun_path, sizeof address.sun_path, "%s/%s", directory, name);
    if (fd >= 0 && length < (int)sizeof address.sun_path && !connect(fd, (void *)&address, sizeof address))
        return fd;
    if (fd >= 0)
        close(fd);
    return -1;
}

int sim_mps_say(int fd, const char *line)
{
    char text[SIM_MPS_LINE + 1];
    int length = snprintf(text, sizeof text, "%s\n", line);
    return send(fd, text, (size_t)length, MSG_NOSIGNAL) == length;
}

int sim_mps_hear(int fd, char line[SIM_MPS_LINE])
{
    for (size_t at = 0; at < SIM_MPS_LINE; at++) {
        ssize_t got;
        do
            got = recv(fd, &line[at], 1, 0);
        while (got < 0 && errno == EINTR);
        if (got != 1)
            return 0;
        if (line[at] == '\n') {
            line[at] = 0;
            return 1;
        }
    }
    return 0;
}
