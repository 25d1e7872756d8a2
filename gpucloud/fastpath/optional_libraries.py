"""Optional libraries that Django REST framework and Django's test client load for features that nothing here uses.

They are installed because other packages need them. Together they are a tenth of the processor time of a start.
"""

import sys
from collections.abc import Iterator
from contextlib import contextmanager
from importlib import import_module

# Library: what loads it, where.
UNUSED = {
    "requests": "rest_framework.compat, for RequestsClient",
    "pygments": "rest_framework.compat, for the browsable API",
    "jinja2": "django.test.utils, for tests of Jinja templates; drf_spectacular.plumbing loads Django's test client",
}


@contextmanager
def hidden(*names: str) -> Iterator[None]:
    """Let imports of these libraries fail, except of those already loaded. Not safe beside other importing threads."""
    absent = [name for name in names if name not in sys.modules]
    sys.modules.update(dict.fromkeys(absent))  # type: ignore[arg-type] # None: Python raises ModuleNotFoundError
    try:
        yield
    finally:
        for name in absent:
            del sys.modules[name]


def load_rest_framework() -> None:
    """Import the REST framework and its schema generator without the optional libraries."""
    with hidden(*UNUSED):
        import_module("drf_spectacular.plumbing")
