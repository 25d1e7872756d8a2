"""Estimate of a new claim: free quota, GPU models with sizes, cost, and presets. Read anew while one types."""

from collections.abc import Iterator
from dataclasses import dataclass
from decimal import Decimal
from typing import TYPE_CHECKING, Any, Final

from django.conf import settings
from django.core.exceptions import ValidationError
from django.db.models import Count, F, Q
from django.urls import reverse
from django.utils import timezone
from django.utils.http import urlencode
from django.utils.translation import gettext_lazy as _

from apps.console.claims.claim_forms import ClaimForm
from apps.console.shell.amounts import amount_text
from apps.console.tenants.limits import yours
from apps.nodes.models import Gpu, Node
from apps.nodes.models.gpu import WHOLE
from apps.nodes.models.node import state_now
from apps.quotas.models import Pool, Resource, ResourceQuota, Tenant
from apps.quotas.models.resource import MIG, ZERO_WITHOUT_ROW, profile_of
from apps.quotas.principals import Principal
from apps.scheduling.core.metering import MILLIONTHS, price_at
from apps.scheduling.models import Claim
from apps.scheduling.models.share import amounts
from apps.scheduling.services.charging.metering import PriceBook
from apps.scheduling.services.claims import isolation
from apps.scheduling.services.fleet.reserved import microseconds
from gpucloud.errors import GpucloudError

if TYPE_CHECKING:
    from django_stubs_ext import StrPromise

CENT: Final = Decimal("0.01")
# Part of a GPU by preset. The memory is that part of the pool's smallest GPU, in whole GiB where it has that much.
PRESETS: Final[dict[str, tuple["StrPromise", int]]] = {
    "third": (_("⅓ GPU notebook"), 3),
    "half": (_("½ GPU"), 2),
    "whole": (_("Whole GPU"), 1),
}


@dataclass(frozen=True, slots=True)
class Line:
    """One quota or limit that counts: its free amount (None: unlimited), and the claim's."""

    resource: str
    pool: Pool | None
    free: int | None
    wanted: int | None

    @property
    def profile(self) -> str | None:
        """The MIG profile whose instances it counts; None: it is of another resource."""
        return profile_of(self.resource)

    @property
    def is_short(self) -> bool:
        """True if the claim needs more than is free."""
        return self.free is not None and self.wanted is not None and self.wanted > self.free

    @property
    def missing(self) -> str:
        """The missing amount, as the form of a request reads it."""
        return amount_text((self.wanted or 0) - (self.free or 0), self.resource)


@dataclass(frozen=True, slots=True)
class Model:
    """The GPUs of one model and size that take claims: their number, on how many the claim fits now, and its cost."""

    name: str
    memory_mib: int
    gpus: int
    fitting: int
    # Per hour; None without a price.
    cost: Decimal | None


class Estimate:
    """The estimate for a form's present values, right or wrong ones, for one tenant and pool."""

    def __init__(self, principal: Principal, form: ClaimForm) -> None:
        self.tenant, self.pool = form.chosen_tenant, _typed(form, "pool")
        self.currency = settings.CURRENCY
        values = {name: _typed(form, name) for name in ("gpu_count", "core_request", "memory_mib")}
        self._request: dict[str, int] | None = None if None in values.values() else values
        self.opener: Claim | None = _typed(form, "instance_of") if "instance_of" in form.fields else None
        self.profile, sized = self._instance(form)
        if self.opener is not None:
            self._request = {"gpu_count": 0, "core_request": 0, "memory_mib": 0}
        elif sized is not None:
            self._request = sized
        self._wanted = {} if self._request is None else _amounts(**self._request)
        if self.profile and self.opener is None:
            self._wanted[f"{MIG}{self.profile}"] = 1
        self.lines = list(self._lines(self.tenant, self.pool)) if self.tenant and self.pool else []
        is_share = self.profile is None and self.opener is None
        self.models = self._models(self.pool) if self.pool and is_share else []
        self.yours = yours(principal, self.tenant) if self.tenant else None

    def _instance(self, form: ClaimForm) -> tuple[str | None, dict[str, int] | None]:
        """Return the profile that the claim would have, and its size; None for a share, and what is refused."""
        if self.pool is None or "profile" not in form.fields or self.opener is not None:
            return None, None
        given = {"profile": _typed(form, "profile") or None, "isolation": _typed(form, "isolation")}
        if not isolation.is_hard(given) or self._request is None:
            return None, None
        try:
            # A profile that is named decides core and memory, whatever the form has there.
            asked = {} if given["profile"] else self._request
            found = isolation.with_smallest(self.pool, isolation.with_profile(self.pool, given | asked))
        except GpucloudError:
            return None, None
        return found["profile"], {
            "gpu_count": 1,
            "core_request": found["core_request"],
            "memory_mib": found["memory_mib"],
        }

    @property
    def presets(self) -> list[tuple[str, "StrPromise"]]:
        """Key and title of the pool's presets; none without GPUs."""
        return [(key, title) for key, (title, _part) in PRESETS.items()] if self.models else []

    def preset_values(self, key: str) -> dict[str, Any]:
        """Return the form's values of a preset; none for an unknown one."""
        if key not in PRESETS or not self.models:
            return {}
        part = PRESETS[key][1]
        memory = min(model.memory_mib for model in self.models) // part
        whole_gib = memory - memory % 1024
        return {"gpu_count": 1, "core_request": WHOLE // part, "core_limit": "", "memory_mib": whole_gib or memory}

    @property
    def gpu_hours(self) -> Decimal | None:
        """The GPU-hours of one hour."""
        if self._request is None:
            return None
        return Decimal(self._request["gpu_count"] * self._request["core_request"]) / WHOLE

    @property
    def short(self) -> list[Line]:
        """The quotas that the claim exceeds; a member's own limit is not among them."""
        return [line for line in self.lines if line.is_short]

    @property
    def ask_url(self) -> str:
        """The address of a request for the first missing amount."""
        line = self.short[0]
        assert self.tenant is not None
        query = {"tenant": self.tenant.slug, "resource": line.resource, "amount": line.missing}
        return f"{reverse('new-request')}?{urlencode(query | ({'pool': line.pool.name} if line.pool else {}))}"

    @property
    def is_over(self) -> bool:
        """True if the claim exceeds a quota, or the reader's own limit."""
        own = any(self._wanted.get(bound["resource"], 0) > bound["left"] for bound in self.yours or ())
        return bool(self.short) or own

    def _lines(self, tenant: Tenant, pool: Pool) -> Iterator[Line]:
        wanted = self._wanted
        rows = ResourceQuota.objects.filter(Q(pool=pool) | Q(pool=None), tenant=tenant).select_related("pool", "share")
        quotas = list(rows.order_by("pk"))
        covered = {quota.resource for quota in quotas}
        for resource in (*Resource.values, *(name for name in wanted if name.startswith(MIG))):
            for quota in quotas:
                if quota.resource == resource and (wanted.get(resource) or resource in ZERO_WITHOUT_ROW):
                    yield Line(resource, quota.pool, quota.free, wanted.get(resource))
            if resource in ZERO_WITHOUT_ROW and resource not in covered:
                yield Line(resource, None, 0, wanted.get(resource))

    def _models(self, pool: Pool) -> list[Model]:
        core, memory = (self._request[name] if self._request else 1 for name in ("core_request", "memory_mib"))
        ready = Node.objects.annotate(now=state_now()).filter(pool=pool, now="ready")
        fits = Q(core_used__lte=WHOLE - core - F("core_outside")) & Q(
            memory_mib__gte=memory + F("memory_used_mib") + F("memory_outside_mib")
        )
        # Of shares: GPUs in MIG mode have instances only.
        gpus = Gpu.objects.filter(node__in=ready, present=True, unhealthy="", mig__isnull=True)
        rows = gpus.values("model", "memory_mib")
        counted = rows.annotate(gpus=Count("pk"), fitting=Count("pk", filter=fits)).order_by("model", "memory_mib")
        book, now = PriceBook(), microseconds(timezone.now())
        return [
            Model(
                row["model"], row["memory_mib"], row["gpus"], row["fitting"], self._cost(book, row["model"], pool, now)
            )
            for row in counted
        ]

    def _cost(self, book: PriceBook, model: str, pool: Pool, now: int) -> Decimal | None:
        price = price_at(book.tariff(model, pool.pk), now)
        if not price or self.gpu_hours is None:
            return None
        return (self.gpu_hours * price / MILLIONTHS).quantize(CENT)


def _amounts(*, gpu_count: int, core_request: int, memory_mib: int) -> dict[str, int]:
    return amounts(gpu_count=gpu_count, core=core_request, memory_mib=memory_mib)


def _typed(form: ClaimForm, name: str) -> Any:
    """Return the field's value; None for a wrong one."""
    try:
        return form.fields[name].clean(form[name].value())
    except ValidationError:
        return None
