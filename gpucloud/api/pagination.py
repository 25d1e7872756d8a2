"""Cursor pagination: steady under inserts, bounded, in a total order."""

from typing import Any

from rest_framework.exceptions import NotFound, ValidationError
from rest_framework.pagination import CursorPagination
from rest_framework.request import Request

MAX_KEY = 2**63 - 1


class Newest(CursorPagination):
    """Newest first, by primary key. `?limit=` up to 200, clamped; a cursor is opaque."""

    ordering = "-pk"
    page_size = 50
    max_page_size = 200
    page_size_query_param = "limit"

    def get_page_size(self, request: Request) -> int | None:
        """Raises ValidationError where the framework would silently take its default."""
        limit = request.query_params.get("limit", "1")
        if not (limit.isascii() and limit.isdecimal()) or not limit.strip("0"):
            raise ValidationError({"limit": ["Must be a whole number, 1 or more; above 200 counts as 200."]})
        # What is longer than the largest key is above 200 too, and may be too long to read.
        return self.max_page_size if len(limit) > 18 else super().get_page_size(request)

    def decode_cursor(self, request: Request) -> Any:
        """Raises NotFound for a cursor that is none of ours: its position is compared with primary keys."""
        cursor = super().decode_cursor(request)
        if cursor is not None and cursor.position is not None:
            position = str(cursor.position)
            if not (position.isascii() and position.isdecimal()) or len(position) > 19 or int(position) > MAX_KEY:
                raise NotFound(self.invalid_cursor_message)
        return cursor
