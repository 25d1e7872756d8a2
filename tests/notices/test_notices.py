"""Personal notices: who is told what and when, by a real SMTP server, exactly once."""

import threading
from datetime import UTC, datetime
from typing import Any

import pytest
from django.db import connection, transaction

from apps.jobs.models import Job, JobState
from apps.jobs.services import lifecycle
from apps.notices import choosing, expanding, mailing
from apps.notices.models import KIND_OF, Mail, Notice, NoticeKind, NoticeSettings
from apps.quotas.models import AuditEvent, EventKind, Tenant, User, Webhook, WebhookDelivery
from apps.quotas.models.tenant import Membership
from apps.quotas.principals import of_user
from apps.quotas.services.webhooks import outbox, sending
from tests.cast import Cast
from tests.notices.conftest import MailServer, give_addresses
from tests.scheduling.clock import Clock

UID = "0198c1ab-0000-7000-8000-000000000001"
HOSTILE = "train\r\nBcc: evil@example.org\r\n\r\n<!channel>"


def person(name: str) -> User:
    return User.objects.get(username=name)


def chooses(name: str, **values: Any) -> NoticeSettings:
    give_addresses()
    return choosing.choose(principal=of_user(person(name)), **{"all_claims": True, **values})


def tell(tenant: Tenant, kind: str, name: str = "train-7") -> None:
    outbox.tell(kind, tenant=tenant, claim={"uid": UID, "name": name, "pool": "default"}, why="Because.")


def test_each_kind_has_events() -> None:
    assert set(KIND_OF.values()) == set(NoticeKind)


def test_a_member_is_told_and_others_are_not(cast: Cast, server: MailServer) -> None:
    chooses("max", preempted="now")
    chooses("vera", idle="now")
    chooses("gus", preempted="now")
    chooses("olga", preempted="now")
    tell(cast.acme, "claim.preempted")
    assert mailing.send_notices() == 1
    (mail,) = server.came
    assert (server.to, mail["Subject"]) == (["max@example.org"], "[gpucloud] acme: Claim train-7 is preempted")
    assert "Because." in server.text()
    assert f"https://gpus.example.org/claims/{UID}/" in server.text()
    assert mailing.send_notices() == 0


def test_only_chosen_events_are_recorded(cast: Cast, server: MailServer) -> None:
    tell(cast.acme, "claim.idle")
    assert not WebhookDelivery.objects.exists()
    chooses("max", idle="now")
    tell(cast.acme, "claim.active")
    assert not WebhookDelivery.objects.exists()
    tell(cast.acme, "claim.idle")
    assert WebhookDelivery.objects.count() == 1
    assert sending.deliver() == 0, "the sender of webhooks leaves it"
    chooses("max", idle="off")
    tell(cast.acme, "claim.idle")
    assert WebhookDelivery.objects.count() == 1


def test_the_hidden_webhook_is_in_no_list(cast: Cast, server: MailServer) -> None:
    chooses("max", idle="now")
    assert cast.olga.get("webhooks/").body["results"] == []
    assert not Webhook.objects.exists()


def test_operators_learn_of_nodes_and_members_of_their_claims(cast: Cast, server: MailServer) -> None:
    chooses("olga", node_lost="now")
    chooses("max", node_lost="now")
    outbox.tell("node.lost", tenant=None, node="gpu-1", pool="default", claims=1)
    outbox.tell("node.lost", tenant=cast.acme, platform=False, node="gpu-1", pool="default", claims=[UID])
    tell(cast.acme, "claim.unreachable")
    assert mailing.send_notices() == 2
    subjects = {str(mail["To"]): mail["Subject"] for mail in server.came}
    assert subjects == {
        "olga@example.org": "[gpucloud] Node gpu-1 is lost",
        "max@example.org": "[gpucloud] acme: The node of claim train-7 is lost",
    }


def test_own_claims_only_unless_all_are_wanted(cast: Cast, server: MailServer) -> None:
    chooses("max", idle="now", all_claims=False)
    tell(cast.acme, "claim.idle")
    assert mailing.send_notices() == 0
    assert not Notice.objects.exists()


@pytest.mark.parametrize(("least", "told"), [(80, [80, 95, 100]), (95, [95, 100]), (100, [100])])
def test_budgets_are_told_from_the_chosen_threshold(
    cast: Cast, server: MailServer, least: int, told: list[int]
) -> None:
    chooses("max", budget="now", budget_percent=least)
    for percent in (80, 95, 100):
        outbox.tell(EventKind.BUDGET_THRESHOLD, tenant=cast.acme, budget=1, threshold_percent=percent)
    mailing.send_notices()
    assert sorted(Notice.objects.values_list("title", flat=True)) == sorted(
        f"{p} % of a budget are spent" for p in told
    )


def test_a_flood_is_one_bounded_mail(cast: Cast, server: MailServer, clock: Clock) -> None:
    chooses("max", idle="now")
    for number in range(120):
        tell(cast.acme, "claim.idle", f"c-{number}")
    assert mailing.send_notices() == 1
    assert server.came[0]["Subject"] == "[gpucloud] acme: Claim c-0 is idle (and 119 more)"
    assert "… and 70 more" in server.text()
    assert server.text().count("is idle (acme)") == 50
    tell(cast.acme, "claim.idle", "later")
    assert mailing.send_notices() == 0, "the last mail was a moment ago"
    clock.advance(seconds=301)
    assert mailing.send_notices() == 1


def test_a_hostile_name_adds_no_header(cast: Cast, server: MailServer) -> None:
    chooses("max", idle="now")
    tell(cast.acme, "claim.idle", HOSTILE)
    assert mailing.send_notices() == 1
    (mail,) = server.came
    assert (mail["Bcc"], server.to) == (None, ["max@example.org"])
    assert mail["Subject"] == "[gpucloud] acme: Claim train Bcc: evil@example.org <!channel> is idle"


def test_who_left_the_tenant_is_told_nothing(cast: Cast, server: MailServer) -> None:
    chooses("max", idle="now")
    tell(cast.acme, "claim.idle")
    expanding.expand()
    Membership.objects.filter(user__username="max").delete()
    assert mailing.send_notices() == 0
    assert (server.came, Mail.objects.get().state) == ([], "dropped")


def test_a_digest_comes_at_its_hour_once(cast: Cast, server: MailServer, clock: Clock) -> None:
    User.objects.filter(username="max").update(time_zone="Europe/Berlin")
    clock.now = datetime(2026, 7, 1, 9, 0, tzinfo=UTC)
    chooses("max", idle="digest", started="digest", digest_hour=8)
    tell(cast.acme, "claim.idle")
    tell(cast.acme, "claim.active")
    assert mailing.send_notices() == 0
    clock.now = datetime(2026, 7, 2, 5, 59, tzinfo=UTC)
    assert mailing.send_notices() == 0
    clock.now = datetime(2026, 7, 2, 6, 0, tzinfo=UTC)  # 08:00 in Berlin
    assert mailing.send_notices() == 1
    assert "A claim is idle (1)" in server.text()
    assert "A claim is in force (1)" in server.text()
    assert "CEST" in server.text()


def test_quiet_hours_keep_what_is_not_urgent(cast: Cast, server: MailServer, clock: Clock) -> None:
    User.objects.filter(username="max").update(time_zone="Europe/Berlin")
    clock.now = datetime(2026, 7, 1, 22, 0, tzinfo=UTC)  # midnight in Berlin
    chooses("max", idle="now", preempted="now", quiet_hours="daily 22:00-07:00")
    tell(cast.acme, "claim.idle")
    assert mailing.send_notices() == 0
    tell(cast.acme, "claim.preempted")
    assert mailing.send_notices() == 1
    assert "is preempted" in server.came[0]["Subject"]
    clock.now = datetime(2026, 7, 2, 4, 59, tzinfo=UTC)
    assert mailing.send_notices() == 0
    clock.now = datetime(2026, 7, 2, 5, 0, tzinfo=UTC)
    assert mailing.send_notices() == 1
    assert "is idle" in server.came[1]["Subject"]


def test_a_line_that_waits_for_the_pause_is_kept_when_quiet_hours_begin(
    cast: Cast, server: MailServer, clock: Clock
) -> None:
    clock.now = datetime(2026, 7, 1, 21, 57, tzinfo=UTC)
    chooses("max", idle="now", preempted="now", quiet_hours="daily 22:00-07:00 UTC")
    tell(cast.acme, "claim.idle", "first")
    assert mailing.send_notices() == 1
    tell(cast.acme, "claim.idle", "second")
    assert mailing.send_notices() == 0, "the last mail was a moment ago"
    clock.now = datetime(2026, 7, 1, 22, 3, tzinfo=UTC)
    assert mailing.send_notices() == 0, "quiet hours have begun"
    # What passes does not take it along.
    tell(cast.acme, "claim.preempted", "third")
    assert mailing.send_notices() == 1
    assert "second" not in server.text()
    clock.now = datetime(2026, 7, 2, 7, 0, tzinfo=UTC)
    assert mailing.send_notices() == 1
    assert "second" in server.text()


@pytest.mark.parametrize(("kind", "passes"), [("claim.idle", False), ("claim.preempted", True)])
def test_a_mail_is_not_tried_again_in_quiet_hours_unless_it_passes(
    cast: Cast, server: MailServer, clock: Clock, kind: str, passes: bool
) -> None:
    clock.now = datetime(2026, 7, 1, 21, 59, 30, tzinfo=UTC)
    chooses("max", idle="now", preempted="now", quiet_hours="daily 22:00-07:00 UTC")
    tell(cast.acme, kind)
    server.refusal = "451 try later"
    assert mailing.send_notices() == 0
    server.refusal = ""
    clock.now = datetime(2026, 7, 1, 22, 1, tzinfo=UTC)
    assert mailing.send_notices() == passes
    mail = Mail.objects.get()
    if not passes:
        assert (mail.attempts, mail.next_attempt_at) == (1, datetime(2026, 7, 2, 7, 0, tzinfo=UTC))
        choosing.send_test(principal=of_user(person("max")))
        assert mailing.send_notices() == 1, "a test comes at once"
        clock.now = datetime(2026, 7, 2, 7, 0, tzinfo=UTC)
        assert mailing.send_notices() == 1
    mail.refresh_from_db()
    assert (mail.state, mail.attempts) == ("sent", 2)


def test_the_end_of_a_job_is_told_as_each_person_chose(cast: Cast, server: MailServer) -> None:
    job = Job.objects.create(
        tenant=cast.acme, pool=cast.pool, name="train", command=["true"], state="waiting", user=person("max"),
        created_by="user:max",
    )  # fmt: skip
    chooses("max", job_failed="now", all_claims=False)
    chooses("anna", job_failed="now", all_claims=False)
    lifecycle.end_job(job, JobState.FAILED, reason="exit code 3", exit_code=3)
    assert mailing.send_notices() == 1
    assert (server.to, server.came[0]["Subject"]) == (["max@example.org"], "[gpucloud] acme: Job train has failed")
    assert "exit code 3" in server.text()
    assert f"https://gpus.example.org/jobs/{job.uid}/" in server.text()
    chooses("anna", job_stopped="now")
    for state in (JobState.SUCCEEDED, JobState.STOPPED):
        job.change(state="waiting", ended_at=None)
        lifecycle.end_job(job, state, reason=None, exit_code=0)
    assert mailing.send_notices() == 1
    assert (server.to[-1], server.came[-1]["Subject"]) == ("anna@example.org", "[gpucloud] acme: Job train was stopped")


def test_the_longest_quiet_hours_stop_nobodys_notices(cast: Cast, server: MailServer, clock: Clock) -> None:
    User.objects.filter(username="max").update(time_zone="America/Argentina/ComodRivadavia")
    clock.now = datetime(2026, 7, 1, 12, 0, tzinfo=UTC)
    days = ",".join(["mon", "tue", "wed", "thu", "fri", "sat", "sun"] * 3)
    chooses("max", idle="now", quiet_hours=f"{days} 22:00-07:00")
    tell(cast.acme, "claim.idle")
    assert mailing.send_notices() == 1


def test_who_ends_all_notices_gets_none_that_waits(cast: Cast, server: MailServer, clock: Clock) -> None:
    clock.now = datetime(2026, 7, 1, 12, 0, tzinfo=UTC)
    chooses("max", idle="digest")
    tell(cast.acme, "claim.idle")
    assert mailing.send_notices() == 0
    user = User.objects.get(username="max")
    choosing.unsubscribe(choosing.unsubscribe_path(user).rstrip("/").rpartition("/")[2])
    clock.advance(hours=24)
    assert mailing.send_notices() == 0


def test_urgent_ones_are_kept_too_if_so_chosen(cast: Cast, server: MailServer, clock: Clock) -> None:
    clock.now = datetime(2026, 7, 1, 23, 0, tzinfo=UTC)
    chooses("max", preempted="now", quiet_hours="daily 22:00-07:00 UTC", urgent_passes=False)
    tell(cast.acme, "claim.preempted")
    assert mailing.send_notices() == 0
    clock.advance(hours=8)
    assert mailing.send_notices() == 1


def test_one_click_ends_all_notices(cast: Cast, server: MailServer, client: Any) -> None:
    chooses("max", idle="now")
    tell(cast.acme, "claim.idle")
    mailing.send_notices()
    (mail,) = server.came
    assert mail["List-Unsubscribe-Post"] == "List-Unsubscribe=One-Click"
    path = mail["List-Unsubscribe"].strip(" <>").removeprefix("https://gpus.example.org")
    assert client.get(path).status_code == 200
    assert NoticeSettings.objects.get().chosen == {"idle": "now"}, "a GET, as of a scanner, changes nothing"
    assert client.get(path[:-3] + "x/").status_code == 404
    answer = client.post(path, {"List-Unsubscribe": "One-Click"})
    assert answer.status_code == 200
    assert NoticeSettings.objects.get().chosen == {}
    assert AuditEvent.objects.filter(action="notices.unsubscribe").count() == 1
    assert client.post(path).status_code == 200


def test_a_failure_is_tried_again_and_a_refused_address_is_told(cast: Cast, server: MailServer, clock: Clock) -> None:
    chooses("max", idle="now")
    tell(cast.acme, "claim.idle")
    server.refusal = "451 try later"
    assert mailing.send_notices() == 0
    mail = Mail.objects.get()
    assert (mail.state, mail.error) == ("pending", "The mail server refuses your address: 451 try later")
    assert mailing.send_notices() == 0
    server.refusal = "550 no such user"
    clock.advance(seconds=61)
    mailing.send_notices()
    mail.refresh_from_db()
    assert (mail.state, "550 no such user" in (mail.error or "")) == ("failed", True)
    assert server.came == []


def test_a_killed_senders_mail_comes_again_under_its_id(
    cast: Cast, server: MailServer, clock: Clock, monkeypatch: pytest.MonkeyPatch
) -> None:
    chooses("max", idle="now")
    tell(cast.acme, "claim.idle")
    with monkeypatch.context() as dying:
        dying.setattr(mailing, "_record", lambda *_, **__: (_ for _ in ()).throw(SystemExit))
        with pytest.raises(SystemExit):
            mailing.send_notices()
    assert mailing.send_notices() == 0, "the lease holds"
    clock.advance(seconds=181)
    assert mailing.send_notices() == 1
    assert server.came[0]["Message-ID"] == server.came[1]["Message-ID"]


def race(workers: int) -> None:
    """Run so many senders at once, each with a connection of its own."""
    together = threading.Barrier(workers)

    def work() -> None:
        try:
            together.wait(10)
            mailing.send_notices()
        finally:
            connection.close()

    threads = [threading.Thread(target=work) for _ in range(workers)]
    for thread in threads:
        thread.start()
    for thread in threads:
        thread.join()


@pytest.mark.parametrize("workers", [2, 8])
def test_racing_workers_send_one_mail(real_cast: Cast, server: MailServer, workers: int) -> None:
    chooses("max", idle="now")
    for number in range(20):
        tell(real_cast.acme, "claim.idle", f"c-{number}")
    race(workers)
    race(workers)
    assert (len(server.came), Notice.objects.count()) == (1, 20)


def test_without_the_lease_each_worker_sends(
    real_cast: Cast, server: MailServer, monkeypatch: pytest.MonkeyPatch
) -> None:
    """The control: what the test above would miss without the guard."""
    chooses("max", idle="now")
    tell(real_cast.acme, "claim.idle")
    expanding.expand()
    with transaction.atomic():
        made = Mail.objects.create(user=person("max"), next_attempt_at=datetime(2026, 1, 1, tzinfo=UTC))
    Notice.objects.update(mail=made)
    all_read = threading.Barrier(4)

    def unguarded(key: int) -> Mail | None:
        mail = Mail.objects.select_related("user").filter(pk=key, state="pending").first()
        all_read.wait(10)
        return mail

    monkeypatch.setattr(mailing, "_lease", unguarded)
    race(4)
    assert len(server.came) == 4


def test_choices_by_the_api(cast: Cast, server: MailServer) -> None:
    give_addresses()
    shown = cast.max.get("me/notices/")
    assert shown.code == "person-missing", "a tenant's token has no person"
