"""Release files of `make dist`: made without an index, complete, with the product's packages only."""

import hashlib
import re
import zipfile
from pathlib import Path

import pytest
from django.core.management import CommandError, call_command

from apps.nodes.management.commands import agent_bundle
from apps.nodes.services.bundle import bundle
from deploy import dist

ROOT = Path(__file__).resolve().parent.parent.parent


@pytest.fixture
def place(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Path:
    """Return a directory in the place of dist/."""
    monkeypatch.setattr(dist, "DIST", tmp_path)
    return tmp_path


@pytest.mark.slow
def test_the_wheel_is_the_command_and_nothing_else(place: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("PIP_NO_INDEX", "1")
    dist.write_wheel()
    [wheel] = place.glob("*.whl")
    names = zipfile.ZipFile(wheel).namelist()
    assert {name.split("/")[0].split("-")[0] for name in names} == {"gpucloud_cli"}
    [entry] = [name for name in names if name.endswith("entry_points.txt")]
    assert b"gpucloud=gpucloud_cli.main:main" in zipfile.ZipFile(wheel).read(entry).replace(b" ", b"")


def test_the_agents_file_is_what_the_server_serves(place: Path) -> None:
    made = bundle()
    assert made is not None
    call_command("agent_bundle", place)
    [file] = place.glob("gpucloud-agent-*.pyz")
    assert hashlib.sha256(file.read_bytes()).hexdigest() == made.sha256


def test_without_a_built_library_there_is_no_file_and_a_word_why(place: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(agent_bundle, "bundle", lambda: None)
    with pytest.raises(CommandError, match="make -C libvcuda"):
        call_command("agent_bundle", place)


def test_the_bill_is_of_what_the_image_has() -> None:
    # Packages that the Dockerfile leaves out by the same names.
    left_out = re.search(r"'\^\(([\w|-]+)\)=='", (ROOT / "Dockerfile").read_text())
    assert left_out is not None
    assert tuple(f"{name}==" for name in left_out[1].split("|")) == dist.EMBEDDED
    assert not any(name in dist.runtime_pins() for name in dist.EMBEDDED)
    assert "Django==" in dist.runtime_pins()


def test_digests_are_what_sha256sum_reads(place: Path) -> None:
    (place / "file").write_bytes(b"content")
    dist.write_digests()
    assert (place / "SHA256SUMS").read_text() == f"{hashlib.sha256(b'content').hexdigest()}  file\n"
