/* Why CUDA is refused to this process: see refusal.c. */
#ifndef SHIM_REFUSAL_H
#define SHIM_REFUSAL_H

/* Note that this page of the claim cannot be used; `error` as the pages library returns it. */
void refusal_note_page(const char *path, int error);
/* Note that limits are required here and the program has no claim. */
void refusal_note_required(const char *file);
/* Write one line about what was noted to standard error, once per process. */
void refusal_print(void);

#endif
