"""The fleet's attention list: each fault of a node or a GPU is listed, and nothing else."""

from datetime import timedelta

from django.utils import timezone

from apps.console.overview import attention
from apps.nodes.models import Gpu, Node
from tests.cast import Cast, Machine, gpu_uuid
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


def test_each_kind_is_told_six_times_at_most(cast: Cast, machine: Machine, browser: SignIn) -> None:
    for number in range(attention.MOST + 2):
        Node.objects.create(name=f"more{number}", pool=cast.pool)
    Gpu.objects.filter(node=machine.node).update(unhealthy="XID 79")
    Node.objects.filter(pk=machine.node.pk).update(fenced_at=timezone.now(), fenced_why="Process 7 is unlimited.")
    awaited = [f"Node more{number} awaits its agent" for number in range(attention.MOST)]
    sick = [f"GPU {index} of gpu1 is unhealthy" for index in range(4)]
    assert attention_titles(browser) == [*awaited, "Node gpu1 is fenced", *sick]


def test_members_are_told_nothing_of_nodes(cast: Cast, machine: Machine, browser: SignIn) -> None:
    Node.objects.filter(pk=machine.node.pk).update(last_seen_at=timezone.now() - timedelta(hours=1))
    assert "gpu1 is lost" not in browser("max").get("/").content.decode()
    assert "gpu1 is lost" in browser("olga").get("/").content.decode()
