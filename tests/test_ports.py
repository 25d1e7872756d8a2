"""Ports for programs of tests: nobody else takes one before its program listens."""

import os
import socket
import subprocess
import sys
from pathlib import Path

import pytest

from tests import ports
from tests.platform import ROOT

ONLY = "from tests import ports; ports.FIRST = ports.LAST = {port}; print(ports.free_port())"


def test_the_kernel_gives_no_such_port_to_others() -> None:
    lowest, highest = map(int, Path("/proc/sys/net/ipv4/ip_local_port_range").read_text().split())
    assert not lowest <= ports.free_port() <= highest


def test_no_port_is_given_twice() -> None:
    given = [ports.free_port() for _ in range(200)]
    assert len(set(given)) == len(given)


def test_another_process_gets_no_port_that_is_given_here() -> None:
    def asked() -> subprocess.CompletedProcess[str]:
        code = ONLY.format(port=port)
        return subprocess.run([sys.executable, "-c", code], cwd=ROOT, capture_output=True, text=True, check=False)

    port = ports.free_port()
    assert f"no port from {port} to {port} is free" in asked().stderr
    # Control: the reservation keeps it away.
    os.close(ports._reserved.pop())
    assert asked().stdout == f"{port}\n"


def test_a_port_with_a_listener_is_not_given(monkeypatch: pytest.MonkeyPatch) -> None:
    port = ports.free_port()
    os.close(ports._reserved.pop())
    monkeypatch.setattr(ports, "FIRST", port)
    monkeypatch.setattr(ports, "LAST", port)
    with socket.socket() as listening:
        listening.bind(("127.0.0.1", port))
        listening.listen()
        with pytest.raises(OSError, match="no port"):
            ports.free_port()
    assert ports.free_port() == port
