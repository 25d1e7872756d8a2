"""Representations of rows without the framework's work for each field of each row.

DRF finds a value in four calls, asks whether it can be called, and converts it in two more: 3 µs for each of the sixty
fields of a claim. What a field answers for a value of an exact type is known beforehand: `reader` takes all values of a
row at once, and remembers for their types together which fields need an answer (`Plan`); most values are their own.
Every other value is left to the field itself, so that an answer can only be the framework's own
(`tests/scheduling/test_documents.py` compares both).
"""

from collections.abc import Callable, Mapping
from contextlib import suppress
from datetime import UTC, datetime
from operator import attrgetter, itemgetter
from types import NoneType
from typing import Any, NamedTuple
from uuid import UUID

from django.core.exceptions import ObjectDoesNotExist
from rest_framework import serializers
from rest_framework.relations import PKOnlyObject

Answer = Callable[[Any], Any]
# Answers by the exact type of the value; None: the value itself. Values of other types are left to the field.
Answers = Mapping[type, Answer | None]
Field = serializers.Field[Any, Any, Any, Any]


class LeftToField(Exception):
    """The field itself must answer."""


class Part(NamedTuple):
    """A field of a document: where its value is, and the answers for it; or the serializer's method that answers."""

    name: str
    get: Answer
    answers: Answers
    method: str | None = None
    # True if its value has the field's own name.
    is_plain: bool = False
    # The attribute of its value, with dots; None: it is read by itself, as a row that may be missing.
    source: str | None = None


# The fields of a row that need an answer, for values of certain types.
Plan = list[tuple[str, Answer]]
# Of a serializer: a row has some columns that may be null, in few combinations.
MOST_PLANS = 256


def reader(kind: type[serializers.Serializer[Any]], slow: Callable[[Any, Any], dict[str, Any]]) -> Any:
    """Return `read(serializer, row)` for a class whose serializers have the fields that it declares.

    `slow(serializer, row)` is the framework's own representation.
    """
    declared = kind._declared_fields  # noqa: SLF001 - made by the framework's metaclass for its own `get_fields`
    if "get_fields" in vars(kind):
        return slow
    parts = [_part(name, field) for name, field in declared.items() if not field.write_only]
    read_each = _EachField(parts)
    return _AllFields(parts, read_each) if sum(part.source is not None for part in parts) > 1 else read_each


class _AllFields:
    """A reader of rows that takes all values at once."""

    def __init__(self, parts: list[Part], read_each: "_EachField") -> None:
        self._read_each = read_each
        self._valued = [part for part in parts if part.source is not None]
        self._others = [part for part in parts if part.source is None]
        self._names, self._in_order = [part.name for part in self._valued], [part.name for part in parts]
        self._get_all = attrgetter(*(str(part.source) for part in self._valued))
        self._plans: dict[tuple[type, ...], Plan | None] = {}

    def __call__(self, serializer: Any, row: Any) -> dict[str, Any]:
        """Return the row's document."""
        if isinstance(row, dict) or (shown := self._read(row)) is None:
            return self._read_each(serializer, row)
        for part in self._others:
            _read(part, serializer, row, shown)
        return shown

    def _read(self, row: Any) -> dict[str, Any] | None:
        """Return the document without its other parts; None if a field itself must answer."""
        try:
            values = self._get_all(row)
            if (plan := self._plan((*map(type, values),))) is None:
                return None
            shown: dict[str, Any] = dict.fromkeys(self._in_order)
            shown.update(zip(self._names, values, strict=True))
            for name, answer in plan:
                shown[name] = answer(shown[name])
        except (ObjectDoesNotExist, KeyError, AttributeError, LeftToField):
            return None
        return shown

    def _plan(self, types: tuple[type, ...]) -> Plan | None:
        """Return the fields that need an answer, for values of these types; None if a field itself must answer."""
        if types in self._plans:
            return self._plans[types]
        plan: Plan | None = None
        with suppress(KeyError):
            answers = [(part.name, part.answers[kind]) for part, kind in zip(self._valued, types, strict=True)]
            plan = [(name, answer) for name, answer in answers if answer is not None]
        if len(self._plans) < MOST_PLANS:
            self._plans[types] = plan
        return plan


class _EachField:
    """A reader of rows by one field after the other, for what a plan does not cover."""

    def __init__(self, parts: list[Part]) -> None:
        self._parts = parts
        self._of_mapping = [part._replace(get=itemgetter(part.name)) if part.is_plain else part for part in parts]

    def __call__(self, serializer: Any, row: Any) -> dict[str, Any]:
        """Return the row's document."""
        shown: dict[str, Any] = {}
        for part in self._of_mapping if isinstance(row, dict) else self._parts:
            _read(part, serializer, row, shown)
        return shown


def _read(part: Part, serializer: Any, row: Any, shown: dict[str, Any]) -> None:
    """Put one field's answer into the document; what the row lacks is left out."""
    if part.method is not None:
        shown[part.name] = getattr(serializer, part.method)(row)
        return
    try:
        try:
            value = part.get(row)
        except ObjectDoesNotExist:  # as of a missing one-to-one row: the framework's answer is null
            value = None
        answer = part.answers[type(value)]
        shown[part.name] = value if answer is None else answer(value)
    except (KeyError, AttributeError, LeftToField):
        shown.pop(part.name, None)
        _ask(serializer.fields[part.name], row, shown)


def _ask(field: Any, row: Any, shown: dict[str, Any]) -> None:
    """Let the field answer, as the framework does."""
    try:
        value = field.get_attribute(row)
    except serializers.SkipField:
        return
    known = value.pk if isinstance(value, PKOnlyObject) else value
    shown[field.field_name] = None if known is None else field.to_representation(value)


def _part(name: str, field: Any) -> Part:
    if type(field) is serializers.SerializerMethodField:
        return Part(name, attrgetter(name), {}, field.method_name or f"get_{name}")
    source = field.source or name
    if source == "*" or type(field).get_attribute not in KNOWN_WAYS:
        return Part(name, attrgetter(name), {})
    # A related field may read the key alone; where it does, it answers itself.
    if isinstance(field, serializers.RelatedField) and field.use_pk_only_optimization():
        return Part(name, attrgetter(name), {})
    answers = _answers(field)
    # A row beside this one may be missing: see `_read`. A type's answer may be any, so the mapping itself is kept.
    known = answers if isinstance(answers, _AnyType) else {NoneType: None, **answers}
    at_once = None if isinstance(field, serializers.Serializer) else source
    return Part(name, attrgetter(source), known, is_plain=source == name, source=at_once)


def _answers(field: Any) -> Answers:
    """Return what the field answers, by type; empty if its class is not known."""
    if (own := getattr(field, "answers", None)) is not None:
        return dict(own)
    if isinstance(field, serializers.ListSerializer):
        return _list_answers(field)
    for kind, make in KNOWN.items():
        if isinstance(field, kind) and type(field).to_representation is kind.to_representation:
            return make(field)
    return _nested_answers(field) if isinstance(field, serializers.Serializer) else {}


def _nested_answers(field: Any) -> Answers:
    """Return the answers of a serializer that is a field: rows of any type but null."""
    return _AnyType(type(field).document) if _is_plain(field) else {}


def _list_answers(field: Any) -> Answers:
    if not _is_plain(field.child):
        return {}
    document = type(field.child).document
    return {list: lambda rows: [document(row) for row in rows]}


def _is_plain(serializer: Any) -> bool:
    """Return True if every caller gets the same representation, which `document` is."""
    declared = serializer._declared_fields.values()  # noqa: SLF001 - see `reader`
    has_methods = any(isinstance(field, serializers.SerializerMethodField) for field in declared)
    return not has_methods and getattr(type(serializer).to_representation, "is_compiled", False)


class _AnyType(dict[type, Answer | None]):
    """The same answer for values of any type."""

    def __init__(self, answer: Answer) -> None:
        super().__init__({NoneType: None})
        self._answer = answer

    def __missing__(self, _: type) -> Answer:
        return self._answer


def _moment(field: Any) -> Answers:
    if hasattr(field, "format") or hasattr(field, "timezone"):
        return {}
    return {datetime: _utc_text}


def _utc_text(value: datetime) -> str:
    """Return a time as the API writes it, whatever time zone a page has activated in this thread."""
    if value.tzinfo is not UTC:
        raise LeftToField
    return f"{value.isoformat()[:-6]}Z"


def _choice(field: Any) -> Answers:
    known = field.choice_strings_to_values
    return {str: lambda value: known.get(value, value)}


def _slug(field: Any) -> Answers:
    if "__" in field.slug_field or field.queryset is None:
        return {}
    return {field.queryset.model: attrgetter(field.slug_field)}


def _texts(field: Any) -> Answers:
    """Return the answers of a mapping: an empty one needs nothing of the fields of its values."""
    return {dict: _empty, list: _empty}


def _empty(value: Any) -> Any:
    if value:
        raise LeftToField
    return value


KNOWN_WAYS = (serializers.Field.get_attribute, serializers.RelatedField.get_attribute)
JSON: Answers = dict.fromkeys((dict, list, str, int, float, bool))
KNOWN: dict[Any, Callable[[Any], Answers]] = {
    serializers.IntegerField: lambda field: {int: None},
    serializers.FloatField: lambda field: {float: None},
    serializers.BooleanField: lambda field: {bool: None},
    serializers.CharField: lambda field: {str: None},
    serializers.UUIDField: lambda field: {UUID: str} if field.uuid_format == "hex_verbose" else {},
    serializers.DateTimeField: _moment,
    serializers.MultipleChoiceField: lambda field: {},
    serializers.ChoiceField: _choice,
    serializers.SlugRelatedField: _slug,
    serializers.JSONField: lambda field: {} if field.binary else JSON,
    serializers.DictField: _texts,
    serializers.ListField: _texts,
}
