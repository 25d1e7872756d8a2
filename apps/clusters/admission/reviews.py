"""AdmissionReview, v1 and v1beta1: parsing of requests and rendering of responses in the same version."""

import base64
import json
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from typing import Any

from gpucloud.errors import Invalid

VERSIONS = ("admission.k8s.io/v1", "admission.k8s.io/v1beta1")
# The API server truncates longer warnings.
LONGEST_WARNING = 256


class NotAReview(Invalid, code="not-a-review", title="Not an AdmissionReview"):
    """The body is not an AdmissionReview."""


@dataclass(frozen=True, slots=True)
class Review:
    """An admission request. `old` is the object before an update; both are empty if absent."""

    version: str
    uid: str
    operation: str
    kind: str
    namespace: str
    thing: Mapping[str, Any]
    old: Mapping[str, Any]
    # The user who sends the request, and the user's groups.
    who: frozenset[str]
    # True if nothing may be kept: the object is not going to be stored.
    dry_run: bool = False


@dataclass(frozen=True, slots=True)
class Verdict:
    """An admission response: refused if there are refusals; `patch` is a list of RFC 6902 operations."""

    refusals: Sequence[str] = ()
    warnings: Sequence[str] = ()
    patch: Sequence[Mapping[str, Any]] = ()


def parse(body: bytes) -> Review:
    """Parse the request in a body. Raises NotAReview."""
    try:
        whole = json.loads(body)
    except (ValueError, RecursionError) as error:
        raise NotAReview(f"The body is not JSON: {error}.") from error
    request = whole.get("request") if isinstance(whole, dict) else None
    if not isinstance(request, dict) or whole.get("apiVersion") not in VERSIONS:
        raise NotAReview(f"Send an AdmissionReview with a request, of {' or '.join(VERSIONS)}.")
    if not isinstance(request.get("uid"), str) or not request["uid"]:
        raise NotAReview("The request has no uid.")
    user = _mapping(request, "userInfo")
    groups = user.get("groups")
    return Review(
        version=whole["apiVersion"],
        uid=request["uid"],
        operation=str(request.get("operation")),
        kind=str(_mapping(request, "kind").get("kind")),
        namespace=str(request.get("namespace") or ""),
        thing=_mapping(request, "object"),
        old=_mapping(request, "oldObject"),
        dry_run=request.get("dryRun") is True,
        who=frozenset(map(str, (user.get("username"), *(groups if isinstance(groups, list) else ())))),
    )


def answer(review: Review, verdict: Verdict) -> dict[str, Any]:
    """Return the AdmissionReview with the verdict."""
    response: dict[str, Any] = {"uid": review.uid, "allowed": not verdict.refusals}
    if verdict.refusals:
        response["status"] = {"code": 422, "reason": "Invalid", "message": " ".join(verdict.refusals)}
    elif verdict.patch:
        response |= {"patchType": "JSONPatch", "patch": base64.b64encode(json.dumps(verdict.patch).encode()).decode()}
    if verdict.warnings:
        response["warnings"] = [warning[:LONGEST_WARNING] for warning in verdict.warnings]
    return {"apiVersion": review.version, "kind": "AdmissionReview", "response": response}


def _mapping(within: Mapping[str, Any], key: str) -> Mapping[str, Any]:
    found = within.get(key)
    return found if isinstance(found, dict) else {}
