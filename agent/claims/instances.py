"""The MIG instances that assignments have, and the journal of those that this agent made for them.

The driver does not say who made an instance. So the journal does: a record is written before the first call that makes
an instance, and dropped after the last that removes it. An instance without a record is somebody else's. The journal is
in the run directory: a reboot removes both the instances and it.
"""

from collections.abc import Container
from pathlib import Path
from typing import Literal
from uuid import UUID

import msgspec
from msgspec import structs

from agent import statefile, wire
from agent.logs import log
from agent.wire_mig import MigPlace


def holder_of(wanted: wire.Assignment) -> str:
    """Return the assignment for which the instance is made in which this one runs."""
    return wanted.uid if wanted.shared is None else wanted.shared.holder


def part_of_gpu(wanted: wire.Assignment) -> int:
    """Return the percent of its GPU that the assignment's MIG device is."""
    return wanted.core_limit if wanted.shared is None else wanted.shared.core_percent


def on_device(wanted: wire.Assignment, device: str) -> wire.Assignment:
    """Return the assignment as a share of the MIG device, of which libvcuda's percent are then; alone it has all."""
    if wanted.shared is None:
        return structs.replace(wanted, gpu_uuid=device, core_request=100, core_limit=100)
    whole = wanted.shared.core_percent
    return structs.replace(
        wanted,
        gpu_uuid=device,
        # Guarantees are rounded down, so that together they never exceed the device.
        core_request=min(100, wanted.core_request * 100 // whole),
        core_limit=min(100, -(-wanted.core_limit * 100 // whole)),
    )


class InstanceRecord(msgspec.Struct, frozen=True, kw_only=True):
    """One instance, from before it is made until it is removed."""

    assignment_uid: str
    gpu_uuid: str
    place: MigPlace
    # `making`: it may be there in part, or not yet, or not any more.
    phase: Literal["making", "made"] = "making"
    # True: an operator made it, and it is never removed; the record is that a claim has it.
    prepared: bool = False
    # Of a made one: NVML's name of its device, and the driver's numbers of its two parts.
    device: str = ""
    gpu_instance: int = 0
    compute_instance: int = 0


class Instances:
    """The records by assignment, as the file has them. `path` None: they are not remembered."""

    def __init__(self, path: Path | None = None) -> None:
        self._path = path
        self.records: dict[str, InstanceRecord] = {}
        # The reason why an assignment's instance is not made, or not removed.
        self.problems: dict[str, str] = {}

    def adopt(self) -> None:
        """Read the records of an earlier agent. A damaged journal is put aside: its instances are nobody's then."""
        if self._path is None:
            return
        try:
            stored = statefile.read(self._path, list[InstanceRecord]) or []
        except statefile.Damaged as error:
            log.warning("instances-damaged", reason=str(error))
            self._path.rename(self._path.with_suffix(".damaged"))
            return
        # A killed agent may have been at any step.
        self.records = {one.assignment_uid: one for one in stored}

    def put(self, record: InstanceRecord) -> None:
        """Write the record, in the place of an earlier one of the assignment. Raises OSError."""
        self._write({**self.records, record.assignment_uid: record})

    def drop(self, assignment_uid: str) -> None:
        """Remove the record of an instance that is gone. Raises OSError."""
        self._write({uid: one for uid, one in self.records.items() if uid != assignment_uid})

    def device(self, assignment_uid: str) -> str | None:
        """Return NVML's name of the assignment's device; None if it is not made."""
        record = self.records.get(assignment_uid)
        return record.device if record is not None and record.phase == "made" else None

    def holds(self, assignment_uid: str) -> bool:
        """Return whether the assignment has an instance, or may have one."""
        return assignment_uid in self.records

    def own(self) -> frozenset[tuple[str, int]]:
        """Return the GPU and the first slice of each instance that this agent made."""
        return frozenset((one.gpu_uuid, one.place.start) for one in self.records.values() if not one.prepared)

    def find_holders(self, gpus: Container[UUID]) -> set[str]:
        """Return the assignments for which these devices were made, by the UUIDs that pages have of them."""
        made = (one for one in self.records.values() if one.device)
        return {one.assignment_uid for one in made if UUID(one.device.partition("-")[2]) in gpus}

    def gpu_of(self, device: str) -> str | None:
        """Return the GPU of a MIG device of this agent's; None of any other name."""
        return next((one.gpu_uuid for one in self.records.values() if one.device == device), None)

    def devices(self) -> dict[tuple[str, int], str]:
        """Return the devices by GPU and the driver's number of their GPU instance."""
        made = (one for one in self.records.values() if one.phase == "made")
        return {(one.gpu_uuid, one.gpu_instance): one.device for one in made}

    def _write(self, records: dict[str, InstanceRecord]) -> None:
        if self._path is not None:
            statefile.write(self._path, list(records.values()))
        self.records = records
