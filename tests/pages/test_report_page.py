"""The GPU-hours page: claims, days, and the export."""

import json
from typing import Any

import pytest

from tests.cast import Cast, Machine, placed
from tests.pages.conftest import SignIn


def rows_of(answer: Any) -> list[dict[str, str]]:
    found: list[dict[str, str]] = json.loads(b"".join(answer).decode())
    return found


def test_hours_are_ones_own_tenants_and_a_file_too(cast: Cast, machine: Machine, browser: SignIn) -> None:
    placed(cast, machine, core_request=50)
    page = browser("anna").get("/reports/").content.decode()
    assert '<a href="/tenants/acme/">acme</a>' in page
    assert "<td" in page
    assert "acme" not in browser("gus").get("/reports/").content.decode()
    rows = rows_of(browser("olga").get("/reports/?format=json&tenant=acme"))
    assert [row["tenant"] for row in rows] == ["acme"]
    assert rows_of(browser("olga").get("/reports/?format=json&tenant=globex")) == []


@pytest.mark.parametrize(
    ("query", "words"),
    [
        ("begin=2026-02-01&end=2026-01-01", "To:"),
        ("begin=2020-01-01&end=2026-01-01", "To:"),
        ("begin=soon&end=2026-01-01", "From:"),
        ("begin=9999-12-01&end=9999-12-31", "To:"),
        ("tenant=nobody", "Tenant:"),
    ],
)
def test_a_period_that_is_none_is_said_so(cast: Cast, browser: SignIn, query: str, words: str) -> None:
    answer = browser("olga").get(f"/reports/?{query}")
    assert answer.status_code == 200
    assert words in answer.content.decode()
    # An empty file would look like an answer.
    assert "<html" in browser("olga").get(f"/reports/?{query}&format=csv").content.decode()
