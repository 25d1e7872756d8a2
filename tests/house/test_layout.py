"""The shape of the source: limits on sizes, and forbidden dependencies."""

import ast
import functools
import shutil
import subprocess
import sys
from collections import Counter
from collections.abc import Iterator
from pathlib import Path

import pytest

ROOT = Path(__file__).resolve().parent.parent.parent
LINES_OF_A_FILE = 400
LINES_OF_A_WING = 18_000
LINES_OF_A_FUNCTION = 40
# What runs for a tenant: on top of the agent's other packages, which do not import it.
WINGS_OF_THE_AGENT = {("agent", "jobs"), ("agent", "remote")}
LINES_OF_A_TEMPLATE = 120
COLUMNS_OF_A_TEMPLATE = 160
NO_VERBS = {"told", "said", "held", "asked", "shown", "took", "look", "alone", "kept", "due", "returned"}
NAMELESS = {"utils", "util", "helpers", "common", "manager", "misc"}
# The NVML header is NVIDIA's; the OpenAPI document is generated.
NOT_OURS = ("static/vendor/", "static/css/tabler.css", "docs/openapi.yaml")
CORE = ROOT / "apps" / "scheduling" / "core"
REBALANCING = ROOT / "apps" / "rebalancing"
# Its decisions are as pure as the core's.
PLANNING = ROOT / "apps" / "suspension" / "rotation" / "planning.py"
# Values and arithmetic; no clock, randomness, files, network or processes. The placement kernel is arithmetic in C.
KERNEL = {CORE / "placement" / "native.py": {"ctypes", "hashlib", "pathlib"}}
PURE = {
    "bisect", "collections", "dataclasses", "decimal", "enum", "fractions", "functools", "heapq", "itertools", "math",
    "numpy", "operator", "statistics", "types", "typing", "typing_extensions", "__future__",
}  # fmt: skip


def list_files(*suffixes: str) -> list[Path]:
    """Return the files that git knows, except vendored ones.

    Skips if this is not a checkout (an archive).
    """
    if shutil.which("git") is None or not (ROOT / ".git").exists():
        pytest.skip("no git checkout")
    listed = subprocess.run(
        ["git", "-c", "safe.directory=*", "ls-files"], cwd=ROOT, capture_output=True, text=True, check=True
    )
    names = [name for name in listed.stdout.splitlines() if name.endswith(suffixes) and not name.startswith(NOT_OURS)]
    return [ROOT / name for name in names if (ROOT / name).exists() and "/migrations/" not in name]


@functools.cache
def functions(file: Path) -> tuple[ast.FunctionDef | ast.AsyncFunctionDef, ...]:
    nodes = ast.walk(ast.parse(file.read_text()))
    return tuple(node for node in nodes if isinstance(node, ast.FunctionDef | ast.AsyncFunctionDef))


def test_no_file_is_longer_than_can_be_read_at_once() -> None:
    long = {
        str(file.relative_to(ROOT)): count
        for file in list_files(".py", ".c", ".h", ".js", ".css")
        if (count := lines(file)) > LINES_OF_A_FILE
    }
    assert not long


def test_no_wing_is_larger_than_one_can_know() -> None:
    wings: Counter[str] = Counter()
    for file in list_files(".py"):
        parts = file.relative_to(ROOT).parts
        if parts[0] in {"apps", "agent", "cli", "deploy", "gpucloud"}:
            is_nested = parts[0] == "apps" or parts[:2] in WINGS_OF_THE_AGENT
            wings["/".join(parts[: 2 if is_nested else 1])] += lines(file)
    assert not {wing: count for wing, count in wings.items() if count > LINES_OF_A_WING}


def test_no_line_of_a_template_is_wider_than_a_screen() -> None:
    wide = [
        f"{file.relative_to(ROOT)}:{number}"
        for file in list_files(".html")
        for number, line in enumerate(file.read_text(encoding="utf-8").splitlines(), start=1)
        if len(line) > COLUMNS_OF_A_TEMPLATE
    ]
    assert not wide


def test_functions_are_named_by_verbs() -> None:
    """A bare participle or adjective says nothing about what a function does."""
    found = [
        f"{file.relative_to(ROOT)}: {function.name}"
        for file in list_files(".py")
        if not str(file.relative_to(ROOT)).startswith("tests/")
        for function in functions(file)
        if function.name in NO_VERBS
    ]
    assert not found


def test_no_template_is_longer_than_can_be_seen_at_once() -> None:
    long = {
        str(file.relative_to(ROOT)): count
        for file in list_files(".html")
        if (count := lines(file)) > LINES_OF_A_TEMPLATE
    }
    assert not long


@pytest.mark.slow
def test_no_function_is_longer_than_a_screen() -> None:
    long = {
        f"{file.relative_to(ROOT)}:{function.lineno} {function.name}": length
        for file in list_files(".py")
        for function in functions(file)
        if (length := (function.end_lineno or 0) - function.lineno + 1) > LINES_OF_A_FUNCTION
    }
    assert not long


def test_no_module_is_named_after_nothing() -> None:
    assert not [file for file in list_files(".py") if file.stem in NAMELESS or file.parent.name in NAMELESS]


def lines(file: Path) -> int:
    return file.read_bytes().count(b"\n")


@pytest.mark.parametrize(
    "file", [*sorted(CORE.rglob("*.py")), *sorted(REBALANCING.rglob("*.py")), PLANNING], ids=lambda file: file.name
)
def test_decisions_import_only_values_and_themselves(file: Path) -> None:
    for module in imported(file):
        pure = module.split(".")[0] in PURE | KERNEL.get(file, set())
        assert pure or module.startswith(("apps.scheduling.core", "apps.rebalancing")), module


def imported(file: Path) -> Iterator[str]:
    for node in ast.walk(ast.parse(file.read_text())):
        if isinstance(node, ast.Import):
            yield from (alias.name for alias in node.names)
        elif isinstance(node, ast.ImportFrom):
            assert not node.level, "imports are absolute"
            yield node.module or ""


def test_the_agent_runs_without_the_control_plane() -> None:
    """Importing it loads nothing of Django, even through a package."""
    program = (
        "import sys, agent.__main__\n"
        "print([name for name in ('django', 'celery', 'channels', 'gpucloud', 'apps') if name in sys.modules])"
    )
    said = subprocess.run([sys.executable, "-c", program], cwd=ROOT, capture_output=True, text=True, check=True)
    assert said.stdout.strip() == "[]"
