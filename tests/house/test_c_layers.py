"""The check of libvcuda's layers: it refuses an include or a call from a lower layer to a higher one."""

import shutil
import subprocess
import sys
from pathlib import Path

import pytest

LIBVCUDA = Path(__file__).resolve().parents[2] / "libvcuda"


def check_layers(table: Path, sources: Path, objects: Path) -> subprocess.CompletedProcess[str]:
    """Run the check as the Makefile does."""
    script = LIBVCUDA / "tools" / "layers.py"
    return subprocess.run(
        [sys.executable, "-B", script, table, sources, objects], capture_output=True, text=True, check=False
    )


@pytest.mark.parametrize("part", ["shim", "arbiter", "sim"])
def test_no_source_includes_a_header_of_a_higher_layer(part: str, tmp_path: Path) -> None:
    done = check_layers(LIBVCUDA / part / "layers.h", LIBVCUDA / part, tmp_path)
    assert done.returncode == 0, done.stderr


def test_an_include_of_a_higher_layer_is_named(tmp_path: Path) -> None:
    shim = tmp_path / "shim"
    shutil.copytree(LIBVCUDA / "shim", shim)
    with (shim / "memory" / "table.c").open("a", encoding="utf-8") as source:
        source.write('#include "watcher.h"\n')
    done = check_layers(shim / "layers.h", shim, tmp_path / "objects")
    assert done.returncode == 1
    assert 'memory/table (layer memory) includes "watcher.h" of watcher (layer watcher)' in done.stderr


def test_a_call_of_a_higher_layer_is_named(tmp_path: Path) -> None:
    sources, objects = tmp_path / "sources", tmp_path / "objects"
    for folder in (sources, objects):
        folder.mkdir()
    (sources / "layers.h").write_text("/*\n * LAYER low   low   below\n * LAYER high  high  above\n */\n")
    (sources / "low.c").write_text("void above(void);\nvoid below(void);\nvoid below(void) { above(); }\n")
    (sources / "high.c").write_text("void above(void);\nvoid above(void) {}\n")
    for name in ("low", "high"):
        subprocess.run(["gcc", "-c", "-o", objects / f"{name}.o", sources / f"{name}.c"], check=True)
    done = check_layers(sources / "layers.h", sources, objects)
    assert done.returncode == 1
    assert "low (layer low) uses above of high (layer high)" in done.stderr


def test_a_file_in_no_layer_is_named(tmp_path: Path) -> None:
    (tmp_path / "layers.h").write_text("/*\n * LAYER low   low   below\n */\n")
    (tmp_path / "stray.c").write_text("\n")
    done = check_layers(tmp_path / "layers.h", tmp_path, tmp_path)
    assert done.returncode == 1
    assert "stray.c is in no layer" in done.stderr
