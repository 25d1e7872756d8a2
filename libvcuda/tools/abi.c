/* Prints the pages' layout as JSON: build/abi.json. */
#include "vcuda_pages.h"

#include <stdio.h>

int main(void)
{
    return puts(vcuda_abi_describe()) < 0;
}
