"""docs/roles.md: the answer of each route to each role, found by requests. `make roles` regenerates it.

A new route is tested automatically, because the routes come from the URL resolver; the committed table then differs and
the test fails until `make roles` was run and its answers were reviewed. If the route needs an object or a body, add one
in `routes.py` (`make_platform`, `BODIES`); required query parameters are in `QUERIES` below. A new role is a line in
`askers`.
"""

import os
from pathlib import Path
from typing import Any

import pytest
from django.db import connection, transaction

from tests.cast import Api, token_for
from tests.scheduling.routes import OPERATIONS, OPERATORS, SHARED, WITHOUT_TOKEN, Platform, Route

# Without django_db no database is made where this file runs alone. The fixture makes two thousand requests: half a
# minute on a quiet machine, which counts towards the first test.
pytestmark = [pytest.mark.django_db, pytest.mark.slow, pytest.mark.timeout(600)]

TABLE = Path(__file__).resolve().parent.parent.parent / "docs" / "roles.md"
QUERIES = {"utilization/": "?tenant=acme"}
ROLES = ("nobody", "viewer", "member", "admin", "foreign admin", "operator", "no scope")
# Without any scope a token may still ask for its owner.
NO_SCOPE_NEEDED = {"me/"}
HEAD = """# Roles and routes

After reading this page you can tell which status a request gets, by role and route, below `/api/v1/`. `make roles`
writes this page from real requests; do not edit it. A test fails if it is out of date.

The object of each route belongs to the tenant acme, or to the platform. *nobody* sends no token; *viewer*, *member* and
*admin* have that role in acme; *foreign admin* is the admin of another tenant; *operator* runs the platform; *no scope*
is an operator's token without scopes. 401: the token is missing. 403: the role or scope is not sufficient. 404: the
object does not exist or belongs to somebody else. A list (200) contains what the caller may see, which may be nothing.

"""


def askers(platform: Platform) -> dict[str, Api]:
    """Return a client for each role."""
    cast = platform.cast
    unable = Api(token_for(None, scopes=[]))
    return dict(zip(ROLES, (cast.nobody, cast.vera, cast.max, cast.anna, cast.gus, cast.olga, unable), strict=True))


Answers = dict[tuple[str, str], dict[str, int]]


@pytest.fixture(scope="module")
def answers(module_platform: Platform, django_db_blocker: Any) -> Answers:
    """Return the status of every operation for every role; each request is undone before the next."""
    with django_db_blocker.unblock():
        with transaction.atomic():
            who = askers(module_platform)
            found = {
                (method, route.pattern): {role: asked(module_platform, api, route, method) for role, api in who.items()}
                for route, method in OPERATIONS
            }
            transaction.set_rollback(True)
        connection.close()
    return found


def asked(platform: Platform, api: Api, route: Route, method: str) -> int:
    query = QUERIES.get(route.pattern, "") if method == "GET" else ""
    with transaction.atomic():
        answer = api.call(method, platform.path(route) + query, route.body(method), If_Match="*")
        transaction.set_rollback(True)
    return answer.status


def table(answers: Answers) -> str:
    """Return the page."""
    lines = ["| method | route | " + " | ".join(ROLES) + " |", "| --- | --- |" + " --- |" * len(ROLES)]
    for (method, pattern), statuses in sorted(answers.items(), key=lambda item: (item[0][1], item[0][0])):
        cells = " | ".join(str(statuses[role]) for role in ROLES)
        lines.append(f"| {method} | `{pattern}` | {cells} |")
    return HEAD + "\n".join(lines) + "\n"


def test_the_committed_table_is_what_the_routes_answer(answers: Answers) -> None:
    made = table(answers)
    if os.environ.get("WRITE_ROLES"):
        TABLE.write_text(made)
    assert TABLE.read_text() == made, "run `make roles`, and look at what changed"


def test_the_table_has_every_operation(answers: Answers) -> None:
    assert set(answers) == {(method, route.pattern) for route, method in OPERATIONS}


def test_nobody_gets_in_anywhere(answers: Answers) -> None:
    let_in = {pattern for (_, pattern), statuses in answers.items() if statuses["nobody"] != 401}
    assert let_in == WITHOUT_TOKEN


def test_a_foreign_tenant_learns_nothing_of_an_object(answers: Answers) -> None:
    for (method, pattern), statuses in answers.items():
        if "<" in pattern and pattern not in SHARED | OPERATORS:
            assert statuses["foreign admin"] == 404, (method, pattern)
        elif method != "GET" and pattern in SHARED | OPERATORS:
            assert statuses["foreign admin"] == 403, (method, pattern)


def test_without_a_scope_a_token_does_nothing(answers: Answers) -> None:
    for (method, pattern), statuses in answers.items():
        if pattern not in NO_SCOPE_NEEDED | WITHOUT_TOKEN:
            assert statuses["no scope"] == 403, (method, pattern)


def test_an_operator_is_refused_nothing_for_their_role(answers: Answers) -> None:
    for (method, pattern), statuses in answers.items():
        if pattern not in WITHOUT_TOKEN:
            assert statuses["operator"] not in (401, 403, 404), (method, pattern)
            assert statuses["operator"] != 400, f"{method} {pattern} needs a body in routes.py or a query in QUERIES"


def test_a_viewer_changes_nothing(answers: Answers) -> None:
    for (method, pattern), statuses in answers.items():
        if method != "GET" and pattern not in WITHOUT_TOKEN:
            assert statuses["viewer"] in (403, 404), (method, pattern)


def test_a_higher_role_is_refused_nothing_that_a_lower_one_may(answers: Answers) -> None:
    ladder = ("viewer", "member", "admin", "operator")
    for operation, statuses in answers.items():
        allowed = [statuses[role] not in (401, 403, 404) for role in ladder]
        assert allowed == sorted(allowed), (operation, statuses)
