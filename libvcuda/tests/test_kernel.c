/* Memory as the kernel gives it. */
#include "harness.h"

static void test_as_before(void)
{
    simulated_kernel = 1;
    test_memory();
    test_views();
    test_life();
    test_bugs();
    simulated_kernel = 0;
}

void test_kernel(void)
{
    if (!on_real_gpu)
        test_as_before();
}
