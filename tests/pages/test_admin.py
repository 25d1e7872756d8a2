"""The records at `/admin/`: operators read the database's rows, and nobody changes them there."""

import pytest
from django.apps import apps
from django.test import Client
from django.urls import reverse

from gpucloud.web.records import UNREADABLE, records
from tests.cast import Cast, Machine, placed
from tests.pages.conftest import SignIn

LEFT_OUT = {
    # Not for reading: telemetry has its charts, and its keys have several columns.
    "UsageTens", "UsageMinute", "UsageHour", "UsageDay", "FleetMinute", "LateFrames", "TelemetryMark", "UsageFrame",
    "Sample", "AllocatedHour", "AllocatedDay", "GpuHealth", "PastUse", "PastUseMark",
    "UseDay", "ClaimForecast",
    # Bytes; rounds are read on their page.
    "FleetSnapshot",
    # Shown on the pool's own page.
    "WhatIf",
    # Stored answers, and counts of attempts.
    "IdempotencyRecord", "Attempts",
    # Parts of another row; the output of jobs is read on their page.
    "JobOutput", "JobDependency", "JobFilesPiece",
    "BudgetPeriod", "WebhookDelivery", "PodHold", "PodResize", "JoinedNode", "RotationMember", "PackProfile",
    "ElasticGroup",
    # Links and sessions: the pages of users and accounts show and end them.
    "Invitation", "UserSession",
}  # fmt: skip


@pytest.mark.slow
def test_an_operator_reads_every_list_and_a_row_and_no_secret(cast: Cast, machine: Machine, browser: SignIn) -> None:
    placed(cast, machine)
    client = browser("olga")
    read = 0
    for model, rows in records._registry.items():
        where = f"admin:{model._meta.app_label}_{model._meta.model_name}"
        assert client.get(reverse(f"{where}_changelist"), {"q": "1"}).status_code == 200, model
        assert client.get(reverse(f"{where}_changelist")).status_code == 200, model
        assert client.get(reverse(f"{where}_add")).status_code == 403, model
        row = model._default_manager.first()
        if row is None:
            continue
        read += 1
        page = client.get(reverse(f"{where}_change", args=[row.pk]))
        assert page.status_code == 200, model
        shown = {*rows.list_display, *page.context["adminform"].readonly_fields}
        assert not [name for name in shown if any(word in str(name) for word in UNREADABLE)], model
        assert client.post(reverse(f"{where}_change", args=[row.pk]), {}).status_code == 403, model
        assert client.post(reverse(f"{where}_delete", args=[row.pk]), {"post": "yes"}).status_code == 403, model
    assert read > 6
    assert b"Read-only" in client.get("/admin/").content


def test_the_ticket_of_a_carry_is_not_shown(cast: Cast, machine: Machine, browser: SignIn) -> None:
    _, assignment = placed(cast, machine)
    assignment.change(carry={"secret": "ticket-of-a-carry"})
    page = browser("olga").get(reverse("admin:scheduling_assignment_change", args=[assignment.pk])).content
    assert str(assignment.uid).encode() in page
    assert b"ticket-of-a-carry" not in page


def test_nobody_else_comes_in(cast: Cast, browser: SignIn) -> None:
    for name in ("anna", "max", "vera"):
        assert browser(name).get("/admin/", follow=True).status_code == 403
    asked = Client().get("/admin/scheduling/claim/", follow=True)
    assert asked.redirect_chain[-1][0].startswith("/sign-in/?next=/admin/")
    assert Client().post("/admin/login/", {"username": "olga", "password": "x"}).status_code == 302


def test_every_model_is_there_or_left_out_for_a_reason() -> None:
    ours = {model.__name__ for model in apps.get_models() if model.__module__.startswith("apps.")}
    assert ours - {model.__name__ for model in records._registry} == LEFT_OUT


@pytest.mark.parametrize("path", ["password_change/", "password_change/done/", "logout/"])
def test_it_has_no_second_door(cast: Cast, browser: SignIn, path: str) -> None:
    assert browser("olga").get(f"/admin/{path}").status_code == 404
