"""The page of a person's notices."""

from typing import Any

import pytest
from django.test import Client

from apps.notices.models import Mail, NoticeKind, NoticeSettings
from apps.quotas.models import User
from apps.quotas.principals import of_user
from apps.quotas.services import tokens
from tests.cast import Api, Cast
from tests.pages.conftest import SignIn

FORM: dict[str, Any] = {
    **dict.fromkeys(NoticeKind.values, "off"), "budget_percent": "80", "quiet_hours": "", "digest_hour": "8",
}  # fmt: skip


@pytest.fixture
def max_(cast: Cast, browser: SignIn, settings: Any) -> Client:
    settings.EMAIL_HOST = "127.0.0.1"
    User.objects.filter(username="max").update(email="max@example.org")
    return browser("max")


def text(answer: Any) -> str:
    return " ".join(answer.content.decode().split())


def test_choices_are_saved_and_shown(max_: Client) -> None:
    assert "max@example.org" in text(max_.get("/account/notices/"))
    posted = {**FORM, "idle": "digest", "preempted": "now", "quiet_hours": "daily 22:00-07:00", "urgent_passes": "on"}
    assert "Your notices are saved." in text(max_.post("/account/notices/", posted, follow=True))
    row = NoticeSettings.objects.get()
    assert (row.chosen, row.quiet_hours, row.urgent_passes) == (
        {"preempted": "now", "idle": "digest"}, "daily 22:00-07:00", True,
    )  # fmt: skip
    assert "daily 22:00-07:00" in text(max_.get("/account/notices/"))


def test_who_never_chose_sees_suggestions_and_is_told_nothing_before_saving(max_: Client, settings: Any) -> None:
    page = max_.get("/account/notices/")
    assert "Nothing is mailed to you yet." in text(page)
    shown = page.context["form"].initial
    assert {kind for kind in NoticeKind.values if shown[kind] == "now"} == {
        "preempted", "node_lost", "job_failed", "budget",
    }  # fmt: skip
    assert not NoticeSettings.objects.exists()
    max_.post("/account/notices/", {**FORM, "job_failed": "digest"})
    page = max_.get("/account/notices/")
    assert "Nothing is mailed to you yet." not in text(page)
    assert (page.context["form"].initial["preempted"], page.context["form"].initial["job_failed"]) == ("off", "digest")
    # No suggestion that could not be saved.
    NoticeSettings.objects.all().delete()
    settings.EMAIL_HOST = ""
    page = max_.get("/account/notices/")
    assert "Nothing is mailed to you yet." not in text(page)
    assert page.context["form"].initial["preempted"] == "off"


def test_a_wrong_window_is_told_beside_its_field(max_: Client) -> None:
    answer = max_.post("/account/notices/", {**FORM, "quiet_hours": "at night"})
    assert (answer.status_code, "is no day" in text(answer)) == (422, True)
    assert not NoticeSettings.objects.exists()


def test_a_second_window_of_the_browser_overwrites_nothing(max_: Client) -> None:
    max_.post("/account/notices/", {**FORM, "idle": "now"})
    version = NoticeSettings.objects.get().version
    max_.post("/account/notices/", {**FORM, "idle": "digest", "version": version})
    late = text(max_.post("/account/notices/", {**FORM, "idle": "off", "version": version}))
    assert "Changed by user:max" in late
    assert NoticeSettings.objects.get().idle == "digest"


def test_why_no_mail_can_come_is_told(max_: Client, settings: Any) -> None:
    settings.EMAIL_HOST = ""
    assert "its operator sets EMAIL_HOST" in text(max_.get("/account/notices/"))
    answer = max_.post("/account/notices/", {**FORM, "idle": "now"})
    assert (answer.status_code, "There is no address to mail to" in text(answer)) == (422, True)
    assert "There is no address" in text(max_.post("/account/notices/test/", follow=True))


def test_a_test_mail_and_its_result(max_: Client) -> None:
    assert "A test mail is being sent." in text(max_.post("/account/notices/test/", follow=True))
    Mail.objects.update(state="failed", error="The mail server refuses your address: 550 no such user")
    assert "550 no such user" in text(max_.get("/account/notices/"))


def test_the_api_is_for_a_person(max_: Client, cast: Cast) -> None:
    user = User.objects.get(username="max")
    _, secret = tokens.create_personal(principal=of_user(user), name="laptop", scopes=["users:read", "users:write"])
    api = Api(secret)
    shown = api.get("me/notices/")
    assert (shown.status, shown.body["idle"], shown.body["digest_hour"]) == (200, "off", 8)
    changed = api.patch("me/notices/", {"idle": "now", "budget_percent": 95})
    assert (changed.status, changed.body["idle"], changed.body["budget_percent"]) == (200, "now", 95)
    assert api.patch("me/notices/", {"quiet_hours": "at night"}).status == 400
    assert api.patch("me/notices/", {"idle": "hourly"}).status == 400
    assert api.patch("me/notices/", {"idle": "off"}, If_Match='"1"').status == 412
    assert api.post("me/notices/test/").body["state"] == "pending"
    assert cast.max.get("me/notices/").code == "person-missing"
