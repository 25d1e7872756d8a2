"""A node's settings: its pool, and whether its agent repairs drift by itself."""

from typing import Any

from django.db import transaction
from django.db.models import QuerySet
from django.http import HttpResponse
from django.shortcuts import get_object_or_404
from django.urls import reverse
from django.utils.translation import gettext
from django.utils.translation import gettext_lazy as _

from apps.console.shell.fields import api_help, one_of, switch
from apps.console.shell.form_page import FormPage, Link
from apps.console.shell.forms import VersionedForm
from apps.nodes.api.serializers import NodeSerializer
from apps.nodes.models import Node
from apps.nodes.services.nodes import change_node
from apps.quotas.models import AuditEvent, Pool
from apps.scheduling.models import Assignment, AssignmentState

SETTABLE = ("pool", "repair_drift")


class SettingsForm(VersionedForm):
    """The settings of a node.

    `version` holds these settings as the reader saw them: the node's own version changes with its agent's reports, too.
    """

    pool = one_of(_("Pool"), Pool.objects.order_by("name"), "name", _("Only an empty node can move to another."))
    repair_drift = switch(_("Repair drift"), api_help(NodeSerializer, "repair_drift"))


class NodeSettings(FormPage):
    """The settings form of a node."""

    template_name, operators_only = "nodes/settings.html", True
    object_type, actions = "node", ("node.change",)

    def find(self) -> Node:
        """Return the node."""
        return get_object_or_404(Node.objects.select_related("pool"), name=self.kwargs["name"])

    def form(self, data: Any = None) -> SettingsForm:
        """Return the form with the node's settings."""
        row, version = self.row, self.version()
        return SettingsForm(data, initial={"pool": row.pool.name, "repair_drift": row.repair_drift, "version": version})

    @transaction.atomic
    def act(self, form: SettingsForm) -> list[str]:
        """Change the node, and return the names of the changed settings."""
        self.row = Node.objects.select_for_update(of=("self",)).select_related("pool").get(pk=self.row.pk)
        self.require_version(form)
        if changes := form.changes_of(self.row, SETTABLE):
            change_node(principal=self.principal, node=self.row, **changes)
        return list(changes)

    def finish(self, form: SettingsForm, done: list[str]) -> HttpResponse:
        """Return to the node."""
        self.say_changed(form, done)
        return super().finish(form, done)

    def version(self) -> str:
        """Return the values that this form shows, for comparison."""
        return f"{self.row.pool.name} {self.row.repair_drift}"

    def changes(self) -> QuerySet[AuditEvent]:
        """Return the audited changes of these settings."""
        return super().changes().filter(after__has_any_keys=SETTABLE)

    def describe(self) -> str:
        """Return the node's settings in words."""
        at_once, waits = gettext("drift is repaired at once"), gettext("drift waits for an operator")
        return ", ".join([gettext("pool {0}").format(self.row.pool), at_once if self.row.repair_drift else waits])

    def more_context(self) -> dict[str, Any]:
        """Return the node and the number of its claims."""
        live = Assignment.objects.filter(gpu__node=self.row).exclude(state=AssignmentState.RELEASED)
        return {"node": self.row, "claims": live.values("claim").distinct().count()}

    @property
    def heading(self) -> str:
        """The title of the page."""
        return gettext("Settings of {0}").format(self.row.name)

    @property
    def crumbs(self) -> list[Link]:
        """The node."""
        return [(reverse("node", args=[self.row.name]), self.row.name)]

    @property
    def audited_key(self) -> str:
        """The node's name."""
        return str(self.row.name)
