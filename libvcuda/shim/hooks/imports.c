/* Memory of other processes, and memory given to them: counted in the usage page, for whoever suspends the claim.
 *
 * The driver checkpoints a process that has another's memory open, and fails to restore it, for ever (580, H100). One
 * whose memory others have open comes back with a copy of its own, and they keep the old one. So the agent must know
 * before. It says first that the claim is to be suspended, waits until each process has seen that, and reads the counts:
 * a count is raised before the flag is looked at, and whoever finds the flag set waits. */
#include "imports.h"

#include "account.h"
#include "lending.h"

#include <unistd.h>

int imports_begin(void)
{
    if (shim_mode() != SHIM_ACTIVE || !shim_attach())
        return 0;
    for (;;) {
        __atomic_fetch_add(&shim.self->imports, 1, __ATOMIC_SEQ_CST);
        shim_refresh();
        if (!__atomic_load_n(&shim.suspended, __ATOMIC_SEQ_CST))
            return 1;
        imports_end();
        shim_wait_for_resumption();
    }
}

void imports_end(void)
{
    __atomic_fetch_sub(&shim.self->imports, 1, __ATOMIC_SEQ_CST);
}

/* Nobody tells when the last of the others has closed it: it stays counted. */
static int count_export(void)
{
    if (shim_mode() != SHIM_ACTIVE || !shim_attach())
        return 0;
    __atomic_fetch_add(&shim.self->exports, 1, __ATOMIC_SEQ_CST);
    return 1;
}

/* Return 1 if the memory can leave the GPU: another process would keep what was left. Say so once. */
static int may_leave(CUdeviceptr pointer)
{
    static const char line[] =
        "libvcuda: this claim borrows memory, and what it borrows cannot be shared with other processes by "
        "cuIpcGetMemHandle; allocate it from a pool (cuMemAllocAsync), which must fit the claim's memory_request\n";
    static int said;
    CUdeviceptr base;
    uint64_t bytes;
    if (!__atomic_load_n(&shim.lends, __ATOMIC_ACQUIRE) || !lending_finds(pointer, &base, &bytes))
        return 0;
    if (!__atomic_exchange_n(&said, 1, __ATOMIC_ACQ_REL) && write(STDERR_FILENO, line, sizeof line - 1) < 0)
        return 1;
    return 1;
}

CUresult cuIpcGetMemHandle(CUipcHandle *handle, CUdeviceptr pointer)
{
    NEED_REAL(cuIpcGetMemHandle);
    if (may_leave(pointer))
        return CUDA_ERROR_NOT_SUPPORTED;
    int counted = count_export();
    CUresult result = real.cuIpcGetMemHandle(handle, pointer);
    if (counted && result)
        __atomic_fetch_sub(&shim.self->exports, 1, __ATOMIC_SEQ_CST);
    return result;
}

#define EXPORT(name, params, call)                                                                                     \
    CUresult name params                                                                                               \
    {                                                                                                                  \
        NEED_REAL(name);                                                                                               \
        int counted = count_export();                                                                                  \
        CUresult result = real.name call;                                                                              \
        if (counted && result)                                                                                         \
            __atomic_fetch_sub(&shim.self->exports, 1, __ATOMIC_SEQ_CST);                                              \
        return result;                                                                                                 \
    }
EXPORT(cuMemExportToShareableHandle, (void *shareable, CUhandle handle, int type, unsigned long long flags),
       (shareable, handle, type, flags))
EXPORT(cuMemPoolExportToShareableHandle, (void *shareable, CUmemoryPool pool, int type, unsigned long long flags),
       (shareable, pool, type, flags))

/* An import that is counted until it is closed. The end of its context closes it, too, and is not seen: the process then
 * counts as one that has it open. */
#define IMPORT(name, params, call)                                                                                     \
    CUresult name params                                                                                               \
    {                                                                                                                  \
        NEED_REAL(name);                                                                                               \
        int counted = imports_begin();                                                                                 \
        CUresult result = real.name call;                                                                              \
        if (counted && result)                                                                                         \
            imports_end();                                                                                             \
        return result;                                                                                                 \
    }
IMPORT(cuIpcOpenMemHandle, (CUdeviceptr * pointer, CUipcHandle handle, unsigned flags), (pointer, handle, flags))
IMPORT(cuIpcOpenMemHandle_v2, (CUdeviceptr * pointer, CUipcHandle handle, unsigned flags), (pointer, handle, flags))
/* For the process's life: its memory may outlive the pool. */
IMPORT(cuMemPoolImportFromShareableHandle, (CUmemoryPool * pool, void *shareable, int type, unsigned long long flags),
       (pool, shareable, type, flags))

CUresult cuIpcCloseMemHandle(CUdeviceptr pointer)
{
    NEED_REAL(cuIpcCloseMemHandle);
    CUresult result = real.cuIpcCloseMemHandle(pointer);
    if (!result && shim_mode() == SHIM_ACTIVE && __atomic_load_n(&shim.self, __ATOMIC_ACQUIRE))
        imports_end();
    return result;
}
