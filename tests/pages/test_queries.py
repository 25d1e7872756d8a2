"""Database queries of each page: few, and no more in a larger installation."""

from collections.abc import Callable
from datetime import timedelta
from decimal import Decimal
from typing import Any

import pytest
from django.db import connection
from django.test import Client
from django.test.utils import CaptureQueriesContext
from django.utils import timezone

from apps.quotas.models import Pool, ResourceQuota, Tenant, User, Webhook
from apps.quotas.principals import SYSTEM
from apps.quotas.services import budgets, limit_ranges, member_limits, tenants
from apps.quotas.services.webhooks import hooks
from apps.reservations.lifecycle import create_reservation
from apps.scheduling.models import Claim, Proposal, Round
from apps.scheduling.services.cycles.rounds import run_round
from gpucloud.web import sessions
from tests.cast import Cast, Machine, ask, give, give_plenty, lose
from tests.pages.addresses import addresses
from tests.pages.conftest import SignIn

MOST = 25


def furnish(cast: Cast, machines: list[Machine], busy: Pool, mark: str) -> None:
    """Create a machine, claims, a queued one, a lost one, a reservation, a proposal, a tenant, a person, a webhook."""
    machines.append(Machine(f"more-{mark}", cast.pool))
    for number in range(2):
        claim = ask(cast, name=f"train-{mark}-{number}", core_request=15, memory_mib=1024)
        Proposal.objects.create(
            pool=cast.pool, claim=claim, kind="limit", policy="idle", before={"core_limit": 50},
            after={"core_limit": 30}, explanation="idle",
        )  # fmt: skip
    ask(cast, name=f"waits-{mark}", gpu_count=4, core_request=100, pool=busy)
    for pool in (cast.pool, busy):
        run_round(pool)
    for machine in machines:
        machine.obey()
    begin = timezone.now() + timedelta(days=1)
    create_reservation(
        principal=SYSTEM, tenant=cast.acme, pool=cast.pool, name=f"exam-{mark}", core_request=5, memory_mib=256,
        start_at=begin, end_at=begin + timedelta(hours=1),
    )  # fmt: skip
    tenant = tenants.create_tenant(principal=SYSTEM, slug=f"lab-{mark}", name="Lab")
    give(tenant, core_percent=100, memory_mib=1024)
    person = User.objects.create(username=f"person-{mark}")
    tenants.set_member(principal=SYSTEM, tenant=cast.acme, user=person, role="viewer")
    make_limits(cast, person, mark)
    lose(Machine(f"lost-{mark}", cast.pool))
    hook, _ = hooks.create(principal=SYSTEM, tenant=cast.acme, url="https://hooks.example.org/", events=["claim.idle"])
    hooks.send_test(principal=SYSTEM, hook=hook)


def make_limits(cast: Cast, person: User, mark: str) -> None:
    """Create a member limit, a limit range and a budget."""
    member_limits.create_limit(principal=SYSTEM, tenant=cast.acme, user=person, resource="vgpus", hard=ord(mark))
    pool = tenants.create_pool(principal=SYSTEM, name=f"pool-{mark}")
    limit_ranges.create_range(principal=SYSTEM, tenant=cast.acme, pool=pool, field="gpu_count", maximum=8)
    begin = timezone.now() - timedelta(days=ord(mark))
    budgets.create_budget(
        principal=SYSTEM, tenant=cast.acme, period="custom", gpu_hours=Decimal(9), starts_at=begin,
        ends_at=timezone.now() + timedelta(days=1),
    )  # fmt: skip


@pytest.fixture
def grow(cast: Cast) -> Callable[[str], None]:
    """Make the installation larger by one object of each kind."""
    give_plenty(cast.acme, cast.globex)
    busy = tenants.create_pool(principal=SYSTEM, name="busy")
    machines = [Machine("busy1", busy)]
    ask(cast, name="in-the-way", pool=busy)
    return lambda mark: furnish(cast, machines, busy, mark)


def everywhere() -> list[str]:
    """Return every page of existing objects."""
    claim = Claim.objects.filter(state="active").earliest("pk")
    gpu = claim.assignments.get().gpu
    return addresses(
        nodes=gpu.node.name, gpus=gpu.uuid, claims=claim.uid, pools="default", tenants="acme",
        quotas=ResourceQuota.objects.filter(tenant=claim.tenant).earliest("pk").pk,
        rounds=Round.objects.latest("pk").pk,
        reservations=claim.tenant.reservations.earliest("pk").uid, proposals=Proposal.objects.earliest("pk").uid,
        webhooks=Webhook.objects.earliest("pk").uid, tokens=claim.tenant.tokens.earliest("pk").key,
        **bounds_of(claim.tenant),
    )  # fmt: skip


def bounds_of(tenant: Tenant) -> dict[str, int]:
    """Return one of each kind of the tenant's limits, by the first part of its address."""
    return {
        "member-limits": tenant.member_limits.earliest("pk").pk,
        "limit-ranges": tenant.limit_ranges.earliest("pk").pk,
        "budgets": tenant.budgets.earliest("pk").pk,
    }


def query_counts(client: Client, paths: list[str]) -> dict[str, int]:
    """Return queries by page; without pages that take posts only, are fragments, or are not this person's."""
    found = {}
    for path in paths:
        with CaptureQueriesContext(connection) as queries:
            answer = client.get(path)
        if answer.status_code not in {302, 403, 405}:
            assert answer.status_code == 200, (path, answer.status_code)
            found[path] = len(queries)
    return found


@pytest.mark.slow
def test_no_page_asks_more_questions_of_a_larger_installation(
    browser: SignIn, grow: Callable[[str], None], settings: Any, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Neither for an operator nor for a tenant's admin: the installation grows once for both."""
    # A session's use is written once a minute, whatever the page: a slow machine needs longer for all of them.
    monkeypatch.setattr(sessions, "RESOLUTION_SECONDS", 3600)
    settings.EMAIL_HOST = "mail"  # without it there is no page to reset a password
    grow("a")
    grow("b")
    paths, readers = everywhere(), {name: browser(name) for name in ("olga", "anna")}
    few = {name: query_counts(reader, paths) for name, reader in readers.items()}
    assert all(len(found) > 15 for found in few.values())
    for mark in "cd":
        grow(mark)
    for name, reader in readers.items():
        many = query_counts(reader, paths)
        assert {path: (few[name][path], number) for path, number in many.items() if number > few[name][path]} == {}
        assert {path: number for path, number in many.items() if number > MOST} == {}
