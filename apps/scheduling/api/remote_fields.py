"""The field of a claim that concerns its use from other machines."""

from django.utils.translation import gettext_lazy as _
from rest_framework import serializers

from apps.scheduling.models.choices import Remote

REMOTE_HELP = _(
    "Its use from other machines (docs/remote.md). `allow`: where its pool and tenant allow it, and its node takes "
    "remote clients. `require`: it is placed on such nodes only. `never`: nobody gets a ticket for it."
)


def remote(*, for_change: bool = False) -> serializers.ChoiceField:
    """Return the field of the use from other machines."""
    if for_change:
        return serializers.ChoiceField(choices=Remote.choices, required=False, help_text=REMOTE_HELP)
    return serializers.ChoiceField(choices=Remote.choices, default=Remote.ALLOW, help_text=REMOTE_HELP)
