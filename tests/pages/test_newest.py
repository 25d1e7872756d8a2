"""Long lists are walked by key: nothing is counted, and nothing is shown twice while they grow."""

import re

import pytest
from django.db import connection
from django.test import Client
from django.test.utils import CaptureQueriesContext

from apps.quotas.models import AuditEvent
from gpucloud.web import newest
from tests.cast import Cast
from tests.pages.conftest import SignIn

SHOWN = re.compile(r"walked\.(\d+)")


@pytest.fixture
def olga(cast: Cast, browser: SignIn, monkeypatch: pytest.MonkeyPatch) -> Client:
    """With eleven events of ours in the log, and five on a page."""
    monkeypatch.setattr(newest, "PER_PAGE", 5)
    write(range(11))
    return browser("olga")


def write(numbers: range) -> None:
    AuditEvent.objects.bulk_create(
        AuditEvent(actor="system", action=f"walked.{number}", object_type="node", object_id="n") for number in numbers
    )


def seen(client: Client, query: str) -> tuple[list[int], dict[str, str]]:
    """The events of the page, and where its links lead."""
    page = client.get(f"/audit/{query}").content.decode()
    links = {word: href.replace("&amp;", "&") for href, word in LINK.findall(page)}
    return [int(number) for number in dict.fromkeys(SHOWN.findall(page))], links


LINK = re.compile(r'<a class="btn" href="([^"]*)">(?:<svg.*?</svg>)?(Newest|Newer|Older)', re.DOTALL)


def test_a_walk_sees_every_row_once_while_rows_are_added(olga: Client) -> None:
    first, links = seen(olga, "?action=walked")
    write(range(11, 14))
    second, on = seen(olga, links["Older"])
    third, end = seen(olga, on["Older"])
    assert [*first, *second, *third] == list(range(10, -1, -1))
    assert set(links) == {"Older"}
    assert set(end) == {"Newest", "Newer"}
    assert seen(olga, end["Newer"])[0] == second


def test_the_way_back_ends_at_the_newest_page_whole(olga: Client) -> None:
    first, links = seen(olga, "?action=walked")
    _, on = seen(olga, links["Older"])
    assert seen(olga, on["Newer"])[0] == first
    write(range(11, 13))
    back, further = seen(olga, on["Newer"])
    assert back == first
    assert seen(olga, further["Newer"])[0] == [12, 11, 10, 9, 8]
    assert seen(olga, on["Newest"])[0] == [12, 11, 10, 9, 8]


def test_nothing_is_counted(olga: Client) -> None:
    with CaptureQueriesContext(connection) as asked:
        seen(olga, "?action=walked")
    log = [query["sql"] for query in asked if "quotas_auditevent" in query["sql"]]
    assert len(log) == 1
    assert "COUNT(" not in log[0]
    assert "LIMIT 6" in log[0]


def test_beyond_the_end_there_is_a_way_back(olga: Client) -> None:
    shown, links = seen(olga, "?action=walked&before=1")
    assert shown == []
    assert seen(olga, links["Newest"])[0] == [10, 9, 8, 7, 6]
