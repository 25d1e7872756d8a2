"""The audit of libvcuda: every entry of the CUDA driver and of NVML is interposed or passed on purpose."""

import shutil
import subprocess
import sys
from collections.abc import Callable
from pathlib import Path

import pytest

ROOT = Path(__file__).resolve().parents[2]


def audit(folder: Path, *arguments: str) -> subprocess.CompletedProcess[str]:
    """Run the audit of one checkout."""
    return subprocess.run(
        [sys.executable, "-B", str(folder / "audit"), *arguments], capture_output=True, text=True, check=False
    )


@pytest.fixture
def copy(tmp_path: Path) -> Path:
    """Copy the audit's inputs, to damage them."""
    shutil.copytree(ROOT / "libvcuda" / "audit", tmp_path / "audit", ignore=shutil.ignore_patterns("__pycache__"))
    (tmp_path / "shim" / "lookup").mkdir(parents=True)
    shutil.copy(ROOT / "libvcuda" / "shim" / "lookup" / "real.h", tmp_path / "shim" / "lookup")
    return tmp_path


def append(path: Path, text: str) -> None:
    path.write_text(path.read_text(encoding="utf-8") + text, encoding="utf-8")


def replace(path: Path, old: str, new: str) -> None:
    text = path.read_text(encoding="utf-8")
    assert old in text
    path.write_text(text.replace(old, new, 1), encoding="utf-8")


def test_every_entry_of_both_majors_is_stood_before_or_passed() -> None:
    done = audit(ROOT / "libvcuda", "check")
    assert done.returncode == 0, done.stderr
    assert "CUDA driver" in done.stdout
    assert "NVML" in done.stdout


@pytest.mark.parametrize(
    ("damage", "complaint"),
    [
        pytest.param(
            lambda at: append(at / "audit" / "cuda-13.txt", "cuMemAllocSomehow_ptsz\n"),
            "cuMemAllocSomehow_ptsz: neither stood before nor passed. Stand before it (shim/lookup/real.h and a hook)",
            id="a new entry",
        ),
        pytest.param(
            lambda at: append(at / "audit" / "nvml-13.txt", "nvmlDeviceGetMemoryInfo_v3\n"),
            "nvmlDeviceGetMemoryInfo_v3: neither stood before nor passed",
            id="a new view",
        ),
        pytest.param(
            lambda at: replace(at / "shim" / "lookup" / "real.h", "X(cuMemAllocManaged)", ""),
            "cuMemAllocManaged: neither stood before nor passed",
            id="a hook taken away",
        ),
        pytest.param(
            lambda at: replace(at / "shim" / "lookup" / "real.h", "X(cuMemAllocManaged)", "X(cuMemAllocManagde)"),
            "cuMemAllocManagde: no entry of any CUDA driver",
            id="a hook of no entry",
        ),
        pytest.param(
            lambda at: append(at / "audit" / "passed-cuda.txt", "\n[twice]\ncuMemAllocHost\n"),
            "cuMemAllocHost: listed twice in audit/passed-cuda.txt",
            id="passed twice",
        ),
        pytest.param(
            lambda at: append(at / "audit" / "passed-cuda.txt", "\n[both]\ncuLaunchKernel\n"),
            "cuLaunchKernel: both in real.h's HOOKED_CUDA and in audit/passed-cuda.txt",
            id="both",
        ),
        pytest.param(
            lambda at: append(at / "audit" / "passed-nvml.txt", "nvmlDeviceGetNothing\n"),
            "nvmlDeviceGetNothing: no entry of any NVML",
            id="passed, and gone",
        ),
    ],
)
def test_a_difference_fails_and_says_what_to_do(copy: Path, damage: Callable[[Path], None], complaint: str) -> None:
    damage(copy)
    done = audit(copy, "check")
    assert done.returncode == 1
    assert complaint in done.stderr


def test_a_name_without_a_reason_is_not_passed(copy: Path) -> None:
    (copy / "audit" / "passed-cuda.txt").write_text("cuMemcpy\n", encoding="utf-8")
    done = audit(copy, "check")
    assert done.returncode == 2
    assert "names without a reason" in done.stderr


def test_old_versions_and_per_thread_variants_are_read_from_a_header(copy: Path, tmp_path: Path) -> None:
    probe = (
        "import sys; sys.path.insert(0, sys.argv[1]); import entries; "
        "print(*sorted(entries.of_cuda_headers([open(sys.argv[2]).read()])))"
    )
    header = tmp_path / "cuda.h"
    header.write_text(
        "#define cuMemAlloc cuMemAlloc_v2\n"
        "#define cuMemAllocAsync __CUDA_API_PTSZ(cuMemAllocAsync)\n"
        "CUresult CUDAAPI cuMemAlloc(CUdeviceptr *p, size_t bytes);\n"
        "/* CUresult CUDAAPI cuOnlyTalkedAbout(void); */\n"
        "CUresult CUDAAPI\ncuMemAllocAsync(CUdeviceptr *p, size_t bytes, CUstream stream);\n"
        "static inline CUresult cuGetProcAddress_v2_ptsz(void) { return 0; }\n"
        "#define cuGetProcAddress_v2 cuGetProcAddress_v2_ptsz\n",
        encoding="utf-8",
    )
    done = subprocess.run(
        [sys.executable, "-B", "-c", probe, str(copy / "audit"), str(header)],
        capture_output=True,
        text=True,
        check=True,
    )
    assert done.stdout.split() == ["cuMemAlloc", "cuMemAllocAsync", "cuMemAllocAsync_ptsz", "cuMemAlloc_v2"]
