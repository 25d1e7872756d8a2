"""Signatures by the Standard Webhooks specification 1.0: HMAC-SHA256 over `id.timestamp.body`.

The secret is derived, so a stolen database cannot sign. A receiver can verify with any valid secret: for a day after a
rotation the previous one signs too, and so do those of former SECRET_KEYs while they are configured.
"""

import base64
import hashlib
import hmac
from datetime import datetime, timedelta

from django.conf import settings

from apps.quotas.models import Webhook

PREFIX = "whsec_"
# Time to deploy the new secret.
OVERLAP = timedelta(hours=24)


def secret(hook: Webhook) -> str:
    """Return the receiver's secret."""
    return PREFIX + base64.b64encode(_key(hook, hook.secret_number, settings.SECRET_KEY)).decode()


def headers(hook: Webhook, *, message: str, body: bytes, now: datetime) -> dict[str, str]:
    """Return the three headers of one attempt."""
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
