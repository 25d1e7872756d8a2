"""The field of a claim that concerns borrowed memory."""

from typing import Any

from django.utils.translation import gettext_lazy as _

from apps.quotas.models.limits import MOST, ClaimField
from gpucloud.api.serializers import StrictInteger

MEMORY_LIMIT_HELP = _(
    "Of a best-effort claim, on each GPU: its programs may allocate this much, of which memory_mib is promised and the "
    "rest is borrowed from what others do not use; it leaves for the node's memory when they need it. Null: nothing is "
    "borrowed."
)


def memory_limit(**more: Any) -> StrictInteger:
    """Return the field of the memory up to which a claim borrows."""
    most = MOST[ClaimField.MEMORY_MIB]
    return StrictInteger(min_value=1, max_value=most, allow_null=True, help_text=MEMORY_LIMIT_HELP, **more)
