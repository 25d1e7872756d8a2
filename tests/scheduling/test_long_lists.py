"""Lists over a long history: the rows that the database reads for one page of fifty."""

import json
from collections.abc import Iterator
from typing import Any

import pytest
from django.db import connection
from django.test.utils import CaptureQueriesContext

from tests.cast import Api, Cast, Machine, ask, give_plenty, placed
from tests.history import add_history

# Tables that grow without end.
GROWING = {"scheduling_claim", "scheduling_assignment", "quotas_auditevent", "quotas_ledgerentry"}
LISTS = [
    "claims/", "claims/?tenant=acme", "claims/?pool=default", "claims/?state=queued",
    "claims/?state=active&tenant=acme", "claims/?name=train-7", "claims/?tenant=acme&name=train-7",
    "claims/?updated_since={hour}", "assignments/", "assignments/?state=in_force", "assignments/?claim={claim}",
    "assignments/?updated_since={hour}", "audit/", "audit/?tenant=acme", "audit/?actor=user:nobody",
    "audit/?object_id={claim}&object_type=claim", "quotas/",
]  # fmt: skip
# The keys of fifty claims and one more that tells whether there are others, twice for skipped rows; then the claims
# and their assignments by their keys, twice where the planner reads a small table another way.
MOST_ROWS = 360
MOST_QUERIES = 6


@pytest.mark.slow
@pytest.mark.parametrize("count", [3_000, pytest.param(100_000, marks=[pytest.mark.long, pytest.mark.timeout(900)])])
def test_a_page_of_fifty_reads_little_of_a_long_history(cast: Cast, count: int) -> None:
    give_plenty(cast.acme, cast.globex)
    claim, assignment = placed(cast, Machine("gpu1", cast.pool))
    ask(cast, core_request=100)
    add_history(assignment, count=count, tenants=[cast.acme, cast.globex])
    too_many = {}
    for path in LISTS:
        for name, who in (("operator", cast.olga), ("admin", cast.anna)):
            read = rows_read(who, path.format(claim=claim.uid, hour=an_hour_before_the_end()))
            if read > MOST_ROWS:
                too_many[path, name] = read
    assert not too_many


def test_a_filter_without_an_index_would_be_seen(cast: Cast) -> None:
    """The control: none of these claims has the name, and only a scan can tell."""
    give_plenty(cast.acme)
    _, assignment = placed(cast, Machine("gpu1", cast.pool))
    add_history(assignment, count=500, tenants=[cast.acme])
    with connection.cursor() as cursor:
        cursor.execute("DROP INDEX claim_by_name")
    assert rows_read(cast.olga, "claims/?name=nobody") > MOST_ROWS


def rows_read(who: Api, path: str) -> int:
    """Return how many rows of growing tables the database read for this answer."""
    with CaptureQueriesContext(connection) as asked:
        answer = who.get(path)
    assert answer.status == 200, answer.body
    selects = [query["sql"] for query in asked if query["sql"].startswith("SELECT")]
    assert len(selects) <= MOST_QUERIES, (path, selects)
    return sum(looked_at(node) for sql in selects for node in nodes(plan(sql)))


def looked_at(node: dict[str, Any]) -> int:
    if node.get("Relation Name") not in GROWING:
        return 0
    removed = node.get("Rows Removed by Filter", 0) + node.get("Rows Removed by Index Recheck", 0)
    return int((node["Actual Rows"] + removed) * node["Actual Loops"])


def plan(sql: str) -> dict[str, Any]:
    with connection.cursor() as cursor:
        cursor.execute(f"EXPLAIN (ANALYZE, FORMAT JSON) {sql}")
        found = cursor.fetchone()[0]
    root: dict[str, Any] = (json.loads(found) if isinstance(found, str) else found)[0]["Plan"]
    return root


def nodes(root: dict[str, Any]) -> Iterator[dict[str, Any]]:
    yield root
    for child in root.get("Plans", []):
        yield from nodes(child)


def an_hour_before_the_end() -> str:
    with connection.cursor() as cursor:
        cursor.execute("SELECT max(updated_at) - interval '1 hour' FROM scheduling_claim WHERE state = 'released'")
        return str(cursor.fetchone()[0].strftime("%Y-%m-%dT%H:%M:%SZ"))
