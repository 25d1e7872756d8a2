"""The fields of a claim that concern MIG instances."""

from collections.abc import Mapping
from typing import Any

from django.utils.translation import gettext_lazy as _
from rest_framework import serializers

from apps.quotas.models.limits import MOST, ClaimField
from apps.scheduling.models.choices import Isolation
from gpucloud.api.serializers import StrictInteger

ISOLATION_HELP = _(
    "`hard`: a MIG instance of its own on a GPU in MIG mode, a boundary in hardware. The claim then has the core and "
    "memory of its profile."
)
PROFILE_HELP = _(
    "The MIG profile of its instance, such as 2g.35gb; it means hard isolation. Left out with hard isolation: the "
    "smallest one that has core_request and memory_mib."
)
PROFILE = r"^[0-9]{1,2}g\.[0-9]{1,5}gb\Z"
PROFILE_WRONG = _("Name a profile, such as 2g.35gb.")
OWN_CORE_HELP = _(
    "Opens its MIG instance to claims of its tenant that name it in instance_of. Its own programs are guaranteed this "
    "percent of the GPU; the rest is for those claims, and what nobody uses is for all."
)
OWN_MEMORY_HELP = _("The memory of the instance that its own programs have; given together with own_core.")
OWN_CORE_CHANGE_HELP = _(
    "Of a claim that opened its MIG instance: the percent of the GPU that its own programs are guaranteed from now on. "
    "More is taken of what no claim in it has."
)
OWN_MEMORY_CHANGE_HELP = _(
    "Of a claim that opened its MIG instance: the memory of the instance that its own programs have from now on."
)
INSTANCE_OF_HELP = _(
    "The uid of a claim of the tenant that opened its MIG instance (own_core): this one runs in there, with "
    "core_request and memory_mib of it, and ends with it. Only the other claim is charged."
)


def isolation() -> serializers.ChoiceField:
    """Return the field of a claim's boundary."""
    return serializers.ChoiceField(choices=Isolation.choices, default=Isolation.SHARED, help_text=ISOLATION_HELP)


def profile() -> serializers.RegexField:
    """Return the field of a MIG profile."""
    return serializers.RegexField(
        PROFILE, allow_null=True, default=None, help_text=PROFILE_HELP, error_messages={"invalid": PROFILE_WRONG}
    )


# A live change needs no other field: what is left out stays.
_CHANGED: dict[str, Any] = {"required": False}
_NEW: dict[str, Any] = {"allow_null": True, "default": None}


def own_core(*, for_change: bool = False) -> StrictInteger:
    """Return the field of the core of an opened instance that its own claim has."""
    if for_change:
        return StrictInteger(min_value=0, max_value=100, help_text=OWN_CORE_CHANGE_HELP, **_CHANGED)
    return StrictInteger(min_value=0, max_value=100, help_text=OWN_CORE_HELP, **_NEW)


def own_memory_mib(*, for_change: bool = False) -> StrictInteger:
    """Return the field of the memory of an opened instance that its own claim has."""
    most = MOST[ClaimField.MEMORY_MIB]
    if for_change:
        return StrictInteger(min_value=1, max_value=most, help_text=OWN_MEMORY_CHANGE_HELP, **_CHANGED)
    return StrictInteger(min_value=1, max_value=most, help_text=OWN_MEMORY_HELP, **_NEW)


def instance_of() -> serializers.UUIDField:
    """Return the field of the claim in whose instance a claim runs."""
    return serializers.UUIDField(allow_null=True, default=None, help_text=INSTANCE_OF_HELP)


def check(attrs: Mapping[str, Any]) -> None:
    """Refuse half of an own part, and one without an instance. Raises ValidationError."""
    if (attrs.get("own_core") is None) != (attrs.get("own_memory_mib") is None):
        raise serializers.ValidationError({"own_memory_mib": ["Give own_core and own_memory_mib together."]})
    if attrs.get("own_core") is not None and attrs.get("profile") is None:
        raise serializers.ValidationError({"profile": ["Name the profile of the instance that is to be opened."]})
