/* Lookup: how programs come to hold our entries.
 *
 * A program finds the driver's functions through dlsym, through cuGetProcAddress, or by being linked to libcuda. For the
 * last, our own symbols of the same names come first. For the others we ask the real lookup with exactly the caller's
 * arguments and then replace by pointer identity: an answer that is an entry we stand before becomes ours, any other is
 * returned untouched. So versions, per-thread-stream variants and entries newer than this file need no rules here.
 *
 * dlsym itself is interposed without a version, which satisfies references to any of glibc's versions of it. For names that
 * are not the driver's it is a tail call: RTLD_NEXT keeps the caller that it counts from.
 */
#include "real.h"

#include "shim.h"

#include <dlfcn.h>
#include <string.h>

struct real_cuda real;
struct real_nvml real_nvml;

struct pair {
    const char *name;
    void **found;
    void *hook;
};

#define HOOK(name) {#name, (void **)&real.name, (void *)name},
#define CALL(name) {#name, (void **)&real.name, NULL},
static const struct pair cuda_pairs[] = {HOOKED_CUDA(HOOK) CALLED_CUDA(CALL)};
#undef HOOK
#undef CALL
#define HOOK(name) {#name, (void **)&real_nvml.name, (void *)name},
#define CALL(name) {#name, (void **)&real_nvml.name, NULL},
static const struct pair nvml_pairs[] = {HOOKED_NVML(HOOK) CALLED_NVML(CALL)};

#define COUNT(array) (sizeof(array) / sizeof *(array))

typedef void *dlsym_function(void *handle, const char *name);
static dlsym_function *real_dlsym;

static dlsym_function *find_real_dlsym(void)
{
    /* The versions under which glibc has had it: 2.34 and later, x86-64 before, aarch64 before. */
    static const char *const versions[] = {"GLIBC_2.34", "GLIBC_2.2.5", "GLIBC_2.17"};
    for (size_t i = 0; i < COUNT(versions) && !real_dlsym; i++)
        __atomic_store_n(&real_dlsym, (dlsym_function *)dlvsym(RTLD_NEXT, "dlsym", versions[i]), __ATOMIC_RELEASE);
    return real_dlsym;
}

static int find_all(const struct pair *pairs, size_t count, const char *library, int load, int *ready)
{
    if (__atomic_load_n(ready, __ATOMIC_ACQUIRE))
        return 1;
    dlsym_function *find = find_real_dlsym();
    void *handle = dlopen(library, RTLD_LAZY | RTLD_NOLOAD);
    if (!handle && load)
        handle = dlopen(library, RTLD_LAZY);
    if (!handle || !find)
        return 0;
    /* Two threads may both do this; they write the same values. The handle stays open: the entries stay valid. */
    for (size_t i = 0; i < count; i++)
        *pairs[i].found = find(handle, pairs[i].name);
    __atomic_store_n(ready, 1, __ATOMIC_RELEASE);
    return 1;
}

int real_cuda_ready(int load)
{
    static int ready;
    return find_all(cuda_pairs, COUNT(cuda_pairs), "libcuda.so.1", load, &ready);
}

int real_nvml_ready(int load)
{
    static int ready;
    return find_all(nvml_pairs, COUNT(nvml_pairs), "libnvidia-ml.so.1", load, &ready);
}

static void *hook_in(const struct pair *pairs, size_t count, void *found)
{
    for (size_t i = 0; i < count; i++)
        if (*pairs[i].found == found && pairs[i].hook)
            return pairs[i].hook;
    return found;
}

void *real_hook_of(void *found)
{
    if (!found || shim_mode() == SHIM_INERT)
        return found;
    if (real_cuda_ready(0)) {
        void *hook = hook_in(cuda_pairs, COUNT(cuda_pairs), found);
        if (hook != found)
            return hook;
    }
    return real_nvml_ready(0) ? hook_in(nvml_pairs, COUNT(nvml_pairs), found) : found;
}

static int is_upper(char c)
{
    return c >= 'A' && c <= 'Z';
}

static int is_driver_name(const char *name)
{
    if (name[0] == 'c' && name[1] == 'u')
        return is_upper(name[2]);
    return strncmp(name, "nvml", 4) == 0 && is_upper(name[4]);
}

__attribute__((visibility("default"), noinline)) void *dlsym(void *restrict handle, const char *restrict name)
{
    dlsym_function *find = __atomic_load_n(&real_dlsym, __ATOMIC_ACQUIRE);
    if (!find)
        find = find_real_dlsym();
    if (!find)
        return NULL;
    if (!is_driver_name(name))
        return find(handle, name);
    return real_hook_of(find(handle, name));
}

CUresult cuGetProcAddress(const char *symbol, void **function, int version, uint64_t flags)
{
    NEED_REAL(cuGetProcAddress);
    CUresult result = real.cuGetProcAddress(symbol, function, version, flags);
    if (!result && function)
        *function = real_hook_of(*function);
    return result;
}

CUresult cuGetProcAddress_v2(const char *symbol, void **function, int version, uint64_t flags, int *status)
{
    NEED_REAL(cuGetProcAddress_v2);
    CUresult result = real.cuGetProcAddress_v2(symbol, function, version, flags, status);
    if (!result && function)
        *function = real_hook_of(*function);
    return result;
}
