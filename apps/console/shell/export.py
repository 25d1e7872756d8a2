"""A table of a page as a file: CSV for spreadsheets, JSON for programs."""

import csv
import json
from collections.abc import Iterable, Iterator, Mapping, Sequence
from itertools import islice
from typing import Any

from django.core.serializers.json import DjangoJSONEncoder
from django.http import HttpRequest, HttpResponse

from gpucloud.spreadsheets import escape_formula

Row = Mapping[str, Any]
# A file is made whole in its request's own thread: one that were sent as it is read would be read in the thread of the
# agents' frames, all of it, before its first byte goes out. A log of years is the API's, page by page.
MOST_ROWS = 50_000


class _Line:
    """What csv writes to: it hands each line back."""

    def write(self, line: str) -> str:
        return line


def asked_as_file(request: HttpRequest) -> str | None:
    """`csv` or `json` where the URL asks for one of them."""
    form = request.GET.get("format")
    return form if form in {"csv", "json"} else None


def facts_of(row: Any, columns: Sequence[str], **others: Any) -> Row:
    """What the columns name of a row; `others` are those that it has by no such name, or not as they are written."""
    return {name: others[name] if name in others else getattr(row, name) for name in columns}


def as_file(form: str, name: str, columns: list[str], rows: Iterable[Row]) -> HttpResponse:
    """The rows; of more than are sent, the first, and the file's name says so."""
    found = list(islice(rows, MOST_ROWS + 1))
    if len(found) > MOST_ROWS:
        found, name = found[:MOST_ROWS], f"{name}-first-{MOST_ROWS}"
    lines, kind = (_csv(columns, found), "text/csv") if form == "csv" else (_json(columns, found), "application/json")
    headers = {"Content-Disposition": f'attachment; filename="{name}.{form}"'}
    return HttpResponse("".join(lines), content_type=f"{kind}; charset=utf-8", headers=headers)


def _csv(columns: list[str], rows: Iterable[Row]) -> Iterator[str]:
    writer = csv.writer(_Line())
    yield writer.writerow(columns)
    for row in rows:
        yield writer.writerow([_cell(row[column]) for column in columns])


def _cell(value: Any) -> Any:
    if isinstance(value, dict | list):
        value = json.dumps(value, cls=DjangoJSONEncoder, ensure_ascii=False)
    return escape_formula(value)


def _json(columns: list[str], rows: Iterable[Row]) -> Iterator[str]:
    before = "["
    for row in rows:
        shown = {column: row[column] for column in columns}
        yield before + json.dumps(shown, cls=DjangoJSONEncoder, ensure_ascii=False)
        before = ",\n"
    yield "[]\n" if before == "[" else "]\n"
