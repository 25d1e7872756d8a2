"""The page of a tenant's limits: visibility, and the effects and messages of changes."""

import json
import re
from decimal import Decimal
from typing import Any

import pytest
from django.test import Client

from apps.quotas.models import Budget, LimitRange, MemberLimit, User
from apps.quotas.principals import SYSTEM, of_user
from apps.quotas.services import budgets, limit_ranges, member_limits
from apps.scheduling.services.charging.budgets import watch_budgets
from tests.cast import GIB, Cast, Machine, ask, placed
from tests.pages.conftest import SignIn

PAGE = "/tenants/acme/limits/"


def text(client: Client, path: str = PAGE, **said: Any) -> str:
    answer = client.get(path, **said)
    assert answer.status_code == 200, answer.status_code
    return " ".join(answer.content.decode().split())


def posted(client: Client, path: str, status: int = 302, /, **values: Any) -> str:
    answer = client.post(path, values)
    assert answer.status_code == status, (answer.status_code, answer.content.decode()[-3000:])
    return " ".join(answer.content.decode().split())


def limit(cast: Cast, name: str | None, hard: int | None, resource: str = "core_percent") -> MemberLimit:
    user = User.objects.get(username=name) if name else None
    return member_limits.create_limit(principal=SYSTEM, tenant=cast.acme, user=user, resource=resource, hard=hard)


def bounded(cast: Cast) -> tuple[MemberLimit, LimitRange, Budget]:
    return (
        limit(cast, None, 200),
        limit_ranges.create_range(
            principal=SYSTEM, tenant=cast.acme, pool=None, field="memory_mib", minimum=GIB, maximum=16 * GIB
        ),
        budgets.create_budget(principal=SYSTEM, tenant=cast.acme, period="month", gpu_hours=Decimal(100)),
    )


def paths_of(rows: tuple[MemberLimit, LimitRange, Budget]) -> list[str]:
    kinds = ("member-limits", "limit-ranges", "budgets")
    return [f"/{kind}/{row.pk}/" for kind, row in zip(kinds, rows, strict=True)]


def as_member(cast: Cast) -> Any:
    return of_user(User.objects.get(username="max"))


def test_each_table_says_what_it_is_for_while_it_is_empty(cast: Cast, browser: SignIn) -> None:
    page = text(browser("vera"))
    for words in ("one member alone may hold all", "one claim may ask for anything", "hold its quotas all the time"):
        assert words in page
    assert "gpucloud budget create" in text(browser("olga"))
    assert "gpucloud budget create" not in text(browser("anna"))


def test_who_may_set_what(cast: Cast, browser: SignIn) -> None:
    rows = bounded(cast)
    news = [f"/tenants/acme/{kind}/new/" for kind in ("member-limits", "limit-ranges", "budgets")]
    may = {"olga": (True, True, True), "anna": (True, False, False), "vera": (False,) * 3, "max": (False,) * 3}
    for name, allowed in may.items():
        reader, page = browser(name), text(browser(name))
        for yes, new, path in zip(allowed, news, paths_of(rows), strict=True):
            assert [f'href="{new}"' in page, f'href="{path}"' in page, f'action="{path}remove/"' in page] == [yes] * 3
            assert [reader.get(new).status_code, reader.get(path).status_code] == [200 if yes else 403] * 2, name
            if not yes:
                posted(reader, f"{path}remove/", 403, version=1)


def test_of_another_tenant_nothing_is_there(cast: Cast, browser: SignIn) -> None:
    rows, gus = bounded(cast), browser("gus")
    for path in (PAGE, *paths_of(rows), "/tenants/acme/member-limits/new/"):
        assert gus.get(path).status_code == 404, path
        assert gus.get(f"{path}?format=csv").status_code == 404, path
    for path in paths_of(rows):
        posted(gus, f"{path}remove/", 404, version=1)
    own = text(gus, "/tenants/globex/member-limits/new/")
    assert "anna" not in own


def test_members_limits_stand_beside_what_each_holds(cast: Cast, machine: Machine, browser: SignIn) -> None:
    placed(cast, machine, principal=as_member(cast), core_request=30)
    limit(cast, None, 50)
    page = text(browser("vera"))
    assert "max: 30 %" in page
    limit(cast, "max", 20)
    page = text(browser("vera"))
    assert "max: 30 %" not in page
    assert "more than that; nothing new is granted" in page
    assert "nothing allocated" in page


def test_a_member_reads_what_is_left_for_them(cast: Cast, machine: Machine, browser: SignIn) -> None:
    placed(cast, machine, principal=as_member(cast), core_request=30)
    assert "Only the tenant’s quotas limit you" in text(browser("max"))
    limit(cast, None, 50)
    page = text(browser("max"))
    assert '20 % left <span class="muted">30 % of 50 % allocated</span>' in page
    new = text(browser("max"), "/claims/new/")
    assert "Left of your limits in acme: core 20 %." in new
    assert "Left of your limits" not in text(browser("anna"), "/claims/new/?tenant=globex")
    assert "left <span" not in text(browser("vera"))
    assert "left <span" not in text(browser("olga"))


def test_a_limit_below_what_is_held_is_previewed_and_ends_nothing(
    cast: Cast, machine: Machine, browser: SignIn
) -> None:
    claim, _ = placed(cast, machine, principal=as_member(cast), core_request=30)
    anna, path = browser("anna"), "/tenants/acme/member-limits/new/"
    values = {"user": "max", "resource": "core_percent", "most": "20"}
    page = posted(anna, path, 200, act="preview", **values)
    assert "max holds 30 %, more than 20 %. Nothing is taken away; nothing new is granted to them" in page
    assert not MemberLimit.objects.exists()
    posted(anna, path, act="apply", **values)
    assert MemberLimit.objects.get().hard == 20
    claim.refresh_from_db()
    assert claim.state == "active"
    assert "already has a limit of core_percent" in posted(anna, path, 422, act="apply", **values)


def test_a_raised_limit_says_which_claim_could_start(cast: Cast, machine: Machine, browser: SignIn) -> None:
    row = limit(cast, "max", 20)
    assert "Nobody under this limit holds more" in text(browser("anna"), f"/member-limits/{row.pk}/")
    waits = ask(cast, principal=as_member(cast), core_request=30, when_over_quota="wait")
    page = posted(browser("anna"), f"/member-limits/{row.pk}/", 200, act="preview", most="50", version=row.version)
    assert f'<a href="/claims/{waits.uid}/">' in page
    assert "could start." in page
    assert "Nobody under this limit holds more" in page
    page = posted(browser("anna"), f"/member-limits/{row.pk}/", 200, act="preview", most="25", version=row.version)
    assert "could start" not in page


def test_a_range_says_which_claims_are_outside_of_it(cast: Cast, browser: SignIn, machine: Machine) -> None:
    ask(cast, memory_mib=8 * GIB)
    olga, path = browser("olga"), "/tenants/acme/limit-ranges/new/"
    values = {"field": "memory_mib", "pool": "", "minimum_unlimited": "on", "maximum": "4 GiB", "default": "1"}
    none = {"minimum_unlimited": "on", "default_unlimited": "on"}
    page = posted(olga, path, 200, act="preview", **values)
    assert "1 live claim is outside of it" in page
    assert "A new claim that does not set it gets 1 GiB" in page
    assert "Give at least one of them" in posted(
        olga, path, 422, act="apply", field="gpu_count", pool="", maximum_unlimited="on", **none
    )
    posted(olga, path, act="apply", **values)
    assert '<td class="num">4 GiB</td>' in text(browser("vera"))
    posted(olga, path, act="apply", field="time_limit_seconds", pool="default", maximum="7200", **none)
    row = LimitRange.objects.get(field="time_limit_seconds")
    page = posted(olga, f"/limit-ranges/{row.pk}/", 200, act="preview", maximum="3600", version=row.version, **none)
    assert "1 live claim is outside of it" in page, "a claim without a time limit is longer than any"


def test_a_budget_is_a_meter_with_a_word_and_says_what_comes_at_its_end(
    cast: Cast, machine: Machine, browser: SignIn
) -> None:
    olga, path = browser("olga"), "/tenants/acme/budgets/new/"
    placed(cast, machine)
    page = posted(olga, path, 200, act="preview", period="month", gpu_hours="0")
    assert "GPU-hours are spent: nothing new is granted until" in page
    assert not Budget.objects.exists()
    posted(olga, path, act="apply", period="week", gpu_hours="1000.5")
    row = Budget.objects.get()
    assert "not counted yet" in text(browser("vera"))
    watch_budgets()
    page = text(browser("vera"))
    assert "0 %, within it" in page
    assert "of 1000.5" in page
    waits = ask(cast, name="next")
    page = posted(olga, f"/budgets/{row.pk}/", 200, act="preview", gpu_hours="0", version=row.version)
    assert waits.name in page
    assert "could start now and would wait: acme has spent its 0" in page
    posted(olga, f"/budgets/{row.pk}/", act="apply", gpu_hours="0", version=row.version)
    page = text(browser("vera"))
    assert "100 %, spent" in page
    assert "What runs goes on" in page


def test_a_budget_once_needs_its_times_and_others_have_none(cast: Cast, browser: SignIn) -> None:
    olga, path = browser("olga"), "/tenants/acme/budgets/new/"
    times = {"starts_at": "2026-01-01T00:00", "ends_at": "2026-02-01T00:00"}
    assert "Enter a beginning" in posted(olga, path, 422, period="custom", gpu_hours="1")
    assert "Only for a one-time budget" in posted(olga, path, 422, period="week", gpu_hours="1", **times)
    posted(olga, path, period="custom", gpu_hours="1", **times)
    page = text(browser("vera"))
    assert "2026-01-01 00:00 – 2026-02-01 00:00 UTC" in page
    assert "not now" in page


@pytest.mark.parametrize("at", [0, 1, 2])
def test_who_is_second_is_told_who_was_first(cast: Cast, browser: SignIn, at: int) -> None:
    rows, olga = bounded(cast), browser("olga")
    row, path = rows[at], paths_of(rows)[at]
    none = {"maximum_unlimited": "on", "default_unlimited": "on"}
    values = ({"most": "300"}, {"minimum": "300", **none}, {"gpu_hours": "300"})[at]
    posted(olga, path, version=row.version, **values)
    page = posted(olga, path, 200, version=row.version, **values)
    assert re.search(r"Changed by user:olga at \d\d:\d\d:\d\d", page)
    again = re.search(r'name="version" value="(\d+)"', page)
    assert again is not None
    posted(olga, path, version=again[1], **values)
    assert "Somebody changed it" in text(olga, post_and_follow(olga, f"{path}remove/", row.version))
    row.refresh_from_db()
    assert "Removed:" in text(olga, post_and_follow(olga, f"{path}remove/", row.version))
    assert not type(row).objects.exists()


def post_and_follow(client: Client, path: str, version: int) -> str:
    """Return the address of the redirect."""
    answer = client.post(path, {"version": version})
    assert answer.status_code == 302
    return str(answer["Location"])


def test_each_table_is_a_file(cast: Cast, machine: Machine, browser: SignIn) -> None:
    bounded(cast)
    placed(cast, machine, principal=as_member(cast), core_request=30)
    vera = browser("vera")
    rows = {
        name: json.loads(vera.get(f"{PAGE}?format=json&table={name}").content)
        for name in ("members", "ranges", "budgets")
    }
    assert rows["members"] == [
        {"member": None, "resource": "core_percent", "hard": 200, "most_held": 30, "members_over": 0}
    ]
    assert rows["ranges"] == [
        {"field": "memory_mib", "pool": None, "minimum": GIB, "default": None, "maximum": 16 * GIB}
    ]
    assert (rows["budgets"][0]["period"], rows["budgets"][0]["gpu_hours"]) == ("month", "100.000")
    assert vera.get(f"{PAGE}?format=csv&table=budgets")["Content-Disposition"].endswith('"acme-budgets.csv"')
