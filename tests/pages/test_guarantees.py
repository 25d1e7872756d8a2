"""The guarantee of a claim: a line of its chart, and a condition where it is missed."""

import time
from datetime import timedelta

from django.utils import timezone

from apps.accounting.services.guarantees import watch
from apps.nodes.models import Sample, TelemetryMark, UsageTens
from apps.nodes.services.telemetry.levels import TENS, floor
from apps.quotas.models import WebhookDelivery
from apps.quotas.principals import SYSTEM
from apps.scheduling.models import Assignment, Claim
from apps.scheduling.services.claims.lifecycle import release_claim
from apps.scheduling.services.claims.resize import resize_claim
from apps.scheduling.services.claims.spec import ClaimChanges
from gpucloud_cli.commands.describe import _conditions
from tests.cast import Cast, Machine, placed
from tests.measurements import keep
from tests.pages.conftest import SignIn


def measure(assignment: Assignment, core: float, throttled: float, *, seconds: int = 28) -> None:
    """Store a constant use in each of the last seconds."""
    now = timezone.now()
    keep(
        Sample(
            assignment_uid=assignment.uid, at=now - timedelta(seconds=ago), core_percent=core, memory_bytes=0,
            throttled_percent=throttled,
        )
        for ago in range(1, seconds + 1)
    )  # fmt: skip


def missed(browser: SignIn, claim: Claim) -> str:
    """Return the page's condition; empty without one."""
    page = " ".join(browser("vera").get(f"/claims/{claim.uid}/").content.decode().split())
    return page.partition('id="missed-title"')[2].partition("</section>")[0]


def test_a_claim_that_is_held_back_below_its_guarantee_says_so(cast: Cast, machine: Machine, browser: SignIn) -> None:
    claim, assignment = placed(cast, machine, core_request=40)
    measure(assignment, 22, 35)
    assert "gpu1 GPU 0: 22 % of the guaranteed 40 % used over the last 30 s" in missed(browser, claim)
    assert "throttled 35 % of the time" in missed(browser, claim)


def test_a_claim_that_wants_no_more_misses_nothing(cast: Cast, machine: Machine, browser: SignIn) -> None:
    claim, assignment = placed(cast, machine, core_request=40)
    measure(assignment, 22, 0)
    assert missed(browser, claim) == ""


def test_a_claim_at_its_guarantee_or_just_begun_or_best_effort_misses_nothing(
    cast: Cast, machine: Machine, browser: SignIn
) -> None:
    full, begun, last = (placed(cast, machine, core_request=40, best_effort=best) for best in (False, False, True))
    measure(full[1], 38, 60)
    measure(begun[1], 10, 60, seconds=5)
    measure(last[1], 10, 60)
    assert [missed(browser, claim) for claim, _ in (full, begun, last)] == ["", "", ""]


def test_the_chart_has_the_guarantee_of_each_moment(cast: Cast, machine: Machine, browser: SignIn) -> None:
    claim, assignment = placed(cast, machine, core_request=40)
    measure(assignment, 30, 0, seconds=20)
    resize_claim(principal=cast.member, claim=claim, changes=ClaimChanges(core_request=60))
    time.sleep(0.5)  # two steps of the chart
    keep([Sample(assignment_uid=assignment.uid, at=timezone.now(), core_percent=50, memory_bytes=0)])
    (series,) = browser("max").get(f"/claims/{claim.uid}/series/").json()["series"]
    line = series["core_request_percent"]
    assert (line[0], line[-1], len(line)) == (40, 60, len(series["times"]))
    assert sorted(line) == line


def roll(minutes_of: Assignment, core: float, throttled: float) -> None:
    """Store a minute of roll-ups that ended just now."""
    end = floor(timezone.now(), TENS.span)
    facts = {"node_id": minutes_of.gpu.node_id, "gpu_id": minutes_of.gpu_id, "uid": minutes_of.uid, "samples": 10}
    facts |= {"core": core, "core_most": core, "throttled": throttled, "memory": 0, "memory_most": 0, "gpu_time_ms": 0}
    for ago in range(1, 7):
        UsageTens.objects.filter(at=end - ago * TENS.span, uid=minutes_of.uid).delete()
        UsageTens.objects.create(at=end - ago * TENS.span, **facts)
    TelemetryMark.objects.update_or_create(name="rolled", defaults={"at": end})
    Assignment.objects.filter(pk=minutes_of.pk).update(in_force_at=end - timedelta(minutes=5))


def test_a_missed_guarantee_is_a_condition_and_an_event(cast: Cast, machine: Machine, browser: SignIn) -> None:
    claim, item = placed(cast, machine, core_request=40)
    calm, other = placed(cast, machine, core_request=40)
    asked = {"tenant": "acme", "url": "https://example.org/x"}
    events = ["claim.below_guarantee", "claim.guarantee_met"]
    assert cast.anna.post("webhooks/", asked | {"events": events}).status == 201
    roll(item, 22, 35)
    roll(other, 22, 0)
    assert watch() == 1
    assert watch() == 0
    found = cast.vera.get(f"claims/{claim.uid}/").body
    (condition,) = found["conditions"]
    assert ("BelowGuarantee", True, condition["since"], condition["detail"]) in list(_conditions(found))
    assert condition["type"] == "below-guarantee"
    assert condition["detail"].startswith("gpu1 GPU 0: 22 % of the guaranteed 40 % over 60 s, throttled 35 %")
    assert cast.vera.get(f"claims/{calm.uid}/").body["conditions"] == []
    assert "is below its guarantee" in browser("vera").get("/").content.decode()
    roll(item, 39, 35)
    assert watch() == 1
    assert cast.vera.get(f"claims/{claim.uid}/").body["conditions"] == []
    assert list(WebhookDelivery.objects.order_by("pk").values_list("kind", flat=True)) == events


def test_a_released_claim_has_no_condition(cast: Cast, machine: Machine) -> None:
    claim, item = placed(cast, machine, core_request=40)
    roll(item, 22, 35)
    assert watch() == 1
    release_claim(principal=SYSTEM, claim=claim)
    assert cast.vera.get(f"claims/{claim.uid}/").body["conditions"] == []


def test_roll_ups_that_are_late_say_nothing(cast: Cast, machine: Machine) -> None:
    _claim, item = placed(cast, machine, core_request=40)
    roll(item, 22, 35)
    TelemetryMark.objects.filter(name="rolled").update(at=timezone.now() - timedelta(minutes=5))
    assert watch() == 0
