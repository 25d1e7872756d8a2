/* Limits from the environment variables of HAMi-core and vgpu-manager, for development and for migration. HAMi-core's
 * names are tried first; a name with an index takes precedence over the one without, which applies to every GPU.
 *
 *   CUDA_DEVICE_MEMORY_LIMIT[_i]  CUDA_MEM_LIMIT[_i]   bytes, or with k, m, g, t: powers of 1024; 0: none
 *   CUDA_MEM_RATIO[_i]            above 1: the GPU is shown larger by this factor; only its real size can be allocated
 *   CUDA_DEVICE_SM_LIMIT[_i]      CUDA_CORE_LIMIT[_i]  percent; 0: none
 *   CUDA_CORE_SOFT_LIMIT[_i]      percent that may be used while no other claim wants the GPU
 *   GPU_CORE_UTILIZATION_POLICY   DISABLE: no limit by CUDA_DEVICE_SM_LIMIT
 *   CUDA_OVERSUBSCRIBE            ignored: HAMi-core then uses host memory beyond the size of the card
 *
 * None of them gives memory beyond the card (docs/shim.md says why): a limit above the card's size is the card's size.
 *
 * An unreadable value is an error rather than no limit: otherwise a typing error would remove the limit unnoticed.
 */
#include "settings.h"

#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <strings.h>

struct reader {
    char *complaint;
    size_t room;
    int index, found, unreadable;
};

/* Return the value of NAME_i, or else of NAME; NULL if neither is set. `name` becomes the one that was found. */
static const char *value_of(const struct reader *r, char name[64], const char *stem)
{
    snprintf(name, 64, "%s_%d", stem, r->index);
    const char *value = getenv(name);
    if (value && *value && strcmp(value, "0") != 0)
        return value;
    snprintf(name, 64, "%s", stem);
    value = getenv(name);
    return value && *value ? value : NULL;
}

static void complain(struct reader *r, const char *name, const char *value, const char *wanted)
{
    if (!r->unreadable)
        snprintf(r->complaint, r->room, "%s=%s is not %s", name, value, wanted);
    r->unreadable = 1;
}

/* Read digits, optionally with a decimal point. Not strtod, as its decimal point depends on the program's locale. NULL:
 * no number. */
static const char *read_number(const char *at, double *number)
{
    double place = 1;
    int point = 0;
    if (*at < '0' || *at > '9')
        return NULL;
    for (*number = 0; (*at >= '0' && *at <= '9') || (*at == '.' && !point); at++) {
        if (*at == '.') {
            point = 1;
            continue;
        }
        place /= point ? 10 : 1;
        *number = point ? *number + (*at - '0') * place : *number * 10 + (*at - '0');
    }
    return at;
}

static const char *skip_unit(const char *at, double *times)
{
    static const char units[] = "kmgt";
    const char *unit = *at ? strchr(units, *at | 0x20) : NULL;
    *times = 1;
    if (unit) {
        for (const char *u = units; u <= unit; u++)
            *times *= 1024;
        at++;
        at += *at == 'i';
    }
    return at + (*at == 'b' || *at == 'B');
}

/* Read bytes; 0: not set, or set to none. */
static uint64_t read_bytes(struct reader *r, const char *stem)
{
    char name[64];
    double n, times;
    const char *value = value_of(r, name, stem), *rest = value ? read_number(value, &n) : NULL;
    if (!value)
        return 0;
    if (!rest || *skip_unit(rest, &times) || n * times >= 0x1p63) {
        complain(r, name, value, "a size of memory such as 1g, 1024m or 1073741824");
        return 0;
    }
    r->found |= n > 0;
    return (uint64_t)(n * times);
}

/* Read a percentage; 0: not set, or set to none. */
static uint32_t read_percent(struct reader *r, const char *stem)
{
    char name[64];
    double n = 0;
    const char *value = value_of(r, name, stem), *rest = value ? read_number(value, &n) : NULL;
    if (value && (!rest || *rest || n > 100 || n != (uint32_t)n)) {
        complain(r, name, value, "a whole percentage from 0 to 100");
        return 0;
    }
    r->found |= n > 0;
    return (uint32_t)n;
}

static double read_ratio(struct reader *r, const char *stem)
{
    char name[64];
    double n = 1;
    const char *value = value_of(r, name, stem), *rest = value ? read_number(value, &n) : NULL;
    if (value && (!rest || *rest))
        complain(r, name, value, "a ratio such as 1.5");
    return n > 1 ? n : 1;
}

static struct setting read_gpu(struct reader *r)
{
    struct setting s = {VCUDA_NO_MEMORY_LIMIT, 100, 100};
    const char *policy = getenv("GPU_CORE_UTILIZATION_POLICY");
    uint64_t bytes = read_bytes(r, "CUDA_DEVICE_MEMORY_LIMIT");
    uint64_t shown = read_bytes(r, "CUDA_MEM_LIMIT");
    double ratio = read_ratio(r, "CUDA_MEM_RATIO");
    uint32_t percent = read_percent(r, "CUDA_DEVICE_SM_LIMIT");
    uint32_t hard = read_percent(r, "CUDA_CORE_LIMIT"), soft = read_percent(r, "CUDA_CORE_SOFT_LIMIT");
    if (bytes || shown)
        s.memory_bytes = bytes ? bytes : (uint64_t)((double)shown / ratio);
    if (policy && !strcasecmp(policy, "disable"))
        percent = 0;
    if (percent)
        s.core_request = s.core_limit = percent;
    else if (hard)
        s = (struct setting){s.memory_bytes, hard, soft > hard ? soft : hard};
    return s;
}

int settings_read(struct setting settings[VCUDA_MAX_GPUS], char *complaint, size_t room)
{
    struct reader r = {.complaint = complaint, .room = room};
    for (r.index = 0; r.index < VCUDA_MAX_GPUS; r.index++)
        settings[r.index] = read_gpu(&r);
    return r.unreadable ? SETTINGS_UNREADABLE : r.found ? SETTINGS_FOUND : SETTINGS_NONE;
}
