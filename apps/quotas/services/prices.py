"""Prices. A row is never changed: a new price is a new row, so the old one stays true for its days."""

from datetime import date
from decimal import Decimal
from typing import Any

from django.db import transaction

from apps.quotas.models import Pool, Price
from apps.quotas.principals import Principal
from apps.quotas.services import audit
from apps.quotas.services.names import NameTaken, refuse_taken
from gpucloud.api import etags


@transaction.atomic
def set_price(
    *, principal: Principal, gpu_model: str, pool: Pool | None, valid_from: date, per_gpu_hour: Decimal
) -> Price:
    """Set the price of this model's GPU-hour from that day on. Raises NameTaken if the day has a price."""
    principal.require_operator()

    def describe() -> NameTaken:
        taken = Price.objects.get(gpu_model=gpu_model, pool=pool, valid_from=valid_from)
        return NameTaken(
            f"{gpu_model} already has a price in {pool or 'all pools'} from {valid_from} on: "
            f"remove price {taken.pk} first, or choose another day.",
            price=taken.pk,
        )

    with refuse_taken(describe):
        price = Price.objects.create(gpu_model=gpu_model, pool=pool, valid_from=valid_from, per_gpu_hour=per_gpu_hour)
    audit.record(principal, "price.set", price, after=_facts(price))
    return price


@transaction.atomic
def remove_price(*, principal: Principal, price: Price, versions: etags.Versions = None) -> None:
    """Remove a price: the previous one applies again, in reports of the past too. Raises PreconditionFailed."""
    principal.require_operator()
    price = etags.lock(price, versions, "pool")
    audit.record(principal, "price.remove", price, before=_facts(price))
    price.delete()


def _facts(price: Price) -> dict[str, Any]:
    return {
        "gpu_model": price.gpu_model,
        "pool": price.pool and price.pool.name,
        "valid_from": price.valid_from.isoformat(),
        "per_gpu_hour": str(price.per_gpu_hour),
    }
