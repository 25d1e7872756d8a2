"""Instances that several claims share, in the desired state of nodes."""

from collections.abc import Iterable
from typing import Any
from uuid import UUID

from msgspec import structs

from agent import wire

MIB = 1 << 20


def find_opened(rows: Iterable[Any]) -> dict[UUID, Any]:
    """Return the rows of claims that open their instance, by the claim's uid; rows as in `desired`."""
    return {row.claim__uid: row for row in rows}


def with_limits(wanted: wire.Assignment, row: Any, opened: dict[UUID, Any]) -> wire.Assignment:
    """Return the assignment with the instance that it shares, as far as it shares one.

    The claim of the instance has its own part; one whose instance is gone from the node ends.
    """
    if row.claim__own_core is not None:
        shared = wire.SharedInstance(holder=wanted.uid, core_percent=row.core_limit)
        return structs.replace(
            wanted, core_request=row.claim__own_core, memory_bytes=row.claim__own_memory_mib * MIB, shared=shared
        )
    if row.claim__instance_of is None:
        return wanted
    if (holder := opened.get(row.claim__instance_of)) is None:
        return structs.replace(wanted, present=False)
    place = wire.MigPlace(profile=holder.claim__profile, start=holder.mig_start, size=holder.mig_size)
    shared = wire.SharedInstance(holder=str(holder.uid), core_percent=holder.core_limit)
    return structs.replace(wanted, mig=place, shared=shared)
