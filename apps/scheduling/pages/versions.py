"""The version of a row that a page showed, which a dialog's button sends back: nobody's change is lost unseen."""

from typing import Final

from django.http import HttpRequest
from django.utils.translation import gettext_noop

from gpucloud.api import etags

# In digits; a longer one is no row's.
LONGEST_VERSION: Final = 10
LATE: Final = gettext_noop("Somebody changed it while you had this page open; this is how it is now.")


def seen(request: HttpRequest) -> etags.Versions:
    """What was posted as `version`; one that is no number, or is missing, is no row's."""
    text = request.POST.get("version", "")
    known = text.isascii() and text.isdecimal() and len(text) < LONGEST_VERSION
    return frozenset({int(text)} if known else ())
