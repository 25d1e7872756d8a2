/* The open files to which memory is exported; see descriptors.c. No function here calls the driver but for closing one. */
#ifndef SHIM_DESCRIPTORS_H
#define SHIM_DESCRIPTORS_H

#include <stdint.h>
#include <sys/types.h>

/* Watch the open file behind a descriptor. Returns its key, the same for all descriptors of it that are watched by the same
 * number; 0: it cannot be watched. The file is not held. */
uint64_t descriptors_watch(int fd);
/* Call `alive` for each watched file that is still open somewhere. 0: that cannot be known. */
int descriptors_scan(void (*alive)(uint64_t key));
/* Keys of before the program closed what they were watched by: whether their files are open will never be known. */
int descriptors_is_lost(uint64_t key);

/* A descriptor of our own for the same open file, out of the program's way; -1: there is no room for it. */
int descriptors_keep(int fd);
void descriptors_let_go(int kept);

/* The process that pays for what the open file holds, as the kernel keeps it beside the file: of this pid namespace, and 0
 * once it has ended. */
pid_t descriptors_payer(int fd);
int descriptors_set_payer(int fd, pid_t pid); /* 0: failed */

/* In a forked child: close what the parent kept, or it would hold the parent's memory. */
void descriptors_forget(void);

#endif
