"""The file of an elastic group in the directory of each of its claims, which programs follow.

It is replaced as a whole: a reader gets the old members or the new. docs/elastic.md describes it.
"""

from collections.abc import Iterable, Mapping
from pathlib import Path
from typing import Any

import msgspec

from agent import statefile
from agent.claims.claim import ClaimRuntime
from agent.logs import log
from agent.wire import Group

NAME = "group.json"
MODE = 0o644


def write_groups(runtimes: Mapping[str, ClaimRuntime], groups: Iterable[Group]) -> None:
    """Write the file of every claim of these groups where it has changed. Raises nothing."""
    for group in groups:
        for claim in group.claims:
            if claim in runtimes:
                _write(runtimes[claim].directory / NAME, group, claim)


def contents(group: Group, claim: str) -> dict[str, Any]:
    """Return what the file says to the programs of this claim."""
    members = [{"rank": rank, **msgspec.to_builtins(member)} for rank, member in enumerate(group.members)]
    return {
        "name": group.name,
        "uid": group.uid,
        "generation": group.generation,
        "updated_at": group.updated_at,
        "least": group.least,
        "most": group.most,
        "world_size": len(members),
        "claim": claim,
        # None: its programs do not belong to the group yet, or any more.
        "rank": next((member["rank"] for member in members if member["claim"] == claim), None),
        "members": members,
    }


def _write(path: Path, group: Group, claim: str) -> None:
    content = msgspec.json.format(msgspec.json.encode(contents(group, claim))) + b"\n"
    try:
        if not path.exists() or path.read_bytes() != content:
            statefile.replace(path, content, mode=MODE)
    except OSError as error:
        log.warning("group-file-not-written", claim=claim, reason=str(error))
