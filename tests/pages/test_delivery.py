"""Delivery of pages: policy, queries, weight, vendored files."""

import gzip
import hashlib
import re
from datetime import timedelta
from html import unescape
from pathlib import Path

import pytest
from django.conf import settings
from django.contrib.staticfiles import finders
from django.test import Client, RequestFactory
from django.utils import timezone
from pytest_django import DjangoAssertNumQueries

from apps.nodes.models import Sample
from apps.quotas.principals import SYSTEM
from apps.scheduling.models import Assignment, Claim
from apps.scheduling.services.reservations.lifecycle import create_reservation
from gpucloud.urls import server_error
from gpucloud.web.badges import BADGES
from gpucloud.web.tags import SPRITE, coded
from tests.cast import Cast, Machine, placed
from tests.measurements import keep
from tests.pages.conftest import SignIn

# Each test asks for every page.
pytestmark = pytest.mark.slow
QUERIES = 25
KIB = 1024
LARGEST_PAGE_KIB = 250
VENDORED = [Path(settings.BASE_DIR) / "static" / "vendor", Path(settings.BASE_DIR) / "tests" / "browser" / "vendor"]
ROW = re.compile(r"^\| `(\S+)` \| .* \| .*`(\S+)` \| `([0-9a-f]{64})` \|$", re.MULTILINE)
FILE = re.compile(r'(?:src|href)="/static/([^"#]+)')
LIVING = re.compile(r'<div id="living"\s+hx-get="([^"]+)"')
IMPORT = re.compile(r'(?:from |import\()"\./([^"]+)"')


@pytest.fixture
def pages(cast: Cast, machine: Machine) -> list[str]:
    """Return every page, with several claims on it."""
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


@pytest.mark.parametrize("name", ["olga", "anna"])
def test_every_page_stays_within_its_queries(
    pages: list[str], browser: SignIn, name: str, django_assert_max_num_queries: DjangoAssertNumQueries
) -> None:
    client = browser(name)
    for path in pages:
        with django_assert_max_num_queries(QUERIES):
            client.get(path)


def test_every_page_forbids_inline_scripts_and_styles_and_has_none(pages: list[str], browser: SignIn) -> None:
    client = browser("olga")
    for path in [*pages, "/sign-in/", "/no/such/page"]:
        answer = client.get(path)
        policy = answer["Content-Security-Policy"]
        assert "default-src 'self'" in policy
        assert "unsafe" not in policy
        text = answer.content.decode()
        assert not re.search(r"<style|\sstyle=|\son[a-z]+=|javascript:", text), path
        scripts = re.findall(r"<script(?![^>]*(?:src=|application/json))", text)
        assert not scripts, path


def test_pages_are_sent_compressed_to_whoever_takes_that(pages: list[str], browser: SignIn) -> None:
    client = browser("olga")
    for path in pages:
        answer = client.get(path, headers={"Accept-Encoding": "gzip, br"})
        assert (answer["Content-Encoding"], "Accept-Encoding" in answer["Vary"]) == ("gzip", True), path
        assert b"<!DOCTYPE html>" in gzip.decompress(answer.content) or path.endswith("/series/"), path
        assert "Content-Encoding" not in client.get(path), path


def test_every_page_that_lives_has_its_part_and_says_how_fresh_it_is(pages: list[str], browser: SignIn) -> None:
    client, lives = browser("olga"), 0
    for path in pages:
        text = client.get(path).content.decode()
        if found := LIVING.search(text):
            lives += 1
            assert 'id="live"' in text, path
            assert 'data-watch="/ws/live/?' in text, path
            part = client.get(unescape(found[1]), headers={"HX-Request": "true"}).content.decode()
            assert 0 < len(part) < len(text), path
            assert "<html" not in part, path
    assert lives >= 5


def test_pages_of_a_person_are_not_kept_by_anybody(pages: list[str], browser: SignIn) -> None:
    for path in pages:
        assert "no-store" in browser("olga").get(path)["Cache-Control"], path


def test_no_page_is_heavier_than_its_budget(pages: list[str], browser: SignIn) -> None:
    client = browser("olga")
    for path in pages:
        answer = client.get(path)
        files = set(FILE.findall(answer.content.decode()))
        files |= {f"js/{name}" for file in files if file.startswith("js/") for name in _imports(file)}
        weight = len(gzip.compress(answer.content)) + sum(len(gzip.compress(_file(name))) for name in files)
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
