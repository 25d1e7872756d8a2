"""ASGI handler of the admission webhooks. The extender's listener serves it too; API servers require TLS."""

import json
from collections.abc import Awaitable, Callable, Mapping
from typing import Any

from django.conf import settings

from apps.clusters.admission import hiding, mutating, reviews, validating
from apps.clusters.admission.policy import TRUSTED, Policy

# An object of the API is at most 1.5 MiB in etcd; an update's review has two of them, and JSON is longer.
MOST_BYTES = 8 << 20
WEBHOOKS: dict[str, Callable[[reviews.Review, Policy], reviews.Verdict]] = {
    "/admission/validate": validating.validate,
    "/admission/mutate": mutating.mutate,
    "/admission/hide": hiding.hide,
    # HAMi's path.
    "/webhook": mutating.mutate,
}

Message = Mapping[str, Any]
Receive = Callable[[], Awaitable[Message]]
Send = Callable[[Message], Awaitable[None]]
Judge = Callable[[reviews.Review], Awaitable[reviews.Verdict]]


def policy() -> Policy:
    """Return the policy that the settings define."""
    return Policy(
        scheduler_name=settings.ADMISSION_SCHEDULER_NAME or None,
        default_core=settings.ADMISSION_DEFAULT_CORE or None,
        default_memory_mib=settings.ADMISSION_DEFAULT_MEMORY_MIB or None,
        trusted=TRUSTED | frozenset(settings.ADMISSION_TRUSTED),
        translated=frozenset(settings.ADMISSION_TRANSLATE),
        refuse_unmet=settings.ADMISSION_REFUSE_UNMET,
        gpu_memory_mib=settings.ADMISSION_GPU_MEMORY_MIB or None,
        gpushare_unit_mib=settings.GPUSHARE_UNIT_MIB,
        library_directory=settings.ADMISSION_LIBRARY_DIRECTORY or None,
        cdi_device=settings.ADMISSION_CDI_DEVICE or None,
        mig=settings.ADMISSION_MIG,
    )


async def application(scope: Message, receive: Receive, send: Send) -> None:
    """Answer one admission review by the webhook of its path."""
    webhook = WEBHOOKS.get(scope["path"].rstrip("/"))
    if webhook is None:
        await _send(send, 404, {"title": "No webhook", "detail": f"The paths are {', '.join(WEBHOOKS)}."})
        return

    async def judge(review: reviews.Review) -> reviews.Verdict:
        return webhook(review, policy())

    await answer_review(scope, receive, send, judge)


async def answer_review(scope: Message, receive: Receive, send: Send, judge: Judge) -> None:
    """Answer one admission review by `judge`.

    A body that is not a review is answered with 400, so that the webhook's failurePolicy decides.
    """
    if scope["method"] != "POST":
        return await _send(send, 405, {"title": "Not allowed", "detail": "Send an AdmissionReview by POST."})
    body = await _body(receive)
    if body is None:
        return await _send(send, 413, {"title": "Too large", "detail": f"At most {MOST_BYTES} bytes."})
    try:
        review = reviews.parse(body)
    except reviews.NotAReview as error:
        return await _send(send, 400, {"title": error.title, "detail": error.detail})
    return await _send(send, 200, reviews.answer(review, await judge(review)))


async def _body(receive: Callable[[], Awaitable[Message]]) -> bytes | None:
    """Return the whole body; None if it is longer than MOST_BYTES."""
    parts, length, more = [], 0, True
    while more:
        message = await receive()
        parts.append(message.get("body", b""))
        length += len(parts[-1])
        if length > MOST_BYTES:
            return None
        more = message.get("more_body", False)
    return b"".join(parts)


async def _send(send: Callable[[Message], Awaitable[None]], status: int, body: Message) -> None:
    kind = b"application/json" if status == 200 else b"application/problem+json"
    await send({"type": "http.response.start", "status": status, "headers": [(b"content-type", kind)]})
    await send({"type": "http.response.body", "body": json.dumps(body).encode()})
