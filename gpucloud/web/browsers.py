"""Names of browsers, from the header `User-Agent`."""

import re
from typing import Final

from django.utils.translation import gettext as _

# The first that matches: each later browser's header names itself like earlier ones, too.
BROWSERS: Final = (
    (re.compile(r"\bEdgA?/(\d+)"), "Edge"),
    (re.compile(r"\bOPR/(\d+)"), "Opera"),
    (re.compile(r"\b(?:Firefox|FxiOS)/(\d+)"), "Firefox"),
    (re.compile(r"\b(?:Headless)?(?:Chrome|CriOS)/(\d+)"), "Chrome"),
    (re.compile(r"\bVersion/(\d+)\S* (?:Mobile/\S+ )?Safari/"), "Safari"),
)
SYSTEMS: Final = (
    ("Windows", "Windows"),
    ("Android", "Android"),
    ("iPhone", "iPhone"),
    ("iPad", "iPad"),
    ("Mac OS X", "macOS"),
    ("CrOS", "ChromeOS"),
    ("Linux", "Linux"),
)
LONGEST: Final = 60


def name_browser(header: str) -> str:
    """Return `Firefox 140 on Linux`; the header itself, at most 60 characters of it, if it names no known browser."""
    for pattern, name in BROWSERS:
        if found := pattern.search(header):
            system = next((called for word, called in SYSTEMS if word in header), None)
            version = f"{name} {found[1]}"
            return _("{0} on {1}").format(version, system) if system else version
    return header if len(header) <= LONGEST else header[: LONGEST - 1] + "…"
