"""The price book: permissions, refusals, and audit events."""

from typing import Any

import pytest

from apps.quotas.models import AuditEvent, Price
from tests.cast import Cast

ASKED = {"gpu_model": "NVIDIA A10", "valid_from": "2026-07-01", "per_gpu_hour": "2.50"}


def test_an_operator_sets_a_price_that_everybody_reads(cast: Cast) -> None:
    made = cast.olga.post("prices/", ASKED)
    assert (made.status, made.body["per_gpu_hour"], made.body["currency"]) == (201, "2.500000", "EUR")
    assert cast.gus.get(f"prices/{made.body['id']}/").body == made.body
    for who in (cast.anna, cast.max, cast.vera):
        assert who.post("prices/", ASKED).code == "role-missing"
        assert who.delete(f"prices/{made.body['id']}/").code == "role-missing"


def test_a_day_has_one_price_for_a_model_and_a_pool(cast: Cast) -> None:
    assert cast.olga.post("prices/", ASKED).status == 201
    again = cast.olga.post("prices/", {**ASKED, "per_gpu_hour": "3"})
    assert (again.status, again.code) == (409, "name-taken")
    assert cast.olga.post("prices/", {**ASKED, "pool": "default"}).status == 201
    assert cast.olga.post("prices/", {**ASKED, "valid_from": "2026-07-02"}).status == 201


@pytest.mark.parametrize("value", [2.5, 3, "2.5000001", "-1", True, None, "free", "NaN", "Infinity", 10**7, [], "1e9"])
def test_money_is_exact_or_refused(cast: Cast, value: Any) -> None:
    answer = cast.olga.post("prices/", {**ASKED, "per_gpu_hour": value})
    assert (answer.status, answer.code) == (400, "invalid-fields")
    assert "per_gpu_hour" in answer.body["errors"]


def test_setting_and_removing_are_in_the_audit_log(cast: Cast) -> None:
    pk = cast.olga.post("prices/", ASKED).body["id"]
    assert cast.olga.delete(f"prices/{pk}/", If_Match='"9"').code == "stale-version"
    assert cast.olga.delete(f"prices/{pk}/").status == 204
    assert not Price.objects.exists()
    rows = AuditEvent.objects.filter(object_type="price", object_id=str(pk))
    assert [row.action for row in rows] == ["price.set", "price.remove"]
    assert rows[0].after == rows[1].before
