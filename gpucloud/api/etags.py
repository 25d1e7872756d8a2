"""Entity tags: a strong tag is the row's integer version, `"7"`."""

import re
from typing import Any, TypeVar

from django.db import models
from django.http import HttpRequest

from gpucloud.errors import PreconditionFailed, PreconditionRequired

_TAGS = re.compile(r'\s*(?:W/)?"[^"]*"\s*(?:,\s*(?:W/)?"[^"]*"\s*)*')
_STRONG = re.compile(r'(W/)?"(\d{1,18})"')

# The versions that the caller accepts; None: any version.
Versions = frozenset[int] | None
M = TypeVar("M", bound=models.Model)


def etag(version: int) -> str:
    """Return the header's value for a version."""
    return f'"{version}"'


def if_match(request: HttpRequest, *, required: bool = False) -> Versions:
    """Return the versions in If-Match.

    Raises PreconditionRequired (428) or PreconditionFailed (412).
    """
    header = request.headers.get("If-Match")
    if header is None:
        if required:
            raise PreconditionRequired("Send If-Match with the ETag that you read, so that nobody's change is lost.")
        return None
    if header.strip() == "*":
        return None
    if not _TAGS.fullmatch(header):
        raise PreconditionFailed("If-Match is not a list of entity tags.", current=None)
    return frozenset(int(number) for weak, number in _STRONG.findall(header) if not weak)


def check(version: int, accepted: Versions) -> None:
    """Check If-Match against the row's version; call it under the row's lock.

    Raises PreconditionFailed if the row is at another version.
    """
    if accepted is not None and version not in accepted:
        raise PreconditionFailed("It was changed since you read it: read it again.", current=version)


def lock(row: M, accepted: Versions, *related: str) -> M:
    """Return the row as it is now, under its lock, with these relations. Raises PreconditionFailed."""
    rows: Any = type(row).objects.select_for_update(of=("self",))  # type: ignore[attr-defined]
    found: M = (rows.select_related(*related) if related else rows).get(pk=row.pk)
    check(found.version, accepted)  # type: ignore[attr-defined]
    return found
