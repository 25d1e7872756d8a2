"""Host names of notebooks: one for each, so that a browser keeps them apart from one another and from the console.

A notebook shows what programs have written, also as scripts, and those may do what its origin may.
"""

from urllib.parse import urlsplit
from uuid import UUID

from django.conf import settings


def is_on() -> bool:
    """Return whether notebooks have an address here."""
    return bool(settings.NOTEBOOKS_URL)


def origin_of(uid: UUID | str) -> str:
    """Return the origin of a notebook's address."""
    scheme, _, netloc = settings.NOTEBOOKS_URL.partition("://")
    return f"{scheme}://{uid}.{netloc}"


def is_below(host: str) -> bool:
    """Return whether this Host is one of notebooks, be there such a notebook or not."""
    name = urlsplit(settings.NOTEBOOKS_URL).hostname
    asked = host.lower().partition(":")[0].rstrip(".")
    return name is not None and (asked == name or asked.endswith(f".{name}"))


def notebook_of(host: str) -> UUID | None:
    """Return the uid of the notebook at this Host, which names its port, too; None if none can be there."""
    label, _, rest = host.lower().partition(".")
    try:
        uid = UUID(label)
    except ValueError:
        return None
    return uid if str(uid) == label and rest == settings.NOTEBOOKS_URL.partition("://")[2] else None
