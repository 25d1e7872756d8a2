"""``make check``: every static check, none needing a database. All are run, then the failures are shown.

The variables that the settings insist on get values that reach nothing: a check that opened a connection would fail.
"""

import argparse
import difflib
import os
import subprocess
import sys
import time
from collections.abc import Callable
from dataclasses import dataclass
from pathlib import Path

from deploy import styles

ROOT = Path(__file__).resolve().parent.parent
OPENAPI = ROOT / "docs" / "openapi.yaml"
BIN = Path(sys.executable).parent
# Those of them that exist are typed; one list, so that a new package is not forgotten.
TYPED = ("agent", "apps", "benchmarks", "cli", "deploy", "gpucloud", "tests", "manage.py")

ENVIRONMENT = {
    "SECRET_KEY": "only-for-checks-0123456789abcdef0123456789abcdef0123456789abcdef",
    "DATABASE_URL": "postgresql://nobody@/nothing?host=/nonexistent",
    "REDIS_URL": "unix:///nonexistent/valkey.sock",
    "DEBUG": "0",
    "ALLOWED_HOSTS": "127.0.0.1,localhost",
    # This checkout's command line, not one that the environment may have installed.
    "PYTHONPATH": str(ROOT / "cli"),
}


@dataclass(frozen=True)
class Outcome:
    """What a check said; ``passed`` decides."""

    passed: bool
    said: str


Check = Callable[[], Outcome]


def run(*command: str) -> Outcome:
    """The command passed if it ended with 0."""
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
    """A program of the environment."""
    return lambda: run(str(BIN / name), *arguments)


def manage(*arguments: str) -> Check:
    """A command of Django, with warnings as errors."""
    return lambda: run(sys.executable, "-W", "error", "manage.py", *arguments)


def migrations() -> Outcome:
    """No model has changed without a migration. Django warns that it cannot ask the database; that is as wanted."""
    return run(sys.executable, "manage.py", "makemigrations", "--check", "--dry-run", "--skip-checks")


def schema() -> Outcome:
    """The OpenAPI document as the views make it now."""
    return run(sys.executable, "manage.py", "spectacular", "--validate", "--fail-on-warn")


def openapi() -> Outcome:
    """The committed document is the one that the views make."""
    made = schema()
    if not made.passed:
        return made
    committed = OPENAPI.read_text() if OPENAPI.exists() else ""
    difference = list(
        difflib.unified_diff(
            committed.splitlines(), made.said.splitlines(), "docs/openapi.yaml", "the views", lineterm="", n=1
        )
    )
    return Outcome(not difference, "\n".join(difference[:60]) + "\nRun `make openapi`." if difference else "")


def used_styles() -> Outcome:
    """The committed sheet is the one that templates and scripts make of Tabler's."""
    current = styles.USED.exists() and styles.USED.read_text() == styles.made()
    return Outcome(current, "" if current else f"{styles.USED.name} is not what pages use now. Run `make styles`.")


def checks() -> dict[str, Check]:
    typed = [name for name in TYPED if (ROOT / name).exists()]
    return {
        "format": tool("ruff", "format", "--check", "--quiet", "."),
        "lint": tool("ruff", "check", "--quiet", "."),
        "types": tool("mypy", *typed),
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
    parser.add_argument("--write-openapi", action="store_true", help="write docs/openapi.yaml instead of checking")
    arguments = parser.parse_args()
    if arguments.write_openapi:
        return write_openapi()
    if unknown := set(arguments.names) - set(checks()):
        parser.error(f"no such check: {', '.join(sorted(unknown))}")
    chosen = {name: check for name, check in checks().items() if name in (arguments.names or checks())}
    return judge(chosen)


def judge(chosen: dict[str, Check]) -> int:
    """Run all, then show what failed and count."""
    failures: dict[str, str] = {}
    for name, check in chosen.items():
        begun = time.monotonic()
        outcome = check()
        verdict = "ok" if outcome.passed else "FAILED"
        print(f"{name:<14}{verdict:<8}{time.monotonic() - begun:5.1f} s", flush=True)
        if not outcome.passed:
            failures[name] = outcome.said
    for name, said in failures.items():
        print(f"\n--- {name}\n{said.rstrip()}")
    print(f"\n{len(chosen) - len(failures)} of {len(chosen)} checks passed")
    return 1 if failures else 0


def write_openapi() -> int:
    made = schema()
    if not made.passed:
        print(made.said, file=sys.stderr)
        return 1
    OPENAPI.parent.mkdir(exist_ok=True)
    OPENAPI.write_text(made.said)
    print(f"wrote {OPENAPI.relative_to(ROOT)}")
    return 0


if __name__ == "__main__":
    sys.exit(main())
