/* The real durations of the kernels of a mixed load: see mix.h.
 *
 * Everything is queued behind a kernel that keeps the GPU busy until the host is done, so that the host's own time does not
 * count. The difference between a long row and a single kernel is what one takes behind another, with the gap between them.
 */
#include "mix.h"

#define ROW_NS 10000000
#define ROW_LEAST 4
#define ROW_MOST 200
/* More than a launch costs a host. */
#define LAUNCH_NS 10000
/* A clock of 1 us must not decide over kernels of 3. */
#define LOOKS 16
/* Between a kernel and the next one of a row: 0.87 us on an H200, by CUPTI. */
#define GAP_NS 900

static CUresult measure(unsigned kind, unsigned count, CUevent marks[2], CUfunction spin, double *ns)
{
    float milliseconds = 0;
    CUresult error = cuda_spin(spin, 1, (uint64_t)(count + 4) * LAUNCH_NS, NULL);
    error = error ? error : cuda.cuEventRecord(marks[0], NULL);
    for (unsigned i = 0; i < count && !error; i++)
        error = mix_launch(kind, NULL);
    error = error ? error : cuda.cuEventRecord(marks[1], NULL);
    error = error ? error : cuda.cuEventSynchronize(marks[1]);
    error = error ? error : cuda.cuEventElapsedTime(&milliseconds, marks[0], marks[1]);
    *ns = (double)milliseconds * 1e6;
    return error;
}

/* The mean of several looks at a row of so many kernels. */
static CUresult mean_of(unsigned kind, unsigned count, unsigned looks, CUevent marks[2], CUfunction spin, double *ns)
{
    double sum = 0;
    CUresult error = CUDA_SUCCESS;
    for (unsigned i = 0; i < looks && !error; i++) {
        error = measure(kind, count, marks, spin, ns);
        sum += *ns;
    }
    *ns = sum / looks;
    return error;
}

static uint64_t within(double ns, double least, double most)
{
    return (uint64_t)(ns < least ? least : ns > most ? most : ns);
}

static CUresult calibrate_kind(struct mix_options *o, unsigned kind, CUevent marks[2], CUfunction spin)
{
    uint64_t ns = o->duration_ns[kind];
    unsigned row = ns * ROW_MOST < ROW_NS ? ROW_MOST : ns * ROW_LEAST > ROW_NS ? ROW_LEAST : (unsigned)(ROW_NS / ns);
    unsigned looks = ns < 100000 ? LOOKS : 2;
    double first, one, many;
    /* The first launch loads code. */
    CUresult error = measure(kind, 1, marks, spin, &first);
    error = error ? error : mean_of(kind, 1, looks, marks, spin, &one);
    error = error ? error : mean_of(kind, row, 2, marks, spin, &many);
    if (error)
        return error;
    double queued = (many - one) / (row - 1);
    o->queued_ns[kind] = within(queued, (double)ns / 2, (double)ns * 2 + 10000);
    o->alone_ns[kind] = within(queued - GAP_NS, (double)ns / 2, queued);
    return CUDA_SUCCESS;
}

CUresult mix_calibrate(struct mix_options *o)
{
    CUevent marks[2];
    CUfunction spin;
    CUresult error = cuda.cuModuleGetFunction(&spin, cuda_module, "spin_ns");
    for (int i = 0; i < 2 && !error; i++)
        error = cuda.cuEventCreate(&marks[i], CU_EVENT_DEFAULT);
    for (unsigned kind = 0; kind < o->kinds && !error; kind++)
        error = calibrate_kind(o, kind, marks, spin);
    /* The rest are read by nobody. */
    return error;
}
