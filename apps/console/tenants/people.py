"""Members of a tenant: add one, change a role, remove one. For the tenant's admins and operators."""

from django import forms
from django.contrib import messages
from django.http import Http404, HttpRequest, HttpResponse
from django.shortcuts import redirect
from django.utils.translation import gettext
from django.utils.translation import gettext_lazy as _
from django.views.decorators.http import require_POST

from apps.console.shell.page_access import page
from apps.quotas.models import Membership, Role, Tenant, User
from apps.quotas.principals import Principal
from apps.quotas.services import tenants


class MemberForm(forms.Form):
    """A person and a role."""

    username = forms.CharField(
        label=_("Person"),
        max_length=150,
        widget=forms.TextInput(
            attrs={"class": "form-control", "autocomplete": "off", "placeholder": "anna", "autocapitalize": "none"}
        ),
    )
    role = forms.ChoiceField(
        label=_("Role"),
        choices=Role.choices,
        initial=Role.MEMBER,
        widget=forms.Select(attrs={"class": "form-select"}),
    )


@require_POST
@page
def set_member(request: HttpRequest, principal: Principal, slug: str) -> HttpResponse:
    """Give a person a role. The person must have signed in before: a name alone could be anybody's."""
    tenant = _find(principal, slug)
    principal.require_role(tenant, Role.ADMIN)
    form = MemberForm(request.POST)
    user = User.objects.filter(username=form.cleaned_data["username"]).first() if form.is_valid() else None
    if user is None:
        messages.error(request, gettext("There is no user of this name. Invite them on the page Users."))
        return redirect("tenant", slug=slug)
    membership = tenants.set_member(principal=principal, tenant=tenant, user=user, role=form.cleaned_data["role"])
    done = gettext("{0} is {1} of {2}.").format(user.get_username(), membership.get_role_display().lower(), tenant)
    messages.success(request, done)
    return redirect("tenant", slug=slug)


@require_POST
@page
def remove_member(request: HttpRequest, principal: Principal, slug: str) -> HttpResponse:
    """Remove a person's role."""
    tenant, username = _find(principal, slug), request.POST.get("username", "").replace("\0", "")
    principal.require_role(tenant, Role.ADMIN)
    rows = Membership.objects.filter(tenant=tenant, user__username=username).select_related("tenant", "user")
    for membership in rows:
        tenants.remove_member(principal=principal, membership=membership)
    messages.success(request, gettext("{0} is no member of {1} any more.").format(username, tenant))
    return redirect("tenant", slug=slug) if _sees(principal, username) else redirect("tenants")


def _sees(principal: Principal, username: str) -> bool:
    """Return whether the caller still sees the tenant once `username` has left it."""
    return principal.is_operator or principal.name != f"user:{username}"


def _find(principal: Principal, slug: str) -> Tenant:
    tenant = Tenant.objects.visible_to(principal).filter(slug=slug).first()
    if tenant is None:
        raise Http404("There is no such tenant that you may see.")
    return tenant
