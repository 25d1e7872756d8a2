"""The list of users, with the open invitations."""

from typing import Any

from django.conf import settings
from django.db.models import F, Q
from django.utils.translation import gettext_lazy as _

from apps.console.shell.lists.columns import SavedView, column, named, number
from apps.console.shell.lists.filters import Choice, ListFilter, Search, tenants
from apps.console.shell.lists.views import ListPage
from apps.quotas.models import Invitation, Membership, User
from apps.quotas.principals import Principal


class UserFilter(ListFilter):
    """The filters of users."""

    q = Search("username", "email", placeholder=_("name or mail address"))
    state = Choice(
        _("State"),
        {"active": (_("Active"), Q(is_active=True)), "deactivated": (_("Deactivated"), Q(is_active=False))},
    )
    role = Choice(
        _("Role"),
        {
            "operator": (_("Operator"), Q(is_operator=True)),
            "none": (_("None"), Q(is_operator=False, memberships=None)),
        },
    )
    tenant = tenants("memberships__tenant")


class UserList(ListPage):
    """Users by name: all to operators, to admins the members of their tenants."""

    model, filters, template_name = User, UserFilter, "users/list.html"
    title, subtitle = _("Users"), _("People with an account, and open invitations")
    admins_only = _("A tenant’s admin sees its members.")
    refresh_seconds = 60
    columns = [
        named(_("Name"), "name", "username"),
        column(_("Mail address"), "email", css="wide"),
        column(_("Roles")),
        column(_("State")),
        number(_("Last seen"), "seen", F("last_seen_at")),
    ]
    first = columns[0].keys
    views = [
        SavedView(_("All")),
        SavedView(_("Operators"), "role=operator"),
        SavedView(_("Deactivated"), "state=deactivated"),
    ]
    file = ("users", [
        "username", "email", "active", "operator", "roles", "single_sign_on", "date_joined", "last_seen_at",
    ])  # fmt: skip

    def get_queryset(self) -> Any:
        """Return the users that the reader may see."""
        return User.visible_to(self.principal)

    def with_details(self, rows: Any) -> Any:
        """Add memberships and identities."""
        return rows.prefetch_related("memberships__tenant", "identities")

    def present(self, rows: list[Any]) -> list[Any]:
        """Return each user with the memberships that the reader may see."""
        for row in rows:
            row.shown_roles = roles_of(row, self.principal)
        return rows

    def facts(self, row: Any) -> Any:
        """Return the user without the password's digest."""
        others = {
            "active": row.is_active,
            "operator": row.is_operator,
            "roles": {one.tenant.slug: one.role for one in roles_of(row, self.principal)},
            "single_sign_on": bool(row.identities.all()),
        }
        return {name: others[name] if name in others else getattr(row, name) for name in self.file[1]}

    def more_context(self) -> dict[str, Any]:
        """Return the open invitations."""
        invitations = Invitation.objects.visible_to(self.principal).open().select_related("tenant").order_by("-pk")
        return {"invitations": invitations, "local_accounts": settings.LOCAL_ACCOUNTS}


def roles_of(user: User, principal: Principal) -> list[Membership]:
    """Return the user's memberships that the reader may see."""
    return [one for one in user.memberships.all() if principal.sees(one.tenant)]
