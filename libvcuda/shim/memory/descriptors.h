/* The open files to which memory is exported; see descriptors.c. The only call to the driver here is the close of its
 * descriptors. */
#ifndef SHIM_DESCRIPTORS_H
#define SHIM_DESCRIPTORS_H

#include <stdint.h>
#include <sys/types.h>

/* Watch the open file of a descriptor without holding it. Return its key, the same for all descriptors of it that are
 * watched by the same number; 0: it cannot be watched. */
uint64_t descriptors_watch(int fd);
/* Call `alive` for each watched file that is still open in some process. Return 0 if that is unknown. */
int descriptors_scan(void (*alive)(uint64_t key));
/* Return 1 for a key from before the program closed the descriptors of the set: whether its file is open will never be
 * known. */
int descriptors_is_lost(uint64_t key);

/* Return a descriptor of our own for the same open file, out of the program's way; -1: there is no room for it. */
int descriptors_keep(int fd);
void descriptors_let_go(int kept);

/* Return the process that pays for the memory that the open file holds, as kept by the kernel: a pid of this namespace,
 * or 0 once it has ended. */
pid_t descriptors_payer(int fd);
int descriptors_set_payer(int fd, pid_t pid); /* 0: failed */

/* In a forked child: close the parent's kept descriptors, as they would hold the parent's memory. */
void descriptors_forget(void);

#endif
