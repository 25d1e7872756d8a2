"""The placement kernel as a library: built here, with the compiler's own checks."""

import os
import shutil
import subprocess
import sys
from pathlib import Path

import pytest

from apps.scheduling.core.placement import native

ROOT = Path(__file__).resolve().parent.parent.parent
SOURCES = ROOT / "apps" / "scheduling" / "core" / "placement" / "kernel"
CHECKED = "-O1 -g -fno-omit-frame-pointer -fsanitize=address,undefined -fno-sanitize-recover=all"
WALKS = """
import sys
from pathlib import Path
from apps.scheduling.core.placement import native
native.LIBRARY = native.load(Path(sys.argv[1]), Path(sys.argv[3]))
assert native.LIBRARY is not None
from tests.scheduling import test_back_ends
test_back_ends.BACK_ENDS[:] = ["python", "c"]
for policy in test_back_ends.POLICIES:
    test_back_ends.walk(policy, 7, int(sys.argv[2]))
print("walked")
"""

pytestmark = pytest.mark.skipif(shutil.which("gcc") is None, reason="no gcc here")


def walk(library: Path, steps: int, sources: Path = SOURCES) -> subprocess.CompletedProcess[str]:
    """Run all policies, with the sanitizers in the kernel alone: Python itself is not built with them."""
    asan = subprocess.run(["gcc", "-print-file-name=libasan.so"], capture_output=True, text=True, check=True)
    environment = os.environ | {"LD_PRELOAD": asan.stdout.strip(), "ASAN_OPTIONS": "detect_leaks=0"}
    command = [sys.executable, "-c", WALKS, str(library), str(steps), str(sources)]
    return subprocess.run(command, cwd=ROOT, env=environment, capture_output=True, text=True, check=False)


def built(directory: Path, source: Path = SOURCES, flags: str = CHECKED) -> Path:
    command = ["make", "-s", "-C", str(source), f"B={directory}", f"CFLAGS={flags}", "CC=gcc"]
    subprocess.run(command, check=True, capture_output=True)
    return directory / "libplacement.so"


@pytest.mark.slow
def test_the_kernel_reads_and_writes_only_what_is_its_own(tmp_path: Path) -> None:
    done = walk(built(tmp_path), 60)
    assert done.stdout == "walked\n", done.stderr[-3000:]


@pytest.mark.slow
def test_control_a_kernel_that_reads_too_far_is_found_out(tmp_path: Path) -> None:
    copy = shutil.copytree(SOURCES, tmp_path / "kernel", ignore=shutil.ignore_patterns("build"))
    code = (copy / "kernel.c").read_text()
    wrong = code.replace("row->cell = calloc(n + 1, ", "row->cell = calloc(n / 2, ")
    assert wrong != code
    (copy / "kernel.c").write_text(wrong)
    done = walk(built(tmp_path / "build", copy), 60, copy)
    assert "AddressSanitizer: heap-buffer-overflow" in done.stderr


def test_a_kernel_that_is_not_there_is_no_fault(tmp_path: Path) -> None:
    assert native.load(tmp_path / "libplacement.so") is None


def test_a_kernel_of_other_sources_is_not_used(tmp_path: Path) -> None:
    copy = shutil.copytree(SOURCES, tmp_path / "kernel", ignore=shutil.ignore_patterns("build"))
    header = copy / "kernel.h"
    header.write_text(header.read_text() + "/* A later state. */\n")
    library = built(tmp_path / "build", copy, "-O1")
    assert native.load(library) is None
    assert native.load(library, copy) is not None
