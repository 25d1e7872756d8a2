"""Cursor pagination: steady under inserts, bounded, in a total order."""

from rest_framework.pagination import CursorPagination


class Newest(CursorPagination):
    """Newest first, by primary key. `?limit=` up to 200, clamped; a cursor is opaque."""

    ordering = "-pk"
    page_size = 50
    max_page_size = 200
    page_size_query_param = "limit"
