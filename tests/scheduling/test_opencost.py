"""Charges in the shape of OpenCost's allocations: sums, steps, windows, properties, and what its clients ask for."""

from datetime import UTC, datetime, timedelta
from typing import Any

import pytest

from apps.accounting.api.opencost import read_window
from apps.accounting.services.allocations import roll_up
from tests.cast import MODEL, Api, Cast, Machine, give_plenty, placed
from tests.scheduling.clock import Clock
from tests.scheduling.test_focus import use_for_days
from tests.scheduling.test_usage_reports import report

# github.com/opencost/opencost, docs/swagger.json: the fields of an allocation that are numbers.
NUMBERS = {
    "cpuCoreHours", "cpuCoreRequestAverage", "cpuCoreUsageAverage", "cpuCores", "cpuCost", "cpuCostAdjustment",
    "cpuEfficiency", "externalCost", "gpuCost", "gpuCostAdjustment", "gpuCount", "gpuHours", "loadBalancerCost",
    "loadBalancerCostAdjustment", "minutes", "networkCost", "networkCostAdjustment", "networkReceiveBytes",
    "networkTransferBytes", "pvByteHours", "pvBytes", "pvCost", "pvCostAdjustment", "ramByteHours",
    "ramByteRequestAverage", "ramByteUsageAverage", "ramBytes", "ramCost", "ramCostAdjustment", "ramEfficiency",
    "sharedCost", "totalCost", "totalEfficiency",
}  # fmt: skip
PROPERTIES = {"cluster", "namespace", "controllerKind", "controller", "pod", "container", "labels"}
JUNE = "2026-06-01T00:00:00Z,2026-07-01T00:00:00Z"
NOW = datetime(2026, 6, 17, 10, 30, tzinfo=UTC)


@pytest.fixture
def machine(clock: Clock, cast: Cast) -> Machine:
    give_plenty(cast.acme, cast.globex)
    return Machine("gpu1", cast.pool)


def sets(who: Api, window: str = JUNE, query: str = "") -> list[dict[str, Any]]:
    answer = who.get(f"reports/opencost/?window={window}{query}")
    assert answer.status == 200, answer.body
    assert (answer.body["code"], answer.body["status"]) == (200, "success")
    data: list[dict[str, Any]] = answer.body["data"]
    return data


def test_allocations_have_the_fields_and_sums_that_clients_of_opencost_read(
    cast: Cast, machine: Machine, clock: Clock
) -> None:
    use_for_days(cast, machine, clock)
    (whole,) = sets(cast.vera)
    total = report(cast.vera)["total"]
    assert len(whole) == 2
    for name, found in whole.items():
        assert found["name"] == name
        assert found.keys() >= NUMBERS
        assert all(found[key] is None or isinstance(found[key], float) for key in NUMBERS)
        assert found["window"] == {"start": "2026-06-01T00:00:00Z", "end": "2026-07-01T00:00:00Z"}
        assert found["properties"].keys() <= PROPERTIES
        assert name == "/".join(found["properties"][key] for key in ("cluster", "namespace", "pod"))
        assert found["gpuHours"] == pytest.approx(found["gpuCount"] * found["minutes"] / 60, abs=1e-3)
    assert sum(found["gpuHours"] for found in whole.values()) == pytest.approx(
        float(total["gpu_hours_reserved"]), abs=1e-4
    )
    assert sum(found["totalCost"] for found in whole.values()) == pytest.approx(float(total["cost_reserved"]), abs=1e-3)


def test_steps_divide_the_window_and_add_up_to_it(cast: Cast, machine: Machine, clock: Clock) -> None:
    use_for_days(cast, machine, clock)
    (whole,) = sets(cast.vera, query="&aggregate=namespace&step=1d&accumulate=true")
    days = sets(cast.vera, query="&aggregate=namespace&step=1d")
    assert len(days) == 30
    assert [day["acme"]["window"]["start"][:10] for day in days if day] == ["2026-06-15", "2026-06-16"]
    for field in ("gpuHours", "gpuCost", "minutes"):
        assert sum(day["acme"][field] for day in days if day) == pytest.approx(whole["acme"][field], abs=1e-3)


def test_names_are_made_of_the_aggregated_properties(cast: Cast, machine: Machine, clock: Clock) -> None:
    use_for_days(cast, machine, clock)
    (owners,) = sets(cast.vera, query="&aggregate=namespace,label:owner,label:gpu_model")
    ((name, found),) = owners.items()
    owner = found["properties"]["labels"]["owner"]
    assert name == f"acme/{owner}/{MODEL}"
    assert found["properties"] == {"namespace": "acme", "labels": {"owner": owner, "gpu_model": MODEL}}
    (everything,) = sets(cast.vera, query="&aggregate=all")
    assert list(everything) == ["all"]
    # What the parquet exporter of the OpenCost project asks for unless told otherwise.
    asked = "&includeIdle=false&idleByNode=false&includeProportionalAssetResourceCosts=false&format=json"
    (pods,) = sets(cast.vera, query=f"{asked}&step=30d&aggregate=namespace,pod,container")
    assert {found["properties"]["container"] for found in pods.values()} == {"train", "=other"}


def test_efficiency_is_the_measured_part_of_what_was_allocated(cast: Cast, machine: Machine, clock: Clock) -> None:
    placed(cast, machine, core_request=50)
    clock.advance(hours=2)
    (before,) = sets(cast.vera, "3h", "&aggregate=namespace")
    assert (before["acme"]["gpuEfficiency"], before["acme"]["gpuUsageAverage"]) == (None, None)
    roll_up()
    (after,) = sets(cast.vera, "3h", "&aggregate=namespace")
    assert (after["acme"]["gpuEfficiency"], after["acme"]["gpuCount"]) == (0.0, 0.5)


def test_a_tenant_sees_its_own_allocations_only(cast: Cast, machine: Machine, clock: Clock) -> None:
    use_for_days(cast, machine, clock)
    assert sets(cast.gus) == [{}]
    assert cast.gus.get(f"reports/opencost/?window={JUNE}&tenant=acme").status == 404


@pytest.mark.parametrize(
    ("window", "begin", "end"),
    [
        ("today", "2026-06-17T00:00", "2026-06-17T10:30"),
        ("yesterday", "2026-06-16T00:00", "2026-06-17T00:00"),
        ("week", "2026-06-14T00:00", "2026-06-17T10:30"),
        ("lastweek", "2026-06-07T00:00", "2026-06-14T00:00"),
        ("month", "2026-06-01T00:00", "2026-06-17T10:30"),
        ("lastmonth", "2026-05-01T00:00", "2026-06-01T00:00"),
        ("90m", "2026-06-17T09:00", "2026-06-17T10:30"),
        ("7d", "2026-06-10T10:30", "2026-06-17T10:30"),
        ("1780272000,1780358400", "2026-06-01T00:00", "2026-06-02T00:00"),
        ("2026-06-01T00:00:00+02:00,2026-06-02T00:00:00Z", "2026-05-31T22:00", "2026-06-02T00:00"),
    ],
)
def test_windows_are_read_as_opencost_reads_them(window: str, begin: str, end: str) -> None:
    expected = tuple(datetime.fromisoformat(f"{moment}+00:00") for moment in (begin, end))
    assert read_window(window, NOW) == expected


@pytest.mark.parametrize(
    ("query", "field"),
    [
        ("window=", "window"),
        ("window=fortnight", "window"),
        ("window=0d", "window"),
        ("window=999999w", "window"),
        ("window=7d&step=999999w", "step"),
        ("window=2026-06-01,2026-06-02", "window"),
        ("window=99999999999999,1", "window"),
        ("window=1,2,3", "window"),
        ("window=7d&step=day", "step"),
        ("window=7d&aggregate=deployment", "aggregate"),
        ("window=7d&aggregate=", "aggregate"),
        ("window=7d&format=csv", "format"),
        ("window=7d&filter=x", "filter"),
    ],
)
def test_a_query_that_is_wrong_is_refused_with_its_field(cast: Cast, query: str, field: str) -> None:
    answer = cast.vera.get(f"reports/opencost/?{query}")
    assert (answer.status, list(answer.body.get("errors", answer.body))) == (400, [field])


@pytest.mark.parametrize(
    "query", ["window=2026-07-01T00:00:00Z,2026-06-01T00:00:00Z", "window=400d", "window=300d&step=1h"]
)
def test_a_window_that_is_too_long_or_reversed_is_refused(cast: Cast, query: str) -> None:
    answer = cast.vera.get(f"reports/opencost/?{query}")
    assert (answer.status, answer.code) == (422, "period-invalid")


def test_a_window_of_another_zone_is_shown_in_utc(cast: Cast, machine: Machine, clock: Clock) -> None:
    use_for_days(cast, machine, clock)
    (found,) = sets(cast.vera, "2026-06-01T00:00:00%2B02:00,2026-07-01T00:00:00Z", "&aggregate=namespace")
    assert found["acme"]["window"]["start"] == "2026-05-31T22:00:00Z"


def test_the_window_may_end_in_the_future(cast: Cast, machine: Machine, clock: Clock) -> None:
    placed(cast, machine, core_request=50)
    begun = clock.now
    clock.advance(hours=1)
    window = f"{int(begun.timestamp())},{int((begun + timedelta(days=1)).timestamp())}"
    (found,) = sets(cast.vera, window, "&aggregate=namespace")
    assert found["acme"]["minutes"] == pytest.approx(60, abs=0.1)
