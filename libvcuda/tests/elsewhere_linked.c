/* A library that is linked to libcuda: loaded into another namespace it brings a copy of the driver with it. */
#include "driver.h"

__attribute__((visibility("default"))) CUresult elsewhere_version(int *version);

CUresult elsewhere_version(int *version)
{
    return cuDriverGetVersion(version);
}
