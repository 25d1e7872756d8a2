/* Of which sources this library is. Its caller's structs are of one state of them only: an older library that is still there
 * would read them wrongly, and refuse everything. */
#include "kernel.h"

uint64_t kernel_sources(void)
{
    return PLACEMENT_SOURCES;
}
