"""From the last release to this checkout, on the same volumes and with the same secrets."""

import os
import re
import shutil
import subprocess
from collections.abc import Iterator
from pathlib import Path

import pytest

from tests.containers.engine import ROOT, Installation
from tests.platform import until

pytestmark = [pytest.mark.containers, pytest.mark.timeout(2400)]
# Without a release: so many commits ago.
COMMITS_AGO = 50


def git(*arguments: str) -> str:
    """Run git in this checkout and return what it printed."""
    command = ["git", "-c", "safe.directory=*", *arguments]
    return subprocess.run(command, cwd=ROOT, capture_output=True, text=True, check=True).stdout.strip()


def release() -> str:
    """Return the commit to come from: GPUCLOUD_UPGRADE_FROM, the last tag, or some commits ago."""
    if named := os.environ.get("GPUCLOUD_UPGRADE_FROM"):
        return named
    tags = git("tag", "--merged", "HEAD~1", "--sort=-creatordate").split()
    return tags[0] if tags else git("rev-parse", f"HEAD~{COMMITS_AGO}")


@pytest.fixture
def former(engine: None, tmp_path: Path) -> Iterator[Installation]:
    """Start the release's own files and image, as its README says: secrets in .env."""
    source = tmp_path / "former"
    source.mkdir()
    packed = subprocess.run(
        ["git", "-c", "safe.directory=*", "archive", release()], cwd=ROOT, capture_output=True, check=True
    )
    subprocess.run(["tar", "-x", "-C", source], input=packed.stdout, check=True)
    # Releases before 0.2 fetched the Dockerfile's parser from a registry.
    dockerfile = source / "Dockerfile"
    dockerfile.write_text(re.sub(r"^# syntax=.*\n", "", dockerfile.read_text()))
    it = Installation(tmp_path / "state", source=source, image="gpucloud-test-former")
    if "GPUCLOUD_IMAGE" not in (source / "docker-compose.yml").read_text():
        compose = source / "docker-compose.yml"
        compose.write_text(compose.read_text().replace("image: gpucloud\n", "image: gpucloud-test-former\n"))
    if (source / "deploy/docker/secrets.sh").exists():
        it.make_secrets()
    else:
        # 50 characters and more, as the settings require.
        (source / ".env").write_text(f"SECRET_KEY={'former-' * 10}\nPOSTGRES_PASSWORD=formerly\n")
    try:
        it.compose("build")
        it.compose("up", "--detach")
        yield it
    finally:
        it.down()


def test_an_upgrade_keeps_what_there_was(former: Installation, installation: Installation, tmp_path: Path) -> None:
    until(former.serves, seconds=600, what="the former version to serve")
    tenant = former.new_tenant("before")
    kept = former.claim(tenant, name="kept")
    # The files of docs/compose.md's upgrade: this version's Compose file, the former's .env, and the image.
    now = tmp_path / "now"
    (now / "deploy" / "docker").mkdir(parents=True)
    shutil.copy(ROOT / "docker-compose.yml", now)
    shutil.copy(ROOT / "deploy/docker/secrets.sh", now / "deploy/docker")
    if (former.source / ".env").exists():
        shutil.copy(former.source / ".env", now)
    former.source = now
    former.environment["GPUCLOUD_IMAGE"] = installation.environment["GPUCLOUD_IMAGE"]
    former.make_secrets()
    former.up("--no-build", "--remove-orphans")
    # The same token, the same claim, and its node is back under its name.
    assert former.in_force(kept["uid"])["name"] == "kept"
    assert former.claim(tenant, name="new")["state"] == "active"
    former.compose("exec", "-T", "web", "python", "manage.py", "check_ledger")
