"""Whose it is: tenants that one administers, and the platform; for forms that make something and lists that narrow."""

from typing import Any, Final

from django import forms
from django.db.models import QuerySet
from django.utils.translation import gettext
from django.utils.translation import gettext_lazy as _

from apps.quotas.models import Role, Tenant
from apps.quotas.principals import Principal

# Of no tenant; no slug is a hyphen.
PLATFORM: Final = "-"


def administered(principal: Principal) -> QuerySet[Tenant]:
    """Tenants for which the caller may do what their admins do."""
    mine = Tenant.objects.order_by("slug")
    return mine if principal.is_operator else mine.filter(pk__in=principal.with_role(Role.ADMIN))


class WhoseForm(forms.Form):
    """What a list of tenants' and the platform's own is narrowed by, for who administers them; it lives in the URL."""

    tenant = forms.ChoiceField(label=_("Of"), required=False, widget=forms.Select(attrs={"class": "form-select"}))

    def __init__(self, *args: Any, principal: Principal, **kwargs: Any) -> None:
        super().__init__(*args, **kwargs)
        field = self.fields["tenant"]
        assert isinstance(field, forms.ChoiceField)
        slugs = [(slug, slug) for slug in administered(principal).values_list("slug", flat=True)]
        platform = [(PLATFORM, gettext("the platform"))] if principal.is_operator else []
        field.choices = [("", gettext("All")), *platform, *slugs]

    @property
    def wanted(self) -> str:
        """A tenant's slug, PLATFORM, or nothing: all."""
        self.is_valid()
        return str(self.cleaned_data.get("tenant", ""))

    def narrowed(self, rows: Any) -> Any:
        """What the form says of them."""
        if not (wanted := self.wanted):
            return rows
        return rows.filter(tenant=None) if wanted == PLATFORM else rows.filter(tenant__slug=wanted)
