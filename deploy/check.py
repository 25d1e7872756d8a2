"""``make check``: every static check; none needs a database. All checks run, as many at once as there are cores, then
the failures are printed.

Required settings get values that lead nowhere: a check that opened a connection would fail.
"""

import argparse
import difflib
import os
import subprocess
import sys
import time
from collections.abc import Callable
from concurrent.futures import ThreadPoolExecutor
from dataclasses import dataclass
from pathlib import Path

from deploy import command_schema, prose, styles

ROOT = Path(__file__).resolve().parent.parent
OPENAPI = ROOT / "docs" / "openapi.yaml"
BIN = Path(sys.executable).parent
# Directories for mypy, if they exist; one list, so that a new package is not forgotten.
TYPED = ("agent", "apps", "benchmarks", "cli", "deploy", "gpucloud", "tests", "manage.py")
# The check that takes as long as all others together.
LONGEST = "types"

ENVIRONMENT = {
    "SECRET_KEY": "only-for-checks-0123456789abcdef0123456789abcdef0123456789abcdef",
    "DATABASE_URL": "postgresql://nobody@/nothing?host=/nonexistent",
    "REDIS_URL": "unix:///nonexistent/valkey.sock",
    "DEBUG": "0",
    "ALLOWED_HOSTS": "127.0.0.1,localhost",
    # This checkout's command line, not one installed in the environment.
    "PYTHONPATH": str(ROOT / "cli"),
}


@dataclass(frozen=True)
class Outcome:
    """Result of a check and its output."""

    passed: bool
    said: str


Check = Callable[[], Outcome]


def run(*command: str) -> Outcome:
    """Run a command; it passes if it exits with 0."""
    environment = {
        name: value for name, value in os.environ.items() if name not in {"MAKEFLAGS", "MAKELEVEL", "MFLAGS"}
    }
    try:
        done = subprocess.run(
            command, cwd=ROOT, env=environment | ENVIRONMENT, capture_output=True, text=True, check=False
        )
    except FileNotFoundError:
        return Outcome(False, f"{command[0]} is not installed")
    return Outcome(done.returncode == 0, done.stdout + done.stderr)


def tool(name: str, *arguments: str) -> Check:
    """Return a check that runs a program of the environment."""
    return lambda: run(str(BIN / name), *arguments)


def manage(*arguments: str) -> Check:
    """Return a check that runs a Django command with warnings as errors."""
    return lambda: run(sys.executable, "-W", "error", "manage.py", *arguments)


def migrations() -> Outcome:
    """Check that no model changed without a migration.

    Django's warning that it cannot reach the database is expected.
    """
    return run(sys.executable, "manage.py", "makemigrations", "--check", "--dry-run", "--skip-checks")


def schema() -> Outcome:
    """Generate the OpenAPI document from the views."""
    return run(sys.executable, "manage.py", "spectacular", "--validate", "--fail-on-warn")


def openapi() -> Outcome:
    """Check that the committed document, and the command's table of its fields, equal the generated ones."""
    made = schema()
    if not made.passed:
        return made
    committed = OPENAPI.read_text() if OPENAPI.exists() else ""
    difference = list(
        difflib.unified_diff(
            committed.splitlines(), made.said.splitlines(), "docs/openapi.yaml", "the views", lineterm="", n=1
        )
    )
    if difference:
        return Outcome(False, "\n".join(difference[:60]) + "\nRun `make openapi`.")
    written = command_schema.WRITTEN
    current = written.exists() and written.read_text() == command_schema.render(made.said)
    return Outcome(current, "" if current else f"{written.name} differs from docs/openapi.yaml. Run `make openapi`.")


def used_styles() -> Outcome:
    """Check that the committed style sheet equals the one made from templates and scripts."""
    current = styles.USED.exists() and styles.USED.read_text() == styles.render()
    return Outcome(current, "" if current else f"{styles.USED.name} differs from what pages use. Run `make styles`.")


def docstrings() -> Outcome:
    """Check that docstrings are plain English, and imperative for functions."""
    found = prose.complaints(ROOT)
    return Outcome(not found, "\n".join(found))


def tests() -> Outcome:
    """Check that every test can be collected. Its processes need not compile all tests at once afterwards."""
    collected = run(sys.executable, "-m", "pytest", "--collect-only", "-q", "-p", "no:cacheprovider")
    return Outcome(collected.passed, "" if collected.passed else collected.said[-3000:])


def checks() -> dict[str, Check]:
    typed = [name for name in TYPED if (ROOT / name).exists()]
    return {
        "format": tool("ruff", "format", "--check", "--quiet", "."),
        "lint": tool("ruff", "check", "--quiet", "."),
        "docstrings": docstrings,
        "types": tool("mypy", *typed),
        "tests": tests,
        "arrows": tool("lint-imports"),
        "django": manage("check", "--fail-level", "WARNING"),
        "migrations": migrations,
        "openapi": openapi,
        "templates": tool("djlint", "templates", "--lint", "--quiet"),
        "styles": used_styles,
        "compose": tool("check-jsonschema", "--builtin-schema", "vendor.compose-spec", "docker-compose.yml"),
        "dockerfile": tool("hadolint", "Dockerfile"),
        "requirements": lambda: run(sys.executable, "-m", "pip", "check"),
        "C": lambda: run("make", "-C", "libvcuda", "check"),
        "kernel": lambda: run("make", "-C", "apps/scheduling/core/placement/kernel", "check"),
    }


def main() -> int:
    parser = argparse.ArgumentParser(prog="check", description=(__doc__ or "").partition("\n")[0])
    parser.add_argument("names", nargs="*", metavar="NAME", help=f"only these of: {', '.join(checks())}")
    parser.add_argument(
        "--write-openapi", action="store_true", help="write docs/openapi.yaml and the command's table instead"
    )
    arguments = parser.parse_args()
    if arguments.write_openapi:
        return write_openapi()
    if unknown := set(arguments.names) - set(checks()):
        parser.error(f"no such check: {', '.join(sorted(unknown))}")
    chosen = {name: check for name, check in checks().items() if name in (arguments.names or checks())}
    return judge(chosen)


def judge(chosen: dict[str, Check]) -> int:
    """Run all checks, the longest first, then print the failures and their number."""
    failures: dict[str, str] = {}

    def run_one(name: str) -> None:
        begun = time.monotonic()
        outcome = chosen[name]()
        verdict = "ok" if outcome.passed else "FAILED"
        print(f"{name:<14}{verdict:<8}{time.monotonic() - begun:5.1f} s", flush=True)
        if not outcome.passed:
            failures[name] = outcome.said

    with ThreadPoolExecutor(os.cpu_count()) as threads:
        list(threads.map(run_one, sorted(chosen, key=lambda name: name != LONGEST)))
    for name in (name for name in chosen if name in failures):
        print(f"\n--- {name}\n{failures[name].rstrip()}")
    print(f"\n{len(chosen) - len(failures)} of {len(chosen)} checks passed")
    return 1 if failures else 0


def write_openapi() -> int:
    made = schema()
    if not made.passed:
        print(made.said, file=sys.stderr)
        return 1
    OPENAPI.parent.mkdir(exist_ok=True)
    for path, text in ((OPENAPI, made.said), (command_schema.WRITTEN, command_schema.render(made.said))):
        path.write_text(text)
        print(f"wrote {path.relative_to(ROOT)}")
    return 0


if __name__ == "__main__":
    sys.exit(main())
