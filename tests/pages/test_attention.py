"""The fleet's attention list: each fault of a node or a GPU is listed, and nothing else."""

from datetime import timedelta

from django.utils import timezone

from apps.console.overview import notices
from apps.nodes.models import Gpu, Node
from apps.scheduling.models import Claim
from apps.scheduling.services.cycles.rounds import run_round
from tests.cast import GIB, Cast, Machine, ask, gpu_uuid, placed
from tests.pages.conftest import SignIn


def attention_titles(browser: SignIn) -> list[str]:
    """Return the titles on the operator's overview."""
    notices = browser("olga").get("/").context["notices"]
    return [notice.title for notice in notices]


def test_a_gpu_that_its_agent_no_longer_sees_is_told(machine: Machine, browser: SignIn) -> None:
    assert attention_titles(browser) == []
    Gpu.objects.filter(uuid=gpu_uuid("gpu1", 2)).update(present=False)
    assert attention_titles(browser) == ["GPU 2 of gpu1 is gone"]
    # For a lost node only that is listed: the state of its GPUs is unknown.
    Node.objects.filter(pk=machine.node.pk).update(last_seen_at=timezone.now() - timedelta(hours=1))
    assert attention_titles(browser) == ["Node gpu1 is lost"]


def test_each_kind_is_told_in_groups(cast: Cast, machine: Machine, browser: SignIn) -> None:
    for number in range(notices.MOST + 2):
        Node.objects.create(name=f"more{number}", pool=cast.pool)
    Gpu.objects.filter(node=machine.node).update(unhealthy="XID 79")
    Node.objects.filter(pk=machine.node.pk).update(fenced_at=timezone.now(), fenced_why="Process 7 is unlimited.")
    for index in range(2):
        Gpu.objects.filter(node=machine.node, index=index).update(unhealthy=f"XID {index}")
    sick = [f"GPU {index} of gpu1 is unhealthy" for index in range(2)]
    assert attention_titles(browser) == [
        "8 nodes await their agent", "Node gpu1 is fenced", *sick, "2 GPUs are unhealthy",
    ]  # fmt: skip


def test_equal_notices_are_one_that_names_their_objects(cast: Cast, machine: Machine, browser: SignIn) -> None:
    for number in range(notices.MOST + 2):
        Node.objects.create(name=f"more{number}", pool=cast.pool)
    page = " ".join(browser("olga").get("/").content.decode().split())
    assert page.count("8 nodes await their agent") == 1
    assert '<a href="/nodes/more5/">more5</a> and 2 more' in page
    assert '<span class="count">1</span>' in page


def test_claims_that_wait_for_the_same_are_one_notice(cast: Cast, machine: Machine, browser: SignIn) -> None:
    for number in range(3):
        ask(cast, name=f"wait{number}", memory_mib=20 * GIB, core_request=80)
    Node.objects.update(cordoned=True)
    run_round(cast.pool)
    (notice,) = browser("max").get("/").context["notices"]
    assert (notice.title, [name for name, _ in notice.objects]) == (
        "3 claims wait", [f"acme/wait{number}" for number in range(3)],
    )  # fmt: skip


def test_a_claim_that_came_back_to_the_queue_waits_since_then(cast: Cast, machine: Machine, browser: SignIn) -> None:
    claim, _ = placed(cast, machine)
    an_hour = timezone.now() - timedelta(hours=1)
    now = timezone.now()
    timeline = [["pending", an_hour.isoformat()], ["active", an_hour.isoformat()], ["queued", now.isoformat()]]
    Claim.objects.filter(pk=claim.pk).update(created_at=an_hour, timeline=timeline, state="queued")
    (notice,) = browser("max").get("/").context["notices"]
    assert notice.since == now
    assert f'datetime="{now.isoformat()}"' in browser("max").get("/queue/").content.decode()
    later = now + timedelta(minutes=1)
    assert Claim(state="queued", timeline=timeline, start_at=later).waiting_since == later
    assert Claim(state="active", timeline=timeline).waiting_since is None


def test_members_are_told_nothing_of_nodes(cast: Cast, machine: Machine, browser: SignIn) -> None:
    Node.objects.filter(pk=machine.node.pk).update(last_seen_at=timezone.now() - timedelta(hours=1))
    assert "gpu1 is lost" not in browser("max").get("/").content.decode()
    assert "gpu1 is lost" in browser("olga").get("/").content.decode()
