"""The users as which programs of tenants run: those of jobs, and the servers of remote shares."""

import os
from typing import NamedTuple

# 16 bits of numbers are enough for systemd's own ranges; the kernel's last two mean "no user".
MOST_UID = 2**32 - 3


class JobUsers(NamedTuple):
    """A range of users, one for each tenant; `first` is None if all programs run as the agent's own user."""

    first: int | None = None
    last: int | None = None
    # Of the setting.
    name: str = "GPUCLOUD_JOBS"

    def find(self, owner: int) -> int | None:
        """Return the user of the tenant with this number; None for the agent's own. Raises LookupError past the range.

        No answer is root: neither does the range begin with it, nor may root's agent choose its own user.
        """
        if self.first is None or self.last is None:
            return None
        if self.first + owner > self.last:
            raise LookupError(f"tenant number {owner} has no user in {self.name}={self.first}-{self.last}")
        return self.first + owner


def parse(text: str | None, *, name: str = "GPUCLOUD_JOBS") -> JobUsers | None:
    """Parse GPUCLOUD_JOBS, or the setting of this name; None if no programs are started. Raises ValueError."""
    if not text or text == "off":
        return None
    is_root = os.getuid() == 0
    if text == "self":
        if is_root:
            raise ValueError(f"{name}=self is not for root: name a range of users, like 61000-61999.")
        return JobUsers(name=name)
    first, dash, last = text.partition("-")
    if not (dash and first.isdecimal() and last.isdecimal() and 0 < int(first) <= int(last) <= MOST_UID):
        raise ValueError(f"{name}={text} is neither off, self, nor a range of users without root (61000-61999).")
    if not is_root:
        raise ValueError(f"{name}={text} needs an agent that runs as root; any other one can only use self.")
    return JobUsers(int(first), int(last), name)
