"""A small CUDA program without a framework: `python -m … facts|work|trap [UID]`. Prints JSON lines.

facts   whether the driver calls this process a client of MPS, and how many multiprocessors it shows
work    short kernels until SIGTERM: a line every 0.1 s with how many have ended; at an error a line with its number
trap    one kernel that ends by a trap, and the error

With a UID it becomes that user before it loads the driver.
"""

import ctypes
import json
import os
import signal
import sys
import time
from typing import Any

MULTIPROCESSORS, MPS_ENABLED = 16, 133
PTX = b"""
.version 7.0
.target sm_70
.address_size 64
.visible .entry spin_ns(.param .u64 ns)
{
    .reg .pred %p;
    .reg .u64 %now, %end, %ns;
    ld.param.u64 %ns, [ns];
    mov.u64 %end, %globaltimer;
    add.u64 %end, %end, %ns;
AGAIN:
    mov.u64 %now, %globaltimer;
    setp.lt.u64 %p, %now, %end;
    @%p bra AGAIN;
    ret;
}
.visible .entry boom()
{
    trap;
}
"""
SPIN_NS = 200_000


class Failed(Exception):
    """A call answered an error: its name and the number."""


class Cuda:
    """The driver, with a context on the first device and the kernels above."""

    def __init__(self) -> None:
        self._library = ctypes.CDLL("libcuda.so.1")
        self.call("cuInit", 0)
        context, self.module = ctypes.c_void_p(), ctypes.c_void_p()
        self.call("cuDevicePrimaryCtxRetain", ctypes.byref(context), 0)
        self.call("cuCtxSetCurrent", context)
        self.call("cuModuleLoadData", ctypes.byref(self.module), PTX)

    def call(self, name: str, *arguments: Any) -> None:
        if result := getattr(self._library, name)(*arguments):
            raise Failed(name, result)

    def attribute(self, number: int) -> int:
        value = ctypes.c_int()
        self.call("cuDeviceGetAttribute", ctypes.byref(value), number, 0)
        return value.value

    def launch(self, name: bytes, *values: int) -> None:
        function = ctypes.c_void_p()
        self.call("cuModuleGetFunction", ctypes.byref(function), self.module, name)
        held = [ctypes.c_uint64(value) for value in values]
        pointers = (ctypes.c_void_p * max(1, len(held)))(*(ctypes.addressof(one) for one in held))
        self.call("cuLaunchKernel", function, 1, 1, 1, 32, 1, 1, 0, None, pointers, None)

    def wait(self) -> None:
        self.call("cuCtxSynchronize")


def say(**facts: Any) -> None:
    print(json.dumps({"at": time.monotonic(), **facts}), flush=True)


def work(cuda: Cuda) -> None:
    done, last = 0, 0.0
    while True:
        for _ in range(4):
            cuda.launch(b"spin_ns", SPIN_NS)
        cuda.wait()
        done += 4
        if time.monotonic() - last >= 0.1:
            last = time.monotonic()
            say(iterations=done)


def main() -> None:
    signal.signal(signal.SIGTERM, lambda *_: sys.exit(0))
    if len(sys.argv) > 2:
        os.setgid(int(sys.argv[2]))
        os.setuid(int(sys.argv[2]))
    begun = time.monotonic()
    try:
        cuda = Cuda()
        facts = {"mps": cuda.attribute(MPS_ENABLED), "multiprocessors": cuda.attribute(MULTIPROCESSORS)}
        say(event="started", seconds=time.monotonic() - begun, **facts)
        if sys.argv[1] == "work":
            work(cuda)
        if sys.argv[1] == "trap":
            cuda.launch(b"boom")
            cuda.wait()
    except Failed as error:
        say(event="failed", call=error.args[0], error=error.args[1], seconds=time.monotonic() - begun)
        sys.exit(1)


if __name__ == "__main__":
    main()
