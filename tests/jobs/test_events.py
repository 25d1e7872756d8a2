"""Events of jobs, each in the transaction of its end."""

import json
from typing import Any

import pytest

from apps.quotas.models import EventKind, WebhookDelivery
from apps.quotas.principals import SYSTEM
from apps.quotas.services.webhooks import hooks
from tests.cast import Cast, Machine
from tests.jobs.acting import end, fresh, made, post, report, started


@pytest.fixture
def listening(cast: Cast) -> Cast:
    """Subscribe acme to the ends of jobs."""
    events = [kind for kind in EventKind.values if kind.startswith("job.")]
    hooks.create(principal=SYSTEM, tenant=cast.acme, url="https://hooks.example.org/", events=events)
    return cast


def told() -> list[dict[str, Any]]:
    """Return the events so far."""
    return [json.loads(row.body) for row in WebhookDelivery.objects.order_by("pk")]


def test_a_success_is_told_once_with_its_facts(listening: Cast, machine: Machine) -> None:
    job = started(listening, machine, name="train")
    assert told() == []
    end(machine, job)
    end(machine, job)
    [event] = told()
    assert event["type"] == "job.succeeded"
    assert (event["data"]["tenant"], event["data"]["why"]) == ("acme", None)
    about = event["data"]["job"]
    assert (about["uid"], about["name"], about["kind"], about["state"]) == (str(job.uid), "train", "job", "succeeded")
    assert (about["exit_code"], about["runs"], about["pool"]) == (0, 1, "default")
    assert about["ended_at"] > about["started_at"]


def test_a_failure_is_told_after_the_last_try(listening: Cast, machine: Machine) -> None:
    job = started(listening, machine, retries=1)
    end(machine, job, code=1)
    assert told() == []
    report(machine, job, "running")
    end(machine, job, code=2)
    [event] = told()
    assert (event["type"], event["data"]["why"], event["data"]["job"]["runs"]) == ("job.failed", "exit code 2", 2)


def test_a_stop_is_told_when_the_job_has_ended(listening: Cast, machine: Machine) -> None:
    job = started(listening, machine)
    listening.max.post(f"jobs/{job.uid}/stop/")
    assert told() == []
    end(machine, job, code=143)
    [event] = told()
    assert event["type"] == "job.stopped"
    assert event["data"]["why"] == fresh(job).reason


def test_what_waited_for_a_failed_job_is_told_to_have_failed(listening: Cast, machine: Machine) -> None:
    job = started(listening, machine)
    waits = made(listening, name="later", after=[str(job.uid)])
    end(machine, job, code=1)
    assert [(event["type"], event["data"]["job"]["uid"]) for event in told()] == [
        ("job.failed", str(job.uid)),
        ("job.failed", str(waits.uid)),
    ]


def test_a_refused_job_is_told_to_nobody(listening: Cast, machine: Machine) -> None:
    assert post(listening.max, command=[]).status == 400
    assert told() == []
