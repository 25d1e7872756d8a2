"""Problems, worst first: the first panel of the overview."""

from dataclasses import dataclass
from datetime import datetime, timedelta
from typing import Any, Final

from django.db.models import F, Q, QuerySet
from django.urls import reverse
from django.utils import timezone
from django.utils.translation import gettext as _
from django.utils.translation import ngettext

from apps.console.overview.fleet_map import Fleet
from apps.console.tenants.quotas import RESOURCE_WORDS
from apps.nodes.models import GpuHealth, Node
from apps.nodes.models.node import FRESH
from apps.nodes.services.gpu_rows import GpuRow
from apps.quotas.models import QuotaRequest, Role, Webhook
from apps.quotas.models.request import RequestState
from apps.quotas.principals import Principal
from apps.quotas.services.webhooks import addresses
from apps.scheduling.models import Assignment, AssignmentState, Claim, ClaimState
from apps.scheduling.models.claim import Idle
from apps.scheduling.services.charging.shortages import refresh_quota_reasons
from gpucloud.web.badges import Tone
from gpucloud.web.tags import amount

# A list that needs scrolling hides what it should show; the claims page has the rest.
MOST: Final = 6
# A push is in force within 100 ms; after this time an operator should check.
SLOW: Final = timedelta(seconds=5)
# Of a webhook's server: longer than a restart takes.
LONG: Final = timedelta(hours=1)


@dataclass(frozen=True, slots=True)
class Notice:
    """One problem to look at."""

    tone: Tone
    icon: str
    title: str
    detail: str
    url: str
    since: datetime | None = None


def notices(principal: Principal, fleet: Fleet | None) -> list[Notice]:
    """Return up to six notices of each kind, of nodes, claims, webhooks, requests, idle and queued claims.

    `fleet`: the fleet as it was read; None for readers without access to nodes.
    """
    found = _node_notices(fleet) if fleet is not None else []
    found += _unreachable_notices(principal)
    found += [*_assignment_notices(principal), *_webhook_notices(principal), *_request_notices(principal)]
    return [*found, *_idle_notices(principal), *_queued_notices(principal)]


def _node_notices(fleet: Fleet) -> list[Notice]:
    nodes = [node for node, _cells in fleet.nodes]
    gpus = [(node, cell.gpu) for node, cells in fleet.nodes for cell in cells]
    gone = [node for node in nodes if not node.online]
    fenced = [node for node in nodes if node.fenced_at is not None]
    ill = [node for node in nodes if node.unhealthy]
    sick = [(node, gpu) for node, gpu in gpus if gpu.unhealthy]
    missing = [(node, gpu) for node, gpu in gpus if not gpu.present and node.online]
    return [
        *(_lost_notice(node) for node in gone[:MOST]),
        *(_fenced_notice(node) for node in fenced[:MOST]),
        *(_unhealthy_notice(_("Node {0}").format(node.name), node.unhealthy, node) for node in ill[:MOST]),
        *(
            _unhealthy_notice(_("GPU {0} of {1}").format(gpu.index, node.name), gpu.unhealthy, node)
            for node, gpu in sick[:MOST]
        ),
        *(_missing_notice(node, gpu) for node, gpu in missing[:MOST]),
        *(_memory_notice(health) for health in _with_lost_memory()),
    ]


def _with_lost_memory() -> QuerySet[GpuHealth]:
    found = GpuHealth.objects.filter(ecc_uncorrected__gt=0, gpu__present=True).select_related("gpu__node")
    return found.defer("processes", "gpu__links", "gpu__node__checks").order_by("-ecc_uncorrected", "pk")[:MOST]


def _memory_notice(health: GpuHealth) -> Notice:
    gpu, count = health.gpu, health.ecc_uncorrected or 0
    title = ngettext(
        "GPU {0} of {1} had {2} uncorrectable memory error", "GPU {0} of {1} had {2} uncorrectable memory errors", count
    )
    detail = _("Counted since the driver was loaded. Reset the GPU when no claim is on it; if they recur, replace it.")
    return Notice("warn", "cpu", title.format(gpu.index, gpu.node.name, count), detail, reverse("gpu", args=[gpu.uuid]))


def _missing_notice(node: Node, gpu: GpuRow) -> Notice:
    title, detail = _("GPU {0} of {1} is gone"), _("The agent no longer sees it; nothing new is placed on it.")
    return Notice("bad", "cpu", title.format(gpu.index, node.name), detail, reverse("node", args=[node.name]))


def _lost_notice(node: Node) -> Notice:
    url = reverse("node", args=[node.name])
    if node.last_seen_at is None:
        detail = _("Run the command that its creation answered on the machine, or make a new enrolment token.")
        return Notice(
            "warn", "hourglass", _("Node {0} awaits its agent").format(node.name), detail, url, node.created_at
        )
    detail = _("No heartbeat. Programs keep their last limits, and claims keep their allocation.")
    return Notice("bad", "plug-connected-x", _("Node {0} is lost").format(node.name), detail, url, node.last_seen_at)


def _fenced_notice(node: Node) -> Notice:
    detail = _("{0} It takes no new claims until the fence is lifted.").format(node.fenced_why)
    title = _("Node {0} is fenced").format(node.name)
    return Notice("bad", "alert-triangle", title, detail, reverse("node", args=[node.name]), node.fenced_at)


def _unhealthy_notice(what: str, words: str, node: Node) -> Notice:
    detail = _("{0}: nothing new is placed on it; the claims on it are left.").format(words)
    return Notice(
        "bad", "alert-triangle", _("{0} is unhealthy").format(what), detail, reverse("node", args=[node.name])
    )


def _assignment_notices(principal: Principal) -> list[Notice]:
    slow = Q(observed_generation__lt=F("generation"), updated_at__lt=timezone.now() - SLOW)
    wrong = Q(state__in=[AssignmentState.FAILED, AssignmentState.OVER_LIMIT])
    rows = (
        Assignment.objects.filter(slow | wrong, claim__in=Claim.objects.visible_to(principal))
        .exclude(state=AssignmentState.RELEASED)
        .select_related("claim__tenant", "gpu__node")
    )
    return [_assignment_notice(row) for row in rows[:MOST]]


def _assignment_notice(row: Assignment) -> Notice:
    where = f"{row.gpu.node.name} GPU {row.gpu.index}"
    common: dict[str, Any] = {"url": reverse("claim", args=[row.claim.uid]), "since": row.updated_at}
    if row.state == AssignmentState.FAILED:
        detail = row.reason or _("The agent gave no reason.")
        return Notice("bad", "circle-x", _("{0} failed on {1}").format(row.claim, where), detail, **common)
    if row.state == AssignmentState.OVER_LIMIT:
        detail = row.reason or _("It holds more memory than its limit; its next allocation fails.")
        return Notice(
            "bad", "alert-triangle", _("{0} is over its limit on {1}").format(row.claim, where), detail, **common
        )
    detail = _("The agent has not confirmed the last change; it is sent again until it does.")
    return Notice("warn", "refresh", _("{0} is not in force on {1}").format(row.claim, where), detail, **common)


def _unreachable_notices(principal: Principal) -> list[Notice]:
    """Return the claims of the reader's tenants on lost nodes; operators see the nodes."""
    if principal.is_operator:
        return []
    lost = Assignment.objects.exclude(state=AssignmentState.RELEASED).filter(
        gpu__node__last_seen_at__lt=timezone.now() - FRESH, claim__in=Claim.objects.visible_to(principal)
    )
    rows = lost.select_related("claim__tenant", "gpu__node").order_by("claim_id", "gpu_id").distinct("claim_id")
    detail = _("Its state is unknown; its programs may still run.")
    return [
        Notice(
            "bad",
            "plug-connected-x",
            _("{0}: node {1} is unreachable").format(row.claim, row.gpu.node.name),
            detail,
            reverse("claim", args=[row.claim.uid]),
            row.gpu.node.last_seen_at,
        )
        for row in rows[:MOST]
    ]


def _webhook_notices(principal: Principal) -> list[Notice]:
    """Return the stopped and failing webhooks that the reader may repair."""
    if not principal.may_administer:
        return []
    stopped = Q(enabled=False, disabled_reason__isnull=False)
    failing = Q(enabled=True, failing_since__lt=timezone.now() - LONG)
    return [_webhook_notice(hook) for hook in Webhook.objects.visible_to(principal).filter(stopped | failing)[:MOST]]


def _webhook_notice(hook: Webhook) -> Notice:
    to, url = addresses.origin(hook.url), reverse("webhook", args=[hook.uid])
    if hook.enabled:
        detail = _("Its messages are stored and sent again for three days.")
        return Notice("warn", "activity", _("The webhook to {0} fails").format(to), detail, url, hook.failing_since)
    title = _("The webhook to {0} was stopped").format(to)
    return Notice("bad", "activity", title, hook.disabled_reason or "", url, hook.failing_since)


def _request_notices(principal: Principal) -> list[Notice]:
    """Return the requests that wait for operators, or for the tenant's admins."""
    rows = QuotaRequest.objects.select_related("tenant").order_by("pk")
    if principal.is_operator:
        rows, what = rows.filter(state=RequestState.OPEN), _("{0} requests {1} more {2}")
    else:
        rows = rows.filter(
            state__in=(RequestState.REQUESTED, RequestState.COUNTERED), tenant__in=principal.with_role(Role.ADMIN)
        )
        what = _("{0} was offered something else for {1} more {2}")
    members = _("A member of {0} requests {1} more {2}: forward or deny the request")
    return [
        Notice(
            "warn",
            "hourglass",
            (members if row.state == RequestState.REQUESTED else what).format(
                row.tenant, amount(row.amount, row.resource), RESOURCE_WORDS[row.resource]
            ),
            row.words or row.reason,
            reverse("request", args=[row.uid]),
            row.created_at,
        )
        for row in rows[:MOST]
    ]


def _idle_notices(principal: Principal) -> list[Notice]:
    idle = Claim.objects.visible_to(principal).filter(idle_since__isnull=False).select_related("tenant")
    # The claim that is released first comes first.
    rows = idle.order_by(F("idle_release_at").asc(nulls_last=True), "idle_since", "pk")
    return [_idle_notice(claim) for claim in rows[:MOST]]


def _idle_notice(claim: Claim) -> Notice:
    unused = claim.idle_reason == Idle.UNUSED
    what = _("No program has used it.") if unused else _("Its programs compute nothing.")
    if claim.idle_release_at is not None:
        at = timezone.localtime(claim.idle_release_at)
        end = _("It is released at {0} unless it is used before.").format(f"{at:%Y-%m-%d %H:%M:%S %Z}")
    elif claim.lent_core:
        end = _("It lends {0} of a GPU until it needs it.").format(f"{claim.lent_core} %")
    else:
        end = _("Release the claim if you no longer need it.")
    title = (_("{0} is unused") if unused else _("{0} is idle")).format(claim)
    return Notice("warn", "player-pause", title, f"{what} {end}", reverse("claim", args=[claim.uid]), claim.idle_since)


def _queued_notices(principal: Principal) -> list[Notice]:
    waiting = Claim.objects.visible_to(principal).filter(state=ClaimState.QUEUED).select_related("tenant")
    # A claim with a later start waits as it should.
    waiting = waiting.exclude(start_at__gt=timezone.now())
    return [
        Notice(
            "warn",
            "clock",
            _("{0} waits").format(claim),
            "; ".join(reason["detail"] for reason in claim.reasons) + ".",
            reverse("claim", args=[claim.uid]),
            claim.created_at,
        )
        for claim in refresh_quota_reasons(list(waiting.select_related("pool").order_by("-priority", "pk")[:MOST]))
    ]
