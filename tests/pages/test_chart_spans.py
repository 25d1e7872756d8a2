"""The time that charts show: ranges up to 30 days, and a selected span in finer steps."""

from datetime import datetime, timedelta
from typing import Any

import pytest
from django.utils import timezone

from apps.nodes.models import Gpu, Sample, TelemetryMark, UsageHour, UsageMinute
from apps.nodes.models.rolled import WHOLE_GPU
from apps.nodes.services.telemetry.levels import HOUR, MINUTE, floor
from apps.quotas.models import User
from apps.scheduling.models import Assignment
from apps.scheduling.services.claims.resize import resize_claim
from apps.scheduling.services.claims.spec import ClaimChanges
from tests.cast import Cast, Machine, placed
from tests.measurements import keep
from tests.pages.conftest import SignIn


def rolled(item: Assignment, model: Any, at: datetime, core: float) -> None:
    """Store one span of an assignment's roll-up."""
    facts = {"node_id": item.gpu.node_id, "gpu_id": item.gpu_id, "uid": item.uid, "samples": 60}
    facts |= {"core": core, "core_most": core, "memory": 0, "memory_most": 0, "gpu_time_ms": 0}
    model.objects.create(at=at, **facts)


def series(browser: SignIn, item: Assignment, query: str) -> tuple[dict[str, Any], dict[str, Any]]:
    """Return the answer for a claim's charts, and the series of its assignment."""
    answer = browser("vera").get(f"/claims/{item.claim.uid}/series/{query}").json()
    return answer, next(one for one in answer["series"] if one["key"] == str(item.uid))


def test_a_claims_charts_reach_back_30_days(cast: Cast, machine: Machine, browser: SignIn) -> None:
    _claim, item = placed(cast, machine)
    now = timezone.now()
    TelemetryMark.objects.update_or_create(name="rolled", defaults={"at": floor(now, HOUR.span)})
    for days in (2, 20):
        rolled(item, UsageHour, floor(now - timedelta(days=days), HOUR.span), core=10.0 * days)
    keep([Sample(assignment_uid=item.uid, at=now - timedelta(seconds=2), core_percent=50, memory_bytes=0)])
    seen = {}
    for name in ("5m", "7d", "30d"):
        answer, found = series(browser, item, f"?range={name}")
        seen[name] = (answer["live"], [round(core) for core in found["core_percent"]])
        assert max(found["times"]) <= answer["now"]
    assert seen == {"5m": (True, [50]), "7d": (False, [20, 50]), "30d": (False, [200, 20, 50])}
    page = browser("vera").get(f"/claims/{item.claim.uid}/?range=30d").content.decode()
    assert 'href="?range=30d" aria-current="true"' in page
    assert 'data-series-seconds="30"' in page


def test_a_selected_span_has_finer_steps(cast: Cast, machine: Machine, browser: SignIn) -> None:
    _claim, item = placed(cast, machine)
    now = timezone.now()
    TelemetryMark.objects.update_or_create(name="rolled", defaults={"at": floor(now, HOUR.span)})
    begin = floor(now - timedelta(days=3), HOUR.span)
    for minute in range(60):
        rolled(item, UsageMinute, begin + minute * MINUTE.span, core=minute)
    span = f"&from={begin.timestamp()}&to={(begin + timedelta(hours=1)).timestamp()}"
    answer, found = series(browser, item, f"?range=30d{span}")
    assert (answer["step_seconds"], answer["window_seconds"], len(found["times"])) == (60, 3600, 60)


@pytest.mark.parametrize(
    "query",
    ["?range=1y", "?from=1&to=2", "?from=nan&to=inf", "?from=1e400&to=-1e400", "?from=9&to=x", "?from=5000&to=5001"],
)
def test_a_wrong_span_is_the_last_five_minutes(cast: Cast, machine: Machine, browser: SignIn, query: str) -> None:
    _claim, item = placed(cast, machine)
    answer, _found = series(browser, item, query)
    assert (answer["live"], answer["window_seconds"]) == (True, 300)


def test_a_gpus_charts_have_the_whole_gpu_and_reach_as_far(cast: Cast, machine: Machine, browser: SignIn) -> None:
    claim, item = placed(cast, machine)
    keep([Sample(assignment_uid=item.uid, at=timezone.now(), core_percent=5, memory_bytes=0)])
    olga = browser("olga")
    (share,) = (
        one for one in olga.get(f"/gpus/{item.gpu.uuid}/series/").json()["series"] if one["key"] == str(item.uid)
    )
    assert share["core_request_percent"] == [claim.core_request]
    answer = olga.get(f"/gpus/{item.gpu.uuid}/series/?range=30d").json()
    assert [one["key"] for one in answer["series"]] == [item.gpu.uuid, str(item.uid)]
    assert answer["window_seconds"] == 30 * 86_400
    page = olga.get(f"/gpus/{item.gpu.uuid}/?range=30d").content.decode()
    assert f'data-chart="gpu" data-key="{item.gpu.uuid}"' in page


def test_a_nodes_charts_reach_as_far_with_each_boards_power(cast: Cast, machine: Machine, browser: SignIn) -> None:
    first, silent, *_ = Gpu.objects.filter(node__name="gpu1").order_by("index")
    now = timezone.now()
    TelemetryMark.objects.update_or_create(name="rolled", defaults={"at": floor(now, HOUR.span)})
    ago = floor(now - timedelta(days=20), HOUR.span)
    facts = {"node_id": machine.node.pk, "uid": WHOLE_GPU, "samples": 3600, "core_most": 0, "memory_most": 0}
    facts |= {"memory": 0, "gpu_time_ms": 0}
    UsageHour.objects.create(at=ago, gpu_id=first.pk, core=70, watts=250, **facts)
    UsageHour.objects.create(at=ago, gpu_id=silent.pk, core=30, watts=None, **facts)
    olga = browser("olga")
    answer = olga.get("/nodes/gpu1/series/?range=30d").json()
    found = {one["key"]: one for one in answer["series"]}
    assert (answer["live"], answer["window_seconds"]) == (False, 30 * 86_400)
    assert (found[first.uuid]["core_percent"], found[silent.uuid]["core_percent"]) == ([70], [30])
    assert found[f"{first.uuid}/power"]["power_watts"] == [250]
    assert found[f"{silent.uuid}/power"]["times"] == []
    window = f"from={(ago - HOUR.span).isoformat()}&to={(ago + HOUR.span).isoformat()}&step=3600".replace("+", "%2B")
    (told,) = cast.olga.get(f"utilization/?gpu={first.uuid}&{window}").body["series"]
    assert (told["times"], told["power_watts"]) == ([ago.timestamp()], [250])
    span = f"&from={ago.timestamp() - 7200}&to={ago.timestamp() + 7200}"
    assert olga.get(f"/nodes/gpu1/series/?range=30d{span}").json()["window_seconds"] == 4 * 3600
    page = olga.get("/nodes/gpu1/?range=30d").content.decode()
    assert 'href="?range=30d" aria-current="true"' in page
    assert '<span class="muted" data-span>last 30 days</span>' in page
    assert 'data-series="/nodes/gpu1/series/?range=30d"' in page


def test_a_past_spans_guarantee_is_that_of_its_time(cast: Cast, machine: Machine, browser: SignIn) -> None:
    claim, item = placed(cast, machine, core_request=40)
    now = timezone.now()
    ago = now - timedelta(minutes=2)
    keep([Sample(assignment_uid=item.uid, at=ago, core_percent=30, memory_bytes=0)])
    resize_claim(principal=cast.member, claim=claim, changes=ClaimChanges(core_request=60))
    span = f"&from={ago.timestamp() - 20}&to={ago.timestamp() + 20}"
    answer, found = series(browser, item, f"?range=5m{span}")
    assert (found["core_request_percent"], answer["marks"]) == ([40], [])


def test_charts_have_the_readers_zone(cast: Cast, machine: Machine, browser: SignIn) -> None:
    claim, _item = placed(cast, machine)
    User.objects.filter(username="vera").update(time_zone="Asia/Taipei")
    assert 'data-zone="Asia/Taipei"' in browser("vera").get(f"/claims/{claim.uid}/").content.decode()
    assert 'data-zone="UTC"' in browser("max").get(f"/claims/{claim.uid}/").content.decode()
