"""Quota requests: permissions by state, the effect of a grant and of its end on the quota, and races."""

import time
from datetime import timedelta
from typing import Any

import pytest
from django.utils import timezone

from apps.quotas import tasks
from apps.quotas.models import AuditEvent, LedgerEntry, QuotaRequest, ResourceQuota, Tenant
from apps.quotas.principals import SYSTEM
from apps.quotas.services import charging, requests
from apps.quotas.services.quotas import change_quota
from apps.scheduling.services.claims.lifecycle import release_claim
from tests.cast import Answer, Api, Cast, Machine, ask, assert_books_agree, give, placed
from tests.racing import outcomes, race
from tests.scheduling.clock import Clock
from tests.scheduling.routes import dump_database

MORE: dict[str, Any] = {"tenant": "acme", "resource": "core_percent", "amount": 50, "reason": "a larger model"}


@pytest.fixture
def quota(clock: Clock, cast: Cast) -> ResourceQuota:
    return give(cast.acme, core_percent=100, memory_mib=None)["core_percent"]


def make_request(cast: Cast, who: Api | None = None, **facts: Any) -> str:
    answer = (who or cast.anna).post("quota-requests/", {**MORE, **facts})
    assert answer.status == 201, answer.body
    return f"quota-requests/{answer.body['uid']}/"


def hard(quota: ResourceQuota) -> int | None:
    quota.refresh_from_db()
    return quota.hard


def actions() -> list[str]:
    rows = AuditEvent.objects.filter(object_type="quota-request").order_by("pk")
    return [row.action.removeprefix("quota-request.") for row in rows]


def test_an_approved_request_raises_the_quota_with_ledger_and_audit(cast: Cast, quota: ResourceQuota) -> None:
    path = make_request(cast)
    assert cast.vera.get(path).body["state"] == "open"
    answer = cast.olga.post(path + "approve/", {"words": "Good luck."})
    assert (answer.status, answer.body["state"], answer.body["granted_amount"]) == (200, "approved", 50)
    assert answer.headers["ETag"] == '"2"'
    assert hard(quota) == 150
    assert actions() == ["create", "approve"]
    assert LedgerEntry.objects.filter(kind="set").order_by("-pk").values_list("hard", flat=True)[0] == 150
    assert AuditEvent.objects.filter(action="quota.set", object_id=str(quota.pk)).count() == 1


def test_what_is_granted_without_a_quota_becomes_one(cast: Cast, quota: ResourceQuota) -> None:
    path = make_request(cast, resource="memory_mib", pool="default", amount=4096)
    assert cast.olga.post(path + "approve/").status == 200
    made = ResourceQuota.objects.get(tenant=cast.acme, pool=cast.pool)
    assert (made.resource, made.hard) == ("memory_mib", 4096)


def test_a_counter_offer_counts_once_the_tenant_accepts_it(cast: Cast, quota: ResourceQuota) -> None:
    path = make_request(cast)
    answer = cast.olga.post(path + "counter/", {"amount": 20, "words": "Half of it is free."})
    assert (answer.body["state"], answer.body["offered_amount"], hard(quota)) == ("countered", 20, 100)
    assert cast.olga.post(path + "counter/", {"amount": 30}).body["offered_amount"] == 30
    assert cast.max.post(path + "accept/", If_Match="*").code == "role-missing"
    answer = cast.anna.post(path + "accept/", If_Match="*")
    assert (answer.body["state"], answer.body["granted_amount"], hard(quota)) == ("approved", 30, 130)
    assert AuditEvent.objects.get(action="quota.set").actor.endswith(f"({(cast.anna.token or '').partition('.')[0]})")
    assert actions() == ["create", "counter", "counter", "accept"]


def test_who_accepts_says_which_offer(cast: Cast, quota: ResourceQuota) -> None:
    path = make_request(cast)
    seen = cast.olga.post(path + "counter/", {"amount": 20}).headers["ETag"]
    cast.olga.post(path + "counter/", {"amount": 3})
    unsaid = cast.anna.post(path + "accept/")
    assert (unsaid.status, cast.anna.post(path + "accept/", If_Match=seen).status) == (428, 412)
    assert hard(quota) == 100
    assert cast.anna.post(path + "accept/", If_Match=cast.anna.get(path).headers["ETag"]).body["granted_amount"] == 3


def test_a_denial_has_words(cast: Cast, quota: ResourceQuota) -> None:
    path = make_request(cast)
    for body in ({}, {"words": ""}):
        assert "words" in cast.olga.post(path + "deny/", body).body["errors"]
    answer = cast.olga.post(path + "deny/", {"words": "Not this month."})
    assert (answer.body["state"], cast.anna.get(path).body["words"]) == ("denied", "Not this month.")
    assert hard(quota) == 100


# States in which each verb is allowed; otherwise it answers 409 and changes nothing.
ALLOWED = {
    "forward": {"requested"},
    "approve": {"open"},
    "counter": {"open", "countered"},
    "deny": {"requested", "open", "countered"},
    "accept": {"countered"},
    "withdraw": {"requested", "open", "countered"},
}
BODIES: dict[str, dict[str, Any]] = {"counter": {"amount": 1}, "deny": {"words": "no"}}


def bring_to(cast: Cast, state: str, clock: Clock) -> str:
    until = (clock.now + timedelta(hours=1)).isoformat() if state == "lapsed" else None
    path = make_request(cast, cast.max if state == "requested" else cast.anna, until=until)
    steps = {
        "requested": [], "open": [], "countered": ["counter"], "approved": ["approve"], "denied": ["deny"],
        "withdrawn": ["withdraw"], "lapsed": ["approve"],
    }  # fmt: skip
    for verb in steps[state]:
        assert cast.olga.post(f"{path}{verb}/", BODIES.get(verb, {})).status == 200
    if state == "lapsed":
        clock.advance(hours=2)
        tasks.lapse_requests()
    assert cast.olga.get(path).body["state"] == state
    return path


@pytest.mark.parametrize("state", ["requested", "open", "countered", "approved", "denied", "withdrawn", "lapsed"])
@pytest.mark.parametrize("verb", ALLOWED)
def test_each_state_allows_what_it_should_and_nothing_else(
    cast: Cast, quota: ResourceQuota, clock: Clock, state: str, verb: str
) -> None:
    path = bring_to(cast, state, clock)
    before = dump_database()
    answer = cast.olga.post(f"{path}{verb}/", BODIES.get(verb, {}), If_Match="*")
    if state in ALLOWED[verb]:
        assert answer.status == 200
    else:
        assert (answer.status, answer.code, answer.body["state"]) == (409, "wrong-state", state)
        assert dump_database() == before


def test_who_may_ask_and_who_may_answer(cast: Cast, quota: ResourceQuota) -> None:
    assert cast.vera.post("quota-requests/", MORE).code == "role-missing"
    assert cast.gus.post("quota-requests/", MORE).code == "invalid-fields"
    path = make_request(cast)
    for verb in ("approve", "deny", "counter"):
        assert cast.anna.post(f"{path}{verb}/", BODIES.get(verb, {})).code == "role-missing"
        assert cast.gus.post(f"{path}{verb}/", BODIES.get(verb, {})).code == "not-found"
    assert cast.olga.post(path + "approve/", If_Match='"7"').code == "stale-version"


def test_a_members_request_is_passed_on_by_an_admin(cast: Cast, quota: ResourceQuota) -> None:
    path = make_request(cast, cast.max)
    assert cast.max.get(path).body["state"] == "requested"
    assert cast.olga.post(path + "approve/").code == "wrong-state"
    for who, code in ((cast.max, "role-missing"), (cast.vera, "role-missing"), (cast.gus, "not-found")):
        assert who.post(path + "forward/").code == code
        assert who.post(path + "deny/", {"words": "no"}).code == code
    assert cast.anna.post(path + "forward/", If_Match='"7"').code == "stale-version"
    assert cast.anna.post(path + "forward/").body["state"] == "open"
    assert cast.anna.post(path + "deny/", {"words": "no"}).code == "role-missing"
    assert cast.olga.post(path + "approve/").status == 200
    assert hard(quota) == 150
    assert actions() == ["create", "forward", "approve"]


def test_an_admin_denies_what_a_member_asks_and_the_member_withdraws(cast: Cast, quota: ResourceQuota) -> None:
    first, second, other = make_request(cast, cast.max), make_request(cast, cast.max), make_request(cast)
    answer = cast.anna.post(first + "deny/", {"words": "We have enough."})
    assert (answer.body["state"], answer.body["words"]) == ("denied", "We have enough.")
    assert cast.vera.post(second + "withdraw/").code == "role-missing"
    assert cast.max.post(other + "withdraw/").code == "role-missing"
    assert cast.max.post(second + "withdraw/").body["state"] == "withdrawn"
    assert hard(quota) == 100


def test_an_operator_sees_beside_a_request_what_granting_it_would_do(cast: Cast, quota: ResourceQuota) -> None:
    placed(cast, Machine("gpu1", cast.pool), core_request=100)
    ask(cast, name="next", core_request=40, when_over_quota="wait")
    path = make_request(cast)
    before = dump_database()
    shown = cast.olga.get(path).body["preview"]
    assert (shown["quota"]["hard"], [row["name"] for row in shown["runnable"]]) == (150, ["next"])
    assert cast.olga.post(path + "approve/?dry_run=true").body == shown
    assert cast.anna.get(path).body["preview"] is None
    assert dump_database() == before
    cast.olga.post(path + "counter/", {"amount": 10})
    assert [row["name"] for row in cast.olga.get(path).body["preview"]["pending"]] == ["next"]
    cast.olga.post(path + "deny/", {"words": "no"})
    assert cast.olga.get(path).body["preview"] is None


def test_what_was_granted_until_a_date_falls_back_on_it_and_what_is_held_stays(
    cast: Cast, quota: ResourceQuota, clock: Clock
) -> None:
    machine = Machine("gpu1", cast.pool)
    path = make_request(cast, until=(clock.now + timedelta(days=7)).isoformat())
    cast.olga.post(path + "approve/")
    first, _ = placed(cast, machine, core_request=80)
    second, _ = placed(cast, machine, core_request=60)
    clock.advance(days=6, hours=23)
    assert tasks.lapse_requests() == 0
    clock.advance(hours=1)
    assert [tasks.lapse_requests(), tasks.lapse_requests()] == [1, 0]
    assert (hard(quota), quota.used, quota.excess) == (100, 140, 40)
    assert cast.anna.get(path).body["state"] == "lapsed"
    assert cast.max.post("claims/", {"tenant": "acme", "core_request": 1, "memory_mib": 1}).code == "quota-exceeded"
    first.refresh_from_db()
    assert first.state == "active"
    release_claim(principal=SYSTEM, claim=second)
    machine.obey()
    assert (hard(quota), quota.used, quota.excess) == (100, 80, 0)
    assert actions() == ["create", "approve", "lapse"]
    assert [row.actor for row in AuditEvent.objects.filter(action="quota.set").order_by("pk")][1:] == ["system"]
    assert_books_agree()


@pytest.mark.parametrize(("set_to", "left"), [(400, 350), (20, 0), (None, None)])
def test_a_lapse_takes_back_what_was_granted_from_what_the_quota_is_by_then(
    cast: Cast, quota: ResourceQuota, clock: Clock, set_to: int | None, left: int | None
) -> None:
    path = make_request(cast, until=(clock.now + timedelta(days=1)).isoformat())
    cast.olga.post(path + "approve/")
    change_quota(principal=SYSTEM, quota=quota, hard=set_to)
    clock.advance(days=2)
    assert tasks.lapse_requests() == 1
    assert hard(quota) == left


def test_a_lapse_of_a_quota_that_is_gone_is_a_lapse(cast: Cast, quota: ResourceQuota, clock: Clock) -> None:
    path = make_request(cast, until=(clock.now + timedelta(days=1)).isoformat())
    cast.olga.post(path + "approve/")
    assert cast.olga.delete(f"quotas/{quota.pk}/", If_Match="*").status == 204
    clock.advance(days=2)
    assert tasks.lapse_requests() == 1
    assert cast.anna.get(path).body["state"] == "lapsed"


def test_a_lapse_takes_nothing_from_a_quota_that_was_made_since(cast: Cast, quota: ResourceQuota, clock: Clock) -> None:
    path = make_request(cast, until=(clock.now + timedelta(days=1)).isoformat())
    cast.olga.post(path + "approve/")
    assert cast.olga.delete(f"quotas/{quota.pk}/", If_Match="*").status == 204
    clock.advance(hours=1)
    made = give(cast.acme, core_percent=30)["core_percent"]
    clock.advance(days=2)
    assert tasks.lapse_requests() == 1
    assert cast.anna.get(path).body["state"] == "lapsed"
    assert hard(made) == 30


def test_what_has_no_limit_cannot_be_raised(cast: Cast, quota: ResourceQuota) -> None:
    for facts in ({"resource": "memory_mib"}, {"resource": "vgpus"}):
        assert cast.anna.post("quota-requests/", {**MORE, **facts}).code == "not-limited"
    path = make_request(cast)
    change_quota(principal=SYSTEM, quota=quota, hard=None)
    assert cast.olga.post(path + "approve/").code == "not-limited"
    assert cast.olga.get(path).body["preview"] is None


def test_a_date_that_has_passed_is_refused(cast: Cast, quota: ResourceQuota, clock: Clock) -> None:
    past = (clock.now - timedelta(seconds=1)).isoformat()
    assert cast.anna.post("quota-requests/", {**MORE, "until": past}).code == "date-passed"
    path = make_request(cast, until=(clock.now + timedelta(hours=1)).isoformat())
    assert cast.olga.post(path + "counter/", {"amount": 1, "until": past}).code == "date-passed"
    clock.advance(hours=2)
    assert cast.olga.post(path + "approve/").code == "date-passed"
    assert hard(quota) == 100


@pytest.mark.parametrize(
    ("field", "value"),
    [("amount", 0), ("amount", "5"), ("amount", -1), ("reason", ""), ("resource", "gold"), ("until", "soon"),
     ("tenant", "globex"), ("pool", "nowhere")],
)  # fmt: skip
def test_a_senseless_request_is_refused_by_field(cast: Cast, quota: ResourceQuota, field: str, value: Any) -> None:
    answer = cast.anna.post("quota-requests/", {**MORE, field: value})
    assert field in answer.body["errors"]


RACERS = 16


def approvals(cast: Cast) -> tuple[ResourceQuota, list[Answer]]:
    quota = give(cast.acme, core_percent=100)["core_percent"]
    path = make_request(cast)
    operators = [Api(cast.olga.token) for _ in range(RACERS)]
    answers = race([lambda api=api: api.post(path + "approve/") for api in operators])  # type: ignore[misc]
    assert {type(answer) for answer in answers} == {Answer}
    return quota, answers


@pytest.mark.django_db(transaction=True)
def test_of_many_operators_who_approve_at_once_one_does(real_cast: Cast) -> None:
    quota, answers = approvals(real_cast)
    assert sorted(answer.status for answer in answers) == [200] + [409] * (RACERS - 1)
    assert {answer.code for answer in answers if answer.status == 409} == {"wrong-state"}
    assert hard(quota) == 150
    assert actions() == ["create", "approve"]


@pytest.mark.django_db(transaction=True)
def test_control_without_the_requests_lock_the_quota_is_raised_more_than_once(
    real_cast: Cast, monkeypatch: pytest.MonkeyPatch
) -> None:
    def unlocked(request: QuotaRequest, versions: object, *allowed: str) -> QuotaRequest:
        read = QuotaRequest.objects.select_related("tenant", "pool").get(pk=request.pk)
        if read.state not in allowed:
            raise requests.WrongState("Too late.", state=read.state)
        return read

    monkeypatch.setattr(requests, "_lock_row", unlocked)
    quota, _ = approvals(real_cast)
    assert (hard(quota) or 0) > 150


@pytest.mark.django_db(transaction=True)
def test_grants_lapses_and_charges_at_once_add_up(real_cast: Cast) -> None:
    quota = give(real_cast.acme, core_percent=1000, memory_mib=None)["core_percent"]

    def request(amount: int) -> QuotaRequest:
        facts = {"pool": None, "resource": "core_percent", "reason": "r", "until": timezone.now() + timedelta(hours=1)}
        return requests.ask(principal=SYSTEM, tenant=real_cast.acme, amount=amount, **facts)  # type: ignore[arg-type]

    due = [requests.approve(principal=SYSTEM, request=request(7)) for _ in range(4)]
    fresh = [request(11) for _ in range(8)]
    QuotaRequest.objects.filter(pk__in=[row.pk for row in due]).update(
        granted_until=timezone.now() - timedelta(seconds=1)
    )
    results = race(
        [lambda row=row: requests.approve(principal=SYSTEM, request=row) for row in fresh]
        + [requests.lapse_due] * 4
        + [lambda: ask(real_cast, core_request=10, memory_mib=1)] * 12
    )
    assert set(outcomes(results)) == {"QuotaRequest", "int", "Claim"}
    assert sum(result for result in results if isinstance(result, int)) == 4
    assert (hard(quota), quota.used) == (1000 + 8 * 11, 120)
    assert_books_agree()


@pytest.mark.django_db(transaction=True)
def test_a_lapse_and_a_change_leave_one_of_the_two_orders(real_cast: Cast) -> None:
    quota = give(real_cast.acme, core_percent=100)["core_percent"]
    row = requests.ask(
        principal=SYSTEM, tenant=Tenant.objects.get(slug="acme"), pool=None, resource="core_percent", amount=50,
        reason="r", until=timezone.now() + timedelta(hours=1),
    )  # fmt: skip
    requests.approve(principal=SYSTEM, request=row)
    QuotaRequest.objects.update(granted_until=timezone.now() - timedelta(seconds=1))
    results = race([requests.lapse_due] * 3 + [lambda: change_quota(principal=SYSTEM, quota=quota, hard=300)])
    assert outcomes(results) == {"int": 3, "ResourceQuota": 1}
    assert hard(quota) in (300, 250)


@pytest.mark.django_db(transaction=True)
def test_grants_and_changes_in_a_pool_with_a_ratio_do_not_hold_each_other(
    real_cast: Cast, monkeypatch: pytest.MonkeyPatch
) -> None:
    quota = give(real_cast.acme, core_percent=100)["core_percent"]
    Machine("gpu1", real_cast.pool)
    assert real_cast.olga.patch("pools/default/", {"core_overcommit_percent": 1000}).status == 200
    paths = [make_request(real_cast) for _ in range(4)]
    lock = charging.lock_tenants

    def lock_and_wait(*tenants: Tenant, exclusive: bool = False) -> charging.Ties:
        found = lock(*tenants, exclusive=exclusive)
        time.sleep(0.05)  # so that the other one locks the next row, if it may
        return found

    monkeypatch.setattr(charging, "lock_tenants", lock_and_wait)
    approve = [lambda path=path: Api(real_cast.olga.token).post(path + "approve/").status for path in paths]
    change = [lambda: change_quota(principal=SYSTEM, quota=quota, borrowing_limit=5)] * 4
    assert outcomes(race([*approve, *change])) == {"int": 4, "ResourceQuota": 4}
    assert hard(quota) == 300  # each of four approved 50
