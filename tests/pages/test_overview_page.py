"""The overview: utilization, its history, and free capacity."""

import json
from datetime import timedelta
from typing import Any

import pytest
from django.utils import timezone

from apps.console.overview import fleet_map
from apps.console.overview.attention import notices
from apps.console.overview.capacity import room_of
from apps.console.overview.fleet_map import read_fleet_map
from apps.console.shell.measurements import Use, use_of_gpus
from apps.nodes.models import FleetMinute, Gpu, Node, Sample
from apps.nodes.services.gpu_rows import GpuRow
from apps.nodes.services.telemetry.levels import MINUTE, floor
from apps.quotas.models import Pool
from apps.quotas.principals import SYSTEM
from apps.quotas.services import tenants
from tests.cast import GIB, Cast, Machine, placed
from tests.measurements import keep
from tests.pages.conftest import SignIn


def text(answer: Any) -> str:
    return " ".join(answer.content.decode().split())


def device(core: int, memory_mib: int, outside: int = 0) -> GpuRow:
    """Return a GPU of 1,000 MiB with this much allocated, and this much used without a claim."""
    return GpuRow(1, 1, "GPU-1", 0, "A", 1000, True, False, "", core, memory_mib, outside, outside)


def test_hours_live_in_the_url_and_nonsense_is_one(cast: Cast, machine: Machine, browser: SignIn) -> None:
    at = floor(timezone.now(), MINUTE.span) - MINUTE.span
    FleetMinute.objects.create(at=at, gpus=4, core_used=12.5, memory_used=3, core_leased=50, memory_leased=25)
    olga = browser("olga")
    for asked, seconds in (("6", 21_600), ("24", 86_400), ("7", 3600), ("x", 3600)):
        found = json.loads(olga.get(f"/fleet/series/?hours={asked}").content)
        assert found["window_seconds"] == seconds, asked
        assert found["series"][0]["core_used"] == [12.5]
    page = text(olga.get("/?hours=6"))
    assert 'href="/?hours=6" aria-current="true"' in page
    assert 'hx-get="/?hours=6"' in page


def test_jobs_and_notebooks_begin_here_where_a_pool_runs_them(cast: Cast, machine: Machine, browser: SignIn) -> None:
    def offered(name: str) -> bool:
        page = browser(name).get("/").content.decode()
        assert ("/jobs/new/" in page) == ("/jobs/new-notebook/" in page)
        return "/jobs/new/" in page

    assert not offered("max")
    Pool.objects.filter(pk=cast.pool.pk).update(jobs=True)
    assert offered("max")
    assert not offered("vera"), "who may only look"


def test_the_fleets_history_is_the_operators(cast: Cast, machine: Machine, browser: SignIn) -> None:
    assert browser("anna").get("/fleet/series/").status_code == 403
    page = text(browser("anna").get("/"))
    assert "fleet-history" not in page
    assert "Still fits" not in page


def test_what_still_fits_is_said_by_model(cast: Cast, machine: Machine, browser: SignIn) -> None:
    for _ in range(4):
        placed(cast, machine, core_request=60, memory_mib=4 * GIB)
    page = text(browser("olga").get("/"))
    assert "40 % with 20 GiB" in page
    assert "0 of 4 GPUs that take claims are wholly free" in page
    Node.objects.update(cordoned=True)
    assert "nothing" in text(browser("olga").get("/"))


def test_a_gpu_that_ails_is_not_ready(cast: Cast, machine: Machine) -> None:
    machine.obey()
    before = read_fleet_map(SYSTEM).totals
    Gpu.objects.filter(node__name="gpu1", index=0).update(unhealthy="XID 79")
    after = read_fleet_map(SYSTEM).totals
    assert (after.gpus, after.gpus_ready) == (before.gpus, before.gpus_ready - 1)


def test_a_share_with_more_memory_is_told_beside_one_with_more_core() -> None:
    sizes = [(90, 100), (40, 50), (100, 500), (20, 20)]
    gpus = [device(core, used) for core, used in sizes]
    (room,) = room_of([(gpu, 1) for gpu in gpus])
    # 10 % with 900 MiB is less of both than 60 % with 950.
    assert room.fits == [(80, 980)]
    gpus[3] = device(20, 600)
    (room,) = room_of([(gpu, 1) for gpu in gpus])
    assert room.fits == [(80, 400), (60, 950)]


def test_a_gpu_that_a_pod_uses_without_a_claim_is_not_wholly_free() -> None:
    gpus = [device(0, 0, outside) for outside in (0, 30)]
    (room,) = room_of([(gpu, 1) for gpu in gpus])
    assert (room.gpus, room.whole) == (2, 1)


def test_a_large_fleet_is_drawn_as_strips_and_a_small_one_is_not(cast: Cast, machine: Machine, browser: SignIn) -> None:
    placed(cast, machine, core_request=40)
    gpu = Gpu.objects.get(core_used=40)
    keep([Sample(gpu_id=gpu.pk, at=timezone.now(), core_percent=30, memory_bytes=0)])
    assert "strip" not in text(browser("olga").get("/"))
    for number in range(12):
        Node.objects.create(name=f"more{number}", pool=cast.pool)
    page = text(browser("olga").get("/"))
    assert page.count('class="strip"') == 13
    # Both are means of its four GPUs, of which one reports.
    assert '10 % <span class="visually-hidden">of core allocated,</span><small>8 % used</small>' in page
    assert page.count("the agent has not connected") == 12
    assert '<path class="cell-leased" d="M0 10h9v-4.0h-9z" />' in page
    assert '<path class="cell-used" d="M2 10h5v-3.0h-5z" />' in page


def test_use_and_allocation_are_parts_of_the_same_gpus(cast: Cast, machine: Machine, browser: SignIn) -> None:
    placed(cast, machine, core_request=40)
    assert "no GPU reports its use" in text(browser("olga").get("/"))
    gpu = Gpu.objects.get(core_used=40)
    keep([Sample(gpu_id=gpu.pk, at=timezone.now(), core_percent=40, memory_bytes=0)])
    totals = read_fleet_map(SYSTEM).totals
    # One of four GPUs is 40 % allocated, and all of that is used.
    assert (totals.core_leased_percent, totals.core_used_percent, totals.gpus_silent) == (10, 10, 3)
    assert "10 % used now; 3 GPUs not reporting" in text(browser("olga").get("/"))


def test_used_now_is_the_mean_of_the_last_seconds_that_were_heard(cast: Cast, machine: Machine) -> None:
    first, second, third, silent = Gpu.objects.order_by("index")
    now, mib = timezone.now(), 1 << 20
    # Heard a moment ago; and of a node whose last heartbeat was eleven seconds ago.
    told = [(first, ago, percent, 100 * percent) for ago, percent in ((1, 40), (3, 20), (8, 100))]
    other = Node.objects.create(name="gpu2", pool=first.node.pool)
    Gpu.objects.filter(pk__in=[second.pk, third.pk]).update(node=other)
    told += [(second, 11, 30, 10), (third, 20, 90, 10)]
    keep(
        Sample(gpu_id=gpu.pk, at=now - timedelta(seconds=ago), core_percent=percent, memory_bytes=memory * mib)
        for gpu, ago, percent, memory in told
    )
    use = use_of_gpus(list(Gpu.objects.all()))
    assert use[first.uuid] == Use(30.0, 3000.0)
    assert use[second.uuid] == Use(30.0, 10.0)
    # Too old for the present, or never heard.
    assert third.uuid not in use
    assert silent.uuid not in use


def test_a_fleet_too_large_to_be_drawn_is_summed_up_by_pool(
    cast: Cast, machine: Machine, browser: SignIn, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Both ways of reading it agree."""
    placed(cast, machine, core_request=40)
    gpu = Gpu.objects.get(core_used=40)
    keep([Sample(gpu_id=gpu.pk, at=timezone.now(), core_percent=30, memory_bytes=GIB << 20)])
    Machine("gpu2", tenants.create_pool(principal=SYSTEM, name="other"))
    Gpu.objects.filter(node__name="gpu2", index=1).update(unhealthy="XID 79")
    Gpu.objects.filter(node__name="gpu2", index=2).update(present=False)
    for name in ("gpu3", "gpu4"):
        Machine(name, cast.pool)
    Node.objects.filter(name="gpu3").update(cordoned=True)
    Node.objects.filter(name="gpu4").update(last_seen_at=timezone.now() - timedelta(hours=1))
    small = read_fleet_map(SYSTEM)
    monkeypatch.setattr(fleet_map, "MOST_DRAWN", 3)
    large = read_fleet_map(SYSTEM)
    assert large.totals == small.totals
    assert large.node_count == small.node_count == 4
    assert {(row.model, row.gpus, row.whole, *row.fits) for row in room_of(large.free)} == {
        (row.model, row.gpus, row.whole, *row.fits) for row in room_of(small.free)
    }
    assert {notice.title for notice in notices(SYSTEM, large)} == {notice.title for notice in notices(SYSTEM, small)}
    assert [(one.pool, one.nodes, one.totals.gpus) for one in large.pools] == [("default", 3, 12), ("other", 1, 3)]
    # Drawn are those with problems alone.
    assert [node.name for node, _ in large.nodes] == ["gpu3", "gpu4", "gpu2"]
    page = text(browser("olga").get("/"))
    assert '<a href="/nodes/?pool=other">other</a>' in page
    assert "All 4 nodes" in page
    assert page.count('class="cell"') == 0
