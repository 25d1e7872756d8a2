"""Forms of the reservations' pages."""

from datetime import timedelta
from typing import Any

from django.utils import timezone
from django.utils.translation import gettext_lazy as _

from apps.console.shell.forms import TenantForm, memory, moment, number
from apps.quotas.principals import Principal

# The API's own defaults.
RULES: dict[str, Any] = {"grace_seconds": 900, "idle_percent": 5, "idle_seconds": 1800}


class BookingForm(TenantForm):
    """A new reservation."""

    gpu_count = number(_("GPUs"), most=64, help_text=_("How many, the same share of each."), initial=1)
    core_request = number(_("Core"), most=100, help_text=_("Percent of each GPU; 100 is all of it."), initial=100)
    memory_mib = memory(initial=4096)
    start_at = moment(_("From"))
    end_at = moment(_("To"), help_text=_("Claims in it end with it."))
    weekly_until = moment(
        _("Every week until"), help_text=_("Booked again each week, all or none. Empty: once."), required=False
    )

    def __init__(self, *args: Any, principal: Principal, **kwargs: Any) -> None:
        super().__init__(*args, principal=principal, **kwargs)
        self.fields["name"].widget.attrs["placeholder"] = "exam"
        hour = timezone.localtime().replace(minute=0, second=0, microsecond=0) + timedelta(hours=1)
        self.fields["start_at"].initial, self.fields["end_at"].initial = hour, hour + timedelta(hours=2)

    @property
    def service_arguments(self) -> dict[str, Any]:
        """The arguments for the service."""
        return RULES | self.cleaned_data

    def clean(self) -> dict[str, Any]:
        """Apply the API's own rule."""
        values = super().clean() or {}
        start, end = values.get("start_at"), values.get("end_at")
        if start and end and end <= start:
            self.add_error("end_at", _("Must be after its beginning."))
        return values
