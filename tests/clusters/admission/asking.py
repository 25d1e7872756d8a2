"""Requests to the webhooks in an API server's form."""

import base64
import copy
import json
from collections.abc import Sequence
from typing import Any

from apps.clusters.admission import mutating, reviews, validating
from apps.clusters.admission.policy import Policy

STRANGER = "anna@example.org"


def review(
    thing: dict[str, Any],
    *,
    operation: str = "CREATE",
    old: dict[str, Any] | None = None,
    user: str = STRANGER,
    groups: Sequence[str] = ("system:authenticated",),
    version: str = "admission.k8s.io/v1",
) -> bytes:
    """Return the body of a review of this object."""
    return json.dumps(
        {
            "apiVersion": version,
            "kind": "AdmissionReview",
            "request": {
                "uid": "705ab4f5-6393-11e8-b7cc-42010a800002",
                "operation": operation,
                "kind": {"group": "", "version": "v1", "kind": thing["kind"]},
                "namespace": "acme",
                "userInfo": {"username": user, "groups": list(groups)},
                "object": thing,
                "oldObject": old,
            },
        }
    ).encode()


def validate(thing: dict[str, Any], policy: Policy | None = None, **said: Any) -> dict[str, Any]:
    """Return the response of the validating webhook."""
    asked = reviews.parse(review(thing, **said))
    return dict(reviews.answer(asked, validating.validate(asked, policy or Policy()))["response"])


def mutate(thing: dict[str, Any], policy: Policy | None = None, **said: Any) -> dict[str, Any]:
    """Return the object after the patch of the mutating webhook."""
    asked = reviews.parse(review(thing, **said))
    response = reviews.answer(asked, mutating.mutate(asked, policy or Policy()))["response"]
    assert response["allowed"]
    return apply_patch(thing, json.loads(base64.b64decode(response["patch"]))) if "patch" in response else thing


def apply_patch(thing: dict[str, Any], patch: list[dict[str, Any]]) -> dict[str, Any]:
    """Apply RFC 6902's `add` to members of objects, the only operation in use."""
    made = copy.deepcopy(thing)
    for operation in patch:
        assert operation["op"] == "add"
        *path, last = (word.replace("~1", "/").replace("~0", "~") for word in operation["path"].split("/")[1:])
        place: Any = made
        for word in path:
            place = place[int(word)] if isinstance(place, list) else place[word]
        place[last] = operation["value"]
    return made
