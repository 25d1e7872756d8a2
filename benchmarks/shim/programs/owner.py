"""Memory that is taken and returned by the driver's own calls, without PyTorch.

Commands, one a line: ``take BYTES``, ``fill BYTES`` (all but so much) and ``free``; each is answered by
{"event": "took" or "freed", "ms": …, "error": …}.
"""

import ctypes
import json
import sys
import time

BLOCK = 1 << 30


def main() -> None:
    cuda = ctypes.CDLL("libcuda.so.1")
    context, device = ctypes.c_void_p(), ctypes.c_int()
    assert cuda.cuInit(0) == 0
    assert cuda.cuDeviceGet(ctypes.byref(device), 0) == 0
    assert cuda.cuDevicePrimaryCtxRetain(ctypes.byref(context), device) == 0
    assert cuda.cuCtxSetCurrent(context) == 0
    held = list[ctypes.c_uint64]()
    for line in sys.stdin:
        verb, _, size = line.strip().partition(" ")
        begin = time.monotonic()
        if verb == "take":
            error = take(cuda, held, int(size))
        elif verb == "fill":
            error = take(cuda, held, find_free(cuda) - int(size))
        else:
            error = max((cuda.cuMemFree_v2(at) for at in held), default=0)
            held.clear()
        event = "freed" if verb == "free" else "took"
        print(json.dumps({"event": event, "ms": 1e3 * (time.monotonic() - begin), "error": error}), flush=True)


def find_free(cuda: ctypes.CDLL) -> int:
    free, total = ctypes.c_size_t(), ctypes.c_size_t()
    assert cuda.cuMemGetInfo_v2(ctypes.byref(free), ctypes.byref(total)) == 0
    return free.value


def take(cuda: ctypes.CDLL, held: list[ctypes.c_uint64], size: int) -> int:
    """Allocate so much, in blocks; return the first error."""
    while size > 0:
        at = ctypes.c_uint64()
        error = int(cuda.cuMemAlloc_v2(ctypes.byref(at), ctypes.c_size_t(min(size, BLOCK))))
        if error:
            return error
        held.append(at)
        size -= BLOCK
    return 0


if __name__ == "__main__":
    main()
