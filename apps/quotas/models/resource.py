"""Resources that quotas limit."""

from django.db import models


class Resource(models.TextChoices):
    """Resource of a quota."""

    CORE_PERCENT = "core_percent"
    MEMORY_MIB = "memory_mib"
    VGPUS = "vgpus"
    GPUS = "gpus"


# A tenant without a quota of these may hold none; without a quota of the others it is not limited separately.
ZERO_WITHOUT_ROW = (Resource.CORE_PERCENT, Resource.MEMORY_MIB)

# Readers of JSON lose digits beyond it.
MOST_AMOUNT = 2**53 - 1
