"""The audit log: each change, its author and origin, before and after."""

import json
from typing import Any

import django_filters
from django.utils.translation import gettext_lazy as _

from apps.console.shell.export import facts_of
from apps.console.shell.forms import moment
from apps.console.shell.lists.columns import column, number
from apps.console.shell.lists.filters import ListFilter, Text, tenants
from apps.console.shell.lists.views import ListPage
from apps.quotas.models import AuditEvent


class Moment(django_filters.Filter):
    """The events from or until a moment, in the reader's time zone."""

    @property
    def field(self) -> Any:
        """The field for the moment."""
        return moment(self.label, help_text="", required=False)


class AuditFilter(ListFilter):
    """The filters of the audit log."""

    folded = ("since", "until")
    tenant = tenants()
    actor = Text(_("Who"), "actor__startswith", "user:anna")
    action = Text(_("What"), "action__startswith", "quota.set")
    object_id = Text(_("Of what"), "object_id", _("name or uid"))
    since = Moment("at", "gte", label=_("Since"))
    until = Moment("at", "lt", label=_("Until"))


class AuditLog(ListPage):
    """The audit log, newest first: everything to an operator, the tenant's events to its admin."""

    model, filters, template_name = AuditEvent, AuditFilter, "audit/list.html"
    title = _("Audit log")
    subtitle = _("Changes with author, origin, before and after; manage.py verify_audit proves that none is missing")
    # The log may hold millions of rows, so only orders that an index serves are offered.
    columns = [
        number(_("When"), "at", "pk"),
        column(_("Who")),
        column(_("What")),
        column(_("Before → after"), css="wide"),
    ]
    file = ("audit", [
        "at", "actor", "source_ip", "action", "object_type", "object_id", "tenant", "before", "after", "position",
        "digest",
    ])  # fmt: skip

    def with_details(self, rows: Any) -> Any:
        """Add the tenant."""
        return rows.select_related("tenant")

    def present(self, rows: list[Any]) -> list[Any]:
        """Add the differences."""
        for event in rows:
            event.differences = changes(event)
        return rows

    def facts(self, row: Any) -> Any:
        """Return the event with its tenant's slug."""
        return facts_of(row, self.file[1], tenant=row.tenant and row.tenant.slug)


def changes(event: AuditEvent) -> list[tuple[str, Any, Any]]:
    """Return name, before, after of each difference; all fields of a created object."""
    before, after = event.before or {}, event.after or {}
    names = [*after, *(name for name in before if name not in after)]
    return [
        (name, _plain(before.get(name)), _plain(after.get(name)))
        for name in names
        if before.get(name) != after.get(name)
    ]


def _plain(value: Any) -> Any:
    """Return a list or a truth value as JSON has it, without a list's brackets; Python's forms are for programmers."""
    if isinstance(value, list) and all(isinstance(one, str) for one in value):
        return ", ".join(value)
    return json.dumps(value) if isinstance(value, bool | list | dict) else value
