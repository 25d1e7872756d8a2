/* The message for a process that is refused CUDA: see refusal.c. */
#ifndef SHIM_REFUSAL_H
#define SHIM_REFUSAL_H

/* Note that this page of the claim cannot be used; `error` is the pages library's. */
void refusal_note_page(const char *path, int error);
/* Note that limits are required here and the program has no claim. */
void refusal_note_required(const char *file);
/* Print one line about the noted reason on standard error, once per process. */
void refusal_print(void);

#endif
