/* A client of MPS, as far as the tests need one.
 *
 * The real driver decides in cuInit, too: a program that finds no control daemon at CUDA_MPS_PIPE_DIRECTORY runs without
 * MPS. The connection to the server stays open; its end is the server's. What the real server does for its clients' work is
 * not simulated: their kernels take turns on the virtual GPU like everyone's, whatever CUDA_MPS_ACTIVE_THREAD_PERCENTAGE. */
#include "mps.h"

#include "process.h"

#include <errno.h>
#include <fcntl.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <sys/socket.h>
#include <unistd.h>

/* Of the server; < 0: no client of one. */
static int server = -1;
static CUresult error;

CUresult sim_mps_connect(void)
{
    const char *directory = getenv(SIM_MPS_PIPE_ENV);
    char line[SIM_MPS_LINE], name[SIM_MPS_LINE];
    int control = directory && *directory ? sim_mps_dial(directory, "control") : -1;
    if (server >= 0)
        close(server); /* the parent's, before this process was forked */
    server = -1;
    error = CUDA_SUCCESS;
    if (control < 0)
        return CUDA_SUCCESS;
    int answered = sim_mps_say(control, SIM_MPS_CLIENT) && sim_mps_hear(control, line);
    close(control);
    if (!answered || sscanf(line, "server %100s", name) != 1)
        return CUDA_ERROR_MPS_SERVER_NOT_READY;
    server = sim_mps_dial(directory, name);
    if (server >= 0 && sim_mps_say(server, SIM_MPS_CLIENT) && sim_mps_hear(server, line) &&
        !strcmp(line, SIM_MPS_ACTIVE)) {
        sim_saved.self->mps = 1;
        return CUDA_SUCCESS;
    }
    if (server >= 0)
        close(server);
    server = -1;
    return CUDA_ERROR_MPS_SERVER_NOT_READY;
}

int sim_mps_is_client(void)
{
    return server >= 0;
}

CUresult sim_mps_error(void)
{
    char word[sizeof SIM_MPS_FAULT];
    if (__builtin_expect(server < 0, 1))
        return CUDA_SUCCESS;
    CUresult known = __atomic_load_n(&error, __ATOMIC_RELAXED);
    if (known)
        return known;
    ssize_t got = recv(server, word, sizeof word, MSG_PEEK | MSG_DONTWAIT);
    if (got < 0)
        return CUDA_SUCCESS;
    known = got ? CUDA_ERROR_LAUNCH_FAILED : CUDA_ERROR_MPS_RPC_FAILURE;
    __atomic_store_n(&error, known, __ATOMIC_RELAXED);
    return known;
}

void sim_mps_fault(void)
{
    if (server >= 0)
        sim_mps_say(server, SIM_MPS_FAULT);
}
