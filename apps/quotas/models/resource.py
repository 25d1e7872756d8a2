"""What can be limited."""

from django.db import models


class Resource(models.TextChoices):
    """What a quota is of."""

    CORE_PERCENT = "core_percent"
    MEMORY_MIB = "memory_mib"
    VGPUS = "vgpus"
    GPUS = "gpus"


# Without a row for one of these a tenant holds none of it; without a row for the others it is not limited separately.
ZERO_WITHOUT_ROW = (Resource.CORE_PERCENT, Resource.MEMORY_MIB)
