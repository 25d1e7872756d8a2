"""The check of docstrings in ``make check``: plain English, and imperative where they describe a function.

A docstring must not begin with a relative clause or an inverted sentence ("What is left", "Of two rows the newer"). A
function's docstring outside of tests begins with a verb in the imperative ("Return…", "Charge…"): ruff's D401 knows
other forms of common verbs, and NOT_VERBS lists words that begin a description instead.
"""

import ast
import subprocess
import sys
from collections.abc import Iterator
from pathlib import Path

# Paths whose docstrings are not rewritten yet. Remove a path when its docstrings are clean.
NOT_YET: tuple[str, ...] = ()
# Written by tools.
GENERATED = ("_pb2.py", "/migrations/")

_RELATIVE = """
What Whatever Whose Who Whoever Whom Those Where Wherever Whether Which Of By As How That Than Is Are Was Were To
Because Since Though Also Likewise
"""
_DESCRIPTIVE = """
A After All An Another At Before Both Called Each Every Everything False For From Here If In It Its More Never No Nobody
None Nothing Now On Once One Only Our Raises Returns Some Somebody Something Such The Their Them Then There These They
This True Two Under Until Up We When While With Within Without Yes You Your
"""
FORBIDDEN = frozenset(_RELATIVE.split())
NOT_VERBS = FORBIDDEN | frozenset(_DESCRIPTIVE.split())
Function = ast.FunctionDef | ast.AsyncFunctionDef


def complaints(root: Path) -> list[str]:
    """Return a line for each docstring that is not plain, in the files that git knows."""
    listed = subprocess.run(["git", "ls-files", "*.py"], cwd=root, capture_output=True, text=True, check=True)
    names = [name for name in listed.stdout.split() if not name.startswith(NOT_YET) and (root / name).is_file()]
    names = [name for name in names if not any(part in name for part in GENERATED)]
    found = [line for name in names for line in of_source(name, (root / name).read_text())]
    return [*found, *_not_imperative(root, [name for name in names if not name.startswith("tests/")])]


def of_source(name: str, source: str) -> Iterator[str]:
    """Yield a line for each docstring in a source file that begins with a wrong word."""
    in_tests = name.startswith("tests/")
    for node in ast.walk(ast.parse(source)):
        if not isinstance(node, Function | ast.ClassDef | ast.Module) or not (text := ast.get_docstring(node)):
            continue
        first = text.split()[0].rstrip(",:;.")
        line = getattr(node, "lineno", 1)
        if isinstance(node, Function) and not in_tests and not _is_property(node):
            if first in NOT_VERBS or not first[0].isupper() or first.isupper():
                yield f"{name}:{line}: {node.name}: begin with a verb in the imperative, not with {first!r}"
        elif first in FORBIDDEN:
            yield f"{name}:{line}: begin with a noun phrase or a plain sentence, not with {first!r}"


def _is_property(node: Function) -> bool:
    """Return True for a property: its docstring may be a noun phrase, as an attribute's."""
    return any(ast.unparse(one).rpartition(".")[2] in {"property", "cached_property"} for one in node.decorator_list)


def _not_imperative(root: Path, names: list[str]) -> list[str]:
    command = [sys.executable, "-m", "ruff", "check", "--select=D400,D401", "--output-format=concise", "--quiet"]
    done = subprocess.run([*command, *names], cwd=root, capture_output=True, text=True, check=False)
    return (done.stdout + done.stderr).splitlines()
