"""NVML from a process without the shim: the GPUs of this machine, and the memory really in use."""

import ctypes
from dataclasses import dataclass
from pathlib import Path

MOST_PROCESSES = 256
# NVML's value if a process's memory is unknown.
UNKNOWN = 2**64 - 1


class NvmlFailed(Exception):
    """NVML is missing, or a call failed; the message names it."""


class _Memory(ctypes.Structure):
    _fields_ = [("total", ctypes.c_ulonglong), ("free", ctypes.c_ulonglong), ("used", ctypes.c_ulonglong)]


class _Process(ctypes.Structure):
    _fields_ = [
        ("pid", ctypes.c_uint),
        ("used", ctypes.c_ulonglong),
        ("gpu_instance", ctypes.c_uint),
        ("compute_instance", ctypes.c_uint),
    ]


@dataclass(frozen=True)
class Gpu:
    """One GPU: its UUID (``GPU-…``), model and memory in bytes."""

    uuid: str
    name: str
    memory: int


class Nvml:
    """A loaded NVML."""

    def __init__(self, library: Path | str) -> None:
        try:
            self._functions = ctypes.CDLL(str(library))
        except OSError as missing:
            raise NvmlFailed(f"NVML cannot be loaded ({missing}): is there an NVIDIA driver on this machine?") from None
        self._call("nvmlInit_v2")

    def _call(self, name: str, *arguments: object) -> None:
        result = self._functions[name](*arguments)
        if result:
            raise NvmlFailed(f"{name} returned {result}")

    def _text(self, name: str, *arguments: object) -> str:
        text = ctypes.create_string_buffer(96)
        self._call(name, *arguments, text, 96)
        return text.value.decode()

    def driver(self) -> str:
        return self._text("nvmlSystemGetDriverVersion")

    def cuda(self) -> str:
        """Return the newest CUDA version that the driver supports."""
        version = ctypes.c_int()
        self._call("nvmlSystemGetCudaDriverVersion_v2", ctypes.byref(version))
        return f"{version.value // 1000}.{version.value % 1000 // 10}"

    def gpus(self) -> list[Gpu]:
        count = ctypes.c_uint()
        self._call("nvmlDeviceGetCount_v2", ctypes.byref(count))
        found = []
        for index in range(count.value):
            device = ctypes.c_void_p()
            self._call("nvmlDeviceGetHandleByIndex_v2", index, ctypes.byref(device))
            name = self._text("nvmlDeviceGetName", device)
            found.append(Gpu(self._text("nvmlDeviceGetUUID", device), name, self._memory(device).total))
        return found

    def used(self, uuid: str) -> int:
        """Return the bytes in use on the GPU by all processes."""
        return int(self._memory(self._device(uuid)).used)

    def by_process(self, uuid: str) -> dict[int, int]:
        """Return the bytes in use on the GPU by process id. In a container some drivers give the host's ids."""
        infos = (_Process * MOST_PROCESSES)()
        count = ctypes.c_uint(MOST_PROCESSES)
        device = self._device(uuid)
        self._call("nvmlDeviceGetComputeRunningProcesses_v3", device, ctypes.byref(count), infos)
        return {info.pid: info.used for info in infos[: count.value] if info.used != UNKNOWN}

    def _device(self, uuid: str) -> ctypes.c_void_p:
        device = ctypes.c_void_p()
        self._call("nvmlDeviceGetHandleByUUID", uuid.encode(), ctypes.byref(device))
        return device

    def _memory(self, device: ctypes.c_void_p) -> _Memory:
        memory = _Memory()
        self._call("nvmlDeviceGetMemoryInfo", device, ctypes.byref(memory))
        return memory
