"""A claim that borrows memory on the pages: made, shown, changed, and refused in words."""

import pytest
from django.test import Client

from apps.quotas.principals import SYSTEM
from apps.scheduling.models import Claim
from apps.scheduling.services.claims.sharing import change_pool
from apps.scheduling.services.cycles.rounds import run_round
from tests.cast import GIB, Cast, Machine, give_plenty
from tests.pages.conftest import SignIn

SIZE = {"tenant": "acme", "name": "sweep", "pool": "default", "gpu_count": "1", "core_request": "10", "weight": "1"}


@pytest.fixture
def machine(cast: Cast) -> Machine:
    give_plenty(cast.acme)
    change_pool(principal=SYSTEM, pool=cast.pool, lend_memory=True, sharing_policy="preempt")
    return Machine("gpu1", cast.pool, host_memory_mib=64 * GIB).stay_online()


@pytest.fixture
def max_(browser: SignIn) -> Client:
    return browser("max")


def text(answer: object) -> str:
    return " ".join(answer.content.decode().split())  # type: ignore[attr-defined]


def make(cast: Cast, machine: Machine, max_: Client) -> Claim:
    asked = {**SIZE, "memory_mib": "2 GiB", "memory_limit_mib": "12 GiB", "best_effort": "on"}
    assert max_.post("/claims/new/", asked).status_code == 302
    run_round(cast.pool)
    machine.obey()
    return Claim.objects.get()


def test_it_is_made_shown_and_changed(cast: Cast, machine: Machine, max_: Client) -> None:
    claim = make(cast, machine, max_)
    shown = text(max_.get(f"/claims/{claim.uid}/"))
    assert "12 GiB, 2 GiB of it promised" in shown
    assert "of 12 GiB" in shown, "what it uses is compared with what it may use"
    form = max_.get(f"/claims/{claim.uid}/sharing/").context["form"]
    sent = {name: form[name].value() for name in form.fields} | {"memory_limit_mib": "16 GiB"}
    sent = {name: value for name, value in sent.items() if value not in (None, False)}
    answer = max_.post(f"/claims/{claim.uid}/sharing/", sent, follow=True)
    assert "memory limit 12288 → 16384 MiB" in text(answer)
    claim.refresh_from_db()
    assert claim.memory_limit_mib == 16 * GIB


def test_a_refusal_is_said_in_the_form(cast: Cast, machine: Machine, max_: Client) -> None:
    answer = max_.post("/claims/new/", {**SIZE, "memory_mib": "2 GiB", "memory_limit_mib": "12 GiB"})
    assert "Only best-effort claims borrow memory" in text(answer)
    assert not Claim.objects.exists()
