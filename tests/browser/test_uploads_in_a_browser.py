"""Files of a new job, chosen on its page: packed by the browser, uploaded in pieces, unpacked by a real run."""

import os
import re
import tarfile
from pathlib import Path
from typing import Any

import pytest
from playwright.sync_api import Page, Route, expect

from tests.browser.accessibility import violations_in_both_themes
from tests.browser.conftest import Visitor
from tests.platform import Platform, until

pytestmark = [pytest.mark.browser, pytest.mark.serial, pytest.mark.timeout(300)]
NOT_ROOT = pytest.mark.skipif(os.geteuid() == 0, reason="a demo's agent that runs as root starts no jobs")
LONG = "/".join(["a-directory-of-a-long-name"] * 6) + "/ünï 名.txt"
PIECES = re.compile(r"/pieces/$")


@pytest.fixture
def tenant(platform: Platform) -> str:
    """Return a tenant whose jobs may run."""
    platform.granted("PATCH", "pools/default/", {"jobs": True})
    return platform.new_tenant(f"uploads-{os.urandom(4).hex()}")


@pytest.fixture
def directory(tmp_path: Path) -> Path:
    """Return a directory with a program, a long path, an empty file, and what is left out."""
    root = tmp_path / "project"
    for name, content in {
        "train.sh": b"#!/bin/sh\ncat data/numbers; ls -R | wc -l; exit 5\n",
        "data/numbers": b"20 22\n",
        "data/empty": b"",
        "big.bin": os.urandom(1_200_000),
        LONG: b"long\n",
        ".git/config": b"left out\n",
    }.items():
        (root / name).parent.mkdir(parents=True, exist_ok=True)
        (root / name).write_bytes(content)
    return root


def offset_of(route: Route) -> int:
    """Return where the piece of an upload begins."""
    body: Any = route.request.post_data_json
    return int(body["offset"])


def fill(page: Page, tenant: str, command: str) -> None:
    """Open the form and fill it in."""
    page.goto("/jobs/new/")
    page.get_by_label("Tenant", exact=True).select_option(tenant)
    page.get_by_label("Name", exact=True).fill("train")
    page.get_by_label("Command", exact=True).fill(command)
    page.get_by_label("Core", exact=True).fill("5")
    page.get_by_label("Memory", exact=True).fill("64 MiB")


def run(page: Page) -> str:
    """Send the form; return the job's uid."""
    page.get_by_role("button", name="Run job").click()
    page.wait_for_url(re.compile(r"/jobs/[0-9a-f-]{36}/$"))
    return page.url.rstrip("/").rpartition("/")[2]


@NOT_ROOT
def test_a_directory_is_packed_uploaded_once_and_unpacked(
    visitor: Visitor, platform: Platform, tenant: str, directory: Path
) -> None:
    page = visitor.page
    offsets: list[int] = []

    def note(route: Route) -> None:
        offsets.append(offset_of(route))
        route.continue_()

    page.route(PIECES, note)
    fill(page, tenant, "sh -c './train.sh'")
    assert violations_in_both_themes(page) == []
    page.get_by_label("Directory", exact=True).set_input_files(directory)
    uid = run(page)
    # 1.2 MB of noise: more than two pieces.
    assert offsets == [0, 512 << 10, 1024 << 10]
    job = platform.granted("GET", f"jobs/{uid}/")
    assert job["files"] is not None
    until(lambda: platform.granted("GET", f"jobs/{uid}/")["state"] == "failed", what="the job to end")
    assert platform.granted("GET", f"jobs/{uid}/")["exit_code"] == 5
    assert platform.granted("GET", f"jobs/{uid}/output/")["text"].startswith("20 22\n")
    # The same files have the same bytes: nothing is sent again.
    fill(page, tenant, "true")
    page.get_by_label("Directory", exact=True).set_input_files(directory)
    again = run(page)
    assert platform.granted("GET", f"jobs/{again}/")["files"] == job["files"]
    assert len(offsets) == 3


def test_the_archive_is_read_by_others(visitor: Visitor, tenant: str, directory: Path, tmp_path: Path) -> None:
    page = visitor.page
    fill(page, tenant, "true")
    page.get_by_label("Directory", exact=True).set_input_files(directory)
    packed = page.evaluate("""async () => {
        const script = [...document.scripts].find(one => one.src.includes('upload')).src;
        const name = (await (await fetch(script)).text()).match(/from "([^"]*packing[^"]*)"/)[1];
        const { pack } = await import(new URL(name, script));
        const { archive } = await pack(document.getElementById('upload-directory').files, 2 ** 26);
        return [...new Uint8Array(await archive.arrayBuffer())];
    }""")
    file = tmp_path / "packed.tar.gz"
    file.write_bytes(bytes(packed))
    with tarfile.open(file) as archive:
        members = {member.name: member for member in archive.getmembers()}
        contents = {name: archive.extractfile(member).read() for name, member in members.items()}  # type: ignore[union-attr]
    files = {str(path.relative_to(directory)): path for path in directory.rglob("*") if path.is_file()}
    files.pop(".git/config")
    assert contents == {name: path.read_bytes() for name, path in files.items()}
    assert (members["train.sh"].mode, members["big.bin"].mode) == (0o755, 0o644)
    assert members["big.bin"].mtime == int(files["big.bin"].stat().st_mtime)


def test_refusals_are_said_in_the_form(visitor: Visitor, tenant: str, directory: Path, tmp_path: Path) -> None:
    page = visitor.page
    alert = page.locator("#upload [role=alert]")
    fill(page, tenant, "true")
    page.get_by_label("Tenant", exact=True).select_option("")
    page.get_by_label("Directory", exact=True).set_input_files(directory)
    page.get_by_role("button", name="Run job").click()
    expect(alert).to_contain_text("Choose the tenant first")
    page.get_by_label("Tenant", exact=True).select_option(tenant)
    (tmp_path / "notes.zip").write_bytes(b"no archive at all")
    page.get_by_label("Or an archive", exact=True).set_input_files(tmp_path / "notes.zip")
    page.get_by_role("button", name="Run job").click()
    expect(alert).to_contain_text("This is no archive that a node unpacks")
    (tmp_path / "large.zip").write_bytes(b"PK")
    os.truncate(tmp_path / "large.zip", (64 << 20) + 1)
    page.get_by_label("Or an archive", exact=True).set_input_files(tmp_path / "large.zip")
    page.get_by_role("button", name="Run job").click()
    expect(alert).to_contain_text("above the limit of 64 MiB")


@NOT_ROOT
def test_a_broken_upload_goes_on_where_it_stopped(
    visitor: Visitor, platform: Platform, tenant: str, directory: Path
) -> None:
    page = visitor.page
    fill(page, tenant, "true")
    page.get_by_label("Directory", exact=True).set_input_files(directory)
    broken: list[Any] = []

    def break_once(route: Route) -> None:
        if offset_of(route) and not broken:
            broken.append(route.request.url)
            route.abort()
        else:
            route.continue_()

    page.route(PIECES, break_once)
    # An error beside another field keeps what was uploaded.
    page.get_by_label("Variables", exact=True).fill("NO EQUALS")
    page.get_by_role("button", name="Run job").click()
    expect(page.get_by_text("Write NAME=VALUE")).to_be_visible()
    expect(page.locator("#upload")).to_contain_text("Your files are uploaded.")
    assert len(broken) == 1
    page.get_by_label("Variables", exact=True).fill("")
    uid = run(page)
    assert platform.granted("GET", f"jobs/{uid}/")["files"] is not None
    # Without files after all.
    fill(page, tenant, "true")
    page.get_by_label("Directory", exact=True).set_input_files(directory)
    page.get_by_role("button", name="Without files").click()
    assert platform.granted("GET", f"jobs/{run(page)}/")["files"] is None
    visitor.complaints[:] = [text for text in visitor.complaints if "422" not in text and "ERR_FAILED" not in text]
