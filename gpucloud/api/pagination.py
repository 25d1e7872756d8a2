"""Cursor pagination: steady under inserts, bounded, in a total order."""

from typing import Any

from rest_framework.exceptions import NotFound, ValidationError
from rest_framework.pagination import CursorPagination
from rest_framework.request import Request
from rest_framework.utils.urls import replace_query_param

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


class InOrder(Newest):
    """Pages of a list that is worked out whole, such as a queue; the cursor is how many rows were before."""

    def paginate_queryset(self, queryset: Any, request: Request, view: Any = None) -> list[Any]:
        """Raises NotFound for a cursor that is no number."""
        cursor = request.query_params.get(self.cursor_query_param, "0")
        if not (cursor.isascii() and cursor.isdecimal()) or len(cursor) > 18:
            raise NotFound(self.invalid_cursor_message)
        self.request, self.begin, self.rows = request, int(cursor), len(queryset)
        self.size = self.get_page_size(request) or self.page_size
        return list(queryset[self.begin : self.begin + self.size])

    def get_next_link(self) -> str | None:
        """None on the last page."""
        return self._link(self.begin + self.size) if self.begin + self.size < self.rows else None

    def get_previous_link(self) -> str | None:
        """None on the first page."""
        return self._link(max(0, self.begin - self.size)) if self.begin else None

    def _link(self, begin: int) -> str:
        url = self.request.build_absolute_uri()
        return str(replace_query_param(url, self.cursor_query_param, begin))
