"""A migrated database, made once and copied: complete, of the current migrations, owned by the copier."""

import os
import shutil
import subprocess
import sys
from pathlib import Path

import psycopg
import pytest

from deploy import embedded
from deploy.embedded import postgres, prepared

pytestmark = [
    pytest.mark.usefixtures("unset_addresses"),
    pytest.mark.skipif(not postgres.is_ours(), reason="PostgreSQL runs as another user here"),
]


def test_a_copy_has_every_migration_and_is_no_others(tmp_path: Path) -> None:
    template = prepared.make()
    assert template == prepared.make() == prepared.template()
    with embedded.services(tmp_path / "one", durable=True, template=template) as running:
        check = [sys.executable, str(prepared.ROOT / "manage.py"), "migrate", "--check"]
        done = subprocess.run(check, env=os.environ | running.environment(), capture_output=True, check=False)
        assert done.returncode == 0, done.stdout
        with psycopg.connect(running.database_url, autocommit=True) as mine:
            mine.execute("CREATE TABLE mine ()")
    with (
        embedded.services(tmp_path / "other", durable=True, template=template) as running,
        psycopg.connect(running.database_url) as another,
    ):
        assert another.execute("SELECT to_regclass('mine'), to_regclass('quotas_tenant')").fetchone() == (
            None,
            "quotas_tenant",
        )


@pytest.mark.parametrize("left", ["gone", "half"])
def test_a_template_that_is_gone_or_half_there_is_done_without(tmp_path: Path, left: str) -> None:
    template = tmp_path / left
    if left == "half":
        template.mkdir()
        (template / "PG_VERSION").symlink_to("nowhere")
    with (
        embedded.services(tmp_path / "state", durable=False, template=template) as running,
        psycopg.connect(running.database_url) as fresh,
    ):
        # A new database: the server answers, and no migration was applied.
        assert fresh.execute("SELECT 1, to_regclass('quotas_tenant')").fetchone() == (1, None)


def test_another_migration_or_pin_is_another_database(tmp_path: Path) -> None:
    for name in ("requirements.txt", "deploy/embedded/postgres.py", "apps/quotas/migrations/0001_initial.py"):
        (tmp_path / name).parent.mkdir(parents=True, exist_ok=True)
        shutil.copy(prepared.ROOT / name, tmp_path / name)
    digests = {prepared.digest(tmp_path), prepared.digest(tmp_path)}
    assert len(digests) == 1
    (tmp_path / "apps/quotas/migrations/0002_more.py").write_text("")
    digests.add(prepared.digest(tmp_path))
    (tmp_path / "requirements.txt").write_text("django==0")
    digests.add(prepared.digest(tmp_path))
    assert len(digests) == 3


def test_what_other_migrations_left_goes_when_a_new_one_is_made(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(prepared, "KEPT", tmp_path / "kept")
    monkeypatch.setattr(prepared, "_make", Path.mkdir)
    (tmp_path / "kept" / "0123456789abcdef").mkdir(parents=True)
    (tmp_path / "kept" / "new-killed").mkdir()
    assert prepared.template() is None
    assert prepared.make() == tmp_path / "kept" / prepared.digest()
    assert len([path for path in (tmp_path / "kept").iterdir() if path.is_dir()]) == 1


def test_where_nothing_may_be_kept_initdb_does(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    (tmp_path / "file").write_text("in the way, as a directory of another user is")
    monkeypatch.setattr(prepared, "KEPT", tmp_path / "file" / "kept")
    assert prepared.make() is None


def test_what_was_removed_while_it_was_copied_is_no_copy(tmp_path: Path) -> None:
    (tmp_path / "kept").mkdir()
    # Its files were removed before they were listed.
    assert not postgres._copy_template(tmp_path / "kept", tmp_path / "fresh")
    (tmp_path / "kept" / "PG_VERSION").write_text("18")
    assert postgres._copy_template(tmp_path / "kept", tmp_path / "fresh")
