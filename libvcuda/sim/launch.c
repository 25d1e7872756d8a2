/* Modules and kernel launches. Kernels are known by the names in the PTX text: one whose name ends in `_ns` takes as long
 * as its first argument says, any other 10 µs. */
#include "process.h"

#include <ctype.h>
#include <stdlib.h>
#include <string.h>

#define DEFAULT_KERNEL_NS 10000

static struct sim_function *parse_entry(const char *at)
{
    while (isspace((unsigned char)*at))
        at++;
    size_t length = strspn(at, "abcdefghijklmnopqrstuvwxyzABCDEFGHIJKLMNOPQRSTUVWXYZ0123456789_$");
    struct sim_function *f = calloc(1, sizeof *f);
    if (!f || !length || length >= sizeof f->name) {
        free(f);
        return NULL;
    }
    memcpy(f->name, at, length);
    f->timed = length > 3 && !strcmp(f->name + length - 3, "_ns");
    return f;
}

/* The module's variables; what is small lies in what the context has. */
static uint64_t global_bytes(const char *text)
{
    uint64_t bytes = 0;
    for (const char *at = strstr(text, ".global "); at; at = strstr(at + 1, ".global ")) {
        const char *size = strchr(at, '['), *end = strchr(at, ';');
        bytes += size && end && size < end ? strtoull(size + 1, NULL, 10) : 0;
    }
    return bytes < SIM_GRANULE ? 0 : (bytes + SIM_GRANULE - 1) / SIM_GRANULE * SIM_GRANULE;
}

CUresult cuModuleLoadDataEx(CUmodule *module, const void *image, unsigned count, int *options, void **values)
{
    (void)count, (void)options, (void)values;
    if (!sim_current())
        return CUDA_ERROR_INVALID_CONTEXT;
    const char *text = image;
    if (!text || !strstr(text, ".version"))
        return CUDA_ERROR_INVALID_IMAGE;
    CUmodule made = calloc(1, sizeof *made);
    if (!made)
        return CUDA_ERROR_OUT_OF_MEMORY;
    made->device = sim_current()->device;
    made->charge = global_bytes(text);
    CUresult result = made->charge ? sim_charge(made->device, (int64_t)made->charge) : CUDA_SUCCESS;
    if (result) {
        free(made);
        return result;
    }
    for (const char *at = strstr(text, ".entry "); at; at = strstr(at + 1, ".entry ")) {
        struct sim_function *f = parse_entry(at + 7);
        if (f) {
            f->next = made->functions;
            made->functions = f;
        }
    }
    *module = made;
    return CUDA_SUCCESS;
}

CUresult cuModuleLoadData(CUmodule *module, const void *image)
{
    return cuModuleLoadDataEx(module, image, 0, NULL, NULL);
}

CUresult cuModuleUnload(CUmodule module)
{
    if (module->charge)
        sim_charge(module->device, -(int64_t)module->charge);
    for (struct sim_function *f = module->functions, *next; f; f = next) {
        next = f->next;
        free(f);
    }
    free(module);
    return CUDA_SUCCESS;
}

CUresult cuModuleGetFunction(CUfunction *function, CUmodule module, const char *name)
{
    for (struct sim_function *f = module->functions; f; f = f->next)
        if (!strcmp(f->name, name))
            return *function = f, CUDA_SUCCESS;
    return CUDA_ERROR_NOT_FOUND;
}

CUresult cuLibraryLoadData(CUlibrary *library, const void *code, int *jit_options, void **jit_values,
                           unsigned jit_count, int *options, void **values, unsigned count)
{
    (void)options, (void)values, (void)count;
    return cuModuleLoadDataEx(library, code, jit_count, jit_options, jit_values);
}

CUresult cuLibraryUnload(CUlibrary library)
{
    return cuModuleUnload(library);
}

CUresult cuLibraryGetKernel(CUkernel *kernel, CUlibrary library, const char *name)
{
    return cuModuleGetFunction(kernel, library, name);
}

CUresult cuKernelGetFunction(CUfunction *function, CUkernel kernel)
{
    *function = kernel;
    return CUDA_SUCCESS;
}

CUresult cuFuncGetAttribute(int *value, int attribute, CUfunction function)
{
    (void)function;
    *value = attribute == 0 ? 1024 : 0;
    return CUDA_SUCCESS;
}

static CUresult launch(CUfunction f, CUstream stream, void **params)
{
    struct sim_stream *s = sim_resolve(stream);
    if (!s)
        return CUDA_ERROR_INVALID_CONTEXT;
    if (!f || (f->timed && !params))
        return CUDA_ERROR_INVALID_VALUE;
    uint64_t ns = f->timed ? *(const uint64_t *)params[0] : DEFAULT_KERNEL_NS;
    if (s->capture) {
        s->graph->kernels++;
        s->graph->total_ns += ns;
        return CUDA_SUCCESS;
    }
    return sim_submit(s, ns);
}

#define SHAPE_UNUSED (void)gx, (void)gy, (void)gz, (void)bx, (void)by, (void)bz, (void)shared_bytes

CUresult cuLaunchKernel(CUfunction f, KERNEL_SHAPE, CUstream stream, void **params, void **extra)
{
    SHAPE_UNUSED, (void)extra;
    return launch(f, stream, params);
}

CUresult cuLaunchKernel_ptsz(CUfunction f, KERNEL_SHAPE, CUstream stream, void **params, void **extra)
{
    SHAPE_UNUSED, (void)extra;
    return launch(f, stream, params);
}

CUresult cuLaunchKernelEx(const CUlaunchConfig *config, CUfunction f, void **params, void **extra)
{
    (void)extra;
    return launch(f, config->stream, params);
}

CUresult cuLaunchKernelEx_ptsz(const CUlaunchConfig *config, CUfunction f, void **params, void **extra)
{
    (void)extra;
    return launch(f, config->stream, params);
}

CUresult cuLaunchCooperativeKernel(CUfunction f, KERNEL_SHAPE, CUstream stream, void **params)
{
    SHAPE_UNUSED;
    return launch(f, stream, params);
}

CUresult cuLaunchCooperativeKernel_ptsz(CUfunction f, KERNEL_SHAPE, CUstream stream, void **params)
{
    SHAPE_UNUSED;
    return launch(f, stream, params);
}

/* One kernel per device, each in its own stream; that they start together makes no difference to their time. */
CUresult cuLaunchCooperativeKernelMultiDevice(CUmultiLaunch *launches, unsigned count, unsigned flags)
{
    (void)flags;
    if (!launches || !count)
        return CUDA_ERROR_INVALID_VALUE;
    for (unsigned i = 0; i < count; i++)
        for (unsigned j = 0; j < i; j++)
            if (launches[i].stream <= CU_STREAM_PER_THREAD || launches[j].stream <= CU_STREAM_PER_THREAD ||
                launches[i].stream->context->device == launches[j].stream->context->device)
                return CUDA_ERROR_INVALID_VALUE;
    CUresult result = CUDA_SUCCESS;
    for (unsigned i = 0; i < count && !result; i++)
        result = launch(launches[i].function, launches[i].stream, launches[i].params);
    return result;
}
