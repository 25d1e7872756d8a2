"""The file of a virtual node over an upgrade of the simulated driver."""

import subprocess
from pathlib import Path

from deploy.demo.nodes import virtual_node
from tests.agent.stage import BUILD


def shown(node: Path) -> list[str]:
    """Return the UUIDs of its GPUs."""
    done = subprocess.run([BUILD / "simnode", "show", node], capture_output=True, text=True, check=True)
    return [line.split()[1] for line in done.stdout.splitlines()[1:]]


def test_a_node_of_another_version_is_made_anew_with_the_same_gpus(tmp_path: Path) -> None:
    node = virtual_node(tmp_path, "sim-1")
    gpus = shown(node)
    # The magic number is eight bytes long, the version follows.
    written = bytearray(node.read_bytes())
    written[8] ^= 0xFF
    node.write_bytes(written)
    refused = subprocess.run([BUILD / "simnode", "show", node], capture_output=True, text=True, check=False)
    assert refused.returncode == 1
    assert shown(virtual_node(tmp_path, "sim-1")) == gpus


def test_a_node_of_this_version_is_kept(tmp_path: Path) -> None:
    node = virtual_node(tmp_path, "sim-1")
    subprocess.run([BUILD / "simnode", "driver", node, "615.0"], check=True)
    virtual_node(tmp_path, "sim-1")
    assert b"615.0" in node.read_bytes()
