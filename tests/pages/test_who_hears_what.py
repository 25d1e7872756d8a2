"""Groups of open pages, and groups that receive a tenant's messages: never the wrong ones."""

from typing import Any

import pytest
from django.test import Client
from pytest_django import DjangoCaptureOnCommitCallbacks

from agent import wire
from apps.console.shell import live
from apps.nodes.services.telemetry.storing import Measured, source_of
from apps.quotas.models import User
from apps.quotas.principals import SYSTEM
from apps.scheduling import events, watching
from apps.scheduling.models import Claim
from apps.scheduling.services.claims.lifecycle import release_claim
from apps.scheduling.services.claims.resize import resize_claim
from apps.scheduling.services.claims.spec import ClaimChanges
from apps.scheduling.services.cycles.rounds import run_round
from tests.cast import Cast, Machine, ask, placed


class Everything(set[str]):
    """A mapping in which every group of a fleet is watched."""

    def __contains__(self, group: object) -> bool:
        return True


def groups_of(name: str, *queries: dict[str, str]) -> set[str]:
    """Return the groups of this person's pages, one page open with each query."""
    user = User.objects.get(username=name)
    client = Client()
    client.force_login(user)
    return {group for query in queries for group in live._groups(client.session, user, query)}


def questions(claim: Claim) -> list[dict[str, str]]:
    """Return every group that a page can request, and those of a malicious one."""
    uid, tenant = str(claim.uid), str(claim.tenant_id)
    return [
        {"claims": "all"}, {"claims": tenant}, {"claims": "all", "tenant": claim.tenant.slug}, {"claim": uid},
        {"claim": uid, "claims": "all"}, {"claim": "all"}, {"claim": ""}, {"node": "gpu1"},
        {"node": "gpu1", "claim": uid}, {"node": "all"}, {"group": events.claims_group(None)}, {},
    ]  # fmt: skip


@pytest.fixture
def groups_told(
    cast: Cast,
    machine: Machine,
    monkeypatch: pytest.MonkeyPatch,
    django_capture_on_commit_callbacks: DjangoCaptureOnCommitCallbacks,
) -> tuple[Claim, set[str]]:
    """Return every group that received a message about a claim of globex during its whole life."""
    groups: set[str] = set()
    monkeypatch.setattr(events, "_send", groups.update)
    placed(cast, machine)
    with django_capture_on_commit_callbacks(execute=True):
        claim = ask(cast, tenant=cast.globex)
        run_round(cast.pool)
        machine.obey()
        claim.refresh_from_db()
        resize_claim(principal=SYSTEM, claim=claim, changes=ClaimChanges(core_limit=60))
    usage = wire.Usage(seq=1, at=1.0, gpus=[], assignments=[_used(claim)])
    batch = [Measured(source_of(machine.node), usage)]
    groups |= {group for group, _ in watching._messages(batch, Everything())}
    with django_capture_on_commit_callbacks(execute=True):
        release_claim(principal=SYSTEM, claim=claim)
        machine.obey()
    return claim, groups


def _used(claim: Claim) -> wire.AssignmentUsage:
    return wire.AssignmentUsage(
        uid=str(claim.assignments.get().uid), core_percent=1, core_limit_percent=60, throttled_percent=0,
        memory_bytes=1, memory_limit_bytes=2, processes=1,
    )  # fmt: skip


@pytest.mark.parametrize("name", ["anna", "max", "vera"])
def test_no_page_of_a_tenant_is_where_another_tenant_is_spoken_of(
    groups_told: tuple[Claim, set[str]], name: str
) -> None:
    claim, groups = groups_told
    mine = groups_of(name, *questions(claim))
    assert not mine & groups
    # It receives its own tenant's messages all the same.
    assert mine == {events.claims_group(User.objects.get(username=name).memberships.get().tenant_id)}


def test_those_whom_it_concerns_are_where_it_is_spoken_of(groups_told: tuple[Claim, set[str]]) -> None:
    claim, groups = groups_told
    own = {events.claim_group(claim.uid), events.claims_group(claim.tenant_id)}
    assert own <= groups
    assert groups_of("gus", *questions(claim)) == own
    node = claim.assignments.get().gpu.node
    assert {events.node_group(node.uid), events.claims_group(None)} <= groups_of("olga", *questions(claim)) & groups


def test_who_is_out_is_in_no_group(groups_told: tuple[Claim, set[str]]) -> None:
    claim, _ = groups_told
    User.objects.filter(username="gus").update(is_active=False)
    assert groups_of("gus", *questions(claim)) == set()
    gone: Any = Client()
    gone.force_login(User.objects.get(username="anna"))
    session = gone.session
    gone.logout()
    assert live._groups(session, User.objects.get(username="anna"), {"claims": "all"}) == ()
    assert live._groups(session, None, {"claims": "all"}) == ()
