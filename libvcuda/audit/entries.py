"""Entry points of NVIDIA's headers, the committed lists, the shim, and an installed driver."""

from __future__ import annotations

import re
import subprocess
from dataclasses import dataclass
from pathlib import Path

HERE = Path(__file__).resolve().parent
SHIM = HERE.parent / "shim" / "lookup" / "real.h"

_COMMENT = re.compile(r"/\*.*?\*/|//[^\n]*", re.DOTALL)
_CUDA_DECLARED = re.compile(r"\bCUDAAPI\s+(cu[A-Z]\w*)\s*\(")
_CUDA_PER_THREAD = re.compile(r"^\s*#\s*define\s+cu[A-Z]\w*[ \t]+__CUDA_API_(PTSZ|PTDS)\((\w+)\)", re.MULTILINE)
_CUDA_RENAMED = re.compile(r"^\s*#\s*define\s+cu[A-Z]\w*[ \t]+(cu[A-Z]\w*)", re.MULTILINE)
_CUDA_TYPEDEF = re.compile(r"\bPFN_(cu[A-Z]\w*?)_v\d+(?:_pt[sd][sz])?\)")
_INLINE = re.compile(r"\bstatic\s+inline\s+\w+\s+(cu[A-Z]\w*)\s*\(")
_NVML_DECLARED = re.compile(r"\bDECLDIR\s+(?:char\s*\*\s*)?(nvml[A-Z]\w*)\s*\(")
_NVML_RENAMED = re.compile(r"^\s*#\s*define\s+nvml[A-Z]\w*[ \t]+(nvml\w*Get\w*)", re.MULTILINE)


class AuditError(Exception):
    """The audit cannot be done; the message names the remedy."""


@dataclass(frozen=True)
class Family:
    """One library: its lists of names, their treatment by the shim, and the location of its symbols."""

    title: str
    hooked: str  # the macros of real.h
    called: str
    lists: tuple[str, ...]
    passed: str
    soname: str


CUDA = Family(
    "CUDA driver", "HOOKED_CUDA", "CALLED_CUDA", ("cuda-12.txt", "cuda-13.txt"), "passed-cuda.txt", "libcuda.so.1"
)
NVML = Family(
    "NVML", "HOOKED_NVML", "CALLED_NVML", ("nvml-12.txt", "nvml-13.txt"), "passed-nvml.txt", "libnvidia-ml.so.1"
)
FAMILIES = (CUDA, NVML)


def without_thread(name: str) -> str:
    """Return the entry that ``name`` is the per-thread-stream variant of, or ``name`` itself."""
    return re.sub(r"_pt[sd][sz]$", "", name)


def of_cuda_headers(texts: list[str]) -> set[str]:
    """Return every symbol that cuda.h and its companions declare, old versions and per-thread variants included.

    Raises AuditError if a function of cudaTypedefs.h was not found: the headers are no longer parsed correctly.
    """
    names: set[str] = set()
    typed: set[str] = set()
    inline: set[str] = set()  # defined in the header itself, so in no library
    for raw in texts:
        text = _COMMENT.sub(" ", raw)
        names.update(_CUDA_DECLARED.findall(text), _CUDA_RENAMED.findall(text))
        for variant, name in _CUDA_PER_THREAD.findall(text):
            names.update((name, f"{name}_{variant.lower()}"))
        typed.update(_CUDA_TYPEDEF.findall(text))
        inline.update(_INLINE.findall(text))
    if missing := typed - names:
        raise AuditError(f"typed but not declared, so entries.py misreads these headers: {' '.join(sorted(missing))}")
    return names - inline


def of_nvml_headers(texts: list[str]) -> set[str]:
    """Return every symbol that nvml.h declares, renamed ones included."""
    names: set[str] = set()
    for raw in texts:
        text = _COMMENT.sub(" ", raw)
        names.update(_NVML_DECLARED.findall(text), _NVML_RENAMED.findall(text))
    return names


def of_list(name: str) -> list[str]:
    """Return the names of a committed list, in its order."""
    lines = (HERE / name).read_text(encoding="utf-8").splitlines()
    return [line for line in lines if line and not line.startswith("#")]


def of_passed(text: str) -> list[tuple[str, str]]:
    """Return (name, reason) for each name of a file of passed entries, in its order.

    Raises AuditError.
    """
    found: list[tuple[str, str]] = []
    reason = ""
    for number, line in enumerate(text.splitlines(), 1):
        if not line or line.startswith("#"):
            continue
        if line.startswith("["):
            reason = line.strip("[]").strip()
            continue
        if not reason:
            raise AuditError(f"line {number}: names without a reason above them")
        found.extend((name, reason) for name in line.split())
    return found


def of_macro(text: str, macro: str) -> list[str]:
    """Return the names in a list macro of real.h.

    Raises AuditError if there is no such macro.
    """
    match = re.search(rf"#define {macro}\(X\)((?:[^\n]*\\\n)*[^\n]*)", text)
    if not match:
        raise AuditError(f"no macro {macro} in {SHIM}")
    return re.findall(r"\bX\((\w+)\)", match.group(1))


def of_library(path: str) -> set[str]:
    """Return every function that an installed driver library exports.

    Raises AuditError if it cannot be read.
    """
    try:
        done = subprocess.run(["nm", "-D", "--defined-only", path], capture_output=True, text=True, check=False)
    except FileNotFoundError:
        raise AuditError("reading a library needs nm (binutils)") from None
    if done.returncode:
        raise AuditError(f"{path}: {done.stderr.strip()}")
    symbols = (line.split()[-1].split("@")[0] for line in done.stdout.splitlines() if line.strip())
    return {name for name in symbols if re.match(r"(cu|nvml)[A-Z]", name)}
