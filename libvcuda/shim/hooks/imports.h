/* Memory that processes share; see imports.c. */
#ifndef HOOKS_IMPORTS_H
#define HOOKS_IMPORTS_H

/* Count a piece of another process's memory before it is opened, waiting while the claim is suspended. Return 0 if nothing
 * is counted. */
int imports_begin(void);
void imports_end(void);

#endif
