"""The agent's bundle, made and served by the server."""

import ast
import hashlib
import importlib.metadata
import io
import sys
import zipfile
from pathlib import Path

import pytest
from django.conf import settings
from django.test import Client

from apps.nodes.services import bundle as module
from apps.nodes.services.bundle import PACKAGES, Bundle, bundle, command
from tests.cast import Cast

AGENT = Path(settings.BASE_DIR) / "agent"


@pytest.fixture
def made() -> Bundle:
    it = bundle()
    assert it is not None
    return it


def test_every_process_makes_the_same_bytes(made: Bundle) -> None:
    bundle.cache_clear()
    assert bundle() == made


def test_it_is_served_to_everyone_under_its_digest(made: Bundle) -> None:
    told = Client().get("/agent/bundle.json").json()
    assert told == {"version": made.version, "sha256": made.sha256, "path": made.path}
    served = Client().get(made.path)
    assert hashlib.sha256(served.content).hexdigest() == made.sha256
    assert Client().get("/agent/gpucloud-agent-0123456789abcdef.pyz").status_code == 404


def test_the_command_of_a_new_node_names_the_bundle_its_digest_and_the_server(cast: Cast, made: Bundle) -> None:
    told = cast.olga.post("nodes/", {"name": "gpu1", "pool": "default"}).body
    assert told["command"] == command(server="http://testserver", token=told["enrolment_token"])
    assert f"http://testserver{made.path}" in told["command"]
    assert f"'{made.sha256}  '" in told["command"]


def test_a_server_without_a_built_library_names_the_plain_way(monkeypatch: pytest.MonkeyPatch, tmp_path: Path) -> None:
    monkeypatch.setattr(settings, "BASE_DIR", tmp_path)
    monkeypatch.setattr(module, "bundle", module.bundle.__wrapped__)
    assert (
        command(server="http://x", token="gpe_1") == "GPUCLOUD_ENROL_TOKEN=gpe_1 python -m agent run --server http://x"
    )
    assert Client().get("/agent/bundle.json").status_code in (200, 404)


def test_everything_that_the_agent_imports_is_in_it(made: Bundle) -> None:
    imported = set()
    for path in set(AGENT.rglob("*.py")) - set((AGENT / "kubelet").rglob("*.py")):
        for node in ast.walk(ast.parse(path.read_text())):
            if isinstance(node, ast.Import):
                imported |= {name.name.partition(".")[0] for name in node.names}
            elif isinstance(node, ast.ImportFrom) and node.module:
                imported.add(node.module.partition(".")[0])
    foreign = imported - set(sys.stdlib_module_names) - {"agent"}
    by_module = importlib.metadata.packages_distributions()
    assert {by_module[name][0].replace("_", "-") for name in foreign} == set(PACKAGES)
    names = zipfile.ZipFile(io.BytesIO(made.content)).namelist()
    assert {f"agent/{path.relative_to(AGENT)}" for path in AGENT.rglob("*.py")} <= set(names)
    assert not any("__pycache__" in name or name.startswith(("apps", "gpucloud/")) for name in names)


def test_what_starts_out_of_it_can_be_read_by_an_old_python() -> None:
    ast.parse((AGENT / "install" / "start.py").read_text(), feature_version=(3, 7))


def test_packages_for_other_pythons_come_from_beside(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    root = Path(settings.BASE_DIR)
    for name in ("agent", "libvcuda", "deploy", "LICENSE"):
        (tmp_path / name).symlink_to(root / name)
    (tmp_path / "agent-packages/cp399/msgspec").mkdir(parents=True)
    (tmp_path / "agent-packages/cp399/msgspec/__init__.py").write_text("")
    monkeypatch.setattr(settings, "BASE_DIR", tmp_path)
    built = module.bundle.__wrapped__()
    assert built is not None
    with zipfile.ZipFile(io.BytesIO(built.content)) as archive:
        assert "packages/cp399/msgspec/__init__.py" in archive.namelist()
        assert b'"cp399"' in archive.read("manifest.json")
