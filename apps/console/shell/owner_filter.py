"""The owner of a row: a tenant that the reader administers, or the platform; for forms and filters."""

from typing import Any, Final

from django import forms
from django.db.models import QuerySet
from django.utils.translation import gettext
from django.utils.translation import gettext_lazy as _

from apps.quotas.models import Role, Tenant
from apps.quotas.principals import Principal

# The owner of rows without a tenant; no slug is a hyphen.
PLATFORM: Final = "-"


def administered_tenants(principal: Principal) -> QuerySet[Tenant]:
    """Return the tenants that the caller administers."""
    mine = Tenant.objects.order_by("slug")
    return mine if principal.is_operator else mine.filter(pk__in=principal.with_role(Role.ADMIN))


class OwnerFilterForm(forms.Form):
    """The owner filter of lists of tenants' and the platform's rows, in the URL."""

    tenant = forms.ChoiceField(label=_("Of"), required=False, widget=forms.Select(attrs={"class": "form-select"}))

    def __init__(self, *args: Any, principal: Principal, **kwargs: Any) -> None:
        super().__init__(*args, **kwargs)
        field = self.fields["tenant"]
        assert isinstance(field, forms.ChoiceField)
        slugs = [(slug, slug) for slug in administered_tenants(principal).values_list("slug", flat=True)]
        platform = [(PLATFORM, gettext("the platform"))] if principal.is_operator else []
        field.choices = [("", gettext("All")), *platform, *slugs]

    @property
    def wanted(self) -> str:
        """A tenant's slug, PLATFORM, or empty: all."""
        self.is_valid()
        return str(self.cleaned_data.get("tenant", ""))

    def filter_rows(self, rows: Any) -> Any:
        """Return the rows that match the filter."""
        if not (wanted := self.wanted):
            return rows
        return rows.filter(tenant=None) if wanted == PLATFORM else rows.filter(tenant__slug=wanted)
