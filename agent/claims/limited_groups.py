"""The control groups whose device memory the driver limits: the limits that were set, and their reconciliation.

Level-triggered: `sync` takes all wanted limits and reads those in force before it sets any. A limit is recorded on disk
before it is set, so that the next agent clears limits that are no longer wanted. A group is identified by path and
inode: one that was removed and made again is another one.

Blocking (NVML, files): from the NVML thread only.
"""

from collections.abc import Mapping
from pathlib import Path
from typing import Any, NamedTuple

from agent import statefile
from agent.host import memory_limits
from agent.host.memory_limits import NO_LIMIT, Limit, LimitError
from agent.logs import log

# The driver may round a limit to the GPU's pages.
ROUNDING_BYTES = 2 << 20


class Key(NamedTuple):
    """A group on a GPU."""

    group: str
    gpu_uuid: str


class LimitedGroups:
    """The limits set by this agent and earlier ones. Raises nothing."""

    def __init__(self, path: Path) -> None:
        self._path = path
        # Inodes of the groups that have a limit from us.
        self._recorded: dict[Key, int] = {}
        # Limits that this process set: an earlier agent's are set once more.
        self._written: dict[Key, int] = {}
        # The reason, in words, why a wanted limit is not in force or an unwanted one still is.
        self.failures: dict[Key, str] = {}
        try:
            stored = statefile.read(path, list[tuple[str, str, int]]) or []
        except statefile.Damaged as error:
            log.warning("kernel-limits-damaged", reason=str(error))
            stored = []
        self._recorded = {Key(group, gpu_uuid): inode for group, gpu_uuid, inode in stored}

    @property
    def is_empty(self) -> bool:
        """True if no limit is set."""
        return not self._recorded

    def sync(self, wanted: Mapping[Key, int], handles: Mapping[str, Any]) -> None:
        """Make the limits what is wanted, in bytes by group and GPU. `handles`: NVML's, by uuid."""
        # 1. Forget groups that are gone: their limits went with them.
        inodes = {key: inode for key in {*wanted, *self._recorded} if (inode := _inode(key.group)) is not None}
        known = {key: inode for key, inode in self._recorded.items() if inodes.get(key) == inode}
        self._written = {key: limit for key, limit in self._written.items() if key in known}
        # 2. Record what is about to be set.
        self._record(known | {key: inodes[key] for key in wanted if key in inodes})
        # 3. Set what is wanted, clear the rest. A GPU that does not answer keeps what it has.
        failures: dict[Key, str] = {}
        for key in [key for key in self._recorded if key.gpu_uuid in handles]:
            try:
                if key in wanted:
                    self._set(handles[key.gpu_uuid], key, wanted[key])
                else:
                    memory_limits.write(handles[key.gpu_uuid], Path(key.group), NO_LIMIT)
                    known.pop(key, None)
            except LimitError as error:
                # One that ended meanwhile needs no limit.
                if _inode(key.group) is not None:
                    failures[key] = str(error)
        self.failures = failures
        # 4. Forget what was cleared.
        left = {key: inode for key, inode in self._recorded.items() if key in wanted or key in known}
        self._record(left)

    def _set(self, handle: Any, key: Key, limit: int) -> None:
        group = Path(key.group)
        before = memory_limits.read(handle, group)
        # The kernel takes no limit below what is in use; one that is lowered follows the use down.
        target = max(limit, before.used_bytes if before is not None else 0)
        if self._written.get(key) == target and _is_at(before, target):
            return
        memory_limits.write(handle, group, target)
        after = memory_limits.read(handle, group)
        if not _is_at(after, target):
            reported = after.hard_bytes if after is not None and after.hard_bytes != NO_LIMIT else "no limit"
            raise LimitError(f"{target} bytes were set, and the driver reports {reported}")
        if key not in self._written:
            log.info("kernel-limit-set", group=key.group, gpu=key.gpu_uuid, bytes=target)
        self._written[key] = target

    def _record(self, recorded: dict[Key, int]) -> None:
        if recorded == self._recorded:
            return
        self._recorded = recorded
        try:
            statefile.write(self._path, [(*key, inode) for key, inode in sorted(recorded.items())])
        except OSError as error:
            log.warning("kernel-limits-not-stored", reason=str(error))


def _is_at(limit: Limit | None, target: int) -> bool:
    return limit is not None and abs(limit.hard_bytes - target) <= ROUNDING_BYTES


def _inode(group: str) -> int | None:
    try:
        return Path(group).stat().st_ino
    except OSError:
        return None
