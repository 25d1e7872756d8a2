"""The generic list: filters, order, pages, saved views, for every list and every role."""

import json
import re
from datetime import timedelta
from typing import Any

import pytest
from django.db import connection
from django.test import Client
from django.test.utils import CaptureQueriesContext
from django.urls import reverse
from django.utils import timezone

from apps.nodes.models import Node
from apps.nodes.models.node import STATES, state_now
from apps.nodes.services.conditions import READY
from apps.reservations.lifecycle import create_reservation
from apps.scheduling.models import Claim
from gpucloud.web import keyset
from tests.cast import Cast, Machine, ask, placed
from tests.matrix import crossed
from tests.pages.conftest import SignIn

OPERATORS = {"nodes", "gpus", "pools", "access", "rounds", "clusters"}
ADMINS = {"tokens", "webhooks"}
LISTS = sorted(OPERATORS | ADMINS | {"claims", "tenants", "audit", "reservations", "requests", "proposals"})
WRONG_QUERIES = [
    "state=nonsense", "sort=nonsense", "pool=nowhere", "tenant=nobody", "no-such-filter=1", "mine=perhaps", "q=%00",
]  # fmt: skip
WRONG_CURSORS = ["x", "-1", "9" * 40, "%00", "W10:1abc:def", "١٢"]
LINK = re.compile(r'<a class="btn" href="([^"]*)">(?:<svg.*?</svg>)?(Newest|Newer|Older)', re.DOTALL)
SORT = re.compile(r'<a class="sort" href="\?([^"]*)"')
NODE = re.compile(r'id="node-([\w-]+)"')


def text(answer: Any) -> str:
    return " ".join(answer.content.decode().split())


def walk(client: Client, path: str, pattern: re.Pattern[str]) -> list[str]:
    """Return what the pages show from the first to the last."""
    shown, query = [], path
    for _ in range(20):
        page = client.get(query).content.decode()
        shown += list(dict.fromkeys(pattern.findall(page)))
        links = {label: href.replace("&amp;", "&") for href, label in LINK.findall(page)}
        if "Older" not in links:
            return shown
        query = path.partition("?")[0] + links["Older"]
    raise AssertionError("the pages have no end")


@pytest.fixture
def nodes(cast: Cast, monkeypatch: pytest.MonkeyPatch) -> list[str]:
    """Create twelve ready nodes, and show five on a page."""
    monkeypatch.setattr(keyset, "PER_PAGE", 5)
    now = timezone.now() + timedelta(hours=1)
    names = [f"node-{number}" for number in (10, 2, 1, 12, 3, 11, 4, 9, 5, 8, 6, 7)]
    Node.objects.bulk_create(Node(name=name, pool=cast.pool, last_seen_at=now) for name in names)
    return [f"node-{number}" for number in range(1, 13)]


@pytest.mark.parametrize("name", LISTS)
@pytest.mark.parametrize("who", ["olga", "anna", "max", "vera", "gus"])
def test_a_list_is_open_to_those_whose_rows_it_holds(cast: Cast, browser: SignIn, name: str, who: str) -> None:
    admin = who in {"olga", "anna", "gus"}
    allowed = who == "olga" if name in OPERATORS else admin if name in ADMINS else True
    client = browser(who)
    assert client.get(reverse(name)).status_code == (200 if allowed else 403)
    assert client.get(f"{reverse(name)}?format=csv").status_code == (200 if allowed else 403)


@pytest.mark.parametrize("name", LISTS)
def test_every_order_and_saved_view_of_a_list_works(cast: Cast, machine: Machine, browser: SignIn, name: str) -> None:
    placed(cast, machine)
    olga, path = browser("olga"), reverse(name)
    page = olga.get(path).content.decode()
    queries = {f"sort={sign}{key}" for key in re.findall(r"sort=-?([a-z]+)", page) for sign in ("", "-")}
    views = re.findall(r'class="btn btn-small" href="[^"?]*\?([^"]*)"', page)
    for query in [*queries, *(view.replace("&amp;", "&") for view in views)]:
        shown = text(olga.get(f"{path}?{query}"))
        assert 'role="alert"' not in shown, query
        assert olga.get(f"{path}?{query}&format=json").status_code == 200, query


@pytest.mark.parametrize(("name", "query"), crossed(LISTS, WRONG_QUERIES, whole="claims"))
def test_a_wrong_value_is_named_and_makes_no_file(cast: Cast, browser: SignIn, name: str, query: str) -> None:
    olga, path = browser("olga"), reverse(name)
    answer = olga.get(f"{path}?{query}")
    assert answer.status_code == 200
    assert 'role="alert"' in text(answer)
    assert olga.get(f"{path}?{query}&format=csv").status_code == 422


@pytest.mark.parametrize(("name", "cursor"), crossed(LISTS, WRONG_CURSORS, whole="claims"))
def test_a_wrong_cursor_shows_the_first_page(cast: Cast, browser: SignIn, name: str, cursor: str) -> None:
    for side in ("before", "after"):
        assert browser("olga").get(f"{reverse(name)}?{side}={cursor}").status_code == 200


def test_names_are_in_natural_order_in_both_directions(nodes: list[str], browser: SignIn) -> None:
    olga = browser("olga")
    assert walk(olga, "/nodes/", NODE) == nodes
    assert walk(olga, "/nodes/?sort=name", NODE) == nodes
    assert walk(olga, "/nodes/?sort=-name", NODE) == nodes[::-1]


def test_nodes_with_problems_come_first(nodes: list[str], browser: SignIn) -> None:
    Node.objects.filter(name="node-9").update(last_seen_at=timezone.now() - timedelta(hours=1))
    Node.objects.filter(name="node-4").update(unhealthy="XID 79")
    Node.objects.filter(name="node-7").update(cordoned=True)
    olga = browser("olga")
    assert walk(olga, "/nodes/", NODE)[:3] == ["node-9", "node-4", "node-7"]
    assert walk(olga, "/nodes/?state=problems", NODE) == ["node-9", "node-4"]


def test_a_walk_sees_each_row_once_while_rows_are_added(nodes: list[str], cast: Cast, browser: SignIn) -> None:
    olga = browser("olga")
    page = olga.get("/nodes/?sort=name").content.decode()
    first = NODE.findall(page)
    (older,) = (href.replace("&amp;", "&") for href, label in LINK.findall(page) if label == "Older")
    for name in ("node-0", "node-3a", "node-99"):
        Node.objects.create(name=name, pool=cast.pool)
    rest = walk(olga, f"/nodes/{older}", NODE)
    assert [*first, *rest] == [*nodes, "node-99"]


@pytest.mark.parametrize("sort", ["seen", "-seen"])
def test_rows_without_a_value_come_last_and_are_walked_both_ways(nodes: list[str], browser: SignIn, sort: str) -> None:
    Node.objects.filter(name__in=nodes[:7]).update(last_seen_at=None)
    olga = browser("olga")
    shown = walk(olga, f"/nodes/?sort={sort}", NODE)
    assert sorted(shown) == sorted(nodes)
    assert set(shown[5:]) == set(nodes[:7])
    # Back from the last page to the first.
    seen: list[str] = []
    page = olga.get(f"/nodes/?sort={sort}").content.decode()
    while older := {label: href for href, label in LINK.findall(page)}.get("Older"):
        page = olga.get(f"/nodes/{older.replace('&amp;', '&')}").content.decode()
    while True:
        seen = NODE.findall(page) + [name for name in seen if name not in NODE.findall(page)]
        newer = {label: href for href, label in LINK.findall(page)}.get("Newer")
        if newer is None:
            break
        page = olga.get(f"/nodes/{newer.replace('&amp;', '&')}").content.decode()
    assert seen == shown


def test_a_cursor_of_another_order_shows_the_first_page(nodes: list[str], browser: SignIn) -> None:
    olga = browser("olga")
    page = olga.get("/nodes/?sort=name").content.decode()
    (older,) = (href.replace("&amp;", "&") for href, label in LINK.findall(page) if label == "Older")
    assert NODE.findall(olga.get(f"/nodes/{older}".replace("sort=name", "sort=-name")).content.decode()) == nodes[:6:-1]


def test_the_database_knows_a_nodes_state_as_the_page_does(cast: Cast) -> None:
    now = timezone.now()
    facts: list[dict[str, Any]] = [{}]
    for name, values in {
        "last_seen_at": (None, now - timedelta(hours=1), now + timedelta(hours=1)),
        "cordoned": (False, True),
        "draining_at": (None, now),
        "fenced_at": (None, now),
        "returning_frame": (None, 7),
        "unhealthy": ("", "XID 79"),
    }.items():
        facts = [{**one, name: value} for one in facts for value in values]
    Node.objects.bulk_create(Node(name=f"n{at}", pool=cast.pool, **one) for at, one in enumerate(facts))
    found = Node.objects.annotate(said=state_now())
    assert len(found) == 96
    assert {node.name: node.said for node in found} == {node.name: node.state for node in found}
    assert {node.state for node in found} == set(STATES) == set(READY)


def test_filters_of_claims_find_place_owner_label_and_use(cast: Cast, machine: Machine, browser: SignIn) -> None:
    placed(cast, machine, name="here")
    ask(cast, name="labelled", affinity="team-a")
    asleep = ask(cast, name="asleep", tenant=cast.globex)
    Claim.objects.filter(pk=asleep.pk).update(idle_since=timezone.now(), idle_reason="idle")
    olga = browser("olga")
    for query, names in {
        "node=gpu1": {"here"},
        "label=team-a": {"labelled"},
        "idle=1": {"asleep"},
        "tenant=globex": {"asleep"},
        "q=lab+ell": {"labelled"},
        "owner=nobody": set(),
        "state=active": {"here"},
    }.items():
        rows = olga.get(f"/claims/?format=json&{query}").json()
        assert {row["name"] for row in rows} == names, query


def test_mine_are_the_readers_own_and_a_saved_view(cast: Cast, machine: Machine, browser: SignIn) -> None:
    ask(cast, name="of-the-system")
    made = browser("max").post(
        "/claims/new/",
        {
            "tenant": "acme", "name": "of-max", "pool": "default", "gpu_count": 1, "core_request": 10,
            "memory_mib": "512 MiB",
        },
    )  # fmt: skip
    assert made.status_code == 302
    page = text(browser("max").get("/claims/?mine=1"))
    assert ("of-max" in page, "of-the-system" in page) == (True, False)
    assert 'href="/claims/?mine=1" aria-current="page"' in page
    assert "of-max" not in text(browser("vera").get("/claims/?mine=1"))


def test_labels_of_nodes_are_found_by_name_and_by_value(nodes: list[str], browser: SignIn) -> None:
    Node.objects.filter(name="node-2").update(labels={"zone": "a"})
    Node.objects.filter(name="node-3").update(labels={"zone": "b"})
    olga = browser("olga")
    assert walk(olga, "/nodes/?label=zone", NODE) == ["node-2", "node-3"]
    assert walk(olga, "/nodes/?label=zone=b", NODE) == ["node-3"]


@pytest.mark.parametrize("name", LISTS)
def test_a_list_costs_few_queries_and_its_fragment_fewer(
    cast: Cast, machine: Machine, browser: SignIn, name: str
) -> None:
    placed(cast, machine)
    olga, path = browser("olga"), reverse(name)
    with CaptureQueriesContext(connection) as whole:
        olga.get(path)
    with CaptureQueriesContext(connection) as live:
        fragment = olga.get(path, headers={"HX-Request": "true"})
    assert len(live) <= len(whole) <= 20
    assert b"<html" not in fragment.content
    assert b"filters" not in fragment.content


def test_many_names_are_typed_instead_of_chosen(cast: Cast, browser: SignIn) -> None:
    olga = browser("olga")
    assert '<select name="pool"' in olga.get("/claims/").content.decode()
    type(cast.pool).objects.bulk_create(type(cast.pool)(name=f"pool-{number}") for number in range(101))
    page = olga.get("/claims/?pool=pool-7").content.decode()
    assert re.search(r'<input type="text" name="pool" value="pool-7"', page)


def test_claims_and_reservations_name_their_owner_in_list_and_file(
    cast: Cast, machine: Machine, browser: SignIn
) -> None:
    placed(cast, machine, principal=cast.member, name="of-max")
    begin = timezone.now() + timedelta(hours=1)
    create_reservation(
        principal=cast.member, tenant=cast.acme, pool=cast.pool, name="exam", core_request=10, memory_mib=1024,
        start_at=begin, end_at=begin + timedelta(hours=1),
    )  # fmt: skip
    max_ = browser("max")
    for path in ("/claims/", "/reservations/"):
        page = text(max_.get(path))
        assert re.search(r'<a class="sort" href="\?sort=owner">Owner', page), path
        assert '<td class="wide">max via token member&#x27;s</td>' in page
        # What a token of theirs made is theirs.
        assert "member&#x27;s</td>" in text(max_.get(f"{path}?mine=1"))
        assert "member&#x27;s</td>" not in text(browser("anna").get(f"{path}?mine=1"))
        (row,) = json.loads(max_.get(f"{path}?format=json").content)
        assert row["created_by"] == "user:max via token member's"
    assert "member&#x27;s</td>" in text(max_.get("/reservations/?owner=token+mem"))
    assert "member&#x27;s</td>" not in text(max_.get("/reservations/?owner=anna"))
