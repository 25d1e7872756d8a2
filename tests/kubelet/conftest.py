"""One real node for all tests of this folder: started once, emptied before each test."""

import tempfile
from collections.abc import Iterator
from pathlib import Path

import pytest

from tests.kubelet.chain import Chain, started
from tests.kubelet.programs import missing

# Measurements by their names, in seconds; printed at the end, because they judge nothing on a busy machine.
FIGURES = pytest.StashKey[dict[str, float]]()


@pytest.fixture
def figures(pytestconfig: pytest.Config) -> dict[str, float]:
    """Return the measurements of this run."""
    return pytestconfig.stash.setdefault(FIGURES, {})


def pytest_terminal_summary(terminalreporter: pytest.TerminalReporter, config: pytest.Config) -> None:
    """Print the measurements."""
    for name, seconds in config.stash.get(FIGURES, {}).items():
        terminalreporter.write_line(f"{name}: {seconds:.3f} s")


@pytest.fixture(scope="session")
def kubelet() -> None:
    """Skip, visibly, where a program or root is missing."""
    if (reason := missing()) is not None:
        pytest.skip(reason)


@pytest.fixture(scope="session")
def session_chain(kubelet: None) -> Iterator[Chain]:
    # Sockets have short paths.
    with tempfile.TemporaryDirectory(prefix="gpucloud-kubelet-") as directory, started(Path(directory)) as it:
        yield it


@pytest.fixture
def chain(session_chain: Chain) -> Chain:
    """Return the chain without pods."""
    session_chain.delete_all()
    return session_chain
