"""Bounds of one tenant's notebooks at a server process, and the end of an answer that lasts."""

import asyncio
from collections import Counter
from typing import Any

import pytest
from django.contrib.auth import BACKEND_SESSION_KEY, HASH_SESSION_KEY, SESSION_KEY

from apps.jobs.models import Job
from apps.notebooks import admission, requests
from apps.notebooks.slots import FairSlots
from apps.quotas.models import Membership, User
from apps.quotas.sessions import SessionStore
from tests.cast import Cast
from tests.jobs.acting import fresh, place, post, report
from tests.nodes.agents import in_database
from tests.notebooks.test_proxy import Answer, Stage, machine_of, real_cast, stage

__all__ = ["machine_of", "real_cast", "stage"]


class PlainSlots(FairSlots):
    """Slots for whoever comes first, as a control."""

    def check(self, tenant: int) -> None:
        """Ask whether any is free."""
        if self._taken.total() >= self._most:
            super().check(tenant)


async def neighbour_of(stage: Stage, cast: Cast) -> Stage:
    """Return a running notebook of another tenant on the same node, entered by its own user."""

    def make() -> tuple[Job, User, str]:
        uid = post(cast.gus, tenant="globex", kind="notebook").body["uid"]
        job = Job.objects.get(uid=uid)
        place(cast, stage.agent.machine)
        report(stage.agent.machine, job, "running", started_at=1.0)
        user = User.objects.get(username="gus")
        store = SessionStore()
        store[SESSION_KEY] = str(user.pk)
        store[BACKEND_SESSION_KEY] = "django.contrib.auth.backends.ModelBackend"
        store[HASH_SESSION_KEY] = user.get_session_auth_hash()
        store.create()
        assert store.session_key is not None
        return fresh(job), user, store.session_key

    job, user, session = await in_database(make)
    other = Stage(job, stage.agent.machine, user, session)
    assert (await other.enter(other.ticket())).status == 303
    return other


@pytest.mark.parametrize(("slots", "statuses"), [(FairSlots, {200: 2, 503: 4}), (PlainSlots, {200: 4, 503: 2})])
async def test_a_tenant_cannot_take_all_requests_of_a_server(
    stage: Stage, real_cast: Cast, monkeypatch: pytest.MonkeyPatch, slots: type[FairSlots], statuses: dict[int, int]
) -> None:
    """Six downloads that nobody reads, of four slots: control in the second row."""
    monkeypatch.setattr(requests, "slots", slots(4, "requests"))
    await stage.enter(stage.ticket())
    other = await neighbour_of(stage, real_cast)
    answers = [Answer() for _ in range(6)]
    for answer in answers:
        answer.reads.clear()
    asking = [asyncio.ensure_future(stage.ask("/large", answer=answer)) for answer in answers]
    await asyncio.sleep(2)
    assert Counter(answer.status for answer in answers) == statuses
    refused = next(answer for answer in answers if answer.status == 503)
    refused.reads.set()
    assert (await other.ask("/api/status")).status == (200 if slots is FairSlots else 503)
    for answer in answers:
        answer.reads.set()
    await asyncio.gather(*asking)
    assert b"too many requests at once" in refused.body
    # Nothing stays taken.
    assert (await stage.ask("/api/status")).status == 200
    assert (await other.ask("/api/status")).status == 200


async def test_an_answer_that_lasts_ends_with_the_role(stage: Stage, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(admission, "REMEMBERED_SECONDS", 0.0)
    monkeypatch.setattr(admission, "ASK_AGAIN_SECONDS", 0.2)
    await stage.enter(stage.ticket())
    answer = Answer()
    answer.reads.clear()
    asking = asyncio.ensure_future(stage.ask("/large", answer=answer))
    # With the role it goes on, however often it is asked for.
    await asyncio.sleep(1)
    assert (answer.status, asking.done()) == (200, False)
    await in_database(lambda: Membership.objects.filter(user=stage.user).update(role="viewer"))
    with pytest.raises(Exception, match="role"):
        await asyncio.wait_for(asking, 5)
    assert len(answer.body) < 8 << 20


async def test_an_answer_that_has_not_begun_says_why_it_ends(stage: Stage, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(admission, "REMEMBERED_SECONDS", 0.0)
    monkeypatch.setattr(admission, "ASK_AGAIN_SECONDS", 0.2)
    await stage.enter(stage.ticket())
    # A node that does not dial: the request waits.
    stage.tasks[0].cancel()
    asking: asyncio.Task[Any] = asyncio.ensure_future(stage.ask("/"))
    await asyncio.sleep(1)
    await in_database(lambda: Membership.objects.filter(user=stage.user).update(role="viewer"))
    assert (await asyncio.wait_for(asking, 5)).status == 403
