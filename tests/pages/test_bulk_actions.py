"""Actions on selected rows: a preview changes nothing, services decide on each row, results are told by row."""

import threading
from datetime import timedelta
from typing import Any

import pytest
from django.db import OperationalError, connection
from django.utils import timezone

from apps.console.claims import claim_list
from apps.nodes.models import Node
from apps.quotas.models import AuditEvent, Token
from apps.quotas.principals import SYSTEM
from apps.quotas.services import tenants, tokens
from apps.scheduling.services.claims import lifecycle
from tests.cast import Cast, Machine, ask, placed
from tests.pages.conftest import SignIn

PICKED = ' name="pick" value="'


def text(answer: Any) -> str:
    return " ".join(answer.content.decode().split())


def picks_of(answer: Any) -> list[str]:
    """Return the picks that the preview would post."""
    return [part.partition('"')[0] for part in text(answer).split(PICKED)[1:]]


@pytest.fixture
def two(cast: Cast) -> list[Node]:
    """Create two silent nodes without claims."""
    names = ("idle-1", "idle-2")
    return [Node.objects.create(name=name, pool=cast.pool, last_seen_at=timezone.now()) for name in names]


def test_a_preview_changes_nothing_and_the_confirmation_does(two: list[Node], browser: SignIn) -> None:
    olga, before = browser("olga"), AuditEvent.objects.count()
    seen = olga.post("/nodes/?pool=default", {"act": "cordon", "pick": ["idle-1", "idle-2"]})
    assert "2 would change, 0 cannot" in text(seen)
    assert not Node.objects.filter(cordoned=True).exists()
    assert AuditEvent.objects.count() == before
    done = olga.post("/nodes/?pool=default", {"act": "cordon", "pick": picks_of(seen), "confirmed": "yes"})
    assert "2 done, 0 refused" in text(done)
    assert 'href="/nodes/?pool=default"' in text(done)
    assert Node.objects.filter(cordoned=True).count() == 2
    assert AuditEvent.objects.filter(action="node.change", actor="user:olga").count() == 2


def test_a_row_that_cannot_change_says_why_and_holds_no_other_up(
    cast: Cast, machine: Machine, two: list[Node], browser: SignIn
) -> None:
    placed(cast, machine)
    tenants.create_pool(principal=SYSTEM, name="spare")
    olga = browser("olga")
    seen = olga.post("/nodes/", {"act": "pool:spare", "pick": ["gpu1", "idle-1"]})
    assert "carries claims of pool default" in text(seen)
    assert "1 would change, 1 cannot" in text(seen)
    assert [pick.partition("@")[0] for pick in picks_of(seen)] == ["idle-1"]
    done = olga.post("/nodes/", {"act": "pool:spare", "pick": ["gpu1", "idle-1"], "confirmed": "yes"})
    assert "1 done, 1 refused" in text(done)
    pools = dict(Node.objects.values_list("name", "pool__name"))
    assert pools == {"gpu1": "default", "idle-1": "spare", "idle-2": "default"}


def test_a_row_that_changed_since_the_preview_is_refused(two: list[Node], browser: SignIn) -> None:
    olga = browser("olga")
    picks = picks_of(olga.post("/nodes/", {"act": "cordon", "pick": ["idle-1", "idle-2"]}))
    two[0].change(labels={"zone": "b"})
    done = text(olga.post("/nodes/", {"act": "cordon", "pick": picks, "confirmed": "yes"}))
    assert "1 done, 1 refused" in done
    assert not Node.objects.get(name="idle-1").cordoned
    assert Node.objects.get(name="idle-2").cordoned
    # Sent again, it does nothing twice.
    again = olga.post("/nodes/", {"act": "cordon", "pick": picks, "confirmed": "yes"})
    assert (again.status_code, "0 done, 2 refused" in text(again)) == (409, True)


def test_drain_and_uncordon_say_their_effect(cast: Cast, machine: Machine, two: list[Node], browser: SignIn) -> None:
    placed(cast, machine)
    olga = browser("olga")
    seen = text(olga.post("/nodes/", {"act": "drain", "pick": ["gpu1", "idle-1"]}))
    assert "It is cordoned; 1 claim gets notice and leaves." in seen
    assert "It is cordoned; 0 claims get notice and leave." in seen
    assert "It is not cordoned." in text(olga.post("/nodes/", {"act": "uncordon", "pick": ["gpu1"]}))


@pytest.mark.parametrize(
    "posted",
    [
        {},
        {"act": "cordon"},
        {"act": "nonsense", "pick": ["idle-1"]},
        {"act": "pool:nowhere", "pick": ["idle-1"]},
        {"act": "cordon", "pick": [f"idle-{number}" for number in range(101)]},
    ],
)
def test_bad_input_is_refused_in_words_and_changes_nothing(
    two: list[Node], browser: SignIn, posted: dict[str, Any]
) -> None:
    answer = browser("olga").post("/nodes/", {**posted, "confirmed": "yes"}, follow=True)
    assert "note tone-bad" in text(answer)
    assert not Node.objects.filter(cordoned=True).exists()


@pytest.mark.parametrize("pick", ["nobody", "", "@", "idle\0", "x" * 5000, "<b>", "a@b@c", "idle-1@" + "9" * 40])
def test_an_unknown_row_is_reported_as_one(two: list[Node], browser: SignIn, pick: str) -> None:
    answer = browser("olga").post("/nodes/", {"act": "cordon", "pick": [pick]})
    assert answer.status_code == 200
    assert "<b></th>" not in answer.content.decode()
    assert ("It does not exist, or you may not see it." in text(answer)) != pick.startswith("idle-1@")


@pytest.mark.parametrize("pick", ["nobody", "00000000-0000-0000-0000-000000000000", "x\0"])
def test_an_unknown_uid_is_reported_as_one(cast: Cast, browser: SignIn, pick: str) -> None:
    answer = browser("olga").post("/claims/", {"act": "release", "pick": [pick]})
    assert "It does not exist, or you may not see it." in text(answer)


def test_claims_are_released_by_members_of_their_tenant_only(cast: Cast, machine: Machine, browser: SignIn) -> None:
    mine, theirs = ask(cast, name="mine"), ask(cast, name="theirs", tenant=cast.globex)
    posted = {"act": "release", "pick": [str(mine.uid), str(theirs.uid)], "confirmed": "yes"}
    assert browser("vera").post("/claims/", posted).status_code == 405
    assert 'form="bulk"' not in text(browser("vera").get("/claims/"))
    assert 'form="bulk"' in text(browser("max").get("/claims/"))
    done = text(browser("max").post("/claims/", posted))
    assert "1 done, 1 refused" in done
    assert "theirs" not in done
    mine.refresh_from_db()
    theirs.refresh_from_db()
    assert (mine.state, theirs.state) == ("released", "pending")


def test_a_viewer_of_one_tenant_and_member_of_another_releases_there_only(
    cast: Cast, machine: Machine, browser: SignIn
) -> None:
    tenants.set_member(principal=SYSTEM, tenant=cast.globex, user=browser_user("vera"), role="member")
    seen, own = ask(cast, name="seen"), ask(cast, name="own", tenant=cast.globex)
    done = text(browser("vera").post("/claims/", {"act": "release", "pick": [str(seen.uid), str(own.uid)]}))
    assert "1 would change, 1 cannot" in done
    assert "Your role does not allow this" in done


def browser_user(name: str) -> Any:
    from apps.quotas.models import User

    return User.objects.get(username=name)


def test_a_node_list_takes_actions_from_operators_only(two: list[Node], browser: SignIn) -> None:
    posted = {"act": "cordon", "pick": ["idle-1"], "confirmed": "yes"}
    assert browser("anna").post("/nodes/", posted).status_code == 403
    assert not Node.objects.filter(cordoned=True).exists()


def test_a_list_without_actions_takes_no_post(cast: Cast, browser: SignIn) -> None:
    assert browser("olga").post("/audit/", {"act": "cordon", "pick": ["x"]}).status_code == 405


def test_an_action_needs_the_sites_own_form(two: list[Node], browser: SignIn) -> None:
    client = browser("olga", enforce_csrf_checks=True)
    assert client.post("/nodes/", {"act": "cordon", "pick": ["idle-1"]}).status_code == 403


def test_tokens_are_revoked_together(cast: Cast, browser: SignIn) -> None:
    keys = [tokens.create(principal=SYSTEM, name=f"ci-{at}", tenant=cast.acme)[0].key for at in range(2)]
    foreign = tokens.create(principal=SYSTEM, name="x", tenant=cast.globex)[0].key
    posted = {"act": "revoke", "pick": [*keys, foreign], "confirmed": "yes"}
    assert "2 done, 1 refused" in text(browser("anna").post("/tokens/", posted))
    assert set(Token.objects.filter(revoked_at=None).values_list("key", flat=True)) >= {foreign}
    assert not Token.objects.filter(key__in=keys, revoked_at=None).exists()


def test_a_row_at_which_the_database_fails_is_reported_beside_those_that_are_done(
    cast: Cast, machine: Machine, browser: SignIn, monkeypatch: pytest.MonkeyPatch
) -> None:
    claims = [ask(cast, name=name) for name in ("first", "second", "third")]
    release = lifecycle.release_claim

    def fail_once(**arguments: Any) -> Any:
        if arguments["claim"].name == "second":
            raise OperationalError("deadlock detected")
        return release(**arguments)

    monkeypatch.setattr(claim_list, "release_claim", fail_once)
    posted = {"act": "release", "pick": [str(claim.uid) for claim in claims], "confirmed": "yes"}
    done = text(browser("max").post("/claims/", posted))
    assert "2 done, 1 refused" in done
    assert "The database refused it: try again." in done


def test_of_two_who_confirm_at_once_one_is_refused(real_cast: Cast, monkeypatch: pytest.MonkeyPatch) -> None:
    """The version of the preview decides under the row's lock, not a check before it."""
    from django.test import Client

    node = Node.objects.create(name="idle-1", pool=real_cast.pool, last_seen_at=timezone.now() + timedelta(hours=1))
    barrier, answers = threading.Barrier(2), list[Any]()

    def confirm() -> None:
        client = Client()
        client.force_login(browser_user("olga"))
        barrier.wait(10)
        posted = {"act": "drain", "pick": [f"idle-1@{node.version}"], "confirmed": "yes"}
        answers.append(client.post("/nodes/", posted).status_code)
        connection.close()

    racers = [threading.Thread(target=confirm) for _ in range(2)]
    for racer in racers:
        racer.start()
    for racer in racers:
        racer.join(30)
    assert sorted(answers) == [200, 409]
    assert AuditEvent.objects.filter(action="node.drain").count() == 1
