"""Shared live fragments: never for a reader with other permissions, never older than the notice."""

import gzip
import time
from collections.abc import Iterator
from concurrent.futures import ThreadPoolExecutor
from typing import Any

import pytest
from django.test import Client

from apps.console.overview import overview as page
from apps.console.shell import fragment_cache
from tests.cast import Cast, ask, give_plenty
from tests.pages.conftest import SignIn

PART = {"HX-Request": "true", "Accept-Encoding": "gzip"}


@pytest.fixture(autouse=True)
def clear_cache(cast: Cast, monkeypatch: pytest.MonkeyPatch) -> Iterator[None]:
    """Clear the cache between tests; a second lasts as long as a test."""
    monkeypatch.setattr(fragment_cache, "FRESH_SECONDS", 600.0)
    give_plenty(cast.acme, cast.globex)
    yield
    fragment_cache._fragments.clear()


@pytest.fixture
def made(monkeypatch: pytest.MonkeyPatch) -> list[str]:
    """Record the readers for whom the fragment was made, in order."""
    names: list[str] = []
    inner = page._context

    def shown(principal: Any) -> dict[str, Any]:
        names.append(principal.name)
        return inner(principal)

    monkeypatch.setattr(page, "_context", shown)
    return names


def part(client: Client, **headers: str) -> str:
    said = {name.replace("_", "-"): value for name, value in headers.items()}
    answer = client.get("/", headers=PART | said)
    assert answer["Content-Encoding"] == "gzip"
    assert "Accept-Encoding" in answer["Vary"]
    return gzip.decompress(answer.content).decode()


def test_those_who_see_the_same_get_what_was_made_once(cast: Cast, browser: SignIn, made: list[str]) -> None:
    olga = browser("olga")
    assert part(olga) == part(olga) == part(browser("olga"))
    assert made == ["user:olga"]


def test_whoever_sees_other_things_gets_their_own(cast: Cast, browser: SignIn, made: list[str]) -> None:
    ask(cast, name="acmes-secret")
    ask(cast, name="globexs-secret", tenant=cast.globex)
    assert "globexs-secret" in part(browser("olga"))
    acmes, globexs = part(browser("anna")), part(browser("gus"))
    assert ("acmes-secret" in acmes, "globexs-secret" in acmes) == (True, False)
    assert ("acmes-secret" in globexs, "globexs-secret" in globexs) == (False, True)
    # Max sees what Anna sees, and may do less.
    part(browser("max"))
    assert made == ["user:olga", "user:anna", "user:gus", "user:max"]


def test_who_was_told_of_a_change_gets_nothing_older(cast: Cast, browser: SignIn) -> None:
    olga = browser("olga")
    part(olga)
    ask(cast, name="just-made")
    # The control: within the second it would be the earlier one.
    assert "just-made" not in part(olga)
    assert "just-made" in part(olga, X_Not_Before=str(time.time()))


def test_a_moment_that_is_none_or_in_the_future_is_no_way_to_stale_pages(
    cast: Cast, browser: SignIn, made: list[str]
) -> None:
    olga = browser("olga")
    for told in ("soon", "nan", "inf", "-1", "9e99"):
        part(olga, X_Not_Before=told)
    assert 1 <= len(made) <= 5


def test_after_a_second_it_is_made_anew(cast: Cast, browser: SignIn, monkeypatch: pytest.MonkeyPatch) -> None:
    olga = browser("olga")
    part(olga)
    ask(cast, name="a-second-later")
    monkeypatch.setattr(fragment_cache, "FRESH_SECONDS", 0.0)
    assert "a-second-later" in part(olga)


def test_a_clock_that_was_put_back_keeps_nothing_young() -> None:
    part = fragment_cache.Fragment()
    part.last = fragment_cache.Rendering(time.time() + 3590, time.time() + 3600, b"old")
    assert part.newer_than(time.time() - 1, lambda: b"new") == b"new"


def test_what_takes_long_is_not_made_again_for_each_who_waited_for_it(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(fragment_cache, "FRESH_SECONDS", 1.0)
    part, told, made = fragment_cache.Fragment(), time.time(), list[float]()

    def make() -> bytes:
        made.append(time.time())
        time.sleep(1.2)
        return b"new"

    with ThreadPoolExecutor(4) as threads:
        assert set(threads.map(lambda _: part.newer_than(told, make), range(4))) == {b"new"}
    assert len(made) == 1
    # The control: a reader who received a notice since then gets a new one.
    assert part.newer_than(time.time(), make) == b"new"
    assert len(made) == 2


def test_who_may_have_what_is_there_does_not_wait_for_what_is_being_made() -> None:
    part = fragment_cache.Fragment()
    part.last = fragment_cache.Rendering(time.time() - 1, time.time(), b"there")
    with part.making:
        assert part.newer_than(time.time() - 2, lambda: b"new") == b"there"


def test_no_more_are_kept_than_there_is_room_for(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(fragment_cache, "MOST_KEPT", 3)
    for reader in range(10):
        fragment_cache._fragment_of(reader)
    assert list(fragment_cache._fragments) == [7, 8, 9]


def test_a_whole_page_is_always_of_this_moment(cast: Cast, browser: SignIn) -> None:
    olga = browser("olga")
    olga.get("/", headers={"Accept-Encoding": "gzip"})
    ask(cast, name="just-made")
    answer = olga.get("/", headers={"Accept-Encoding": "gzip"})
    assert "just-made" in gzip.decompress(answer.content).decode()
