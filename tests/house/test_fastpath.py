"""The versions of what `gpucloud/fastpath` and `gpucloud/server` go round: a new one is read before it is used."""

import importlib.metadata

import pytest

# Each module uses the framework's internals; docs/decisions says why. After an update: compare these internals with the
# release's source, run the tests of the module, then raise the version here.
GONE_ROUND = {
    "Django": ("5.2", "compiled_queries, page_queries, cursors, serving, database (decisions 0012, 0017, 0137)"),
    "psycopg": ("3.3", "cursors, database"),
    "psycopg-pool": ("3.3", "database"),
    "djangorestframework": ("3.18", "documents (decision 0137), optional_libraries"),
    "drf-spectacular": ("0.30", "optional_libraries"),
    "whitenoise": ("6.12", "static_files"),
    "uvicorn": ("0.54", "gpucloud/server/protocol.py (decision 0050)"),
}


@pytest.mark.parametrize("package", GONE_ROUND)
def test_a_new_minor_version_is_read_before_it_is_used(package: str) -> None:
    known, modules = GONE_ROUND[package]
    found = ".".join(importlib.metadata.version(package).split(".")[:2])
    assert found == known, f"{package} {found}: read again what gpucloud/fastpath goes round ({modules})"
