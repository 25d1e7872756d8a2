"""Tables of pages as files: CSV for spreadsheets, JSON for programs."""

import csv
import json
from collections.abc import Iterable, Iterator, Mapping, Sequence
from itertools import islice
from typing import Any

from django.core.serializers.json import DjangoJSONEncoder
from django.http import HttpRequest, HttpResponse

from gpucloud.spreadsheets import escape_formula

Row = Mapping[str, Any]
# A file is built completely in its request's own thread: a streamed one would be read in the thread of the agents'
# frames, all of it, before its first byte is sent. The API lists a log of years, page by page.
MOST_ROWS = 50_000


class _Line:
    """A file-like object for csv that returns each line."""

    def write(self, line: str) -> str:
        return line


def file_format(request: HttpRequest) -> str | None:
    """Return `csv` or `json` if the URL asks for one of them; None otherwise."""
    form = request.GET.get("format")
    return form if form in {"csv", "json"} else None


def facts_of(row: Any, columns: Sequence[str], **others: Any) -> Row:
    """Return the columns of a row; `others` replace attributes that have another name or form."""
    return {name: others[name] if name in others else getattr(row, name) for name in columns}


def as_file(form: str, name: str, columns: list[str], rows: Iterable[Row]) -> HttpResponse:
    """Return the rows as a file; of too many rows the first, and the file's name says so."""
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
