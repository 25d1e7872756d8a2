"""Values that callers give: the fields of a new claim, and the changes of a live one.

A field has one name everywhere: in REST, here, on the model, in the agent's frame and on the limits page.
"""

from dataclasses import dataclass, field, fields
from datetime import datetime
from enum import Enum
from typing import Any, Final
from uuid import UUID

from apps.quotas.models import Pool, Tenant
from apps.scheduling.models import Reservation
from apps.scheduling.models.choices import Isolation, OverQuota


class Unset(Enum):
    """The type of a field that was not given: None is a value of its own for some."""

    UNSET = "unset"


UNSET: Final = Unset.UNSET


@dataclass(frozen=True, kw_only=True, slots=True)
class ClaimChanges:
    """Live changes of a claim; unset fields stay."""

    # Percent of each GPU.
    core_request: int | Unset = UNSET
    core_limit: int | Unset = UNSET
    # On each GPU.
    memory_mib: int | Unset = UNSET
    memory_limit_mib: int | Unset | None = UNSET
    weight: int | Unset = UNSET
    best_effort: bool | Unset = UNSET
    rebalance: bool | Unset = UNSET
    movable: bool | Unset = UNSET
    remote: str | Unset = UNSET
    schedule: str | Unset = UNSET
    # Of a claim that opens its instance.
    own_core: int | Unset | None = UNSET
    own_memory_mib: int | Unset | None = UNSET

    def given(self) -> dict[str, Any]:
        """Return the claim's fields that are set, without tenant and pool."""
        values = {one.name: getattr(self, one.name) for one in fields(self) if one.name not in {"tenant", "pool"}}
        return {name: value for name, value in values.items() if value is not UNSET}


@dataclass(frozen=True, kw_only=True, slots=True)
class ClaimSpec(ClaimChanges):
    """A new claim. Where a field is unset, the tenant's default (its limit ranges) is used, else the model's."""

    tenant: Tenant
    pool: Pool
    name: str = "unnamed"
    gpu_count: int | Unset = UNSET
    isolation: str = Isolation.SHARED
    profile: str | None = None
    instance_of: UUID | None = None
    gpu_model: str | None = None
    affinity: str | None = None
    anti_affinity: str | None = None
    exclusion: str | None = None
    node_selector: dict[str, str] = field(default_factory=dict)
    priority: int = 0
    time_limit_seconds: int | Unset | None = UNSET
    lease_seconds: int | None = None
    start_at: datetime | None = None
    group: str | None = None
    group_size: int | None = None
    group_most: int | None = None
    reservation: Reservation | None = None
    when_over_quota: str = OverQuota.REFUSE
    pod: dict[str, Any] | None = None
