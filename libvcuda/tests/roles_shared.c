/* A role that does what it is told, line by line, with memory that several processes hold: it makes, exports, hands on,
 * imports, maps and releases. Handles, descriptors and mappings have numbers, 0 to 7. */
#include "shared.h"
#include "tenant.h"

#include <dlfcn.h>
#include <errno.h>
#include <fcntl.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <sys/socket.h>
#include <sys/un.h>
#include <sys/wait.h>
#include <unistd.h>

#define MOST 8

static struct tenant tenant;
static CUhandle handles[MOST];
static size_t sizes[MOST], mapped[MOST], described[MOST]; /* of handles, mappings, descriptors */
static CUdeviceptr mappings[MOST], block;
static int descriptors[MOST], letters = -1;
static pid_t child;

static CUresult make(int i, size_t bytes)
{
    CUallocationProp prop = {.type = 1, .handle_types = CU_HANDLE_TYPE_FD, .location = {CU_LOCATION_DEVICE, 0}};
    sizes[i] = bytes;
    return cuda.cuMemCreate(&handles[i], bytes, &prop, 0);
}

static CUresult export_to(int i, int j)
{
    described[j] = sizes[i];
    return cuda.cuMemExportToShareableHandle(&descriptors[j], handles[i], CU_HANDLE_TYPE_FD, 0);
}

static CUresult import_from(int i, int j)
{
    sizes[i] = described[j];
    return cuda.cuMemImportFromShareableHandle(&handles[i], (void *)(intptr_t)descriptors[j], CU_HANDLE_TYPE_FD);
}

static CUresult map(int i)
{
    mapped[i] = sizes[i];
    CUresult error = cuda.cuMemAddressReserve(&mappings[i], sizes[i], 0, 0, 0);
    return error ? error : cuda.cuMemMap(mappings[i], sizes[i], 0, handles[i], 0);
}

static CUresult unmap(int i)
{
    CUresult error = cuda.cuMemUnmap(mappings[i], mapped[i]);
    return error ? error : cuda.cuMemAddressFree(mappings[i], mapped[i]);
}

static struct sockaddr_un address_of(const char *name)
{
    struct sockaddr_un address = {.sun_family = AF_UNIX};
    snprintf(address.sun_path, sizeof address.sun_path, "%s/../party-%s", getenv(VCUDA_CLAIM_DIR_ENV), name);
    return address;
}

static int listen_as(const char *name)
{
    struct sockaddr_un address = address_of(name);
    letters = socket(AF_UNIX, SOCK_DGRAM | SOCK_CLOEXEC, 0);
    return bind(letters, (struct sockaddr *)&address, sizeof address) ? errno : 0;
}

union control {
    struct cmsghdr header;
    char room[CMSG_SPACE(sizeof(int))];
};

/* A descriptor to the one who listens by that name; `size`, of the memory behind it, goes with it. */
static int send_to(const char *name, int fd, size_t size)
{
    struct sockaddr_un address = address_of(name);
    struct iovec text = {&size, sizeof size};
    union control control = {0};
    struct msghdr message = {&address, sizeof address, &text, 1, control.room, sizeof control.room, 0};
    control.header = (struct cmsghdr){CMSG_LEN(sizeof fd), SOL_SOCKET, SCM_RIGHTS};
    memcpy(CMSG_DATA(&control.header), &fd, sizeof fd);
    return sendmsg(letters, &message, 0) < 0 ? errno : 0;
}

static int receive(int *fd, size_t *size)
{
    struct iovec text = {size, sizeof *size};
    union control control = {0};
    struct msghdr message = {NULL, 0, &text, 1, control.room, sizeof control.room, 0};
    if (recvmsg(letters, &message, MSG_CMSG_CLOEXEC) < 0)
        return errno;
    memcpy(fd, CMSG_DATA(&control.header), sizeof *fd);
    return 0;
}

/* A child that holds the same descriptors and does nothing. */
static int fork_child(void)
{
    child = fork();
    if (child == 0)
        for (;;)
            pause();
    return child < 0;
}

static int end_child(void)
{
    kill(child, SIGKILL);
    return waitpid(child, NULL, 0) != child;
}

/* Plain memory until there is no more; says how much. */
static CUresult fill(void)
{
    double got = 0;
    CUresult error;
    while (!(error = cuda.cuMemAlloc_v2(&block, 32 * MIB)))
        got += 32;
    say("got", got);
    return error;
}

/* Make, export, close and release, again and again; says how often it went. */
static CUresult churn(size_t bytes, int times)
{
    CUresult error = CUDA_SUCCESS;
    int done = 0;
    for (; !error && done < times; done++) {
        error = make(0, bytes);
        error = error ? error : cuda.cuMemExportToShareableHandle(&descriptors[0], handles[0], CU_HANDLE_TYPE_FD, 0);
        if (error)
            break;
        close(descriptors[0]);
        error = cuda.cuMemRelease(handles[0]);
    }
    say("done", done);
    return error;
}

/* ---- The older way: a handle of 64 bytes, which goes by a file ---- */

struct ipc_handle {
    char bytes[64];
};

static FILE *ipc_file(const char *mode)
{
    char path[400];
    snprintf(path, sizeof path, "%s/../party-ipc", getenv(VCUDA_CLAIM_DIR_ENV));
    return fopen(path, mode);
}

static int ipc_get(void)
{
    CUresult (*get)(struct ipc_handle *, CUdeviceptr) = tenant_find("cuIpcGetMemHandle");
    struct ipc_handle handle;
    CUresult error = get ? get(&handle, block) : CUDA_ERROR_NOT_SUPPORTED;
    FILE *file = error ? NULL : ipc_file("we");
    if (!file)
        return error ? (int)error : errno;
    fwrite(&handle, sizeof handle, 1, file);
    return fclose(file);
}

static int ipc_open(void)
{
    CUresult (*open_handle)(CUdeviceptr *, struct ipc_handle, unsigned) = tenant_find("cuIpcOpenMemHandle_v2");
    struct ipc_handle handle;
    FILE *file = open_handle ? ipc_file("re") : NULL;
    if (!file)
        return CUDA_ERROR_NOT_SUPPORTED;
    size_t read_one = fread(&handle, sizeof handle, 1, file);
    fclose(file);
    return read_one ? (int)open_handle(&mappings[0], handle, 1) : -1;
}

static int ipc_close(void)
{
    CUresult (*close_handle)(CUdeviceptr) = tenant_find("cuIpcCloseMemHandle");
    return close_handle ? (int)close_handle(mappings[0]) : CUDA_ERROR_NOT_SUPPORTED;
}

/* A pool, handed on by a descriptor. */
static int pool_export(int j)
{
    CUpoolProps props = {.type = 1, .handle_types = CU_HANDLE_TYPE_FD, .location = {CU_LOCATION_DEVICE, 0}};
    CUmemoryPool pool;
    CUresult (*create)(CUmemoryPool *, const CUpoolProps *) = tenant_find("cuMemPoolCreate");
    CUresult error = create(&pool, &props);
    CUresult (*export)(void *, CUmemoryPool, int, unsigned long long) = tenant_find("cuMemPoolExportToShareableHandle");
    return error ? error : export(&descriptors[j], pool, CU_HANDLE_TYPE_FD, 0);
}

static int pool_import(int j)
{
    CUmemoryPool pool;
    CUresult (*import)(CUmemoryPool *, void *, int, unsigned long long) =
        tenant_find("cuMemPoolImportFromShareableHandle");
    return import(&pool, (void *)(intptr_t)descriptors[j], CU_HANDLE_TYPE_FD, 0);
}

/* The descriptors that are not the test's own, as a daemon closes them. */
static int close_all(void)
{
    for (int i = 0; i < MOST; i++)
        descriptors[i] = -1;
    return close_range(100, ~0u, 0);
}

static int obey_memory(const char *what, int i, int j)
{
    if (!strcmp(what, "make"))
        return make(i, (size_t)j * MIB);
    if (!strcmp(what, "export"))
        return export_to(i, j);
    if (!strcmp(what, "import"))
        return import_from(i, j);
    if (!strcmp(what, "map"))
        return map(i);
    if (!strcmp(what, "unmap"))
        return unmap(i);
    if (!strcmp(what, "release"))
        return cuda.cuMemRelease(handles[i]);
    if (!strcmp(what, "take"))
        return cuda.cuMemAlloc_v2(&block, (size_t)i * MIB);
    if (!strcmp(what, "manage"))
        return cuda.cuMemAllocManaged(&block, (size_t)i * MIB, 1);
    if (!strcmp(what, "give"))
        return cuda.cuMemFree_v2(block);
    if (!strcmp(what, "fill"))
        return fill();
    return strcmp(what, "churn") ? -1 : churn((size_t)i * MIB, j);
}

static int obey(const char *what, int i, int j, const char *name)
{
    if (!strcmp(what, "listen"))
        return listen_as(name);
    if (!strcmp(what, "send"))
        return send_to(name, descriptors[i], described[i]);
    if (!strcmp(what, "receive"))
        return receive(&descriptors[i], &described[i]);
    if (!strcmp(what, "close"))
        return i >= 0 ? close(descriptors[i]) : 0;
    if (!strcmp(what, "dup"))
        return (descriptors[j] = dup(descriptors[i])) < 0;
    if (!strcmp(what, "fork"))
        return fork_child();
    if (!strcmp(what, "unfork"))
        return end_child();
    if (!strcmp(what, "closeall"))
        return close_all();
    if (!strcmp(what, "ipcget"))
        return ipc_get();
    if (!strcmp(what, "ipcopen"))
        return ipc_open();
    if (!strcmp(what, "ipcclose"))
        return ipc_close();
    if (!strcmp(what, "poolexport"))
        return pool_export(i);
    if (!strcmp(what, "poolimport"))
        return pool_import(i);
    return obey_memory(what, i, j);
}

int role_shared(int argc, char **argv)
{
    char line[128], what[16], name[16];
    if (argc < 1 || strcmp(argv[0], "shared"))
        return -1;
    say("error", tenant_begin(&tenant));
    step("begun");
    FILE *orders = fopen(getenv(SHARED_ORDERS_ENV), "re");
    while (orders && fgets(line, sizeof line, orders)) {
        int i = 0, j = 0;
        *name = 0;
        if (sscanf(line, "%15s %d %d", what, &i, &j) == 1)
            sscanf(line, "%*s %15s", name);
        else
            sscanf(line, "%*s %*d %15s", name);
        if (!strcmp(what, "exit"))
            return 0;
        say("error", obey(what, i, j, name));
        step(what);
    }
    return 1;
}
