"""Races of people on PostgreSQL, with a connection each; beside each a control that fails without its guard."""

import contextlib
import threading
from collections.abc import Callable
from typing import Any

import pytest
from django.contrib.auth import login as django_login
from django.contrib.auth.tokens import default_token_generator
from django.db.models import QuerySet
from django.test import Client
from django.utils import timezone

from apps.console.claims import changes
from apps.console.claims.claim_forms import ResizeForm
from apps.console.shell import sign_in
from apps.quotas.models import AuditEvent, Invitation, User, UserSession
from apps.quotas.principals import SYSTEM, of_user
from apps.quotas.services import accounts, invitations, resets
from apps.scheduling.models import Claim
from tests.cast import Cast, Machine, give_plenty, placed
from tests.pages.test_changing import resize
from tests.racing import race

PASSWORD = "correct horse battery"

pytestmark = pytest.mark.django_db(transaction=True)


# Seconds that a racer waits for the other. With the guard the other never comes; without it, it may
# take long on a busy machine.
PATIENCE = {"guarded": 1.0, "unguarded": 30.0}


class Meeting:
    """A place where two racers meet; whoever is alone there goes on after a moment."""

    patience = PATIENCE["guarded"]

    def __init__(self) -> None:
        self._gate = threading.Barrier(2)

    def wait(self) -> None:
        with contextlib.suppress(threading.BrokenBarrierError):
            self._gate.wait(timeout=self.patience)


def unlock(monkeypatch: pytest.MonkeyPatch) -> None:
    """Take the row locks away: the guard of every race here."""
    monkeypatch.setattr(Meeting, "patience", PATIENCE["unguarded"])
    monkeypatch.setattr(QuerySet, "select_for_update", lambda rows, *_args, **_options: rows)


def meet_after(monkeypatch: pytest.MonkeyPatch, target: Any, name: str) -> None:
    """Let racers meet after this function: without the guard both have checked, and neither has written."""
    meeting, real = Meeting(), getattr(target, name)

    def checked(*args: Any, **options: Any) -> Any:
        answer = real(*args, **options)
        meeting.wait()
        return answer

    monkeypatch.setattr(target, name, checked)


def statuses(racers: list[Callable[[], Any]]) -> list[Any]:
    """Run both at once; return their statuses, or exceptions."""
    return sorted((getattr(answer, "status_code", answer) for answer in race(racers)), key=str)


# Two people resize one claim.


def resize_twice(cast: Cast, monkeypatch: pytest.MonkeyPatch) -> tuple[list[Any], Claim]:
    give_plenty(cast.acme)
    claim, _ = placed(cast, Machine("gpu1", cast.pool))
    meet_after(monkeypatch, ResizeForm, "is_outdated")

    def post(name: str, limit: int) -> Any:
        client = Client()
        client.force_login(User.objects.get(username=name))
        return client.post(f"/claims/{claim.uid}/resize/", resize(claim, core_limit=limit))

    found = statuses([lambda: post("anna", 60), lambda: post("max", 80)])
    claim.refresh_from_db()
    return found, claim


def test_of_two_who_resize_a_claim_at_once_the_second_is_told(real_cast: Cast, monkeypatch: pytest.MonkeyPatch) -> None:
    found, claim = resize_twice(real_cast, monkeypatch)
    assert found == [200, 302]
    first = AuditEvent.objects.get(action="claim.resize")
    assert claim.core_limit == {"user:anna": 60, "user:max": 80}[first.actor]


def test_the_race_of_two_resizes_is_real_without_the_lock(real_cast: Cast, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(Meeting, "patience", PATIENCE["unguarded"])
    monkeypatch.setattr(changes, "locked", lambda claim: claim)
    assert resize_twice(real_cast, monkeypatch)[0] == [302, 302]


# An invitation is accepted twice.


def accept_twice(cast: Cast, monkeypatch: pytest.MonkeyPatch) -> list[Any]:
    secret = invitations.invite(principal=SYSTEM, tenant=cast.acme)[1]
    meet_after(monkeypatch, invitations, "_open")

    def post(name: str) -> Any:
        return Client().post(
            invitations.path_of(secret),
            {"username": name, "password": PASSWORD, "again": PASSWORD},
        )

    return statuses([lambda: post("ida"), lambda: post("ivo")])


def test_an_invitation_that_two_accept_at_once_makes_one_account(
    real_cast: Cast, monkeypatch: pytest.MonkeyPatch
) -> None:
    # `find` of the page comes first: both have met there before.
    assert accept_twice(real_cast, monkeypatch) == [302, 404]
    assert User.objects.filter(username__in=["ida", "ivo"]).count() == 1


def test_the_race_of_an_invitation_is_real_without_the_lock(real_cast: Cast, monkeypatch: pytest.MonkeyPatch) -> None:
    unlock(monkeypatch)
    assert accept_twice(real_cast, monkeypatch) == [302, 302]
    assert User.objects.filter(username__in=["ida", "ivo"]).count() == 2


# A link to set a password is used twice.


def reset_twice(monkeypatch: pytest.MonkeyPatch) -> list[Any]:
    user = User.objects.get(username="max")
    path, _ = resets.make_link(principal=SYSTEM, user=user)
    clients = [Client(), Client()]
    forms = [client.get(path)["Location"] for client in clients]
    meet_after(monkeypatch, default_token_generator, "check_token")

    def post(at: int) -> Any:
        chosen = f"{PASSWORD} {at}"
        return clients[at].post(forms[at], {"new_password1": chosen, "new_password2": chosen})

    return statuses([lambda: post(0), lambda: post(1)])


def test_a_reset_link_that_is_used_twice_at_once_sets_one_password(
    real_cast: Cast, monkeypatch: pytest.MonkeyPatch
) -> None:
    assert reset_twice(monkeypatch) == [302, 404]
    assert AuditEvent.objects.filter(action="person.password").count() == 1


def test_the_race_of_a_reset_link_is_real_without_the_lock(real_cast: Cast, monkeypatch: pytest.MonkeyPatch) -> None:
    unlock(monkeypatch)
    assert reset_twice(monkeypatch) == [302, 302]
    assert AuditEvent.objects.filter(action="person.password").count() == 2


# A user is deactivated while they sign in.


def sign_in_while_deactivated(monkeypatch: pytest.MonkeyPatch) -> User:
    user = User.objects.get(username="max")
    user.set_password(PASSWORD)
    user.save()
    meeting, real = Meeting(), django_login

    def login(*args: Any, **options: Any) -> None:
        # The account was found active; the session is not stored yet.
        meeting.wait()
        meeting.wait()
        real(*args, **options)

    def deactivate() -> None:
        meeting.wait()
        accounts.set_active(principal=SYSTEM, user=user, active=False)
        meeting.wait()

    monkeypatch.setattr(sign_in, "login", login)
    race([lambda: Client().post("/sign-in/", {"username": "max", "password": PASSWORD}), deactivate])
    user.refresh_from_db()
    return user


def test_who_is_deactivated_while_signing_in_has_no_session(real_cast: Cast, monkeypatch: pytest.MonkeyPatch) -> None:
    user = sign_in_while_deactivated(monkeypatch)
    assert not user.is_active
    assert not UserSession.objects.filter(user=user).exists()


def test_the_race_of_a_sign_in_is_real_without_the_lock(real_cast: Cast, monkeypatch: pytest.MonkeyPatch) -> None:
    unlock(monkeypatch)
    user = sign_in_while_deactivated(monkeypatch)
    # It would open the pages again as soon as the user is activated.
    assert not user.is_active
    assert UserSession.objects.filter(user=user, expire_date__gt=timezone.now()).count() == 1


# The last two operators deactivate each other.


def deactivate_each_other(monkeypatch: pytest.MonkeyPatch) -> tuple[list[str], int]:
    olga, otto = User.objects.get(username="olga"), User.objects.create(username="otto", is_operator=True)
    meet_after(monkeypatch, accounts, "_locked")

    def deactivate(actor: User, other: User) -> Any:
        return accounts.set_active(principal=of_user(actor), user=other, active=False)

    found = race([lambda: deactivate(olga, otto), lambda: deactivate(otto, olga)])
    left = User.objects.filter(is_operator=True, is_active=True).count()
    return sorted(type(one).__name__ for one in found), left


def test_of_the_last_two_operators_who_deactivate_each_other_one_stays(
    real_cast: Cast, monkeypatch: pytest.MonkeyPatch
) -> None:
    assert deactivate_each_other(monkeypatch) == (["LastOperator", "User"], 1)


def test_the_race_of_the_last_operators_is_real_without_the_lock(
    real_cast: Cast, monkeypatch: pytest.MonkeyPatch
) -> None:
    unlock(monkeypatch)
    assert deactivate_each_other(monkeypatch) == (["User", "User"], 0)


def test_the_invitation_is_marked_by_the_one_who_used_it(real_cast: Cast, monkeypatch: pytest.MonkeyPatch) -> None:
    accept_twice(real_cast, monkeypatch)
    invitation = Invitation.objects.get()
    assert invitation.user == User.objects.get(username__in=["ida", "ivo"])
