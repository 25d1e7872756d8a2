"""PostgreSQL and Valkey for the tests, started before pytest-django reads the settings (hence a ``-p`` plugin).

Under xdist the controller starts them once and the workers inherit the environment; each worker has a database of its
own (pytest-django names them), copied from one with every migration applied, and, here, a prefix of its own for hints
and Celery. ``DATABASE_URL`` and ``REDIS_URL`` take precedence: the suite then runs against those servers.
"""

import contextlib
import gc
import logging
import os
import shutil
import sys
import tempfile
from collections.abc import Generator
from pathlib import Path

import pytest

from deploy import embedded
from deploy.embedded import postgres, prepared

# Variables that the settings require; the values are for tests only.
ENVIRONMENT = {
    "SECRET_KEY": "only-for-tests-0123456789abcdef0123456789abcdef0123456789abcdef",
    "ALLOWED_HOSTS": "127.0.0.1,localhost,testserver",
    "LOG_LEVEL": "WARNING",
}
# The name of the database to copy for each worker, if the server has it.
TEMPLATE = "TESTS_DATABASE_TEMPLATE"


@pytest.hookimpl(wrapper=True)
def pytest_load_initial_conftests(early_config: pytest.Config) -> Generator[None, None, None]:
    """Start the services; a wrapper runs before every plain hook, so before pytest-django's."""
    _keep_bytecode()
    # Modules and tests stay until the end: tests/conftest.py takes the collector up again when all are collected.
    gc.disable()
    worker = os.environ.get("PYTEST_XDIST_WORKER")
    for name, value in ENVIRONMENT.items():
        os.environ.setdefault(name, value)
    os.environ["REDIS_PREFIX"] = f"test-{worker or 'main'}-{os.getppid() if worker else os.getpid()}"
    if worker is None:
        early_config.add_cleanup(_start().close)
    return (yield)


def _keep_bytecode() -> None:
    """Cache bytecode: the tests start hundreds of Python programs, and each would compile the whole project again."""
    os.environ.pop("PYTHONDONTWRITEBYTECODE", None)
    sys.dont_write_bytecode = False


def _start() -> contextlib.ExitStack:
    stack = contextlib.ExitStack()
    state = Path(tempfile.mkdtemp(prefix="gpucloud-tests-"))
    stack.callback(shutil.rmtree, state, ignore_errors=True)
    template = None if os.environ.get("DATABASE_URL") else prepared.make()
    if template is not None:
        os.environ[TEMPLATE] = postgres.DATABASE
    running = stack.enter_context(embedded.services(state, durable=False, template=template))
    os.environ.update(running.environment())
    # Its thread would tell of Redis' end on a stream that pytest has closed.
    stack.callback(setattr, logging.getLogger("gpucloud.counters"), "disabled", True)
    return stack
