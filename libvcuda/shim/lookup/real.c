/* Lookup: programs must find our entries instead of the driver's.
 *
 * A program finds the driver's functions through dlsym, through cuGetProcAddress, or by being linked to libcuda. In the
 * last case our own symbols of the same names come first. In the others we call the real lookup with exactly the
 * caller's arguments, and replace its result by pointer identity: an entry that we hook becomes ours, and any other
 * result is returned unchanged. So versions, per-thread-stream variants and entries newer than this file need no rules
 * here.
 *
 * dlsym and dlvsym are interposed without a version, which satisfies references to any of glibc's versions of them. For
 * names that are not the driver's they are tail calls, so that RTLD_NEXT sees the original caller. A program that looks
 * up the address of dlsym itself gets ours too.
 *
 * A program may load a second copy of the driver: into a link namespace of its own (dlmopen), or from another file. It
 * has other addresses, and a state of its own. Its entries are recognised by their names, and the first copy serves all
 * of them, including those that we do not hook: otherwise half of the calls would name contexts that the other copy
 * does not know. Lookups by other libraries inside another namespace do not pass here; the agent's audit finds their
 * use. */
#include "real.h"

#include "layers.h"
#include "shim.h"
#include "symbols.h"

#include <dlfcn.h>
#include <string.h>

struct real_cuda real;
struct real_nvml real_nvml;

struct pair {
    const char *name;
    void **found;
};

/* The hooked entries come first, in the order of the callback tables. */
#define PAIR(name) {#name, (void **)&real.name},
static const struct pair cuda_pairs[] = {HOOKED_CUDA(PAIR) CALLED_CUDA(PAIR)};
#undef PAIR
#define PAIR(name) {#name, (void **)&real_nvml.name},
static const struct pair nvml_pairs[] = {HOOKED_NVML(PAIR) CALLED_NVML(PAIR)};
#define ONE(name) +1
enum { CUDA_HOOKS = HOOKED_CUDA(ONE), NVML_HOOKS = HOOKED_NVML(ONE) };

#define COUNT(array) (sizeof(array) / sizeof *(array))

typedef void *dlsym_function(void *handle, const char *name);
typedef void *dlvsym_function(void *handle, const char *name, const char *version);
static dlsym_function *real_dlsym;
static dlvsym_function *real_dlvsym;

static dlsym_function *find_real_dlsym(void)
{
    if (!__atomic_load_n(&real_dlsym, __ATOMIC_ACQUIRE)) {
        __atomic_store_n(&real_dlvsym, (dlvsym_function *)symbols_next(&real_dlsym, "dlvsym"), __ATOMIC_RELEASE);
        __atomic_store_n(&real_dlsym, (dlsym_function *)symbols_next(&real_dlsym, "dlsym"), __ATOMIC_RELEASE);
    }
    return real_dlsym;
}

static void *open_library(const char *library, int load)
{
    void *handle = dlopen(library, RTLD_LAZY | RTLD_NOLOAD);
    return handle || !load ? handle : dlopen(library, RTLD_LAZY);
}

static int find_all(const struct pair *pairs, size_t count, const char *library, int load, int *ready)
{
    if (__atomic_load_n(ready, __ATOMIC_ACQUIRE))
        return 1;
    dlsym_function *find = find_real_dlsym();
    void *handle = open_library(library, load);
    if (!handle || !find)
        return 0;
    /* Two threads may both do this; they write the same values. The handle stays open, so that the entries stay
     * valid. */
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

static void *hook_in(const struct pair *pairs, void *const *entries, size_t count, void *found)
{
    for (size_t i = 0; i < count; i++)
        if (*pairs[i].found == found)
            return entries[i];
    return found;
}

void *real_hook_of(void *found)
{
    if (!found || shim_mode() == SHIM_INERT)
        return found;
    if (real_cuda_ready(0)) {
        void *hook = hook_in(cuda_pairs, shim_callbacks.cuda_entries, CUDA_HOOKS, found);
        if (hook != found)
            return hook;
    }
    return real_nvml_ready(0) ? hook_in(nvml_pairs, shim_callbacks.nvml_entries, NVML_HOOKS, found) : found;
}

static int is_entry_in(void *const *entries, size_t count, const void *entry)
{
    for (size_t i = 0; i < count; i++)
        if (entries[i] == entry)
            return 1;
    return 0;
}

static int is_upper(char c)
{
    return c >= 'A' && c <= 'Z';
}

/* Return 1 for names whose result may have to be replaced: the driver's, and those of the lookup functions. */
static int is_ours(const char *name)
{
    if (name[0] == 'd' && name[1] == 'l')
        return symbols_same(name, "dlsym") || symbols_same(name, "dlvsym");
    if (name[0] == 'c' && name[1] == 'u')
        return is_upper(name[2]);
    return name[0] == 'n' && name[1] == 'v' && name[2] == 'm' && name[3] == 'l' && is_upper(name[4]);
}

static const struct {
    const char *named, *soname;
} drivers[] = {{"libcuda.so", "libcuda.so.1"}, {"libnvidia-ml.so", "libnvidia-ml.so.1"}};

/* Return 1 for a copy of a driver other than the one that `real` was filled from, and for anything in another
 * namespace. */
static int is_other_copy(void *handle)
{
    if (symbols_elsewhere(handle))
        return 1;
    const char *soname = symbols_soname(handle);
    for (size_t i = 0; i < COUNT(drivers); i++)
        if (symbols_begins(soname, drivers[i].named))
            return open_library(drivers[i].soname, 0) != handle;
    return 0;
}

/* Return the program's result for a symbol that was found by such a handle. */
static void *answer_by_name(void *found, const char *name)
{
    const char *path, *soname = symbols_soname_at(found, &path);
    if (shim_mode() == SHIM_INERT)
        return found;
    if (name[0] == 'd') {
        /* Another C library's dlsym: lookups by the program through it must pass here too. */
        int is_lookup = symbols_begins(soname, "libc.so") || symbols_begins(soname, "libdl.so");
        void *ours = symbols_same(name, "dlsym") ? (void *)dlsym : (void *)dlvsym;
        return is_lookup ? ours : found;
    }
    for (size_t i = 0; i < COUNT(drivers); i++) {
        if (!symbols_begins(soname, drivers[i].named))
            continue;
        void *first = open_library(drivers[i].soname, 1);
        if (!first)
            first = open_library(path, 1);
        return first ? real_hook_of(real_dlsym(first, name)) : NULL;
    }
    return found;
}

/* Return the program's result for a symbol that the real lookup found when called from here. From here RTLD_NEXT begins
 * after us. A library after us that looks up a name that it defines itself means the next definition after itself. */
static void *replace_result(void *found, void *handle, const char *name, const void *caller)
{
    if (found && handle != RTLD_DEFAULT && handle != RTLD_NEXT && is_other_copy(handle))
        return answer_by_name(found, name);
    if (found && handle == RTLD_NEXT && symbols_behind(&real_dlsym, caller))
        found = symbols_next(caller, name);
    /* Our own symbol came first in the program's scope: find the one that the program would get without libvcuda. */
    if (is_entry_in(shim_callbacks.cuda_entries, CUDA_HOOKS, found) ||
        is_entry_in(shim_callbacks.nvml_entries, NVML_HOOKS, found))
        found = real_dlsym(RTLD_NEXT, name);
    if (found == (void *)real_dlsym)
        return shim_mode() == SHIM_INERT ? found : (void *)dlsym;
    if (found == (void *)real_dlvsym)
        return shim_mode() == SHIM_INERT ? found : (void *)dlvsym;
    return real_hook_of(found);
}

__attribute__((visibility("default"), noinline)) void *dlsym(void *restrict handle, const char *restrict name)
{
    dlsym_function *find = __atomic_load_n(&real_dlsym, __ATOMIC_ACQUIRE);
    if (!find)
        find = find_real_dlsym();
    if (!find)
        return NULL;
    if (!is_ours(name))
        return find(handle, name);
    return replace_result(find(handle, name), handle, name, __builtin_return_address(0));
}

__attribute__((visibility("default"), noinline)) void *dlvsym(void *restrict handle, const char *restrict name,
                                                              const char *restrict version)
{
    dlvsym_function *find = __atomic_load_n(&real_dlvsym, __ATOMIC_ACQUIRE);
    if (!find && find_real_dlsym())
        find = real_dlvsym;
    if (!find)
        return NULL;
    if (!is_ours(name))
        return find(handle, name, version);
    return replace_result(find(handle, name, version), handle, name, __builtin_return_address(0));
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
