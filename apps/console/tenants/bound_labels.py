"""Descriptions of a tenant's limits: of its members, of single claims, and of its budgets."""

from collections import Counter
from collections.abc import Iterable
from dataclasses import dataclass
from typing import Final

from django.db.models import Q, QuerySet
from django.utils import timezone
from django.utils.translation import gettext, ngettext
from django.utils.translation import gettext_lazy as _

from apps.console.tenants.quotas import resource_words
from apps.quotas.models import Budget, LimitRange, MemberLimit, Membership, Tenant
from apps.quotas.models.budget import Period, WhenSpent
from apps.quotas.models.limits import ClaimField
from apps.scheduling.models import Claim
from apps.scheduling.services.charging.budgets import expected_spent_at, standing_of
from apps.scheduling.services.charging.states import charged_by_users
from gpucloud.web.tags import amount, duration, mib, percent

# Further ones are counted: the reader looks for those who hold most.
MOST_HOLDERS: Final = 5
FIELDS: Final = {
    ClaimField.CORE_REQUEST.value: _("Core request"),
    ClaimField.CORE_LIMIT.value: _("Core limit"),
    ClaimField.MEMORY_MIB.value: _("Memory"),
    ClaimField.GPU_COUNT.value: _("GPUs"),
    ClaimField.TIME_LIMIT_SECONDS.value: _("Time limit"),
}
PERIODS: Final = {
    Period.MONTH.value: _("Each month"),
    Period.WEEK.value: _("Each week"),
    Period.CUSTOM.value: _("Once"),
}
# An icon and its text.
Effect = tuple[str, str]


@dataclass(frozen=True, slots=True)
class Holder:
    """A member, and the amount of a limit's resource that their claims hold."""

    name: str
    held: int
    limit: MemberLimit

    @property
    def over(self) -> bool:
        """True if it is more than the limit: the limit was lowered, or came later."""
        return self.limit.hard is not None and self.held > self.limit.hard

    @property
    def percent(self) -> float:
        """The part of the limit in percent."""
        return 100 * self.held / self.limit.hard if self.limit.hard else 100.0


class Members:
    """The members of a tenant, those with limits of their own, and what each holds; three queries."""

    def __init__(self, tenant: Tenant) -> None:
        people = Membership.objects.filter(tenant=tenant).select_related("user")
        self.names = {member.user_id: member.user.get_username() for member in people}
        self.held = charged_by_users(tenant)
        own = MemberLimit.objects.filter(tenant=tenant, user__isnull=False)
        self.own = set(own.values_list("user_id", "resource"))

    def holders(self, limit: MemberLimit) -> list[Holder]:
        """Return the members that the limit bounds and that hold something, most first."""
        bound = [limit.user_id] if limit.user_id is not None else self._without_own(limit.resource)
        found = [
            Holder(self.names[pk], self.held.get(pk, Counter())[limit.resource], limit)
            for pk in bound
            if pk in self.names
        ]
        return sorted((one for one in found if one.held or limit.user_id), key=lambda one: (-one.held, one.name))

    def _without_own(self, resource: str) -> Iterable[int]:
        return (pk for pk in self.names if (pk, resource) not in self.own)


def describe_limit(row: MemberLimit) -> str:
    """Return the limit in words: `max: core 200 %`."""
    who = row.user.get_username() if row.user else gettext("Each member")
    return f"{who}: {resource_words(row.resource)} {amount(row.hard, row.resource)}"


def value_of(field: str, value: int | None) -> str:
    """Return the value of a claim's field in words; a dash without a bound."""
    if value is None:
        return "–"
    if field == ClaimField.MEMORY_MIB:
        return mib(value)
    if field == ClaimField.TIME_LIMIT_SECONDS:
        return duration(value)
    return str(value) if field == ClaimField.GPU_COUNT else percent(value)


def describe_range(row: LimitRange) -> str:
    """Return the range in words: `Memory: at least 1 GiB, at most 16 GiB, 4 GiB unless said`."""
    said = {name: value_of(row.field, getattr(row, name)) for name in ("minimum", "maximum", "default")}
    words = [
        gettext("at least {minimum}") if row.minimum is not None else "",
        gettext("at most {maximum}") if row.maximum is not None else "",
        gettext("default {default}") if row.default is not None else "",
    ]
    where = f"{FIELDS[row.field]}, {row.pool}" if row.pool else str(FIELDS[row.field])
    return f"{where}: " + ", ".join(filter(None, words)).format(**said)


def describe_budget(row: Budget) -> str:
    """Return the budget in words: `Each month: 100 GPU-hours`."""
    return f"{PERIODS[row.period]}: {gettext('{0} GPU-hours').format(f'{row.gpu_hours.normalize():f}')}"


def limits_effects(row: MemberLimit) -> list[Effect]:
    """Return the members that would hold more than the limit. Their claims stay."""
    over = [one for one in Members(row.tenant).holders(row) if one.over]
    said = [
        gettext(
            "{name} holds {held}, more than {hard}. Nothing is taken away; nothing new is granted to them until their "
            "claims end."
        ).format(name=one.name, held=amount(one.held, row.resource), hard=amount(row.hard, row.resource))
        for one in over[:MOST_HOLDERS]
    ]
    if len(over) > MOST_HOLDERS:
        more = len(over) - MOST_HOLDERS
        said.append(ngettext("So does {0} more.", "So do {0} more.", more).format(more))
    if not over:
        return [("check", gettext("Nobody under this limit holds more."))]
    return [("alert-triangle", words) for words in said]


def outside(row: LimitRange) -> QuerySet[Claim]:
    """Return live claims outside of the range."""
    name = row.field
    low = Q(**{f"{name}__lt": row.minimum}) if row.minimum is not None else Q(pk__in=[])
    high = Q(pk__in=[])
    if row.maximum is not None:
        # A claim without a time limit exceeds every bound.
        high = Q(**{f"{name}__gt": row.maximum}) | Q(**{f"{name}__isnull": True})
    rows = Claim.objects.live().filter(low | high, tenant=row.tenant)
    return rows.filter(pool=row.pool) if row.pool else rows


def ranges_effects(row: LimitRange) -> list[Effect]:
    """Return the effect on existing and on new claims."""
    number = outside(row).count()
    stay = ngettext(
        "{0} live claim is outside of it: it stays as it is, and only what is changed of it must keep to the range.",
        "{0} live claims are outside of it: they stay as they are, and only what is changed of them must keep to the "
        "range.",
        number,
    )
    said = [("alert-triangle", stay.format(number))] if number else []
    if not number:
        said.append(("check", gettext("Every live claim is within it.")))
    if row.default is not None:
        words = gettext("A new claim that does not set it gets {0}.").format(value_of(row.field, row.default))
        said.append(("check", words))
    return said


def budgets_effects(row: Budget) -> list[Effect]:
    """Return the present spending of the budget, and its effect."""
    standing = standing_of(row, now=timezone.now())
    if standing is None:
        return [("clock", gettext("It has no current period: it has not begun, or has ended, and limits nothing."))]
    facts = {
        "spent": hours(standing.gpu_hours_spent),
        "whole": f"{row.gpu_hours.normalize():f}",
        "percent": standing.percent,
        "end": f"{timezone.localtime(standing.ends_at):%Y-%m-%d %H:%M %Z}",
    }
    if standing.percent >= 100:
        words = gettext(
            "{spent} of {whole} GPU-hours are spent: nothing new is granted until {end}. What runs goes on, and counts."
        )
        if row.when_spent != WhenSpent.REFUSE:
            words = gettext("{spent} of {whole} GPU-hours are spent; the period ends {end}. At 100 %: {what}.")
        return [("alert-triangle", words.format(what=row.get_when_spent_display(), **facts))]
    words = gettext("{spent} of {whole} GPU-hours are spent, {percent} %; the period ends {end}.")
    said = [("check", words.format(**facts))]
    if expected := expected_spent_at(row, standing, timezone.now()):
        at = f"{timezone.localtime(expected):%Y-%m-%d %H:%M %Z}"
        said.append(("clock", gettext("At the present rate it is spent on {0}.").format(at)))
    return said


def hours(text: str) -> str:
    """Return GPU-hours as decimal text, to the hundredth."""
    return f"{float(text):.2f}"
