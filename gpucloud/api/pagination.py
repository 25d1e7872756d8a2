"""Cursor pagination: stable under inserts, bounded, totally ordered."""

from typing import Any

from rest_framework.exceptions import NotFound, ValidationError
from rest_framework.pagination import CursorPagination
from rest_framework.request import Request
from rest_framework.utils.urls import replace_query_param

MAX_KEY = 2**63 - 1


class Newest(CursorPagination):
    """A page of rows, newest first by primary key. `?limit=` up to 200, clamped; the cursor is opaque."""

    ordering = "-pk"
    page_size = 50
    max_page_size = 200
    page_size_query_param = "limit"

    def get_page_size(self, request: Request) -> int | None:
        """Return the page size.

        Raises ValidationError where the framework would silently use its default.
        """
        limit = request.query_params.get("limit", "1")
        if not (limit.isascii() and limit.isdecimal()) or not limit.strip("0"):
            raise ValidationError({"limit": ["Must be a whole number, 1 or more; above 200 counts as 200."]})
        # A text longer than the largest key is above 200 too, and may be too long for int().
        return self.max_page_size if len(limit) > 18 else super().get_page_size(request)

    def decode_cursor(self, request: Request) -> Any:
        """Decode a cursor.

        Raises NotFound for an invalid cursor: its position is compared with primary keys.
        """
        cursor = super().decode_cursor(request)
        if cursor is not None and cursor.position is not None:
            position = str(cursor.position)
            if not (position.isascii() and position.isdecimal()) or len(position) > 19 or int(position) > MAX_KEY:
                raise NotFound(self.invalid_cursor_message)
        return cursor


class InOrder(Newest):
    """A page of a list that is computed as a whole, such as a queue; the cursor is the number of rows before it."""

    def paginate_queryset(self, queryset: Any, request: Request, view: Any = None) -> list[Any]:
        """Return one page of the list.

        Raises NotFound if the cursor is not a number.
        """
        cursor = request.query_params.get(self.cursor_query_param, "0")
        if not (cursor.isascii() and cursor.isdecimal()) or len(cursor) > 18:
            raise NotFound(self.invalid_cursor_message)
        self.request, self.begin, self.rows = request, int(cursor), len(queryset)
        self.size = self.get_page_size(request) or self.page_size
        return list(queryset[self.begin : self.begin + self.size])

    def get_next_link(self) -> str | None:
        """Return the next page's link; None on the last page."""
        return self._link(self.begin + self.size) if self.begin + self.size < self.rows else None

    def get_previous_link(self) -> str | None:
        """Return the previous page's link; None on the first page."""
        return self._link(max(0, self.begin - self.size)) if self.begin else None

    def _link(self, begin: int) -> str:
        url = self.request.build_absolute_uri()
        return str(replace_query_param(url, self.cursor_query_param, begin))
