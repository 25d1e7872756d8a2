"""The time after which an agent should come again, in the reason of a close with CLOSE_BUSY."""

import re
from typing import Final

_SECONDS = re.compile(r"come again in ([0-9]{1,4}) s$")


class Busy:
    """The form of such a reason; both sides write and read it here."""

    # A server that says more is not believed.
    MOST_SECONDS: Final = 120

    @classmethod
    def reason_of(cls, why: str, seconds: float) -> str:
        """Return the reason with its time, in whole seconds; agents of other versions ignore the time."""
        return f"{why}: come again in {min(cls.MOST_SECONDS, max(1, round(seconds)))} s"

    @classmethod
    def seconds_of(cls, reason: str) -> int:
        """Return the seconds that a reason names; 0 if it names none."""
        found = _SECONDS.search(reason)
        return min(cls.MOST_SECONDS, int(found[1])) if found else 0
