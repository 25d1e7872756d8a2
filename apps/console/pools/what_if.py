"""The what-if of a pool: its form, its progress, and the figures of each kind of sharing side by side."""

from collections import Counter
from collections.abc import Callable
from typing import TYPE_CHECKING, Any, NamedTuple

from django import forms
from django.http import HttpRequest, HttpResponse, HttpResponseBase
from django.shortcuts import redirect, render
from django.urls import reverse
from django.utils.translation import gettext, ngettext
from django.utils.translation import gettext_lazy as _

from apps.console.pools.pools import find
from apps.console.shell.fields import switch
from apps.console.shell.form_page import FormPage, Link
from apps.console.shell.forms import ServiceForm, number
from apps.quotas.models import Pool
from apps.whatif.models import UNFINISHED, WhatIf
from apps.whatif.services import DAYS, MOST_DAYS, order_what_if
from apps.whatif.values import SHARINGS
from gpucloud.web.tags import duration

if TYPE_CHECKING:
    from django_stubs_ext import StrPromise

KINDS: "dict[str, tuple[StrPromise, StrPromise]]" = {
    "turns": (_("Turns"), _("Each claim has the share that it asked for.")),
    "mps": (_("MPS"), _("As turns, without suspension; tenants may share a GPU.")),
    "mps-per-tenant": (_("MPS, one tenant per GPU"), _("As MPS, but a GPU takes one tenant’s claims only.")),
    "mig": (_("MIG"), _("Each claim has an instance of the smallest profile that covers it.")),
    "fair-share-current": (_("Fair share: current"), _("As turns; the queue counts what tenants hold now.")),
    "fair-share-decayed": (_("Fair share: decayed"), _("As turns; it counts past use too, with the pool’s half-life.")),
}
REASONS: "dict[str, StrPromise]" = {
    "several-gpus": _("Several GPUs"),
    "group": _("In a group"),
    "pod": _("Of a pod"),
    "reservation": _("In a reservation"),
    "no-mig-gpu": _("No GPU of its model can be in MIG mode"),
    "profile-too-small": _("More than the largest profile"),
    "hard-isolation": _("Hard isolation"),
    "impossible": _("No node could carry it"),
}


MOST_TENANTS = 20


def _percent(value: float) -> str:
    return f"{value:.1f} %"


FIGURES: "tuple[tuple[StrPromise, str, Callable[[Any], str]], ...]" = (
    (_("GPUs that take claims"), "gpus", str),
    (_("Accepted claims"), "accepted", str),
    (_("Waiting at the end"), "waiting", str),
    (_("Released before their turn"), "left", str),
    (_("Mean wait"), "wait_mean_seconds", duration),
    (_("Wait, 95th percentile"), "wait_p95_seconds", duration),
    (_("Core allocated"), "core_percent", _percent),
    (_("Memory allocated"), "memory_percent", _percent),
    (_("Core not asked for"), "rounding_core_percent", _percent),
    (_("Memory not asked for"), "rounding_memory_percent", _percent),
    (_("Core free while claims waited"), "stranded_core_percent", _percent),
    (_("Memory free while claims waited"), "stranded_memory_percent", _percent),
    (_("Core on GPUs of several tenants"), "mixed_core_percent", _percent),
    (_("Live resizes refused"), "resizes_refused", str),
    (_("Live resizes that need a restart"), "restarts", str),
    (_("Suspensions refused"), "suspensions_refused", str),
)


class Row(NamedTuple):
    """A row of the table: a figure's name and its value for each kind."""

    label: "StrPromise | str"
    values: list[str]


class WhatIfForm(ServiceForm):
    """The period and the kinds."""

    days = number(_("Days"), most=MOST_DAYS, help_text=_("The claims of so many days up to now."), initial=DAYS)

    def __init__(self, data: Any = None) -> None:
        super().__init__(data)
        for kind, (label, help_text) in KINDS.items():
            self.fields[kind] = switch(label, help_text, initial=kind in SHARINGS)

    def clean(self) -> dict[str, Any]:
        """Require a kind."""
        values = super().clean() or {}
        if not any(values.get(kind) for kind in KINDS):
            raise forms.ValidationError(gettext("Choose at least one kind of sharing."))
        return values

    @property
    def service_arguments(self) -> dict[str, Any]:
        """The given values, for the service."""
        chosen = [kind for kind in KINDS if self.cleaned_data[kind]]
        return {"days": self.cleaned_data["days"], "kinds": chosen}


class WhatIfPage(FormPage):
    """A pool's claims, replayed under other kinds of sharing."""

    template_name, form_class, submit = "pools/what_if.html", WhatIfForm, _("Replay")
    subtitle = _("The claims of the last days, replayed under other kinds of sharing. Nothing is changed")
    operators_only = True

    def find(self) -> Pool:
        """Return the pool."""
        return find(self.kwargs["name"])

    def get(self, request: HttpRequest, *args: Any, **kwargs: Any) -> HttpResponseBase:
        """Show the page; to htmx, only the figures."""
        if request.headers.get("HX-Request"):
            return render(request, "pools/_what_if.html", self.more_context())
        return super().get(request, *args, **kwargs)

    def act(self, form: WhatIfForm) -> WhatIf:
        """Order the replay."""
        return order_what_if(principal=self.principal, pool=self.row, **form.service_arguments)

    def finish(self, form: WhatIfForm, done: WhatIf) -> HttpResponse:
        """Return to the page, which shows the progress."""
        return redirect("what-if", name=self.row.name)

    def more_context(self) -> dict[str, Any]:
        """Return the last what-if."""
        row = WhatIf.objects.filter(pool=self.row).first()
        shown = {"what_if": row, "pool": self.row, "runs": row is not None and row.state in UNFINISHED}
        if row is None or not row.results:
            return shown
        summary = ngettext("{0} claim of the last {1} days.", "{0} claims of the last {1} days.", row.claims)
        titles = [KINDS[one["kind"]][0] for one in row.results]
        return {**shown, "titles": titles, "rows": table(row.results), "summary": summary.format(row.claims, row.days)}

    @property
    def heading(self) -> str:
        """The title of the page."""
        return gettext("What-if of pool {0}").format(self.row.name)

    @property
    def crumbs(self) -> list[Link]:
        """The pages above this one."""
        return [(reverse("pools"), gettext("Pools")), (reverse("pool", args=[self.row.name]), self.row.name)]


def table(results: list[dict[str, Any]]) -> list[Row]:
    """Return the rows of the figures; reasons for which claims do not fit only where there are such claims."""
    rows = [Row(label, [shown(one[name]) for one in results]) for label, name, shown in FIGURES]
    reasons = [reason for reason in REASONS if any(reason in one["unfit"] for one in results)]
    unfit = [
        Row(gettext("Do not fit: {0}").format(REASONS[reason]), [str(one["unfit"].get(reason, 0)) for one in results])
        for reason in reasons
    ]
    return [*rows[:4], *unfit, *rows[4:6], *_waits(results), *rows[6:]]


def _waits(results: list[dict[str, Any]]) -> list[Row]:
    """Return the mean waits of the tenants with most claims."""
    found = [{item["tenant"]: item for item in one.get("waits", ())} for one in results]
    claims = Counter({name: item["claims"] for by_tenant in found for name, item in by_tenant.items()})
    names = sorted(name for name, _ in claims.most_common(MOST_TENANTS))
    return (
        [
            Row(
                gettext("Mean wait of {0}").format(name),
                [duration(by_tenant[name]["mean_seconds"]) if name in by_tenant else "–" for by_tenant in found],
            )
            for name in names
        ]
        if len(names) > 1
        else []
    )
