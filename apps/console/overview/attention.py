"""Problems, worst first: the first panel of the overview."""

from datetime import timedelta
from typing import Any, Final

from django.db.models import F, Q, QuerySet
from django.urls import reverse
from django.utils import timezone
from django.utils.translation import gettext as _
from django.utils.translation import gettext_lazy, ngettext

from apps.console.overview.fleet_map import Fleet
from apps.console.overview.notices import MOST, READ, Notice, grouped
from apps.console.tenants.quotas import resource_words
from apps.nodes.models import GpuHealth, Node
from apps.nodes.models.node import FRESH
from apps.nodes.services.gpu_rows import GpuRow
from apps.quotas.models import QuotaRequest, Role, Webhook
from apps.quotas.models.request import RequestState
from apps.quotas.principals import Principal
from apps.quotas.services.webhooks import addresses
from apps.scheduling.models import Assignment, AssignmentState, Claim, ClaimState
from apps.scheduling.models.choices import Idle
from apps.scheduling.services.charging.shortages import refresh_quota_reasons
from gpucloud.web.tags import amount

# A push is in force within 100 ms; after this time an operator should check.
SLOW: Final = timedelta(seconds=5)
# Of a webhook's server: longer than a restart takes.
LONG: Final = timedelta(hours=1)


def notices(principal: Principal, fleet: Fleet | None) -> list[Notice]:
    """Return up to six notices of each kind, of nodes, claims, webhooks, requests, idle and queued claims.

    Equal ones are one notice that names their objects. `fleet`: the fleet as it was read; None for readers without
    access to nodes.
    """
    nodes = _node_notices(fleet) if fleet is not None else []
    kinds = [_unreachable_notices(principal), _assignment_notices(principal), _webhook_notices(principal)]
    kinds += [_request_notices(principal), _guarantee_notices(principal), _idle_notices(principal)]
    kinds += [_queued_notices(principal)]
    found = nodes + [grouped(kind, most=READ) for kind in kinds]
    return [notice for kind in found for notice in kind[:MOST]]


def _node_notices(fleet: Fleet) -> list[list[Notice]]:
    nodes, gpus = fleet.troubled, fleet.troubled_gpus
    awaited = [node for node in nodes if node.last_seen_at is None]
    lost = [node for node in nodes if not node.online and node.last_seen_at is not None]
    fenced = [node for node in nodes if node.fenced_at is not None]
    ill = [node for node in nodes if node.unhealthy]
    sick = [(node, gpu) for node, gpu in gpus if gpu.unhealthy]
    missing = [(node, gpu) for node, gpu in gpus if not gpu.present and node.online]
    # Of a large fleet only some were read.
    most, states = (READ, fleet.states) if fleet.pools else (None, {})
    return [
        grouped([_lost_notice(node) for node in lost], most=most, count=states.get("lost")),
        grouped([_lost_notice(node) for node in awaited], most=most, count=states.get("awaiting-agent")),
        grouped([_fenced_notice(node) for node in fenced], most=most),
        grouped([_unhealthy_node_notice(node) for node in ill], most=most),
        grouped([_unhealthy_gpu_notice(node, gpu) for node, gpu in sick[:most]], most=most),
        grouped([_missing_notice(node, gpu) for node, gpu in missing[:most]], most=most),
        grouped(_memory_notice(health) for health in _with_lost_memory()),
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
    name, url = f"{node.name} GPU {gpu.index}", reverse("node", args=[node.name])
    return Notice("bad", "cpu", title.format(gpu.index, node.name), detail, url, name=name, many=_("{0} GPUs are gone"))


def _lost_notice(node: Node) -> Notice:
    url = reverse("node", args=[node.name])
    if node.last_seen_at is None:
        detail = _("Run the command that its creation answered on the machine, or make a new enrolment token.")
        title, many = _("Node {0} awaits its agent").format(node.name), _("{0} nodes await their agent")
        return Notice("warn", "hourglass", title, detail, url, node.created_at, node.name, many)
    detail = _("No heartbeat. Programs keep their last limits, and claims keep their allocation.")
    title, many = _("Node {0} is lost").format(node.name), _("{0} nodes are lost")
    return Notice("bad", "plug-connected-x", title, detail, url, node.last_seen_at, node.name, many)


def _fenced_notice(node: Node) -> Notice:
    detail = _("{0} It takes no new claims until the fence is lifted.").format(node.fenced_why)
    title, many = _("Node {0} is fenced").format(node.name), _("{0} nodes are fenced")
    url = reverse("node", args=[node.name])
    return Notice("bad", "alert-triangle", title, detail, url, node.fenced_at, node.name, many)


UNHEALTHY = gettext_lazy("{0}: nothing new is placed on it; the claims on it are left.")


def _unhealthy_node_notice(node: Node) -> Notice:
    title, many = _("{0} is unhealthy").format(_("Node {0}").format(node.name)), _("{0} nodes are unhealthy")
    detail, url = UNHEALTHY.format(node.unhealthy), reverse("node", args=[node.name])
    return Notice("bad", "alert-triangle", title, detail, url, name=node.name, many=many)


def _unhealthy_gpu_notice(node: Node, gpu: GpuRow) -> Notice:
    what = _("GPU {0} of {1}").format(gpu.index, node.name)
    title, many, name = _("{0} is unhealthy").format(what), _("{0} GPUs are unhealthy"), f"{node.name} GPU {gpu.index}"
    detail, url = UNHEALTHY.format(gpu.unhealthy), reverse("node", args=[node.name])
    return Notice("bad", "alert-triangle", title, detail, url, name=name, many=many)


def _assignment_notices(principal: Principal) -> list[Notice]:
    live = Assignment.objects.filter(claim__in=Claim.objects.visible_to(principal)).live()
    live = live.select_related("claim__tenant", "gpu__node")
    bad = (AssignmentState.FAILED, AssignmentState.OVER_LIMIT)
    wrong = live.filter(state__in=bad).order_by("-pk")
    # Asked for apart, and in its index's order: a planner that does not know how few they are would read all others.
    slow = live.filter(observed_generation__lt=F("generation"), updated_at__lt=timezone.now() - SLOW)
    rows = [*wrong[:READ], *slow.exclude(state__in=bad).order_by("updated_at")[:READ]]
    return [_assignment_notice(row) for row in rows]


def _assignment_notice(row: Assignment) -> Notice:
    where = f"{row.gpu.node.name} GPU {row.gpu.index}"
    common: dict[str, Any] = {"url": reverse("claim", args=[row.claim.uid]), "since": row.updated_at}
    common["name"] = str(row.claim)
    if row.state == AssignmentState.FAILED:
        detail = row.reason or _("The agent gave no reason.")
        return Notice(
            "bad",
            "circle-x",
            _("{0} failed on {1}").format(row.claim, where),
            detail,
            **common,
            many=_("{0} shares of claims failed"),
        )
    if row.state == AssignmentState.OVER_LIMIT:
        detail = row.reason or _("It uses more memory than its limit; its next allocation fails.")
        title, many = _("{0} is over its limit on {1}").format(row.claim, where), _("{0} claims are over their limit")
        return Notice("bad", "alert-triangle", title, detail, **common, many=many)
    detail = _("The agent has not confirmed the last change; it is sent again until it does.")
    title, many = _("{0} is not applied on {1}").format(row.claim, where), _("{0} shares of claims are not applied")
    return Notice("warn", "refresh", title, detail, **common, many=many)


def _unreachable_notices(principal: Principal) -> list[Notice]:
    """Return the claims of the reader's tenants on lost nodes; operators see the nodes."""
    if principal.is_operator:
        return []
    lost = Assignment.objects.live().filter(
        gpu__node__last_seen_at__lt=timezone.now() - FRESH, claim__in=Claim.objects.visible_to(principal)
    )
    rows = lost.select_related("claim__tenant", "gpu__node").order_by("claim_id", "gpu_id").distinct("claim_id")
    detail = _("The state is unknown; programs may still run.")
    return [
        Notice(
            "bad",
            "plug-connected-x",
            _("{0}: node {1} is unreachable").format(row.claim, row.gpu.node.name),
            detail,
            reverse("claim", args=[row.claim.uid]),
            row.gpu.node.last_seen_at,
            str(row.claim),
            _("{0} claims are unreachable"),
        )
        for row in rows[:READ]
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
                row.tenant, amount(row.amount, row.resource), resource_words(row.resource)
            ),
            row.words or row.reason,
            reverse("request", args=[row.uid]),
            row.created_at,
        )
        for row in rows[:MOST]
    ]


def _guarantee_notices(principal: Principal) -> list[Notice]:
    rows = Claim.objects.visible_to(principal).filter(below_guarantee_since__isnull=False).select_related("tenant")
    return [
        Notice(
            "warn",
            "gauge",
            _("{0} is below its guarantee").format(claim),
            claim.below_guarantee,
            reverse("claim", args=[claim.uid]),
            claim.below_guarantee_since,
            str(claim),
            _("{0} claims are below their guarantee"),
        )
        for claim in rows.order_by("below_guarantee_since", "pk")[:READ]
    ]


def _idle_notices(principal: Principal) -> list[Notice]:
    idle = Claim.objects.visible_to(principal).filter(idle_since__isnull=False).select_related("tenant")
    # The claim that is released first comes first.
    rows = idle.order_by(F("idle_release_at").asc(nulls_last=True), "idle_since", "pk")
    return [_idle_notice(claim) for claim in rows[:READ]]


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
    many, url = _("{0} claims are unused") if unused else _("{0} claims are idle"), reverse("claim", args=[claim.uid])
    return Notice("warn", "player-pause", title, f"{what} {end}", url, claim.idle_since, str(claim), many)


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
            claim.waiting_since,
            str(claim),
            _("{0} claims wait"),
        )
        for claim in refresh_quota_reasons(list(waiting.select_related("pool").order_by("-priority", "pk")[:READ]))
    ]
