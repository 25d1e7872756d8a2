"""Signatures by the Standard Webhooks specification 1.0: HMAC-SHA256 over `id.timestamp.body`.

The secret is derived, so that a stolen database signs nothing. Whoever knows any of the secrets that are still valid
can verify: after a rotation the one before signs too for a day, and so do those of former SECRET_KEYs while they are
kept.
"""

import base64
import hashlib
import hmac
from datetime import datetime, timedelta

from django.conf import settings

from apps.quotas.models import Webhook

PREFIX = "whsec_"
# Time to carry the new secret to where the old one is.
OVERLAP = timedelta(hours=24)


def secret(hook: Webhook) -> str:
    """What the receiver is given, once."""
    return PREFIX + base64.b64encode(_key(hook, hook.secret_number, settings.SECRET_KEY)).decode()


def headers(hook: Webhook, *, message: str, body: bytes, now: datetime) -> dict[str, str]:
    """The three headers of one attempt."""
    moment = str(int(now.timestamp()))
    signed = b".".join((message.encode(), moment.encode(), body))
    signatures = (base64.b64encode(hmac.digest(key, signed, "sha256")).decode() for key in _keys(hook, now))
    return {
        "webhook-id": message,
        "webhook-timestamp": moment,
        "webhook-signature": " ".join(f"v1,{text}" for text in signatures),
    }


def _keys(hook: Webhook, now: datetime) -> list[bytes]:
    numbers = [hook.secret_number]
    if hook.rotated_at is not None and now < hook.rotated_at + OVERLAP:
        numbers.append(hook.secret_number - 1)
    return [
        _key(hook, number, key) for number in numbers for key in (settings.SECRET_KEY, *settings.SECRET_KEY_FALLBACKS)
    ]


def _key(hook: Webhook, number: int, secret_key: str) -> bytes:
    return hmac.digest(secret_key.encode(), f"webhook:{hook.uid}:{number}".encode(), hashlib.sha256)
