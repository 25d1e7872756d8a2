"""Encryption of clusters' credentials with the installation's secret key.

A stolen database alone gives access to no cluster. Each cluster has a key of its own, derived from SECRET_KEY, so one
cluster's credentials cannot replace another's.
"""

import base64
import hashlib
import hmac
import uuid

from cryptography.fernet import Fernet, InvalidToken, MultiFernet
from django.conf import settings

from gpucloud.errors import Conflict


class SealBroken(Conflict, code="seal-broken", title="The cluster's credentials cannot be read"):
    """The credentials were encrypted with an unknown key."""


def seal(uid: uuid.UUID, text: str) -> str:
    """Encrypt the text for this installation and this cluster."""
    return _keys(uid).encrypt(text.encode()).decode()


def unseal(uid: uuid.UUID, sealed: str) -> str:
    """Decrypt the text. Raises SealBroken."""
    try:
        return _keys(uid).decrypt(sealed.encode()).decode()
    except InvalidToken as error:
        raise SealBroken("They were sealed under another SECRET_KEY: give the kubeconfig again.") from error


def _keys(uid: uuid.UUID) -> MultiFernet:
    keys = (settings.SECRET_KEY, *settings.SECRET_KEY_FALLBACKS)
    return MultiFernet(
        [
            Fernet(base64.urlsafe_b64encode(hmac.digest(key.encode(), b"cluster:" + uid.bytes, hashlib.sha256)))
            for key in keys
        ]
    )
