"""The Efficiency page: figures, groups, files, and the tenants that a reader sees."""

import json
from typing import Any

import pytest

from apps.accounting import tasks
from tests.cast import Cast, Machine, placed
from tests.pages.conftest import SignIn
from tests.scheduling.clock import Clock, clock
from tests.scheduling.test_efficiency import example
from tests.scheduling.test_usage_reports import measure

# The fixture is found by its name here; the clock is set before machines and sessions are made.
__all__ = ["clock"]


def text_of(answer: Any) -> str:
    return " ".join(answer.content.decode().split())


def test_the_page_shows_the_figures_of_each_group(
    clock: Clock,
    cast: Cast,
    machine: Machine,
    browser: SignIn,
) -> None:
    example(cast, machine, clock)
    olga = browser("olga")
    page = text_of(olga.get("/efficiency/?by=claim&range=day"))
    row = '<td class="num">2.00</td> <td class="num">0.10</td> <td class="num">1.90</td> <td class="num">5 %</td>'
    assert row in page
    assert "max via token member&#x27;s</td>" in page
    page = text_of(olga.get("/efficiency/"))
    assert row in page
    assert 'href="?by=claim&amp;person=user%3Amax">max</a>' in page
    series = json.loads(page.split('<script id="series" type="application/json">')[1].split("</script>")[0])
    assert series["series"][0]["reserved"] == [0, 0, 0, 0, 0, 0, 2.25]
    assert series["window_seconds"] == 7 * 86400
    page = text_of(olga.get("/efficiency/?by=claim&person=user%3Amax"))
    assert "half</a>" in page
    assert "quarter</a>" not in page


def test_readers_see_their_tenants_only_and_so_do_their_files(
    clock: Clock,
    cast: Cast,
    machine: Machine,
    browser: SignIn,
) -> None:
    example(cast, machine, clock)
    page = browser("gus").get("/efficiency/?by=claim").content.decode()
    assert "quarter" in page
    for hidden in ("half", "acme", "user:max"):
        assert hidden not in page
    assert "Tenant:" in browser("gus").get("/efficiency/?tenant=acme").content.decode()
    rows = json.loads(b"".join(browser("vera").get("/efficiency/?by=claim&format=json")))
    assert [(row["name"], row["gpu_hours_unused"]) for row in rows] == [("half", 1.9)]
    lines = b"".join(browser("vera").get("/efficiency/?by=tenant&format=csv")).decode().splitlines()
    assert lines[0].startswith("name,kind,uid,tenant,pool,owner,gpu_hours_reserved")
    assert [line.split(",")[0] for line in lines[1:]] == ["acme"]


def test_an_empty_range_says_what_counts(cast: Cast, browser: SignIn) -> None:
    assert "A claim counts once it is on a GPU." in browser("max").get("/efficiency/").content.decode()
    assert "/claims/new/" not in text_of(browser("vera").get("/efficiency/")).split("<main")[1]


@pytest.mark.parametrize("query", ["by=colour", "range=year", "tenant=nobody", "pool=nowhere"])
def test_a_wrong_choice_is_said_at_its_field(cast: Cast, browser: SignIn, query: str) -> None:
    answer = browser("olga").get(f"/efficiency/?{query}&format=csv")
    assert answer.status_code == 200
    assert 'role="alert"' in answer.content.decode()


def test_more_than_was_allocated_is_negative(
    clock: Clock,
    cast: Cast,
    machine: Machine,
    browser: SignIn,
) -> None:
    _, assignment = placed(cast, machine, core_request=10, core_limit=100)
    measure(assignment.uid, clock.now, seconds=1800, core_percent=90, every=4)
    clock.advance(hours=1)
    tasks.roll_up_usage()
    tasks.roll_up_allocations()
    page = text_of(browser("olga").get("/efficiency/"))
    assert '<td class="num">-0.35</td> <td class="num">450 %</td>' in page
