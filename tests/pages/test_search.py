"""Search and the top bar: results, their visibility, and their cost."""

from collections.abc import Callable
from datetime import timedelta

import pytest
from django.test import Client
from django.utils import timezone

from apps.quotas.principals import SYSTEM
from apps.reservations.lifecycle import create_reservation
from apps.scheduling.services.claims.lifecycle import release_claim
from tests.cast import Cast, Machine, ask, placed
from tests.pages.conftest import SignIn

HTMX = {"HX-Request": "true"}


def found(client: Client, words: str) -> str:
    answer = client.get("/search/", {"q": words}, headers=HTMX)
    assert answer.status_code == 200
    return " ".join(answer.content.decode().split())


def test_every_kind_is_found_by_any_part_of_its_name(cast: Cast, machine: Machine, browser: SignIn) -> None:
    claim, _ = placed(cast, machine, name="train-7")
    begin = timezone.now() + timedelta(hours=3)
    window = {"start_at": begin, "end_at": begin + timedelta(hours=1)}
    create_reservation(
        principal=SYSTEM, tenant=cast.acme, pool=cast.pool, name="exam", core_request=10, memory_mib=256, **window
    )
    olga, gpu = browser("olga"), machine.gpu(2)
    for words, href in (
        ("rain-7", f"/claims/{claim.uid}/"),
        (str(claim.uid)[:13], f"/claims/{claim.uid}/"),
        ("acme rain", f"/claims/{claim.uid}/"),
        ("tenant glo", "/tenants/globex/"),
        ("pu1", "/nodes/gpu1/"),
        ("gpu 2 gpu1", f"/gpus/{gpu.uuid}/"),
        (gpu.uuid[-8:].upper(), f"/gpus/{gpu.uuid}/"),
        ("quota acme memory", "/quotas/"),
        ("exam", "/reservations/"),
        ("pool def", "/pools/default/"),
    ):
        assert f'href="{href}' in found(olga, words), words


def test_nobody_finds_what_the_pages_would_not_show(cast: Cast, machine: Machine, browser: SignIn) -> None:
    claim, _ = placed(cast, machine, name="secret-run")
    gus, theirs = browser("gus"), f"/claims/{claim.uid}/"
    for words in ("secret", "acme", "gpu1", machine.gpu().uuid, "pool default", "node", "Rounds", "new tenant"):
        page = found(gus, words)
        for href in (theirs, "/tenants/acme/", "/nodes/", "/gpus/", "/pools/", "/rounds/", "/new-tenant/"):
            assert f'href="{href}' not in page, (words, href)
        assert "secret-run" not in page


def test_actions_are_those_that_the_reader_may_do(cast: Cast, machine: Machine, browser: SignIn) -> None:
    placed(cast, machine, name="train-7")
    assert "Resize train-7" in found(browser("max"), "train")
    assert "Resize train-7" not in found(browser("vera"), "train")
    assert "New claim" not in found(browser("vera"), "")
    assert "New claim for acme" in found(browser("max"), "acme")
    assert "Give acme a quota" not in found(browser("max"), "acme")
    assert "Give acme a quota" in found(browser("olga"), "acme")


def test_live_claims_come_before_those_that_are_over(cast: Cast, machine: Machine, browser: SignIn) -> None:
    newest = [ask(cast, name=f"train-{number}") for number in range(3)]
    release_claim(principal=SYSTEM, claim=newest[2])
    page = found(browser("max"), "train")
    assert page.index("train-1") < page.index("train-0") < page.index("train-2")


@pytest.mark.parametrize("words", ["%", "_", "\\", "' OR 1=1 --", "<b>", "x" * 101, "\x00", "zz " * 8])
def test_words_are_words(cast: Cast, machine: Machine, browser: SignIn, words: str) -> None:
    placed(cast, machine, name="train-7")
    page = found(browser("olga"), words)
    assert "train-7" not in page
    assert "<b>" not in page


def test_the_page_works_without_scripts(cast: Cast, machine: Machine, browser: SignIn) -> None:
    claim, _ = placed(cast, machine, name="train-7")
    page = browser("max").get("/search/?q=train").content.decode()
    assert "<html" in page
    assert f'href="/claims/{claim.uid}/"' in page
    assert 'href="/search/"' in browser("max").get("/").content.decode()


def test_search_costs_no_more_queries_for_more_rows(
    cast: Cast, machine: Machine, browser: SignIn, django_assert_max_num_queries: Callable[[int], object]
) -> None:
    for number in range(12):
        ask(cast, name=f"train-{number}", core_request=1, memory_mib=64)
    olga = browser("olga")
    with django_assert_max_num_queries(25):  # type: ignore[attr-defined]
        found(olga, "a")


def test_the_bar_shows_ones_sections_and_where_one_is(cast: Cast, machine: Machine, browser: SignIn) -> None:
    page = " ".join(browser("olga").get(f"/gpus/{machine.gpu().uuid}/").content.decode().split())
    assert 'aria-current="true">Fleet</a>' in page
    assert 'href="/nodes/" aria-current="true"' in page
    page = " ".join(browser("gus").get("/claims/").content.decode().split())
    assert 'href="/claims/" aria-current="page"' in page
    assert ">Fleet</a>" not in page
