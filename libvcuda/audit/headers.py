"""NVIDIA's headers from the wheels of its runtime: read in a temporary folder, and never kept."""

from __future__ import annotations

import subprocess
import sys
import tempfile
import zipfile
from pathlib import Path

import entries

# Per major version: the wheels with cuda.h and its companions, and nvml.h.
WHEELS = {
    12: ("nvidia-cuda-runtime-cu12", "nvidia-cuda-profiler-api-cu12", "nvidia-nvml-dev-cu12"),
    13: ("nvidia-cuda-runtime>=13,<14", "nvidia-cuda-profiler-api>=13,<14", "nvidia-nvml-dev>=13,<14"),
}
CUDA_HEADERS = {
    "cuda.h", "cudaTypedefs.h", "cudaGL.h", "cudaEGL.h", "cudaVDPAU.h", "cudaProfiler.h",
}  # fmt: skip


def download(major: int, into: Path) -> None:
    """Fetch one major version's wheels.

    Raises AuditError with pip's message.
    """
    command = [sys.executable, "-m", "pip", "download", "--quiet", "--no-deps", "--dest", str(into), *WHEELS[major]]
    done = subprocess.run(command, capture_output=True, text=True, check=False)
    if done.returncode:
        raise entries.AuditError(f"pip could not fetch CUDA {major}'s headers:\n{done.stderr.strip()}")


def texts(folder: Path, names: set[str]) -> list[str]:
    """Return the headers of these names in all wheels of a folder.

    Raises AuditError if one is missing.
    """
    found: dict[str, str] = {}
    for wheel in sorted(folder.glob("*.whl")):
        with zipfile.ZipFile(wheel) as archive:
            for member in archive.namelist():
                if Path(member).name in names:
                    found[Path(member).name] = archive.read(member).decode("utf-8", "replace")
    if missing := names - set(found):
        raise entries.AuditError(f"in no wheel: {' '.join(sorted(missing))}")
    return list(found.values())


def write(name: str, found: set[str], wheels: str) -> tuple[set[str], set[str]]:
    """Write a list; return the names added and removed."""
    path = entries.HERE / name
    before = set(entries.of_list(name)) if path.exists() else set()
    head = f"# Names of entry points, from the headers of {wheels}; written by `make audit-headers`."
    path.write_text("\n".join([head, *sorted(found)]) + "\n", encoding="utf-8")
    return found - before, before - found


def refresh(majors: list[int], folder: Path | None) -> None:
    """Regenerate the lists from wheels in ``folder`` or fetched ones, and print the changes.

    Raises AuditError.
    """
    for major in majors:
        with tempfile.TemporaryDirectory() as scratch:
            place = folder or Path(scratch)
            if folder is None:
                download(major, place)
            wheels = ", ".join(wheel.name.split("-")[0] + " " + wheel.name.split("-")[1]
                               for wheel in sorted(place.glob("*.whl")))  # fmt: skip
            cuda = entries.of_cuda_headers(texts(place, CUDA_HEADERS))
            nvml = entries.of_nvml_headers(texts(place, {"nvml.h"}))
            for name, found in ((f"cuda-{major}.txt", cuda), (f"nvml-{major}.txt", nvml)):
                new, gone = write(name, found, wheels)
                print(f"{name}: {len(found)} names; new: {' '.join(sorted(new)) or 'none'}; "
                      f"gone: {' '.join(sorted(gone)) or 'none'}")  # fmt: skip
