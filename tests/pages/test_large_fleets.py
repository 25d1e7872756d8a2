"""Pages of fleets too large to be drawn: what they read does not grow with nodes, nor do sums with their readers."""

import threading
import time
from collections.abc import Callable
from datetime import timedelta
from itertools import count
from typing import Any

import pytest
from django.db import connection
from django.test import Client
from django.utils import timezone

from apps.console.overview.fleet_map import MOST_DRAWN
from apps.console.overview.notices import READ, Notice, grouped
from apps.console.shell import kept_sums
from apps.console.shell.kept_sums import keep_sums
from apps.nodes.models import Gpu, Node
from gpucloud.web import sessions
from tests.cast import Cast, Machine, placed
from tests.pages.conftest import SignIn

# The queue of a large pool is read from a copy that is kept for seconds (`services.cycles.queue.get_snapshot`).
PAGES = (
    "/", "/nodes/", "/nodes/?state=problems", "/nodes/gpu1/", "/nodes/gpu1/settings/", "/gpus/",
    "/gpus/?state=problems",
    "/pools/", "/pools/default/", "/pools/default/policies/", "/claims/", "/claims/new/", "/reservations/",
    "/reservations/new/", "/rounds/", "/efficiency/", "/search/?q=more",
)  # fmt: skip

# The bytes by which a page may grow: its numbers have more digits.
LONGER_NUMBERS = 1024


def add_nodes(cast: Cast, first: int, number: int) -> None:
    """Create nodes of two GPUs: of four, one is well, one lost, one cordoned, and one has a GPU that is unhealthy."""
    now = timezone.now() + timedelta(hours=1)
    nodes = Node.objects.bulk_create(
        Node(
            name=f"more{at}", pool=cast.pool, enrolled_at=now, cordoned=at % 4 == 2,
            last_seen_at=now - timedelta(days=at % 4 == 1),
        )
        for at in range(first, first + number)
    )  # fmt: skip
    Gpu.objects.bulk_create(
        Gpu(
            uuid=f"GPU-{node.name}-{at}", node=node, index=at, model="A", memory_mib=1000,
            unhealthy="XID 79" if at and number % 4 == 3 else "",
        )
        for number, node in enumerate(nodes)
        for at in range(2)
    )  # fmt: skip


def rows_read(client: Client, path: str) -> tuple[int, int, int]:
    """Return the queries of a page, the rows that they returned, and the page's bytes."""
    queries = rows = 0

    def count_rows(execute: Callable[..., Any], sql: str, values: Any, many: bool, context: Any) -> Any:
        nonlocal queries, rows
        answer = execute(sql, values, many, context)
        queries, rows = queries + 1, rows + max(0, context["cursor"].rowcount)
        return answer

    with connection.execute_wrapper(count_rows):
        answer = client.get(path)
    assert answer.status_code == 200, (path, answer.status_code)
    return queries, rows, len(answer.content)


def test_no_page_reads_more_rows_of_a_larger_fleet(cast: Cast, machine: Machine, browser: SignIn) -> None:
    placed(cast, machine, core_request=40)
    machine.stay_online()
    # More of each state than a page names.
    add_nodes(cast, 0, MOST_DRAWN + 4 * READ)
    olga = browser("olga")
    few = {path: rows_read(olga, path) for path in PAGES}
    add_nodes(cast, 2000, 1000)
    many = {path: rows_read(olga, path) for path in PAGES}
    grown = {path: (few[path], found) for path, found in many.items() if found[:2] > few[path][:2]}
    longer = {path: (few[path], found) for path, found in many.items() if found[2] > few[path][2] + LONGER_NUMBERS}
    assert (grown, longer) == ({}, {})


def test_the_overview_counts_all_nodes_of_an_outage_and_names_some(
    cast: Cast, machine: Machine, browser: SignIn
) -> None:
    machine.stay_online()
    add_nodes(cast, 0, 4 * 300)
    page = " ".join(browser("olga").get("/").content.decode().split())
    assert "300 nodes are lost" in page
    assert "and 294 more" in page
    assert f"{READ}+ GPUs are unhealthy" in page


def test_sums_are_kept_in_proportion_to_their_cost(monkeypatch: pytest.MonkeyPatch) -> None:
    now = [1000.0]
    monkeypatch.setattr(time, "monotonic", lambda: now[0])
    number = count()

    def read(seconds: float) -> int:
        now[0] += seconds
        return next(number)

    # Cheap ones are read for each reader.
    assert [keep_sums("cheap", lambda: read(0.01)) for _ in range(2)] == [0, 1]
    assert keep_sums("dear", lambda: read(0.5)) == 2
    now[0] += kept_sums.TIMES * 0.5 - 0.1
    assert keep_sums("dear", lambda: read(0.5)) == 2
    now[0] += 0.2
    assert keep_sums("dear", lambda: read(0.5)) == 3


def test_readers_get_the_former_sums_while_one_reads_them_anew() -> None:
    begun, go_on = threading.Event(), threading.Event()

    def read_slowly() -> str:
        begun.set()
        assert go_on.wait(60)
        return "new"

    assert keep_sums("waited for", lambda: "former") == "former"
    thread = threading.Thread(target=keep_sums, args=("waited for", read_slowly))
    thread.start()
    assert begun.wait(60)
    assert keep_sums("waited for", lambda: "read twice") == "former"
    go_on.set()
    thread.join()
    assert keep_sums("waited for", lambda: "newest") == "newest"


def test_readers_wait_for_new_sums_if_the_former_are_too_old(monkeypatch: pytest.MonkeyPatch) -> None:
    assert keep_sums("of yesterday", lambda: "old") == "old"
    kept = kept_sums._kept["of yesterday"]
    kept.until = time.monotonic() - kept_sums.MOST_SECONDS - 1
    found: list[str] = []
    with kept.reading:
        thread = threading.Thread(target=lambda: found.append(keep_sums("of yesterday", lambda: "new")))
        thread.start()
        thread.join(0.2)
        assert found == []
    thread.join()
    assert found == ["new"]


@pytest.mark.parametrize(("count_of_all", "title"), [(None, "53+ nodes are ill"), (300, "300 nodes are ill")])
def test_a_number_of_notices_that_were_cut_has_a_plus(count_of_all: int | None, title: str) -> None:
    ill = [Notice("bad", "cpu", "", "", "", name=f"n{at}", many="{0} nodes are ill") for at in range(READ + 3)]
    (notice,) = grouped(ill, most=READ, count=count_of_all)
    assert notice.title == title


@pytest.fixture(autouse=True)
def nothing_kept(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(kept_sums, "_kept", {})
    # A session's use is written once a minute, whatever the page.
    monkeypatch.setattr(sessions, "RESOLUTION_SECONDS", 3600)
