"""Objects that a command names: claims and jobs by name or UID, and tenants and places that do not exist."""

import re
from collections.abc import Callable, Mapping
from typing import Any
from urllib.parse import quote

from gpucloud_cli.api import Api
from gpucloud_cli.failures import Failure, Problem, Unknown, Usage

WHOLE = re.compile(r"[0-9a-f]{8}-?([0-9a-f]{4}-?){3}[0-9a-f]{12}", re.IGNORECASE)
# A shorter beginning is a name: `cafe` may be both, and then the name wins.
BEGINNING = re.compile(r"(?=.{4,36}$)[0-9a-f]{1,8}(-[0-9a-f]{0,4}){0,3}(-[0-9a-f]{0,12})?", re.IGNORECASE)
MOST_CANDIDATES = 10


def find_claim(api: Api, text: str) -> str:
    """Return the UID of the claim that the text names: a live claim's name, a UID's beginning, a past claim's name.

    Raises Usage with the candidates if there are several, Failure if there is none.
    """
    if WHOLE.fullmatch(text):
        return text
    searches: list[dict[str, Any]] = [{"name": text, "live": True}, {"name": text, "live": False}]
    if BEGINNING.fullmatch(text):
        searches.insert(1, {"uid_prefix": text})
    for search in searches:
        rows = list(api.rows("claims/", most=MOST_CANDIDATES + 1, **search))
        if len(rows) == 1:
            return str(rows[0]["uid"])
        if rows:
            raise Usage(_ambiguous(text, rows))
    raise Failure(f"There is no claim {text!r} that you may see: give a name, or at least 4 digits of a UID.")


def find_job(api: Api, text: str) -> dict[str, Any]:
    """Return the job that the text names: by UID, or by name a live one, or the newest that has ended.

    Raises Usage with the candidates if several live ones have the name, Failure if there is none.
    """
    if WHOLE.fullmatch(text):
        found: dict[str, Any] = api.get(f"jobs/{text}/").body
        return found
    live = list(api.rows("jobs/", most=MOST_CANDIDATES + 1, name=text, live=True))
    if len(live) > 1:
        raise Usage(_ambiguous(text, live, "jobs"))
    for row in live or api.rows("jobs/", most=1, name=text, live=False):
        return dict(row)
    raise Failure(f"There is no job {text!r} that you may see: give a name or a UID.")


def find_array(api: Api, text: str) -> dict[str, Any]:
    """Return the array that the text names, as `find_job` does."""
    if WHOLE.fullmatch(text):
        found: dict[str, Any] = api.get(f"job-arrays/{text}/").body
        return found
    live = list(api.rows("job-arrays/", most=MOST_CANDIDATES + 1, name=text, live=True))
    if len(live) > 1:
        raise Usage(_ambiguous(text, live, "arrays"))
    for row in live or api.rows("job-arrays/", most=1, name=text, live=False):
        return dict(row)
    raise Failure(f"There is no array {text!r} that you may see: give a name or a UID.")


def find_awaited(api: Api, text: str) -> str:
    """Return the UID of the job, or the array, that the text names; a UID as it is."""
    if WHOLE.fullmatch(text):
        return text
    try:
        return str(find_job(api, text)["uid"])
    except Usage:
        raise
    except Failure:
        pass
    try:
        return str(find_array(api, text)["uid"])
    except Usage:
        raise
    except Failure as error:
        raise Failure(f"There is no job or array {text!r} that you may see: give a name or a UID.") from error


# Resources that `show` finds by name, too.
NAMED: dict[str, Callable[[Api, str], str]] = {
    "claim": find_claim,
    "job": lambda api, text: str(find_job(api, text)["uid"]),
    "array": lambda api, text: str(find_array(api, text)["uid"]),
}


def _ambiguous(text: str, rows: list[dict[str, Any]], what: str = "claims") -> str:
    lines = [f"  {row['uid']}  {row['tenant']}/{row['name']}  {row['state']}" for row in rows[:MOST_CANDIDATES]]
    if len(rows) > MOST_CANDIDATES:
        lines.append("  …")
    return "\n".join([f"{text!r} names several {what}; give the UID of one, or more of its digits:", *lines])


def refuse_unknown(api: Api, named: Mapping[str, Any]) -> None:
    """Raise Unknown for an owner or a place that does not exist: a filter by it only makes a list empty."""
    for kind in ("tenant", "organisation", "pool", "node"):
        if name := named.get(kind):
            try:
                api.get(f"{kind}s/{quote(str(name), safe='')}/")
            except Unknown:
                raise
            except Problem:  # Not everybody may see nodes.
                continue
