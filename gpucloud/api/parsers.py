"""Strict parser of JSON bodies: UTF-8, a top-level object, no NaN, no duplicate key. `bodies` limits their size."""

import json
from collections.abc import Mapping
from typing import Any

from rest_framework.exceptions import ParseError
from rest_framework.parsers import BaseParser


class StrictJSONParser(BaseParser):
    """Parse an object. Raises ParseError (400)."""

    media_type = "application/json"

    def parse(
        self, stream: Any, media_type: str | None = None, parser_context: Mapping[str, Any] | None = None
    ) -> dict[str, Any]:
        raw = stream.read()
        if not raw.strip():
            return {}
        try:
            value = json.loads(raw.decode(), object_pairs_hook=_once, parse_constant=_no_constant)
            _whole_characters(value)
        except (ValueError, RecursionError) as error:
            raise ParseError(f"The body is not JSON: {error}") from error
        if not isinstance(value, dict):
            raise ParseError("The body must be a JSON object.")
        if "\\u0000" in (text := raw.decode()) or "\x00" in text:
            # PostgreSQL cannot store NUL, and no name needs it.
            raise ParseError("The body holds a NUL character, which no field can store.")
        return value


def _whole_characters(value: Any) -> None:
    """Refuse half of a surrogate pair.

    JSON can escape one, but it is not a character: neither a column nor a response could carry it.
    """
    try:
        json.dumps(value, ensure_ascii=False).encode()
    except UnicodeEncodeError as error:
        raise ParseError("The body holds half of a surrogate pair, which is no character.") from error


def _once(pairs: list[tuple[str, Any]]) -> dict[str, Any]:
    value = dict(pairs)
    if len(value) != len(pairs):
        raise ValueError("a key stands twice in one object")
    return value


def _no_constant(name: str) -> None:
    raise ValueError(f"{name} is not JSON")
