/* Roles about second copies of the driver, by dlmopen or from another file. Each prints `name value` lines. */
#include "harness.h"
#include "nvidia_ml.h"
#include "tenant.h"

#include <dlfcn.h>
#include <limits.h>
#include <link.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <unistd.h>

typedef CUresult allocate_function(CUdeviceptr *pointer, size_t bytes);
typedef int count_function(void);
typedef void *dlsym_function(void *handle, const char *name);

/* More than any limit used here. The driver's other entries must know the same context, or it could not be freed. */
static void try_big(const char *name, void *library)
{
    CUdeviceptr p;
    CUresult error = -1;
    allocate_function *allocate = library ? (allocate_function *)dlsym(library, "cuMemAlloc_v2") : NULL;
    __typeof__(cuMemFree_v2) *release = library ? (__typeof__(release))dlsym(library, "cuMemFree_v2") : NULL;
    if (allocate && release && !(error = allocate(&p, 6 * GIB)))
        release(p);
    say(name, error);
}

/* A copy of the driver that nobody has initialised knows no context: the program's own is made current in it first. */
static void prepare(void *library)
{
    CUcontext context;
    __typeof__(cuInit) *init = library ? (__typeof__(init))dlsym(library, "cuInit") : NULL;
    __typeof__(cuDevicePrimaryCtxRetain) *retain = (__typeof__(retain))dlsym(library, "cuDevicePrimaryCtxRetain");
    __typeof__(cuCtxSetCurrent) *set = (__typeof__(set))dlsym(library, "cuCtxSetCurrent");
    if (init && retain && set && !init(0) && !retain(&context, 0))
        set(context);
}

static Lmid_t namespace_of(void *handle)
{
    Lmid_t namespace = LM_ID_BASE;
    dlinfo(handle, RTLD_DI_LMID, &namespace);
    return namespace;
}

static void try_file(const char *name, Lmid_t where, const char *file, int flags)
{
    void *library = dlmopen(where, file, flags);
    if (!library) {
        fprintf(stderr, "%s: %s\n", file, dlerror());
        say(name, -2);
        return;
    }
    prepare(library);
    try_big(name, library);
    dlclose(library);
}

static const char *beside(const char *file)
{
    static char path[PATH_MAX + 64];
    ssize_t n = readlink("/proc/self/exe", path, PATH_MAX - 1);
    path[n > 0 ? n : 0] = 0;
    char *slash = strrchr(path, '/');
    snprintf(slash ? slash : path, 64, "/%s", file);
    return path;
}

static void copy_file(const char *from, const char *to)
{
    char command[2 * PATH_MAX + 16];
    snprintf(command, sizeof command, "cp -L %s %s", from, to);
    unsetenv("LD_PRELOAD");
    if (system(command) != 0)
        perror(command);
}

/* The driver's own file, a link to it that is called otherwise, and a copy of it. */
static void try_paths(void)
{
    Dl_info info;
    char other[PATH_MAX];
    void *base = dlopen("libcuda.so.1", RTLD_NOW);
    if (!dladdr(dlsym(base, "cuDriverGetVersion"), &info))
        return;
    snprintf(other, sizeof other, "%s/libother.so", getenv(VCUDA_CLAIM_DIR_ENV));
    unlink(other);
    if (symlink(info.dli_fname, other))
        perror(other);
    try_file("path", LM_ID_NEWLM, info.dli_fname, RTLD_NOW);
    try_file("link", LM_ID_NEWLM, other, RTLD_NOW);
    unlink(other);
    copy_file(info.dli_fname, other);
    try_file("copy", LM_ID_BASE, other, RTLD_NOW);
    try_file("copy_elsewhere", LM_ID_NEWLM, other, RTLD_NOW);
    unlink(other);
}

/* By what else a namespace's libraries can be asked. */
static void try_others(void)
{
    void *library = dlmopen(LM_ID_NEWLM, "libcuda.so.1", RTLD_NOW), *found = NULL;
    Lmid_t own = namespace_of(library);
    int status;
    say("driver_elsewhere", own != LM_ID_BASE);
    prepare(library);
    __typeof__(cuGetProcAddress_v2) *get = (__typeof__(get))dlsym(library, "cuGetProcAddress_v2");
    get("cuMemAlloc", &found, 12000, 0, &status);
    CUdeviceptr p;
    say("proc_address", found ? ((allocate_function *)found)(&p, 6 * GIB) : -1);
    /* Once as an existing namespace. */
    try_file("existing", own, "libcuda.so.1", RTLD_NOW);
    /* Its C library has a dlsym of its own. */
    dlsym_function *other = (dlsym_function *)dlsym(dlmopen(own, "libc.so.6", RTLD_NOW), "dlsym");
    say("other_dlsym", other ? ((allocate_function *)other(library, "cuMemAlloc_v2"))(&p, 6 * GIB) : -1);
    __typeof__(cuCtxGetCurrent) *current = (__typeof__(current))dlsym(library, "cuCtxGetCurrent");
    CUcontext here = NULL, there = NULL;
    current(&there);
    ((__typeof__(current))tenant_find("cuCtxGetCurrent"))(&here);
    say("same_context", here && here == there);
    dlclose(library);
    void *nvml = dlmopen(LM_ID_NEWLM, "libnvidia-ml.so.1", RTLD_NOW);
    Dl_info info;
    void *memory = nvml ? dlsym(nvml, "nvmlDeviceGetMemoryInfo") : NULL;
    say("nvml_ours", memory && dladdr(memory, &info) && strstr(info.dli_fname, "libvcuda.so"));
    if (nvml)
        dlclose(nvml);
}

/* Libraries that are not the driver stay where the program loads them. */
static void try_untouched(void)
{
    void *here = dlopen(beside("elsewhere.so"), RTLD_NOW);
    void *there = dlmopen(LM_ID_NEWLM, beside("elsewhere.so"), RTLD_NOW);
    count_function *mine = (count_function *)dlsym(here, "elsewhere_count");
    count_function *its = there ? (count_function *)dlsym(there, "elsewhere_count") : NULL;
    mine();
    say("untouched", its && its != mine && its() == 1 && mine() == 2 && namespace_of(there) != LM_ID_BASE);
    void *tracer = dlmopen(LM_ID_NEWLM, beside("tracer.so"), RTLD_NOW);
    Dl_info info;
    void *entry = tracer ? dlsym(tracer, "cuMemAlloc_v2") : NULL;
    say("no_driver", entry && dladdr(entry, &info) && strstr(info.dli_fname, "tracer"));
    say("missing", !dlmopen(LM_ID_NEWLM, "libno-such-thing.so", RTLD_NOW) && dlerror());
    /* There is room for a few namespaces only. */
    if (there && tracer) {
        dlclose(there);
        dlclose(tracer);
    }
    /* What comes with the driver is asked for the driver's entries. */
    void *linked = dlmopen(LM_ID_NEWLM, beside("elsewhere_linked.so"), RTLD_NOW);
    if (linked)
        prepare(linked);
    else
        fprintf(stderr, "linked: %s\n", dlerror());
    try_big("linked", linked);
}

static int namespaces(void)
{
    struct tenant tenant;
    if (tenant_begin(&tenant))
        return 1;
    try_file("soname", LM_ID_NEWLM, "libcuda.so.1", RTLD_NOW);
    try_file("lazy", LM_ID_NEWLM, "libcuda.so.1", RTLD_LAZY | RTLD_LOCAL);
    try_file("deep", LM_ID_NEWLM, "libcuda.so.1", RTLD_NOW | RTLD_DEEPBIND);
    try_file("base", LM_ID_BASE, "libcuda.so.1", RTLD_NOW | RTLD_GLOBAL);
    try_paths();
    try_others();
    try_untouched();
    return 0;
}

/* A program that has no driver of its own before it loads one into a namespace. */
static int namespace_first(void)
{
    void *library = dlmopen(LM_ID_NEWLM, "libcuda.so.1", RTLD_NOW);
    if (!library)
        return 1;
    prepare(library);
    try_big("first", library);
    return 0;
}

/* A library in a namespace of its own opens the driver there, and takes so many bytes until it is killed. */
static void namespace_inside(size_t bytes)
{
    typedef CUresult inner_function(size_t bytes);
    void *library = dlmopen(LM_ID_NEWLM, beside("elsewhere.so"), RTLD_NOW);
    inner_function *allocate = library ? (inner_function *)dlsym(library, "elsewhere_allocate") : NULL;
    say("inside", allocate ? allocate(bytes) : -2);
    for (;;)
        pause();
}

int role_namespaces(int argc, char **argv)
{
    if (argc == 1 && !strcmp(argv[0], "namespaces"))
        return namespaces();
    if (argc == 1 && !strcmp(argv[0], "namespace_first"))
        return namespace_first();
    if (argc == 2 && !strcmp(argv[0], "namespace_inside"))
        namespace_inside(strtoull(argv[1], NULL, 10));
    return -1;
}
