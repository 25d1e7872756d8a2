/* The client's side of the simulated MPS: see mps.c. Both sides talk in words of one line over stream sockets. */
#ifndef SIM_MPS_H
#define SIM_MPS_H

#include "driver.h"

#define SIM_MPS_PIPE_ENV "CUDA_MPS_PIPE_DIRECTORY"
#define SIM_MPS_LINE 160
/* A client's words to the control daemon and to a server, and a server's words to a client. */
#define SIM_MPS_CLIENT "client"
#define SIM_MPS_STATUS "status"
#define SIM_MPS_FAULT "fault"
#define SIM_MPS_ACTIVE "active"

/* Connect to an MPS server where CUDA_MPS_PIPE_DIRECTORY names a directory with a living control daemon; without one the
 * program goes on without MPS. Returns CUDA_SUCCESS in both cases; MPS_SERVER_NOT_READY where the server takes no client. */
CUresult sim_mps_connect(void);
/* Return 1 if this process is a client. */
int sim_mps_is_client(void);
/* Return the error that every further call answers: the server has ended, or another client's fault took this one down. */
CUresult sim_mps_error(void);
/* Say that this client's kernel ended by a fatal fault: the server's other clients end with it. */
void sim_mps_fault(void);
/* Make a socket and connect it to this one in a directory; < 0 where nobody listens. */
int sim_mps_dial(const char *directory, const char *name);
/* Send a line; read one, without its end. 0: the other side has gone. */
int sim_mps_say(int fd, const char *line);
int sim_mps_hear(int fd, char line[SIM_MPS_LINE]);

#endif
