"""A node's heartbeats, and draining it from its page."""

import json
from datetime import timedelta
from typing import Any

from django.utils import timezone

from apps.console.nodes.drain import heartbeat
from apps.nodes.models import Node, UsageMinute
from apps.nodes.models.rolled import WHOLE_GPU
from apps.nodes.services.nodes import change_node
from apps.nodes.services.telemetry.levels import MINUTE, floor
from apps.quotas.principals import SYSTEM
from apps.scheduling.services.claims.lifecycle import release_claim
from apps.scheduling.services.reclaiming.draining import drain_node, drive
from tests.cast import Cast, Machine, placed
from tests.pages.conftest import SignIn


def text(answer: Any) -> str:
    return " ".join(answer.content.decode().split())


def test_a_node_is_drained_after_a_look_at_who_moves(cast: Cast, machine: Machine, browser: SignIn) -> None:
    placed(cast, machine, name="train-7")
    olga = browser("olga")
    page = text(olga.get("/nodes/gpu1/drain/"))
    assert "train-7" in page
    assert "1 of them would wait" in page
    Machine("gpu2", cast.pool)
    posted = {"mode": "requeue", "grace_seconds": "120", "version": Node.objects.get(name="gpu1").version}
    page = text(olga.post("/nodes/gpu1/drain/", {**posted, "act": "preview"}))
    assert 'href="/nodes/gpu2/"' in page
    assert "2 min later" in page
    assert json.loads(olga.get("/nodes/gpu1/drain/?format=json").content)[0]["to"] == "gpu2"
    assert Node.objects.get(name="gpu1").draining_at is None
    assert olga.post("/nodes/gpu1/drain/", {**posted, "act": "drain"}).status_code == 302
    node = Node.objects.get(name="gpu1")
    assert (node.cordoned, node.drain_grace_seconds) == (True, 120)
    assert "Draining since" in text(olga.get("/nodes/gpu1/"))


def test_a_member_reads_the_notice_of_a_drain_on_the_claims_page(cast: Cast, machine: Machine, browser: SignIn) -> None:
    claim, _ = placed(cast, machine, name="train-7")
    max_ = browser("max")
    assert "Preemption notice" not in text(max_.get(f"/claims/{claim.uid}/"))
    node = Node.objects.get(name="gpu1")
    drain_node(principal=SYSTEM, node=node, grace_seconds=600)
    drive()
    page = text(max_.get(f"/claims/{claim.uid}/"))
    assert "Preemption notice" in page
    assert "Its node is being drained: at " in page


def test_who_was_overtaken_drains_nothing(cast: Cast, machine: Machine, browser: SignIn) -> None:
    olga, version = browser("olga"), Node.objects.get(name="gpu1").version
    answer = olga.post(
        "/nodes/gpu1/drain/", {"version": "999", "act": "drain", "mode": "requeue", "grace_seconds": "60"}
    )
    assert answer.status_code == 422
    assert Node.objects.get(name="gpu1").draining_at is None
    # The preview in the refusal is current, and may be sent.
    form = text(answer)
    assert f'name="version" value="{version}"' in form
    assert 'name="grace_seconds" value="60"' in form


def test_a_heartbeat_tells_whole_minutes_from_parts_and_silence(cast: Cast, machine: Machine) -> None:
    now = timezone.now()
    end = floor(now, MINUTE.span) - MINUTE.span
    Node.objects.update(enrolled_at=end - timedelta(minutes=3))
    facts = {"node_id": machine.node.pk, "gpu_id": machine.gpu().pk, "uid": WHOLE_GPU, "core": 1, "core_most": 1}
    facts |= {"memory": 0, "memory_most": 0, "gpu_time_ms": 0}
    for minutes, samples in ((3, 60), (2, 12)):
        UsageMinute.objects.create(at=end - timedelta(minutes=minutes), samples=samples, **facts)
    found = heartbeat(Node.objects.get(name="gpu1"), now=now)
    assert (found.minutes, found.minutes_with_frames) == (["whole", "part", "silent"], 2)


def test_a_draining_node_shows_how_many_claims_have_left(cast: Cast, machine: Machine, browser: SignIn) -> None:
    machine.stay_online()
    claims = [placed(cast, machine)[0] for _ in range(3)]
    drain_node(principal=SYSTEM, node=machine.node, grace_seconds=600)
    olga = browser("olga")
    for page in ("/nodes/gpu1/", "/nodes/", "/"):
        assert "Draining 0/3" in olga.get(page).content.decode(), page
    release_claim(principal=SYSTEM, claim=claims[0])
    machine.obey()
    for page in ("/nodes/gpu1/", "/nodes/?state=draining", "/"):
        assert "Draining 1/3" in olga.get(page).content.decode(), page
    assert "Draining" not in _rows(olga.get("/nodes/?state=cordoned").content.decode())
    change_node(principal=SYSTEM, node=machine.node, cordoned=False)
    assert "Draining 1/3" not in olga.get("/nodes/gpu1/").content.decode()


def _rows(page: str) -> str:
    return page.partition("<tbody>")[2].partition("</tbody>")[0]
