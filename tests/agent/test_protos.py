"""The generated modules of the kubelet's interfaces match the .proto files."""

import subprocess
import sys
from pathlib import Path

from tests.agent.stage import ROOT

PROTOS = Path("agent/kubelet/proto")


def test_the_generated_modules_are_what_the_compiler_makes(tmp_path: Path) -> None:
    sources = [str(path.relative_to(ROOT)) for path in sorted((ROOT / PROTOS).glob("*.proto"))]
    command = [sys.executable, "-m", "grpc_tools.protoc", "-I.", f"--python_out={tmp_path}", f"--pyi_out={tmp_path}"]
    subprocess.run([*command, *sources], cwd=ROOT, check=True, capture_output=True)
    made = {path.name: path.read_text() for path in (tmp_path / PROTOS).iterdir()}
    assert made == {path.name: path.read_text() for path in (ROOT / PROTOS).glob("*_pb2.py*")}
    assert len(made) == 2 * len(sources)
