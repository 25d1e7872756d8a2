"""Invalid requests: each gets the documented refusal, changes nothing, and is never a 500."""

import io
import json
from pathlib import Path
from typing import Any

import pytest
from rest_framework.exceptions import ParseError

from gpucloud.api.parsers import StrictJSONParser
from tests.cast import Answer
from tests.matrix import crossed
from tests.scheduling.routes import OPERATIONS, ROUTES, WITHOUT_TOKEN, Platform, Route, dump_database, name_of

ROLES_PAGE = Path(__file__).resolve().parent.parent.parent / "docs" / "roles.md"

WRITES = [(route, method) for route in ROUTES for method in ("POST", "PATCH") if method in route.methods]
LISTS = [route for route in ROUTES if getattr(route.view, "lists", False)]
NOT_JSON = {
    "an array": b"[]",
    "a string": b'"x"',
    "a number": b"1",
    "null": b"null",
    "half of it": b'{"tenant": ',
    "not UTF-8": b'{"name": "\xff\xfe"}',
    "NaN": b'{"priority": NaN}',
    "Infinity": b'{"priority": -Infinity}',
    "a key twice": b'{"name": "a", "name": "b"}',
    "a key twice, deep": b'{"affinity": {"a": 1, "a": 2}}',
    "deep nesting": b'{"a":' * 50_000 + b"1" + b"}" * 50_000,
    "deep arrays": b'{"a":' + b"[" * 200_000,
    "NUL, escaped": b'{"name": "a\\u0000b"}',
    "NUL, raw": b'{"name": "a\x00b"}',
    "half a character": b'{"name": "\\ud800"}',
    "half a character as a key": b'{"\\udfff": 1}',
    "5000 digits": b'{"priority": ' + b"9" * 5000 + b"}",
}


def refused(answer: Answer, status: int, code: str) -> Answer:
    assert (answer.status, answer.code) == (status, code), answer.body
    return answer


@pytest.mark.parametrize("number", range(len(NOT_JSON)), ids=list(NOT_JSON))
def test_a_body_that_is_no_json_object_is_refused_everywhere(platform: Platform, number: int) -> None:
    """Each body goes to a fifth of the routes, and each route gets a fifth of the bodies: all have one parser."""
    body = list(NOT_JSON.values())[number]
    before = dump_database()
    for route, method in WRITES[number % 5 :: 5]:
        answer = platform.cast.olga.call(method, platform.path(route), raw=body, If_Match="*")
        refused(answer, 400, "parse-error")
    assert dump_database() == before


def test_every_route_that_writes_has_that_parser() -> None:
    assert {tuple(route.view.parser_classes) for route, _ in WRITES} == {(StrictJSONParser,)}


def test_no_depth_of_nesting_is_too_deep_to_be_refused() -> None:
    """Writing a value needs more stack than reading it: some depth can be read and not written."""
    for depth in range(1, 1200):
        try:
            StrictJSONParser().parse(io.BytesIO(b'{"a":' + b"[" * depth + b"]" * depth + b"}"))
        except ParseError:
            break
    else:
        pytest.fail("nothing was refused: nest deeper")


def test_an_unknown_field_is_named(platform: Platform) -> None:
    before = dump_database()
    for route, method in WRITES:
        body = {**route.body(method), "memmory_mib": 1}
        answer = platform.cast.olga.call(method, platform.path(route), body, If_Match="*")
        assert "memmory_mib" in refused(answer, 400, "invalid-fields").body["errors"], (method, route.pattern)
        assert dump_database() == before, (method, route.pattern)


CHANGES = [(route, method) for route, method in OPERATIONS if method != "GET"]


def test_an_unknown_query_parameter_of_a_change_is_refused(platform: Platform) -> None:
    """A misspelt `?dry_run=true` above all: a preview must not become a change."""
    before = dump_database()
    for route, method in CHANGES:
        path = platform.path(route) + "?dryrun=true"
        answer = platform.cast.olga.call(method, path, route.body(method), If_Match="*")
        assert "dryrun" in refused(answer, 400, "invalid-fields").body["errors"], (method, route.pattern)
        assert dump_database() == before, (method, route.pattern)


def test_a_preview_changes_nothing_or_is_refused(platform: Platform) -> None:
    before = dump_database()
    for route, method in CHANGES:
        path = platform.path(route) + "?dry_run=true"
        answer = platform.cast.olga.call(method, path, route.body(method), If_Match="*")
        # 409: the refusal of the act itself; 429: the API server to be asked does not answer.
        assert answer.status in (400, 409, 429) or answer.body["dry_run"] is True, (method, route.pattern)
        assert dump_database() == before, (method, route.pattern)


@pytest.mark.parametrize("kind", ["text/plain", "application/x-www-form-urlencoded", "multipart/form-data; boundary=x"])
def test_a_body_of_another_kind_is_refused(platform: Platform, kind: str) -> None:
    before = dump_database()
    for route, method in WRITES:
        body = json.dumps(route.body(method) or {"a": 1}).encode()
        answer = platform.cast.olga.call(method, platform.path(route), raw=body, content_type=kind, If_Match="*")
        refused(answer, 415, "unsupported-media-type")
    assert dump_database() == before


CLAIM = {"tenant": "acme", "core_request": 10, "memory_mib": 100}
WRONG_NUMBERS: list[Any] = ["8192", 1.5, 1.0, True, -1, 10**30, [], {}, "", "NaN", 2**63]
NUMBERS = ("core_request", "core_limit", "memory_mib", "gpu_count", "priority", "time_limit_seconds")


@pytest.mark.parametrize("field", NUMBERS)
def test_a_number_of_a_claim_is_a_whole_number_in_its_range(platform: Platform, field: str) -> None:
    before = dump_database()
    wrong = [value for value in (*WRONG_NUMBERS, 0) if not (field == "priority" and value in (-1, 0))]
    for value in wrong:
        answer = platform.cast.max.post("claims/", {**CLAIM, field: value})
        assert field in refused(answer, 400, "invalid-fields").body["errors"], value
    assert dump_database() == before


@pytest.mark.parametrize("field", ["core_request", "core_limit", "memory_mib"])
def test_a_number_of_a_resize_is_a_whole_number_in_its_range(platform: Platform, field: str) -> None:
    before = dump_database()
    for value in [*WRONG_NUMBERS, 0, None]:
        answer = platform.cast.max.patch(f"claims/{platform.claim.uid}/", {field: value})
        assert field in refused(answer, 400, "invalid-fields").body["errors"], value
    assert dump_database() == before


@pytest.mark.parametrize("value", [value for value in WRONG_NUMBERS if value != 2**63])
def test_a_quotas_amount_is_a_whole_number_or_null(platform: Platform, value: Any) -> None:
    before = dump_database()
    answer = platform.cast.olga.post("quotas/", {"tenant": "acme", "resource": "vgpus", "hard": value})
    assert "hard" in refused(answer, 400, "invalid-fields").body["errors"]
    assert dump_database() == before


@pytest.mark.parametrize(
    ("field", "value"),
    [
        ("name", ""), ("name", "x" * 201), ("name", None), ("tenant", None), ("tenant", 1),
        ("tenant", {"slug": "acme"}), ("pool", "nowhere"), ("pool", 1), ("gpu_model", "x" * 201), ("gpu_model", []),
        ("when_over_quota", "borrow"), ("class", True), ("affinity", {"a": 1}), ("anti_affinity", "a b"),
        ("weight", 0), ("weight", 1001), ("weight", "2"),
        ("group", "a b"), ("group", 1), ("group_size", 1), ("start_at", "2999-01-01T00:00:00Z"), ("start_at", "soon"),
        ("class", "gold"), ("core_limit", 5),
    ],
)  # fmt: skip
def test_a_field_of_a_claim_that_is_wrong_or_not_built_yet_is_refused(
    platform: Platform, field: str, value: Any
) -> None:
    before = dump_database()
    answer = platform.cast.max.post("claims/", {**CLAIM, field: value})
    assert field in refused(answer, 400, "invalid-fields").body["errors"]
    assert dump_database() == before


@pytest.mark.parametrize(
    ("path", "field", "values"),
    [
        ("tenants/", "slug", ["", "Acme", "a b", "-a", "a-", "x" * 64, "ä", "a/b", None, "a\n\nb"]),
        ("tenants/", "weight", [0, -1, 1001, "1", True]),
        ("tenants/", "cohort", ["", "A", []]),
        ("pools/", "name", ["", "A", "a.b", None]),
        ("nodes/", "name", ["enrol", "GPU1", ""]),
        ("nodes/", "pool", ["nowhere", None, 1]),
        ("tokens/", "scopes", [[], ["all"], "claims:read", [1], None]),
        ("tokens/", "cidrs", [["10.0.0.0/33"], ["home"], "10.0.0.0/8", [None]]),
        ("tokens/", "expires_at", ["2001-01-01T00:00:00Z", "soon", 5, "9999-12-31T23:59:59-23:59"]),
        ("tokens/", "role", ["operator", None, 1]),
        ("quotas/", "resource", ["gold", None, []]),
        ("tenants/acme/members/", "username", ["nobody-of-that-name", None, 1, ""]),
        ("tenants/acme/members/", "role", ["owner", ""]),
    ],
)  # fmt: skip
def test_a_wrong_value_is_refused_by_field(platform: Platform, path: str, field: str, values: list[Any]) -> None:
    before = dump_database()
    pattern = path.replace("acme", "<slug:slug>")
    good = next(route.body("POST") for route in ROUTES if route.pattern == pattern)
    for value in values:
        answer = platform.cast.olga.post(path, {**good, field: value})
        assert field in refused(answer, 400, "invalid-fields").body["errors"], value
    assert dump_database() == before


@pytest.mark.parametrize(
    ("route", "moment"),
    crossed(LISTS, ["2026-01-01T00:00:00-19:59", "0001-01-01T00:00:00%2B10:00", "9999-12-31T23:59:59-10:00"]),
    ids=name_of,
)
def test_a_moment_that_no_calendar_has_is_refused(platform: Platform, route: Route, moment: str) -> None:
    for name in ("updated_since", "since", "until"):
        answer = platform.cast.olga.get(f"{platform.path(route)}?{name}={moment}")
        assert name in refused(answer, 400, "invalid-fields").body["errors"]


@pytest.mark.parametrize(
    ("route", "query"),
    crossed(LISTS, ["colour=red", "tennant=acme", "limit=x", "limit=0", "limit=-5", "limit=1.5", "limit="]),
    ids=name_of,
)
def test_an_unknown_filter_or_a_senseless_limit_of_a_list_is_refused(
    platform: Platform, route: Route, query: str
) -> None:
    answer = platform.cast.olga.get(f"{platform.path(route)}?{query}")
    assert query.split("=", maxsplit=1)[0] in refused(answer, 400, "invalid-fields").body["errors"]


@pytest.mark.parametrize(
    ("route", "cursor"),
    crossed(
        LISTS,
        ["x", "cD1hYmM=", "cD0xJm89LTE=", "cj14", "cD0lMDA=", "cD05OTk5OTk5OTk5OTk5OTk5OTk5OTk=", "%FF", "é"],
    ),
    ids=name_of,
)
def test_a_cursor_that_is_not_ours_is_not_found(platform: Platform, route: Route, cursor: str) -> None:
    refused(platform.cast.olga.get(f"{platform.path(route)}?cursor={cursor}"), 404, "not-found")


def test_a_huge_limit_is_cut_to_what_a_page_may_hold(platform: Platform) -> None:
    for route in LISTS:
        assert platform.cast.olga.get(f"{platform.path(route)}?limit={10**18}").status == 200, route.pattern


@pytest.mark.parametrize(
    "path",
    [
        "claims/?updated_since=yesterday", "claims/?state=gone", "claims/?tenant=%00", "quotas/?resource=gold",
        "nodes/?cordoned=maybe", "gpus/?present=perhaps", "assignments/?claim=1", "assignments/?state=x",
        "audit/?since=x", "rounds/?since=0", "claims/?wait=3",
        "utilization/", "utilization/?claim=1", "utilization/?tenant=acme&node=gpu1", "utilization/?node=nowhere",
        "utilization/?gpu=%00", "utilization/?tenant=acme&step=0", "utilization/?tenant=acme&step=x",
        "utilization/?tenant=acme&from=x", "utilization/?tenant=acme&colour=red",
        "utilization/?tenant=acme&from=0001-01-01T00:00:00%2B14:00",
    ],
)  # fmt: skip
def test_a_wrong_filter_is_refused(platform: Platform, path: str) -> None:
    refused(platform.cast.olga.get(path), 400, "invalid-fields")


@pytest.mark.parametrize(
    ("path", "status"),
    [
        ("claims/?node=%FF", 200), ("claims/?name=%F0%9F%98%80", 200), ("audit/?object_id=" + "x" * 5000, 200),
        ("utilization/?tenant=acme&from=1970-01-01T00:00:00Z&step=60", 422),
        ("utilization/?tenant=acme&from=9990-01-01T00:00:00Z&to=1990-01-01T00:00:00Z", 200),
        ("quotas/" + "9" * 30 + "/", 404), ("quotas/" + "9" * 5000 + "/", 404), ("quotas/0/", 404),
        ("rounds/" + "9" * 30 + "/", 404), ("tenants/%00/", 404), ("tenants/acme%00/", 404),
        ("tenants/acme/members/%F0%9F%98%80/", 405), ("claims/%2e%2e/", 404), ("gpus/%FF/", 404),
        ("claims/00000000-0000-0000-0000-000000000000/", 404),
    ],
)  # fmt: skip
def test_what_is_merely_strange_is_no_fault(platform: Platform, path: str, status: int) -> None:
    answer = platform.cast.olga.get(path)
    assert answer.status == status
    assert status == 200 or answer.code


TAGGED = [
    ("claims/<uuid:uid>/", "PATCH"), ("claims/<uuid:uid>/", "DELETE"), ("quotas/<int:pk>/", "PATCH"),
    ("quotas/<int:pk>/", "DELETE"), ("tenants/<slug:slug>/", "PATCH"), ("nodes/<slug:name>/", "PATCH"),
]  # fmt: skip


@pytest.mark.parametrize("tags", ["7", "x", '"7', '"x"', 'W/"1"', '"99999999999999999999"', ""])
def test_an_entity_tag_that_does_not_match_changes_nothing(platform: Platform, tags: str) -> None:
    before = dump_database()
    for route, method in TAGGED:
        found = next(item for item in ROUTES if item.pattern == route)
        answer = platform.cast.olga.call(method, platform.path(found), found.body(method), If_Match=tags)
        refused(answer, 412, "stale-version")
    assert dump_database() == before


@pytest.mark.parametrize("method", ["PATCH", "DELETE"])
def test_a_quota_is_changed_only_by_who_says_which_version(platform: Platform, method: str) -> None:
    path = platform.paths["quotas/<int:pk>/"]
    before = dump_database()
    body = {"hard": 5} if method == "PATCH" else {}
    refused(platform.cast.olga.call(method, path, body), 428, "version-required")
    assert dump_database() == before


def test_the_tag_that_was_read_lets_one_change_through(platform: Platform) -> None:
    path = platform.paths["quotas/<int:pk>/"]
    tag = platform.cast.olga.get(path).headers["ETag"]
    changed = platform.cast.olga.patch(path, {"hard": 500}, If_Match=tag)
    assert (changed.status, changed.body["hard"]) == (200, 500)
    assert changed.headers["ETag"] != tag
    again = refused(platform.cast.olga.patch(path, {"hard": 600}, If_Match=tag), 412, "stale-version")
    assert again.body["current"] == changed.body["version"]


def only_operators() -> list[tuple[Route, str]]:
    """Return the operations that docs/roles.md (tested against the routes) refuses to all members of a tenant."""
    rows = [[cell.strip() for cell in line.split("|")[1:-1]] for line in ROLES_PAGE.read_text().splitlines()]
    refused = {(row[0], row[1].strip("`")) for row in rows if len(row) == 9 and set(row[3:7]) == {"403"}}
    return [(route, method) for route, method in WRITES if (method, route.pattern) in refused]


ONLY_OPERATORS = [item for item in only_operators() if item[0].pattern not in WITHOUT_TOKEN]


@pytest.mark.parametrize(("route", "method"), ONLY_OPERATORS, ids=name_of)
def test_who_may_not_is_told_so_before_what_was_sent_is_read(platform: Platform, route: Route, method: str) -> None:
    """Otherwise the answers would reveal what an operator may send, and the body would reach the parser."""
    before = dump_database()
    # These tokens are nobody's own.
    code = "person-missing" if route.pattern.startswith("me/") else "role-missing"
    for body in ({"nonsense": 1}, {**route.body(method), "labels": {"zone": "a"}, "name": 7}, {}):
        for asker in (platform.cast.anna, platform.cast.vera, platform.cast.gus):
            refused(asker.call(method, platform.path(route), body), 403, code)
    assert dump_database() == before


def test_a_new_node_takes_labels(platform: Platform) -> None:
    body = {"name": "gpu9", "pool": "default", "labels": {"zone": "a"}}
    answer = platform.cast.olga.post("nodes/", body)
    assert (answer.status, answer.body["labels"]) == (201, {"zone": "a"})
    assert platform.cast.olga.get("nodes/gpu9/").body["labels"] == {"zone": "a"}
    refused(platform.cast.olga.post("nodes/", {**body, "name": "gpu10", "labels": {"-": 1}}), 400, "invalid-fields")
    refused(platform.cast.anna.post("nodes/", body), 403, "role-missing")
