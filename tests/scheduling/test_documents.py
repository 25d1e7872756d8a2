"""Documents of rows, compared with the framework's own representation."""

import re
from datetime import UTC, datetime, timedelta, timezone
from types import SimpleNamespace
from typing import Any
from uuid import uuid4

import pytest
from rest_framework import serializers

from gpucloud.api import serializers as strict
from gpucloud.api import shown
from gpucloud.api.renderers import CompactJSONRenderer
from gpucloud.api.serializers import Strict
from tests.scheduling.routes import OPERATIONS, Platform

DISTANT = timezone(timedelta(hours=2))


class Inner(Strict):
    """A part of a document."""

    name = shown.text()


class Sample(Strict):
    """A document with a field of each kind."""

    number, ratio, flag, text = shown.integer(), shown.number(), shown.flag(), shown.text(null=True)
    at, uid, facts = shown.time(null=True), shown.uid(), shown.json()
    state = shown.choice(["on", "off"])
    inner = Inner(read_only=True, allow_null=True)
    several = Inner(many=True, read_only=True)
    labels = serializers.DictField(child=serializers.CharField(), read_only=True)
    missing = shown.integer(null=True)
    length = serializers.SerializerMethodField()

    def get_length(self, row: Any) -> int:
        """Return the length of its text."""
        return len(str(row["text"] if isinstance(row, dict) else row.text))


PLAIN: dict[str, Any] = {
    "number": 5, "ratio": 0.5, "flag": True, "text": "a", "at": datetime(2026, 1, 2, 3, 4, 5, 678, UTC), "uid": uuid4(),
    "facts": {"a": [1]}, "state": "on", "inner": SimpleNamespace(name="x"), "several": [SimpleNamespace(name="y")],
    "labels": {},
}  # fmt: skip
# Values of other types than the column's own are the framework's to convert.
STRANGE: list[dict[str, Any]] = [
    {"number": "5"}, {"number": True}, {"ratio": 1}, {"flag": "yes"}, {"text": 5}, {"text": None},
    {"text": lambda: "b"},
    {"at": None}, {"at": datetime(2026, 1, 2, tzinfo=DISTANT)}, {"at": "2026-01-02"}, {"facts": None}, {"state": 1},
    {"inner": None}, {"several": []}, {"several": [{"name": "z"}]}, {"labels": {"a": 1}}, {"missing": 3},
]  # fmt: skip


@pytest.mark.parametrize("number", range(len(STRANGE) + 1))
def test_a_document_is_the_frameworks(number: int) -> None:
    row = SimpleNamespace(**PLAIN | [{}, *STRANGE][number])
    expected = serializers.Serializer.to_representation(Sample(), row)
    assert Sample().to_representation(row) == expected
    assert Sample(row).data == expected


def test_rows_with_other_types_after_one_another_are_the_frameworks() -> None:
    """A plan is remembered for the types of a row, not for the class."""
    rows = [SimpleNamespace(**PLAIN | each) for each in ({}, {"text": None}, {}, {"number": "5"}, {"at": None}, {})]
    expected = [serializers.Serializer.to_representation(Sample(), row) for row in rows]
    assert [Sample().to_representation(row) for row in rows] == expected
    assert [list(Sample().to_representation(row)) for row in rows] == [list(each) for each in expected]


def test_what_a_row_lacks_is_left_out_as_by_the_framework() -> None:
    for row in (SimpleNamespace(text=""), {"text": "", "number": 5, "at": PLAIN["at"], "several": []}):
        expected = serializers.Serializer.to_representation(Sample(), row)
        assert Sample().to_representation(row) == expected
        assert "ratio" not in expected


def test_every_route_answers_what_the_framework_would(platform: Platform, monkeypatch: pytest.MonkeyPatch) -> None:
    found = {}
    # Not of a serializer, and its numbers grow with the time.
    computed = {"reports/opencost/"}
    for path in {platform.path(route) for route, method in OPERATIONS if method == "GET"} - computed:
        with monkeypatch.context() as patch:
            patch.setattr(strict, "_compiled", lambda kind: serializers.Serializer.to_representation)
            slow = without_digits(platform.cast.olga.get(path).body)
        fast = without_digits(platform.cast.olga.get(path).body)
        if fast != slow:
            found[path] = fast, slow
    assert found == {}


def without_digits(body: Any) -> Any:
    """Return the body with every number in a text as 0: some answers contain the time at which they were made."""
    if isinstance(body, dict):
        return {name: without_digits(value) for name, value in body.items()}
    if isinstance(body, list):
        return [without_digits(value) for value in body]
    return re.sub(r"\d+", "0", body) if isinstance(body, str) else body


@pytest.mark.parametrize(
    "data", [{"a": [1, 2.5, None, True]}, {"é": "\u2028\u2029<"}, [2**70], {"a": object}, None, {"at": PLAIN["at"]}]
)
def test_json_is_the_frameworks(data: Any) -> None:
    if data == {"a": object}:
        with pytest.raises(TypeError):
            CompactJSONRenderer().render(data)
        return
    assert CompactJSONRenderer().render(data) == super(CompactJSONRenderer, CompactJSONRenderer()).render(data)
