"""Lists: every row once, in order, at a cost that does not grow with their number; and their OpenAPI document."""

from datetime import date
from decimal import Decimal
from functools import cache
from typing import Any

import pytest
import yaml
from django.conf import settings
from django.db import connection
from django.test.utils import CaptureQueriesContext
from drf_spectacular.generators import SchemaGenerator
from jsonschema import Draft202012Validator

from apps.quotas.models import User
from apps.quotas.principals import SYSTEM
from apps.quotas.services import budgets, prices, quotas, requests, tenants
from apps.scheduling.services.cycles.rounds import run_round
from tests.cast import Cast, Machine, ask, everything, give_plenty, token_for, uids
from tests.scheduling.routes import ROUTES, Platform, Route, name_of

LISTS = [route for route in ROUTES if getattr(route.view, "lists", False)]


def test_walking_the_pages_meets_every_row_exactly_once_and_newest_first(cast: Cast) -> None:
    give_plenty(cast.acme)
    made = [ask(cast) for _ in range(7)]
    for limit in (1, 2, 3, 7, 200):
        rows = list(everything(cast.max, f"/api/v1/claims/?limit={limit}"))
        assert [row["uid"] for row in rows] == uids(made)[::-1]


def test_claims_are_found_by_the_beginning_of_their_uid_and_without_released_ones(cast: Cast) -> None:
    give_plenty(cast.acme)
    made = [ask(cast) for _ in range(3)]
    for length in (8, 13, 36):
        beginning = str(made[0].uid)[:length]
        expected = [str(one.uid) for one in reversed(made) if str(one.uid).startswith(beginning)]
        assert [row["uid"] for row in everything(cast.max, f"/api/v1/claims/?uid_prefix={beginning}")] == expected
        assert not list(everything(cast.gus, f"/api/v1/claims/?uid_prefix={beginning}"))
    for wrong in ("xyz", "0" * 33, "%25"):
        assert "uid_prefix" in cast.max.get(f"claims/?uid_prefix={wrong}").body["errors"]
    cast.max.delete(f"claims/{made[1].uid}/")
    live = [row["uid"] for row in everything(cast.max, "/api/v1/claims/?live=true")]
    assert live == uids([made[2], made[0]])
    assert [row["uid"] for row in everything(cast.max, "/api/v1/claims/?live=false")] == uids([made[1]])
    steps = [step["state"] for step in cast.max.get(f"claims/{made[1].uid}/").body["timeline"]]
    assert (steps[0], steps[-1]) == ("pending", "released")


def test_what_is_added_while_the_pages_are_walked_moves_nothing(cast: Cast) -> None:
    give_plenty(cast.acme)
    made = [ask(cast) for _ in range(6)]
    seen = []
    for row in everything(cast.max, "/api/v1/claims/?limit=2"):
        seen.append(row["uid"])
        ask(cast)
    assert seen == uids(made)[::-1]


def test_a_filter_holds_on_every_page(cast: Cast) -> None:
    give_plenty(cast.acme, cast.globex)
    mine = [ask(cast, tenant=cast.acme if number % 2 else cast.globex) for number in range(8)][1::2]
    rows = list(everything(cast.olga, "/api/v1/claims/?tenant=acme&limit=1"))
    assert [row["uid"] for row in rows] == uids(mine)[::-1]


def grow(cast: Cast, number: int) -> None:
    """Create one more of every object that can be listed."""
    tenant = tenants.create_tenant(principal=SYSTEM, slug=f"t{number}", name="T")
    tenants.create_pool(principal=SYSTEM, name=f"p{number}")
    quota = quotas.create_quota(principal=SYSTEM, tenant=tenant, pool=None, resource="vgpus", hard=1)
    quotas.change_quota(principal=SYSTEM, quota=quota, hard=2)
    budgets.create_budget(principal=SYSTEM, tenant=tenant, period="week", gpu_hours=Decimal(1))
    day = date(2030, 1, 1 + number)
    prices.set_price(principal=SYSTEM, gpu_model="x", pool=None, valid_from=day, per_gpu_hour=Decimal(1))
    requests.ask(principal=SYSTEM, tenant=tenant, pool=None, resource="vgpus", amount=1, reason="r")
    token_for(cast.acme)
    Machine(f"more{number}", cast.pool)
    ask(cast, gpu_count=2)
    ask(cast, core_request=100)
    run_round(cast.pool)


def count_queries(platform: Platform) -> dict[str, int]:
    """Return how many queries each list takes."""
    found = {}
    for route in LISTS:
        with CaptureQueriesContext(connection) as asked:
            assert platform.cast.olga.get(platform.path(route)).status == 200
        found[name_of(route)] = len(asked)
    return found


def test_a_list_asks_the_database_as_often_for_many_rows_as_for_few(platform: Platform) -> None:
    count_queries(platform)  # a token's first use is written down
    few = count_queries(platform)
    for number in range(3):
        grow(platform.cast, number)
    assert count_queries(platform) == few
    # A queue is computed from the whole pool, with its reservations, its moves, its use and its waits.
    assert not {name: asked for name, asked in few.items() if asked > (16 if name.endswith("/queue/") else 8)}


@cache
def read_document() -> dict[str, Any]:
    loaded: dict[str, Any] = yaml.load(
        (settings.BASE_DIR / "docs" / "openapi.yaml").read_text(), Loader=yaml.CSafeLoader
    )
    return loaded


@pytest.fixture(scope="module")
def document() -> dict[str, Any]:
    return read_document()


@cache
def components() -> Any:
    """Return the document's components as JSON Schema: converted for each route, they cost more than its answer."""
    return as_json_schema(read_document()["components"])


def as_json_schema(node: Any) -> Any:
    """Convert the schema: OpenAPI 3.0 says `nullable`, JSON Schema has an additional type."""
    if isinstance(node, list):
        return [as_json_schema(item) for item in node]
    if not isinstance(node, dict):
        return node
    plain = {name: as_json_schema(value) for name, value in node.items() if name != "nullable"}
    return {"anyOf": [plain, {"type": "null"}]} if node.get("nullable") is True else plain


@pytest.mark.slow
def test_the_document_that_is_served_is_the_one_that_is_committed(platform: Platform, document: dict[str, Any]) -> None:
    answer = platform.cast.nobody.call("GET", "/api/v1/openapi.yaml")
    assert answer.status == 200
    assert yaml.load(answer.raw, Loader=yaml.CSafeLoader) == document


def test_the_document_is_made_once(platform: Platform, monkeypatch: pytest.MonkeyPatch) -> None:
    """Extra parameters do not make a new one: generating it takes a third of a second."""
    nobody = platform.cast.nobody
    first = nobody.call("GET", "/api/v1/openapi.yaml")
    monkeypatch.setattr(SchemaGenerator, "get_schema", lambda *_, **__: pytest.fail("made again"))
    for query in ("?lang=de", "?version=2", "?version=%0a"):
        again = nobody.call("GET", f"/api/v1/openapi.yaml{query}")
        assert (again.status, again.raw) == (200, first.raw)


def test_every_route_is_in_the_document(document: dict[str, Any]) -> None:
    for route in ROUTES:
        operations = document["paths"][documented_path(document, route)]
        assert {method.upper() for method in operations} == set(route.methods)


def test_an_answer_is_as_documented(
    platform: Platform,
    document: dict[str, Any],
) -> None:
    for route in ROUTES:
        if "GET" in route.methods:
            query = "?tenant=acme" if route.pattern == "utilization/" else ""
            check(platform, document, "GET", route, query)


# These need a one-time token, a pod's token or an API server, and have tests of their own.
ASKED_ELSEWHERE = {"nodes/enrol/", "clusters/join/", "clusters/<slug:name>/import/"}


@pytest.mark.parametrize(
    "route",
    [route for route in ROUTES if "POST" in route.methods and route.pattern not in ASKED_ELSEWHERE],
    ids=name_of,
)
def test_the_answer_to_a_post_is_as_documented(
    platform: Platform, document: dict[str, Any], route: Route, settings: Any
) -> None:
    # Who asks for a test mail needs a server for mails, and an address.
    settings.EMAIL_HOST = "mail"
    User.objects.update(email="olga@example.org")
    check(platform, document, "POST", route)


def test_a_problem_is_as_documented(
    platform: Platform,
    document: dict[str, Any],
) -> None:
    answer = platform.cast.olga.post("claims/", {})
    validator(document["components"]["schemas"]["Problem"]).validate(answer.body)


def check(platform: Platform, document: dict[str, Any], method: str, route: Route, query: str = "") -> None:
    answer = platform.cast.olga.call(method, platform.path(route) + query, route.body(method), If_Match="*")
    assert answer.status < 300, (route.pattern, answer.body)
    said = document["paths"][documented_path(document, route)][method.lower()]["responses"][str(answer.status)]
    kind = answer.headers["Content-Type"].partition(";")[0]
    validator(said["content"][kind]["schema"]).validate(answer.body)


def validator(schema: dict[str, Any]) -> Draft202012Validator:
    return Draft202012Validator({"components": components(), "allOf": [as_json_schema(schema)]})


def documented_path(document: dict[str, Any], route: Route) -> str:
    """Return the route as the document writes it."""
    parts = ("/api/v1/" + route.pattern).split("/")
    for path in document["paths"]:
        theirs = path.split("/")
        pairs = zip(theirs, parts, strict=False)
        if len(theirs) == len(parts) and all(a == b or (a[:1] == "{" and b[:1] == "<") for a, b in pairs):
            return str(path)
    raise AssertionError(f"{route.pattern} is not documented")
