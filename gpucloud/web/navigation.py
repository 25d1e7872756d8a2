"""Navigation: the pages of the top bar, in sections, and the places and actions that search offers.

The bar and the search use the same list, so they cannot differ. A new page is one line here.
"""

from dataclasses import dataclass
from typing import Final

from django.urls import reverse
from django.utils.functional import Promise
from django.utils.translation import gettext_lazy as _


@dataclass(frozen=True, slots=True)
class Place:
    """A page of the bar.

    `within`: prefixes of other paths that belong to it; `words`: synonyms for search; `operators`: for operators only;
    `admins`: for operators and for admins of a tenant.
    """

    route: str
    title: Promise | str
    icon: str
    operators: bool = False
    admins: bool = False
    within: tuple[str, ...] = ()
    words: str = ""

    @property
    def path(self) -> str:
        """Return the page's path."""
        return reverse(self.route)

    def holds(self, path: str) -> bool:
        """Return True if `path` is this page or belongs to it."""
        if self.path == "/":
            return path == "/"
        return path.startswith((self.path, *self.within))


@dataclass(frozen=True, slots=True)
class Section:
    """A group of related places, named in the bar's first row."""

    title: Promise | str
    places: tuple[Place, ...]


SECTIONS: Final = (
    Section(
        _("Work"),
        (
            Place("overview", _("Overview"), "layout-dashboard", words="home start attention"),
            Place("claims", _("Claims"), "stack-2", words="vgpu assignments shares"),
            Place("queue", _("Queue"), "clock", words="waiting pending why"),
            Place(
                "jobs",
                _("Jobs"),
                "terminal-2",
                within=("/job-arrays/",),
                words="run commands batch output logs notebooks jupyter",
            ),
            Place("reservations", _("Reservations"), "calendar", words="booking week"),
            Place("proposals", _("Proposals"), "adjustments-horizontal", words="rebalancing idle"),
            Place("requests", _("Requests"), "hourglass", words="approvals ask for more quota approve refuse"),
        ),
    ),
    Section(
        _("Teams"),
        (
            Place(
                "tenants",
                _("Tenants"),
                "building",
                within=(
                    "/quotas/",
                    "/new-tenant/",
                    "/member-limits/",
                    "/limit-ranges/",
                    "/budgets/",
                    "/organisations/",
                    "/organisation-quotas/",
                ),
                words="quotas members tokens limits budgets organisations departments",
            ),
            Place(
                "users",
                _("Users"),
                "user",
                admins=True,
                within=("/new-invitation/",),
                words="people members invite invitations accounts deactivate password reset last seen",
            ),
            Place("reports", _("Reports"), "gauge", within=("/prices/",), words="gpu-hours cost usage billing prices"),
            Place("efficiency", _("Efficiency"), "bolt", words="waste unused idle utilisation gpu-hours"),
            Place(
                "webhooks",
                _("Webhooks"),
                "activity",
                admins=True,
                within=("/new-webhook/",),
                words="notify notifications events messages callbacks deliveries",
            ),
            Place("tokens", _("Tokens"), "lock", admins=True, within=("/new-token/",), words="services keys ci"),
            Place("audit", _("Audit"), "history", words="log who changed what events"),
        ),
    ),
    Section(
        _("Fleet"),
        (
            Place("nodes", _("Nodes"), "server-2", operators=True, words="machines agents"),
            Place("gpus", _("GPUs"), "device-sd-card", operators=True, words="devices memory models"),
            Place(
                "pools",
                _("Pools"),
                "cpu",
                operators=True,
                within=("/new-pool/",),
                words="sharing policy idle rebalancing",
            ),
            Place("policies", _("Policies"), "gauge", operators=True, words="sharing idle rebalancing preemption"),
            Place(
                "access",
                _("Agents"),
                "refresh",
                operators=True,
                within=("/new-node/",),
                words="enrolment versions heartbeat install",
            ),
            Place("rounds", _("Scheduling cycles"), "refresh", operators=True, words="scheduler decisions"),
            Place(
                "clusters",
                _("Clusters"),
                "bolt",
                operators=True,
                within=("/new-cluster/",),
                words="kubernetes namespaces pods import",
            ),
            Place(
                "integrations",
                _("Integrations"),
                "terminal-2",
                operators=True,
                words="kube-scheduler extender webhooks configuration",
            ),
            Place(
                "admin:index",
                _("Database browser"),
                "device-sd-card",
                operators=True,
                words="database tables rows admin",
            ),
        ),
    ),
)


def sections(*, operator: bool, admin: bool = False) -> list[Section]:
    """Return the sections that this reader may open, without empty ones."""

    def open_to(place: Place) -> bool:
        return operator or not (place.operators or (place.admins and not admin))

    own = [Section(section.title, tuple(filter(open_to, section.places))) for section in SECTIONS]
    return [section for section in own if section.places]


def locate(open_to: list[Section], path: str) -> tuple[Section, Place | None]:
    """Return the section and the place that `path` belongs to; the first section if it belongs to none."""
    found = ((section, place) for section in open_to for place in section.places if place.holds(path))
    return next(found, (open_to[0], None))
