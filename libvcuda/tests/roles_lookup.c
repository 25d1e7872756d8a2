/* Roles about lookup: each way to hold an entry of the driver. Each prints `name value` lines. */
#include "harness.h"
#include "real.h"
#include "tenant.h"

#include <dlfcn.h>
#include <stdio.h>
#include <string.h>

/* A program built against an old glibc asks for dlsym by its old version. */
void *older_dlsym(void *handle, const char *name);
#ifdef __x86_64__
#define OLDER_VERSION "GLIBC_2.2.5"
__asm__(".symver older_dlsym,dlsym@GLIBC_2.2.5");
#else
#define OLDER_VERSION "GLIBC_2.17"
void *older_dlsym(void *handle, const char *name)
{
    return dlsym(handle, name);
}
#endif

typedef CUresult allocate_function(CUdeviceptr *pointer, size_t bytes);

/* One gigabyte more than any limit used here, by the allocation function under test. */
static void try_big(const char *name, void *allocate)
{
    CUdeviceptr p;
    CUresult error = allocate ? ((allocate_function *)allocate)(&p, 6 * GIB) : -1;
    say(name, error);
    if (!error)
        cuda.cuMemFree_v2(p);
}

typedef void *dlsym_function(void *handle, const char *name);

/* A tracer that is preloaded behind us defines an entry itself, and asks what comes after it. */
static void tracer_next(void *library)
{
    typedef void *next_function(const char *name);
    next_function *next = (next_function *)dlsym(RTLD_DEFAULT, "tracer_next");
    void *entry = next ? next("cuMemAlloc_v2") : NULL;
    Dl_info info;
    say("tracer", next != NULL);
    if (next && entry && dladdr(entry, &info) && !strstr(info.dli_fname, "tracer"))
        try_big("tracer_next", entry);
    say("library", library != NULL);
}

static int lookup(void)
{
    struct tenant tenant;
    if (tenant_begin(&tenant))
        return 1;
    void *library = dlopen("libcuda.so.1", RTLD_NOW | RTLD_GLOBAL), *found = NULL;
    int status;
    try_big("dlsym_handle", dlsym(library, "cuMemAlloc_v2"));
    try_big("dlsym_default", dlsym(RTLD_DEFAULT, "cuMemAlloc_v2"));
    /* The same lookup by the name's older version in glibc, and by a dlsym that was looked up itself. */
    try_big("dlsym_older", older_dlsym(library, "cuMemAlloc_v2"));
    dlsym_function *found_dlsym = (dlsym_function *)dlsym(dlopen("libc.so.6", RTLD_NOW), "dlsym");
    try_big("dlsym_looked_up", found_dlsym ? found_dlsym(library, "cuMemAlloc_v2") : NULL);
    found_dlsym = (dlsym_function *)dlvsym(RTLD_DEFAULT, "dlsym", OLDER_VERSION);
    try_big("dlvsym_looked_up", found_dlsym ? found_dlsym(library, "cuMemAlloc_v2") : NULL);
    try_big("dlsym_next", dlsym(RTLD_NEXT, "cuMemAlloc_v2"));
    tracer_next(library);
    cuda.cuGetProcAddress_v2("cuMemAlloc", &found, 12000, 0, &status);
    try_big("proc_address", found);
    __typeof__(cuGetProcAddress) *first = dlsym(library, "cuGetProcAddress");
    found = NULL;
    first("cuMemAlloc", &found, 11030, 0);
    try_big("proc_address_first", found);
    found = NULL;
    cuda.cuGetProcAddress_v2("cuGetProcAddress", &found, 13000, 0, &status);
    __typeof__(cuGetProcAddress_v2) *inner = (__typeof__(inner))found;
    found = NULL;
    inner("cuMemAlloc", &found, 13000, 0, &status);
    try_big("proc_address_of_itself", found);
    /* A name that is not the driver's: RTLD_NEXT must still count from this program. */
    void *next = dlsym(RTLD_NEXT, "malloc"), *libc = dlsym(dlopen("libc.so.6", RTLD_NOW), "malloc");
    say("next_works", next != NULL && libc != NULL);
    found = (void *)1;
    say("unknown_name", cuda.cuGetProcAddress_v2("cuNoSuchThing", &found, 13000, 0, &status) != 0 || !found);
    say("unhooked_untouched", dlsym(library, "cuStreamCreate") != NULL);
    return 0;
}

/* ---- Every entry that we stand before, by every way ---- */

static const char *const cuda_names[] = {
#define NAME(name) #name,
    HOOKED_CUDA(NAME)};
static const char *const nvml_names[] = {HOOKED_NVML(NAME)};
#undef NAME
#define COUNT(array) (sizeof(array) / sizeof *(array))

static int is_ours(void *entry)
{
    Dl_info info;
    return dladdr(entry, &info) && strstr(info.dli_fname, "libvcuda.so") != NULL;
}

struct tally {
    int ours, absent, theirs;
};

static void count(struct tally *tally, void *entry)
{
    if (!entry)
        tally->absent++;
    else if (is_ours(entry))
        tally->ours++;
    else
        tally->theirs++;
}

static void say_tally(const char *way, const struct tally *t)
{
    char line[64];
    snprintf(line, sizeof line, "%s_ours", way);
    say(line, t->ours);
    snprintf(line, sizeof line, "%s_absent", way);
    say(line, t->absent);
    snprintf(line, sizeof line, "%s_theirs", way);
    say(line, t->theirs);
}

typedef void *find_function(void *where, const char *name);

static void try_names(const char *way, const char *const *names, size_t n, find_function *find, void *where)
{
    struct tally tally = {0};
    for (size_t i = 0; i < n; i++)
        count(&tally, find(where, names[i]));
    say_tally(way, &tally);
}

static void *find_default(void *where, const char *name)
{
    (void)where;
    return dlsym(RTLD_DEFAULT, name);
}

static void *find_next(void *where, const char *name)
{
    (void)where;
    return dlsym(RTLD_NEXT, name);
}

/* The name that cuGetProcAddress knows an entry by: without a version, and without its stream's suffix. */
static void base_of(const char *name, char base[96])
{
    snprintf(base, 96, "%s", name);
    size_t n = strlen(base);
    if (n > 5 && (!strcmp(base + n - 5, "_ptsz") || !strcmp(base + n - 5, "_ptds")))
        base[n -= 5] = 0;
    if (n > 3 && base[n - 3] == '_' && base[n - 2] == 'v')
        base[n - 3] = 0;
}

/* Through both versions of cuGetProcAddress, with each kind of stream, for old programs and new. */
static void try_proc_address(void *library)
{
    static const int versions[] = {4000, 11030, 12000, 12050, 12080, 13000, 13020};
    struct tally first = {0}, second = {0};
    __typeof__(cuGetProcAddress) *old = dlsym(library, "cuGetProcAddress");
    __typeof__(cuGetProcAddress_v2) *new = dlsym(library, "cuGetProcAddress_v2");
    for (size_t i = 0; i < COUNT(cuda_names); i++)
        for (size_t v = 0; v < COUNT(versions); v++)
            for (uint64_t flags = 0; flags <= 2; flags++) {
                char base[96];
                int status;
                void *found = NULL;
                base_of(cuda_names[i], base);
                if (old)
                    count(&first, old(base, &found, versions[v], flags) ? NULL : found);
                found = NULL;
                if (new)
                    count(&second, new (base, &found, versions[v], flags, &status) ? NULL : found);
            }
    say_tally("proc_address", &first);
    say_tally("proc_address_v2", &second);
}

/* What the driver itself has, found by a program that nothing stands before. */
static int names(void)
{
    void *cuda_library = dlopen("libcuda.so.1", RTLD_NOW | RTLD_GLOBAL);
    void *nvml_library = dlopen("libnvidia-ml.so.1", RTLD_NOW | RTLD_GLOBAL);
    if (!cuda_library || !nvml_library)
        return 1;
    try_names("handle", cuda_names, COUNT(cuda_names), dlsym, cuda_library);
    try_names("older", cuda_names, COUNT(cuda_names), older_dlsym, cuda_library);
    try_names("default", cuda_names, COUNT(cuda_names), find_default, NULL);
    try_names("next", cuda_names, COUNT(cuda_names), find_next, NULL);
    try_names("nvml_handle", nvml_names, COUNT(nvml_names), dlsym, nvml_library);
    try_names("nvml_default", nvml_names, COUNT(nvml_names), find_default, NULL);
    try_proc_address(cuda_library);
    say("hooks", COUNT(cuda_names));
    return 0;
}

/* A program that looks whether there is a driver before it opens one. */
static int without_driver(void)
{
    say("cu_init", dlsym(RTLD_DEFAULT, "cuInit") != NULL);
    say("nvml_memory", dlsym(RTLD_DEFAULT, "nvmlDeviceGetMemoryInfo") != NULL);
    return 0;
}

int role_lookup(int argc, char **argv)
{
    if (argc && !strcmp(argv[0], "lookup"))
        return lookup();
    if (argc && !strcmp(argv[0], "names"))
        return names();
    if (argc && !strcmp(argv[0], "without_driver"))
        return without_driver();
    return -1;
}
