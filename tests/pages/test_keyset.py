"""Keyset pages of long lists: no row is counted, and none is shown twice while the list grows."""

import re

import pytest
from django.db import connection
from django.test import Client
from django.test.utils import CaptureQueriesContext

from apps.quotas.models import AuditEvent
from gpucloud.web import keyset
from tests.cast import Cast
from tests.pages.conftest import SignIn

SHOWN = re.compile(r"walked\.(\d+)")


@pytest.fixture
def olga(cast: Cast, browser: SignIn, monkeypatch: pytest.MonkeyPatch) -> Client:
    """Sign in as olga, with eleven audit events and five per page."""
    monkeypatch.setattr(keyset, "PER_PAGE", 5)
    write(range(11))
    return browser("olga")


def write(numbers: range) -> None:
    AuditEvent.objects.bulk_create(
        AuditEvent(actor="system", action=f"walked.{number}", object_type="node", object_id="n") for number in numbers
    )


def events_and_links(client: Client, query: str) -> tuple[list[int], dict[str, str]]:
    """Return the numbers of the events on the page, and the links of the pager by label."""
    page = client.get(f"/audit/{query}").content.decode()
    links = {label: href.replace("&amp;", "&") for href, label in LINK.findall(page)}
    return [int(number) for number in dict.fromkeys(SHOWN.findall(page))], links


LINK = re.compile(r'<a class="btn" href="([^"]*)">(?:<svg.*?</svg>)?(Newest|Newer|Older)', re.DOTALL)


def test_a_walk_sees_every_row_once_while_rows_are_added(olga: Client) -> None:
    first, links = events_and_links(olga, "?action=walked")
    write(range(11, 14))
    second, on = events_and_links(olga, links["Older"])
    third, end = events_and_links(olga, on["Older"])
    assert [*first, *second, *third] == list(range(10, -1, -1))
    assert set(links) == {"Older"}
    assert set(end) == {"Newest", "Newer"}
    assert events_and_links(olga, end["Newer"])[0] == second


def test_walking_back_ends_at_a_full_newest_page(olga: Client) -> None:
    first, links = events_and_links(olga, "?action=walked")
    _, on = events_and_links(olga, links["Older"])
    assert events_and_links(olga, on["Newer"])[0] == first
    write(range(11, 13))
    back, further = events_and_links(olga, on["Newer"])
    assert back == first
    assert events_and_links(olga, further["Newer"])[0] == [12, 11, 10, 9, 8]
    assert events_and_links(olga, on["Newest"])[0] == [12, 11, 10, 9, 8]


def test_nothing_is_counted(olga: Client) -> None:
    with CaptureQueriesContext(connection) as asked:
        events_and_links(olga, "?action=walked")
    log = [query["sql"] for query in asked if "quotas_auditevent" in query["sql"]]
    keys, rows = log
    assert "COUNT(" not in keys + rows
    assert "LIMIT 6" in keys


def test_a_page_beyond_the_end_links_back(olga: Client) -> None:
    shown, links = events_and_links(olga, "?action=walked&before=1")
    assert shown == []
    assert events_and_links(olga, links["Newest"])[0] == [10, 9, 8, 7, 6]
