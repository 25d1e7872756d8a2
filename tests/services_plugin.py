"""PostgreSQL and Valkey for the tests, started before pytest-django reads the settings (hence a ``-p`` plugin).

Under xdist the controller starts them once and the workers inherit the environment; each worker has a database of its
own (pytest-django names them) and, here, a prefix of its own for hints and Celery. ``DATABASE_URL`` and
``REDIS_URL`` win when set: the suite then runs against those servers.
"""

import contextlib
import os
import shutil
import tempfile
from collections.abc import Generator
from pathlib import Path

import pytest

from deploy import embedded

# What the settings insist on; the values are for tests only.
ENVIRONMENT = {
    "SECRET_KEY": "only-for-tests-0123456789abcdef0123456789abcdef0123456789abcdef",
    "ALLOWED_HOSTS": "127.0.0.1,localhost,testserver",
    "LOG_LEVEL": "WARNING",
}


@pytest.hookimpl(wrapper=True)
def pytest_load_initial_conftests(early_config: pytest.Config) -> Generator[None, None, None]:
    """A wrapper runs before every plain hook, so before pytest-django's, whatever the order of registration."""
    worker = os.environ.get("PYTEST_XDIST_WORKER")
    for name, value in ENVIRONMENT.items():
        os.environ.setdefault(name, value)
    os.environ["REDIS_PREFIX"] = f"test-{worker or 'main'}-{os.getppid() if worker else os.getpid()}"
    if worker is None:
        early_config.add_cleanup(_start().close)
    return (yield)


def _start() -> contextlib.ExitStack:
    stack = contextlib.ExitStack()
    state = Path(tempfile.mkdtemp(prefix="gpucloud-tests-"))
    stack.callback(shutil.rmtree, state, ignore_errors=True)
    os.environ.update(stack.enter_context(embedded.services(state, durable=False)).environment())
    return stack
