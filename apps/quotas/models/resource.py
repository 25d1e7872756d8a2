"""Resources that quotas limit."""

from django.db import models
from django.utils.translation import gettext_lazy as _


class Resource(models.TextChoices):
    """Resource of a quota."""

    CORE_PERCENT = "core_percent"
    MEMORY_MIB = "memory_mib"
    VGPUS = "vgpus"
    GPUS = "gpus"
    # Memory of nodes that holds the GPU memory of suspended claims.
    HOST_MEMORY_MIB = "host_memory_mib"


# `mig/2g.35gb`: claims with a MIG instance of this profile, counted.
MIG = "mig/"
MIG_RESOURCE = r"mig/[0-9]{1,2}g\.[0-9]{1,5}gb"
RESOURCE = f"^({'|'.join([*Resource.values, MIG_RESOURCE])})$"


def profile_of(resource: str) -> str | None:
    """Return the MIG profile whose instances the resource counts; None: it is another resource."""
    return resource.removeprefix(MIG) if resource.startswith(MIG) else None


def charge_field(resource: str) -> str:
    """Return the field of a claim that has its charge of this resource."""
    return "charged_instances" if resource.startswith(MIG) else f"charged_{resource}"


# A tenant without a quota of these may hold none; without a quota of the others it is not limited separately.
ZERO_WITHOUT_ROW = (Resource.CORE_PERCENT, Resource.MEMORY_MIB)

# Resources whose amounts are MiB.
IN_MIB = (Resource.MEMORY_MIB, Resource.HOST_MEMORY_MIB)

# Readers of JSON lose digits beyond it.
MOST_AMOUNT = 2**53 - 1

# Help texts of amounts, for forms and, with the meaning of null, for the API.
AMOUNT_HELP = {
    "hard": _("What the tenant may hold; 0: nothing."),
    "borrowing_limit": _("Above the quota, while its cohort has idle quota."),
    "lending_limit": _("Of the quota, to its cohort while idle."),
    "organisation_hard": _("What all its tenants may hold together; 0: nothing."),
    "member_hard": _("Over all pools, by all tokens of the member together; 0: nothing."),
    "range_default": _("The value of claims that do not set it."),
    "more": _("The amount to add to the present quota."),
    "until": _("The quota falls back then."),
}
