"""Delivery of pages: policy, queries, weight, vendored files."""

import gzip
import hashlib
import re
from dataclasses import dataclass
from datetime import timedelta
from html import unescape
from pathlib import Path
from typing import Any

import pytest
from django.conf import settings
from django.contrib.staticfiles import finders
from django.db import connection, transaction
from django.test import Client, RequestFactory
from django.test.utils import CaptureQueriesContext
from django.utils import timezone

from apps.nodes.models import Sample
from apps.quotas.models import User
from apps.quotas.principals import SYSTEM
from apps.reservations.lifecycle import create_reservation
from apps.scheduling.models import Assignment, Claim
from gpucloud.urls import server_error
from gpucloud.web.badges import BADGES
from gpucloud.web.tags import SPRITE, coded
from tests.cast import Cast, Machine, give_plenty, placed, recorded_cast
from tests.measurements import keep

# Every page is asked for.
pytestmark = pytest.mark.slow
QUERIES = 25
# Pages of everybody, and of nothing.
OTHERS = ("/sign-in/", "/no/such/page")
KIB = 1024
LARGEST_PAGE_KIB = 250
VENDORED = [Path(settings.BASE_DIR) / "static" / "vendor", Path(settings.BASE_DIR) / "tests" / "browser" / "vendor"]
ROW = re.compile(r"^\| `(\S+)` \| .* \| .*`(\S+)` \| `([0-9a-f]{64})` \|$", re.MULTILINE)
FILE = re.compile(r'(?:src|href)="/static/([^"#]+)')
LIVING = re.compile(r'<div id="living"\s+hx-get="([^"]+)"')
IMPORT = re.compile(r'(?:from |import\()"\./([^"]+)"')


@dataclass(frozen=True)
class Visit:
    """Responses of one page, and the number of its queries by reader."""

    plain: Any
    compressed: Any
    queries: dict[str, int]
    # The part that is fetched again, if the page has one.
    part: str | None


@pytest.fixture(scope="module")
def visits(django_db_setup: None, django_db_blocker: Any) -> dict[str, Visit]:
    """Return the visits of every page, with several claims on it; they are made once for all tests of this module."""
    with django_db_blocker.unblock():
        with transaction.atomic():
            pages = make_pages()
            readers = {name: Client() for name in ("olga", "anna")}
            for name, reader in readers.items():
                reader.force_login(User.objects.get(username=name))
            found = {path: visit(readers, path) for path in [*pages, *OTHERS]}
            transaction.set_rollback(True)
        connection.close()
    return found


def visit(readers: dict[str, Client], path: str) -> Visit:
    answers, queries = list[Any](), dict[str, int]()
    for name, reader in readers.items():
        with CaptureQueriesContext(connection) as asked:
            answers.append(reader.get(path))
        queries[name] = len(asked)
    olga, plain = readers["olga"], answers[0]
    lives = LIVING.search(plain.content.decode())
    part = olga.get(unescape(lives[1]), headers={"HX-Request": "true"}).content.decode() if lives else None
    return Visit(plain, olga.get(path, headers={"Accept-Encoding": "gzip, br"}), queries, part)


@pytest.fixture(scope="module")
def pages(visits: dict[str, Visit]) -> dict[str, Visit]:
    """Return the pages of people who have signed in."""
    return {path: page for path, page in visits.items() if path not in OTHERS}


def make_pages() -> list[str]:
    """Create what the pages show; return their paths."""
    cast = recorded_cast()
    give_plenty(cast.acme, cast.globex)
    machine = Machine("gpu1", cast.pool).stay_online()
    for number in range(6):
        placed(cast, machine, name=f"train-{number}", core_request=15, memory_mib=1024)
    uid = Claim.objects.latest("pk").uid
    _measure(machine)
    return [
        "/",
        "/claims/",
        "/claims/new/",
        f"/claims/{uid}/",
        f"/claims/{uid}/series/",
        "/nodes/",
        "/nodes/gpu1/",
        *_reserved(cast),
    ]


def _reserved(cast: Cast) -> list[str]:
    now = timezone.now()
    window = {"start_at": now + timedelta(hours=1), "end_at": now + timedelta(hours=3)}
    rows = [
        create_reservation(
            principal=SYSTEM,
            tenant=cast.acme,
            pool=cast.pool,
            name=f"exam-{number}",
            core_request=5,
            memory_mib=256,
            **window,
        )
        for number in range(3)
    ]
    return ["/reservations/", "/reservations/new/", f"/reservations/{rows[0][0].uid}/"]


def test_every_page_stays_within_its_queries(pages: dict[str, Visit]) -> None:
    for path, page in pages.items():
        assert max(page.queries.values()) <= QUERIES, (path, page.queries)


def test_every_page_forbids_inline_scripts_and_styles_and_has_none(visits: dict[str, Visit]) -> None:
    for path, page in visits.items():
        policy = page.plain["Content-Security-Policy"]
        assert "default-src 'self'" in policy
        assert "unsafe" not in policy
        text = page.plain.content.decode()
        assert not re.search(r"<style|\sstyle=|\son[a-z]+=|javascript:", text), path
        scripts = re.findall(r"<script(?![^>]*(?:src=|application/json))", text)
        assert not scripts, path


def test_pages_are_sent_compressed_to_whoever_takes_that(pages: dict[str, Visit]) -> None:
    for path, page in pages.items():
        answer = page.compressed
        assert (answer["Content-Encoding"], "Accept-Encoding" in answer["Vary"]) == ("gzip", True), path
        assert b"<!DOCTYPE html>" in gzip.decompress(answer.content) or path.endswith("/series/"), path
        assert "Content-Encoding" not in page.plain, path


def test_every_page_that_lives_has_its_part_and_says_how_fresh_it_is(pages: dict[str, Visit]) -> None:
    living = {path: page for path, page in pages.items() if page.part is not None}
    assert len(living) >= 5
    for path, page in living.items():
        text = page.plain.content.decode()
        assert 'id="live"' in text, path
        assert 'data-watch="/ws/live/?' in text, path
        assert 0 < len(page.part or "") < len(text), path
        assert "<html" not in (page.part or ""), path


def test_pages_of_a_person_are_not_kept_by_anybody(pages: dict[str, Visit]) -> None:
    for path, page in pages.items():
        assert "no-store" in page.plain["Cache-Control"], path


def test_no_page_is_heavier_than_its_budget(pages: dict[str, Visit]) -> None:
    for path, page in pages.items():
        content = page.plain.content
        files = set(FILE.findall(content.decode()))
        files |= {f"js/{name}" for file in files if file.startswith("js/") for name in _imports(file)}
        weight = len(gzip.compress(content)) + sum(len(gzip.compress(_file(name))) for name in files)
        assert weight / KIB < LARGEST_PAGE_KIB, path


def test_an_unknown_address_is_a_page_and_below_the_api_a_problem(cast: Cast) -> None:
    assert "Page not found" in Client().get("/no/such/page").content.decode()
    assert Client().get("/api/v1/no-such/")["Content-Type"] == "application/problem+json"


def test_an_address_of_forms_is_a_page_for_who_follows_a_link_to_it(cast: Cast) -> None:
    client = Client()
    answer = client.get("/sign-out/")
    assert (answer.status_code, answer["Allow"]) == (405, "POST, OPTIONS")
    assert "Method not allowed" in answer.content.decode()
    # Programs get the known names.
    assert client.put("/sign-out/").content == b""
    assert client.delete("/api/v1/openapi.yaml")["Content-Type"] == "application/problem+json"


def test_a_fault_of_ours_is_a_page_without_facts(cast: Cast) -> None:
    answer = server_error(RequestFactory().get("/"))
    assert answer.status_code == 500
    assert "Server error" in answer.content.decode()


@pytest.mark.parametrize("folder", VENDORED, ids=lambda folder: folder.parent.name)
def test_vendored_files_are_the_ones_that_were_taken(folder: Path) -> None:
    rows = ROW.findall((folder / "VENDORED.md").read_text())
    assert rows
    for name, _, digest in rows:
        assert hashlib.sha256((folder / name).read_bytes()).hexdigest() == digest, name
    known = {name for row in rows for name in row[:2]} | {"VENDORED.md"}
    assert {file.name for file in folder.iterdir()} == known


def test_code_in_a_sentence_is_code_and_nothing_else_of_it_is_markup() -> None:
    assert coded("as <b>root</b>, `a & b` first") == "as &lt;b&gt;root&lt;/b&gt;, <code>a &amp; b</code> first"
    assert coded("none") == "none"


def test_every_icon_that_is_named_is_in_the_sprite() -> None:
    symbols = set(re.findall(r'<symbol id="([^"]+)"', _file(SPRITE).decode()))
    templates = (Path(settings.BASE_DIR) / "templates").rglob("*.html")
    named = {name for file in templates for name in re.findall(r"{% icon '([^']+)'", file.read_text())}
    attention = Path(settings.BASE_DIR) / "apps" / "console" / "overview" / "attention.py"
    named |= set(re.findall(r'Notice\(\s*"\w+",\s*"([a-z0-9-]+)"', attention.read_text()))
    assert named | {badge.icon for badge in BADGES.values()} <= symbols


def _file(name: str) -> bytes:
    path = finders.find(name)
    assert path is not None, name
    return Path(path).read_bytes()


def _imports(name: str) -> list[str]:
    return IMPORT.findall(_file(name).decode())


def _measure(machine: Machine) -> None:
    """Store a few seconds of samples of every GPU and assignment."""
    now = timezone.now()
    for second in range(5):
        at = now - timedelta(seconds=second)
        for gpu in machine.node.gpus.all():
            keep([Sample(gpu=gpu, at=at, core_percent=40, memory_bytes=1 << 30)])
        for row in Assignment.objects.all():
            facts = {"core_percent": 10, "core_limit_percent": row.core_limit, "memory_bytes": 1 << 29}
            keep([Sample(assignment_uid=row.uid, at=at, **facts)])
