"""`python3 -m benchmarks.gpm`: the activity that the agent reads of this machine's first GPU, beside programs' rates.

The agent's reader (`agent/host/readings.py`) asks NVML's performance counters (GPM) as a node's agent does twice a
minute; PyTorch programs say what they did in the same seconds. It needs an NVIDIA GPU with GPM (Hopper or newer),
PyTorch, msgspec and nvidia-ml-py, and neither a server nor a build.

    idle            no program
    gemm            products of 8192 × 8192 matrices in bfloat16: tensor cores
    gemm, half      the same, 100 ms of work and 100 ms of rest in turn
    copies          2 GiB from one half of memory to the other: bandwidth, no tensor cores

`tensor %` and `DRAM %` have a second column with what the program's rate is of the GPU's peak: dense bfloat16 at the
SMs' mean clock by NVML, and the memory bus at its highest clock. It exits 1 if a reading and the rate disagree.
"""

import json
import statistics
import subprocess
import sys
import threading
import time
from collections.abc import Callable
from typing import Any

import pynvml as nvml

from agent import wire
from agent.host.gpus import Nvml
from agent.host.readings import GpuReader
from benchmarks.report import Row, print_report

SECONDS = 5.0
HALF_SECONDS = 0.1
SIZE = 8192
COPY_BYTES = 2048 << 20
# Dense bfloat16 operations of an SM in a cycle, on Hopper.
OPERATIONS_A_CYCLE = 4096
CLOCK_SECONDS = 0.2
# The clock moves with the card's power, and its mean is of a few looks.
POINTS_APART = 15.0


class Program:
    """A program of benchmarks/shim/programs that waits for commands."""

    def __init__(self, module: str) -> None:
        self._process = subprocess.Popen(
            [sys.executable, "-m", f"benchmarks.shim.programs.{module}"],
            stdin=subprocess.PIPE, stdout=subprocess.PIPE, text=True, bufsize=1,
        )  # fmt: skip
        self._ask("warm", "ready")

    def start(self, seconds: float) -> None:
        """Iterate for so long; `finished` waits for the end."""
        self._send(f"run {seconds}")

    def finished(self) -> float:
        """Return the number of iterations of the last run."""
        return float(self._until("ran")["iterations"])

    def close(self) -> None:
        """End the program."""
        self._send("quit")
        self._process.wait(60)

    def _ask(self, command: str, event: str) -> dict[str, Any]:
        self._send(command)
        return self._until(event)

    def _send(self, command: str) -> None:
        assert self._process.stdin is not None
        self._process.stdin.write(f"{command}\n")
        self._process.stdin.flush()

    def _until(self, event: str) -> dict[str, Any]:
        assert self._process.stdout is not None
        for line in self._process.stdout:
            row: dict[str, Any] = json.loads(line)
            if row.get("event") == event:
                return row
        sys.exit(f"the program ended before it said {event!r}")


class Observer:
    """The agent's readings of the first GPU, and the clock of its SMs."""

    def __init__(self) -> None:
        driver = Nvml()
        inventory = driver.inventory()
        if inventory.problem is not None:
            sys.exit(inventory.problem)
        self.gpu = inventory.gpus[0]
        self.driver_version = inventory.driver_version
        self._handle = driver.handles[self.gpu.uuid]
        self._reader = GpuReader(driver)

    def observe(self, work: Callable[[], float]) -> tuple[wire.GpuHealth, float, float, float]:
        """Return the readings over the time of `work`, its seconds, its result, and the SMs' mean clock in Hz."""
        clocks: list[float] = []
        ended = threading.Event()
        looks = threading.Thread(target=self._look, args=(clocks, ended))
        self._reader.read()
        begin = time.monotonic()
        looks.start()
        iterations = work()
        ended.set()
        looks.join()
        (reading,) = (one for one in self._reader.read() if one.uuid == self.gpu.uuid)
        return reading, time.monotonic() - begin, iterations, 1e6 * statistics.mean(clocks)

    def _look(self, clocks: list[float], ended: threading.Event) -> None:
        while not clocks or not ended.wait(CLOCK_SECONDS):
            clocks.append(float(nvml.nvmlDeviceGetClockInfo(self._handle, nvml.NVML_CLOCK_SM)))

    def tensor_peak(self, hertz: float) -> float:
        """Return the dense bfloat16 operations a second of all SMs at this clock."""
        import torch  # noqa: PLC0415 - `idle` alone needs none

        return float(torch.cuda.get_device_properties(0).multi_processor_count) * OPERATIONS_A_CYCLE * hertz

    def memory_peak(self) -> float:
        """Return the bytes a second of the memory bus: two transfers a cycle."""
        megahertz = nvml.nvmlDeviceGetMaxClockInfo(self._handle, nvml.NVML_CLOCK_MEM)
        return float(2e6 * megahertz * nvml.nvmlDeviceGetMemoryBusWidth(self._handle) / 8)


def main() -> int:
    """Measure and print; return 1 if a reading and a rate disagree."""
    observer = Observer()
    print(f"{observer.gpu.model}, driver {observer.driver_version}", flush=True)
    rows = [_row(observer, "idle", _rest)]
    for module, bursts in (("gemm", False), ("gemm", True), ("copies", False)):
        program = Program(module)
        name = f"{module}, half" if bursts else module
        rows.append(_row(observer, name, lambda: _run(program, bursts=bursts)))  # noqa: B023 - called at once
        program.close()
    print_report("gpm", rows)
    wrong = [line for row in rows for line in _disagreements(row)]
    print("\n".join(wrong) or "each reading agrees with its program's rate")
    return 1 if wrong else 0


def _rest() -> float:
    time.sleep(SECONDS)
    return 0.0


def _run(program: Program, *, bursts: bool) -> float:
    if not bursts:
        program.start(SECONDS)
        return program.finished()
    end, iterations = time.monotonic() + SECONDS, 0.0
    while time.monotonic() < end:
        begin = time.monotonic()
        program.start(HALF_SECONDS)
        iterations += program.finished()
        time.sleep(time.monotonic() - begin)
    return iterations


def _row(observer: Observer, name: str, work: Callable[[], float]) -> Row:
    reading, seconds, iterations, hertz = observer.observe(work)
    gemm, copies = name.startswith("gemm"), name == "copies"
    operations = 2.0 * SIZE**3 * iterations / seconds if gemm else 0.0
    copied = 2.0 * COPY_BYTES * iterations / seconds if copies else 0.0
    return {
        "program": name,
        "SM %": reading.sm_active_percent,
        "tensor %": reading.tensor_active_percent,
        "by its rate": 100 * operations / observer.tensor_peak(hertz) if gemm else 0.0,
        "DRAM %": reading.dram_active_percent,
        "of its peak": 100 * copied / observer.memory_peak() if copies else 0.0,
        "TFLOP/s": operations / 1e12,
        "GB/s": copied / 1e9,
        "SM MHz": hertz / 1e6,
        "°C": reading.temperature_celsius,
    }


def _disagreements(row: Row) -> list[str]:
    """Return a sentence for each reading that is missing or is not what the program did."""
    of_programs: dict[str, dict[str, tuple[float, float]]] = {
        "idle": {"SM %": (0, 5), "tensor %": (0, 5), "DRAM %": (0, 5)},
        "gemm": {"SM %": (85, 100)},
        "gemm, half": {"SM %": (35, 65)},
        "copies": {"SM %": (85, 100), "tensor %": (0, 5)},
    }
    wanted = of_programs[row["program"]]
    if row["program"].startswith("gemm"):
        wanted["tensor %"] = _near(row["by its rate"])
    if row["program"] == "copies":
        wanted["DRAM %"] = _near(row["of its peak"])
    return [
        f"{row['program']}: {name} is {row[name]}, not between {low:.0f} and {high:.0f}"
        for name, (low, high) in wanted.items()
        if row[name] is None or not low <= row[name] <= high
    ]


def _near(percent: float) -> tuple[float, float]:
    return percent - POINTS_APART, percent + POINTS_APART


if __name__ == "__main__":
    sys.exit(main())
