"""Hooks and fixtures of every test, with or without Django."""

import gc
import os
import shutil
import signal
import tempfile
import zlib
from collections.abc import Iterator
from pathlib import Path

import hypothesis
import pytest
from django.contrib.auth.hashers import PBKDF2PasswordHasher

from tests import matrix, racing
from tests.platform import Platform, until
from tests.services_plugin import TEMPLATE

# The names under which distributions install it. The shell is the same engine without windows, which the others draw
# even if nobody sees them: it starts with a third of the processor time.
CHROMIUMS = (
    "chromium-headless-shell",
    "chrome-headless-shell",
    "chromium",
    "chromium-browser",
    "google-chrome",
    "chrome",
)
# Files that take minutes. Started last, one would keep one process busy when the others have nothing left to do.
LONGEST = ("tests/e2e/", "tests/fuzz/", "tests/demo/")


def chromium() -> str | None:
    """Return the path of a Chromium, if the machine has one."""
    return next((path for name in CHROMIUMS if (path := shutil.which(name))), None)


def pytest_addoption(parser: pytest.Parser) -> None:
    """Add what `make test-fast` and `make test-long` ask for."""
    parser.addoption("--once", action="store_true", help="run each test function with its first parameters only")
    parser.addoption("--all-examples", action="store_true", help="try properties with the examples of a release")


def pytest_configure(config: pytest.Config) -> None:
    """Reset ignored signals, which programs under test would inherit, and let Hypothesis take its time.

    A shell's background ignores SIGINT, `nohup` SIGHUP. On a busy machine any example may take longer than a deadline.
    Passwords are hashed in one iteration: a million take 0.3 s of processor time, and tests sign in hundreds of times.
    """
    PBKDF2PasswordHasher.iterations = 1
    examples = matrix.RELEASED_EXAMPLES if config.getoption("--all-examples") else matrix.EXAMPLES
    hypothesis.settings.register_profile("busy", deadline=None, max_examples=examples)
    hypothesis.settings.load_profile("busy")
    signal.signal(signal.SIGINT, signal.default_int_handler)
    signal.signal(signal.SIGHUP, signal.SIG_DFL)


def commits(item: pytest.Item) -> bool:
    """Return True if the test's database work is committed, so that several connections see it."""
    asked = any(mark.kwargs.get("transaction") for mark in item.iter_markers("django_db"))
    return asked or "transactional_db" in getattr(item, "fixturenames", ())


def first_of_each(items: list[pytest.Item]) -> list[pytest.Item]:
    """Return one test of each function: the first that is not left to `make test-long`."""
    ordered = sorted(items, key=lambda item: item.get_closest_marker("long") is not None)
    first = {item.nodeid.partition("[")[0]: item for item in reversed(ordered)}
    return [item for item in items if first[item.nodeid.partition("[")[0]] is item]


def mark_shared(items: list[pytest.Item]) -> None:
    """Mark the tests of files in which one asks for the platform that a process's tests share."""
    serial = [item for item in items if item.get_closest_marker("serial")]
    files = {item.path for item in serial if "platform" in getattr(item, "fixturenames", ())}
    for item in serial:
        if item.path in files:
            item.add_marker(pytest.mark.shared)


def pytest_collection_modifyitems(config: pytest.Config, items: list[pytest.Item]) -> None:
    """Mark the tests that commit, keep the first of each function where asked to; begin with what takes longest.

    Browser tests are skipped visibly where there is no browser.
    """
    for item in items:
        if commits(item):
            item.add_marker(pytest.mark.committed)
    mark_shared(items)
    if config.getoption("--once"):
        items[:] = first_of_each(items)
    items.sort(key=lambda item: not item.nodeid.startswith(LONGEST))
    if config.getoption("dist", "no") == "worksteal":
        # Tests that wait and tests that compute lie in different directories; each process begins with some of both.
        items.sort(key=lambda item: zlib.crc32(item.nodeid.partition("::")[0].encode()))
    if chromium() is not None:
        return
    skip = pytest.mark.skip(reason=f"no browser: none of {', '.join(CHROMIUMS)} is on the PATH")
    for item in items:
        if item.get_closest_marker("browser"):
            item.add_marker(skip)


def pytest_collection_finish() -> None:
    """Spare the garbage collector what exists until the end: the modules and seven thousand tests."""
    gc.freeze()
    gc.enable()


def pytest_runtest_teardown(nextitem: pytest.Item | None) -> None:
    """Close the racers' connections before the database is removed, after the last test."""
    if nextitem is None:
        racing.close_connections()


@pytest.fixture(scope="session")
def chromium_path() -> str:
    """Return the browser for tests marked ``browser``."""
    path = chromium()
    if path is None:
        pytest.skip("no browser")
    return path


@pytest.fixture(scope="session")
def django_db_modify_db_settings(django_db_modify_db_settings_parallel_suffix: None) -> Iterator[None]:
    """Copy a migrated database for each process; a hook of pytest-django.

    It is emptied where Django would truncate every table.
    """
    from django.db import connection
    from django.test import TransactionTestCase

    from tests.emptying import empty

    if name := os.environ.get(TEMPLATE):
        connection.settings_dict["TEST"]["TEMPLATE"] = name
    with pytest.MonkeyPatch.context() as patch:
        patch.setattr(TransactionTestCase, "_fixture_teardown", lambda _: empty(connection))
        yield


@pytest.fixture(scope="session")
def platform() -> Iterator[Platform]:
    """Start a whole platform, as `make demo` does; for tests marked ``serial``, which share it."""
    with (
        tempfile.TemporaryDirectory(prefix="gpucloud-platform-") as directory,
        Platform(Path(directory) / "demo") as it,
    ):
        # The seed's claims are placed: nothing changes except by a test.
        until(
            lambda: {claim["state"] for claim in it.granted("GET", "claims/")["results"]} == {"active"},
            seconds=60,
            what="the seeded claims to be active",
        )
        yield it
