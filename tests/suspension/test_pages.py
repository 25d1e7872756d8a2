"""The page and the list of claims: orders to suspend and resume, with what they would do."""

from collections.abc import Callable

import pytest
from django.test import Client
from django.urls import reverse

from apps.nodes.models import Node
from apps.quotas.models import User
from apps.quotas.principals import SYSTEM
from apps.scheduling.models import Claim
from apps.scheduling.services.cycles.rounds import run_round
from apps.suspension.services import resume_claim, suspend_claim
from tests.cast import GIB, MIB_BYTES, Cast, Machine, ask, placed, seen


@pytest.fixture
def browser(cast: Cast) -> Callable[[str], Client]:
    """Return a function that signs in a member of the cast."""

    def sign_in(name: str) -> Client:
        client = Client()
        client.force_login(User.objects.get(username=name))
        return client

    return sign_in


def page_of(client: Client, claim: Claim) -> str:
    return " ".join(client.get(reverse("claim", args=[claim.uid])).content.decode().split())


def test_the_page_previews_a_suspension_and_gives_the_order(
    cast: Cast, machine: Machine, browser: Callable[[str], Client]
) -> None:
    claim, _ = placed(cast, machine, core_request=30, memory_mib=8 * GIB)
    max_ = browser("max")
    page = page_of(max_, claim)
    assert "Then 1 × 30 % core and 8 GiB are free for others" in page
    assert "Memory of gpu1 for suspended claims: 8 GiB needed, 20 GiB free." in page
    answer = max_.post(reverse("suspend", args=[claim.uid]), follow=True)
    assert "is being suspended" in answer.content.decode()
    assert "can be resized once it is suspended or active" in page_of(max_, claim)
    machine.obey(memory_bytes=3 * GIB * MIB_BYTES)
    page = page_of(max_, claim)
    assert "Its programs stand still, and its GPUs are free for others." in page
    assert "3 GiB of its node’s memory are charged for it." in page
    # A release frees no GPU, and loses what was saved.
    assert "What they saved in the node’s memory is lost." in page
    assert "SIGKILL after 10 s; their next allocation" not in page
    assert "The new limits count when the claim resumes." in page
    assert "gpu1 GPU 0: 100 % core and 24 GiB free" in page
    max_.post(reverse("resume", args=[claim.uid]))
    claim.refresh_from_db()
    assert claim.state == "resuming"


def test_a_node_without_room_is_named_in_the_preview(
    cast: Cast, machine: Machine, browser: Callable[[str], Client]
) -> None:
    claim, _ = placed(cast, machine, memory_mib=22 * GIB)
    page = page_of(browser("max"), claim)
    assert "22 GiB needed, 20 GiB free" in page
    assert "That is not enough" in page
    answer = browser("max").post(reverse("suspend", args=[claim.uid]), follow=True)
    assert "Host memory of node gpu1 exceeded" in answer.content.decode()


def test_nobody_is_offered_what_would_be_refused(
    cast: Cast, machine: Machine, browser: Callable[[str], Client]
) -> None:
    other = Machine("old", cast.pool, model="Old")
    claim, _ = placed(cast, other, gpu_model="Old")
    assert "Suspend…" not in page_of(browser("max"), claim), "its node cannot"
    claim, _ = placed(cast, machine, gpu_model="NVIDIA A10")
    assert "Suspend…" in page_of(browser("max"), claim)
    assert "Suspend…" not in page_of(browser("vera"), claim), "a viewer"
    assert browser("vera").post(reverse("suspend", args=[claim.uid])).status_code == 403
    assert browser("gus").post(reverse("suspend", args=[claim.uid])).status_code == 404


def test_a_claim_that_waits_to_resume_shows_its_place_and_can_stay_suspended(
    cast: Cast, machine: Machine, browser: Callable[[str], Client]
) -> None:
    claim, _ = placed(cast, machine, core_request=100)
    suspend_claim(principal=SYSTEM, claim=claim)
    machine.obey()
    for _ in range(4):
        ask(cast, tenant=cast.globex, core_request=100)
    run_round(cast.pool)
    resume_claim(principal=SYSTEM, claim=claim)
    run_round(cast.pool)
    page = page_of(browser("max"), claim)
    assert "It waits in the queue for GPUs of its node:" in page
    assert "4 GPUs have less than 100 % core free" in page
    assert "Place 1 of 1" in page
    row = browser("max").get(reverse("claims")).content.decode()
    assert "4 GPUs have less than 100 % core free" in row
    browser("max").post(reverse("suspend", args=[claim.uid]))
    claim.refresh_from_db()
    assert claim.state == "suspended"


def test_a_refusal_of_the_node_is_shown(cast: Cast, machine: Machine, browser: Callable[[str], Client]) -> None:
    claim, assignment = placed(cast, machine)
    suspend_claim(principal=SYSTEM, claim=claim)
    machine.say(seen(assignment, suspend_refused="Process 17 uses managed memory: end it."))
    page = page_of(browser("max"), claim)
    assert "left its programs running" in page
    assert "Process 17 uses managed memory: end it." in page


def test_the_list_filters_by_the_states_and_suspends_selected_claims(
    cast: Cast, machine: Machine, browser: Callable[[str], Client]
) -> None:
    claims = [placed(cast, machine, name=f"train-{number}", memory_mib=GIB)[0] for number in range(2)]
    max_ = browser("max")
    suspend_claim(principal=SYSTEM, claim=claims[0])
    found = max_.get(reverse("claims"), {"state": "suspending"}).content.decode()
    assert "train-0" in found
    assert "train-1" not in found


def test_selected_claims_are_suspended_after_a_preview(
    cast: Cast, machine: Machine, browser: Callable[[str], Client]
) -> None:
    running, _ = placed(cast, machine, name="running")
    waiting = ask(cast, name="waiting")
    max_, picks = browser("max"), [f"{running.uid}", f"{waiting.uid}"]
    preview = " ".join(max_.post(reverse("claims"), {"act": "suspend", "pick": picks}).content.decode().split())
    assert "Moves its GPU memory to its node’s memory" in preview
    assert "only an active claim can be suspended" in preview
    running.refresh_from_db()
    assert running.state == "active"
    chosen = [part.partition('"')[0] for part in preview.split(' name="pick" value="')[1:]]
    max_.post(reverse("claims"), {"act": "suspend", "pick": chosen, "confirmed": "yes"})
    running.refresh_from_db()
    assert running.state == "suspending"


def test_the_page_moves_a_claim_and_says_if_that_failed(
    cast: Cast, machine: Machine, browser: Callable[[str], Client]
) -> None:
    claim, assignment = placed(cast, machine, core_request=30, memory_mib=8 * GIB)
    max_ = browser("max")
    page = page_of(max_, claim)
    assert "stop where they are for up to 6 s, and go on on other GPUs of gpu1" in page
    assert "move-dialog" not in page_of(browser("vera"), claim)
    answer = max_.post(reverse("move", args=[claim.uid]), follow=True)
    assert "is being moved to another GPU" in answer.content.decode()
    assert "Its programs stand still while their GPU memory moves to another GPU" in page_of(max_, claim)
    machine.obey()
    assert "Being moved" in page_of(max_, claim)
    machine.say(seen(assignment, "suspended", suspend_refused="It has no device file of GPU-1."))
    machine.obey()
    page = page_of(max_, claim)
    assert "The node could not move the claim, and its programs go on where they were:" in page
    assert "It has no device file of GPU-1." in page
    Node.objects.update(can_move=False)
    assert "move-dialog" not in page_of(max_, claim)
