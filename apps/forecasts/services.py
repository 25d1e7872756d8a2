"""Forecasts of claims in pools with the policy `forecast`: fitted once a day, judged and renewed with each window.

A run, each minute:

1. Record the complete windows of all claims from the roll-ups.
2. Judge the last forecasts by them, and correct the offsets.
3. Fit again what is a day old, of claims and then of tenants, a bounded number.
4. Forecast the window that has begun.

The rebalancer reads one row of each claim (`read_forecasts`).
"""

from collections.abc import Mapping, Sequence
from datetime import datetime, timedelta

import numpy as np
from django.db import connection
from django.db.models import Count
from django.utils import timezone

from apps.forecasts import history, quantiles
from apps.forecasts.models import ClaimForecast, UseDay
from apps.forecasts.quantiles import WEEK, Band, Fit
from apps.quotas.models import Pool, RebalanceMode, RebalancePolicy
from apps.rebalancing.values import Forecast
from apps.scheduling.models import Claim, ClaimState
from apps.scheduling.services.rebalancing.observing import bounds_of
from gpucloud.locks import exclusive

FITTED_FOR = timedelta(days=1)
# A run of a minute stays below a few seconds: a fit takes about 20 ms.
FITS_AT_ONCE = 40
# Claims of a tenant that its own fit is made of.
MOST_OF_TENANT = 8
# A forecast is of its window. Roll-ups and this task are a minute and a half late; an older one says nothing.
FRESH = timedelta(minutes=15)
FITTED = ("risk_percent", "fitted_at", "fit_expected", "fit_upper")
# One statement for all claims; Django's would have an expression for each value.
FOLLOWED = ("offset", "expected", "upper", "judged", "wrong_percent", "of_tenant", "days")
STORED = """
UPDATE forecasts_claimforecast AS row SET at = %s, "offset" = new.shift, expected = new.expected, upper = new.most,
    judged = new.judged, wrong_percent = new.wrong, of_tenant = new.of_tenant, days = new.days
FROM unnest(%s::bigint[], %s::float8[], %s::float8[], %s::float8[], %s::int[], %s::float8[], %s::bool[], %s::float8[])
    AS new (id, shift, expected, most, judged, wrong, of_tenant, days)
WHERE row.id = new.id
"""
# The days before today that features look at.
LOOKED_AT = (0, 1, 2, 6, 7, 8)


def follow_use(*, now: datetime | None = None) -> int:
    """Record use and renew the forecasts; return the number of claims with one. A second run at once does nothing."""
    now = now or timezone.now()
    with exclusive("forecasts") as free:
        if not free:
            return 0
        end, complete = history.record_use()
        return _renew(end, now) if complete else 0


def _renew(end: datetime, now: datetime) -> int:
    """Judge, fit and forecast the claims of the pools that are rebalanced by forecasts."""
    risks = {
        pool.pk: bounds_of(pool).forecast_risk_percent
        for pool in Pool.objects.filter(rebalance_policy=RebalancePolicy.FORECAST)
        if pool.rebalance_mode != RebalanceMode.OFF
    }
    claims = list(Claim.objects.filter(pool__in=risks, state=ClaimState.ACTIVE).order_by("pk"))
    found = ClaimForecast.objects.filter(claim__in=claims)
    rows = {row.claim_id: row for row in found if row.claim_id is not None}
    if all(claim.pk in rows and rows[claim.pk].at == end for claim in claims):
        return 0
    series = history.read_series([claim.pk for claim in claims], end=end, days=max(LOOKED_AT), only=LOOKED_AT)
    for key, row in rows.items():
        _judge(row, series.get(key), end)
    _fit_claims(claims, rows, risks, end, now)
    of_tenants = _fit_tenants(claims, rows, risks, end, now)
    bands: dict[int, Band] = {}
    for claim in claims:
        one, past = rows.get(claim.pk), series.get(claim.pk)
        if one is None or past is None:
            continue
        if (fitted := _fit_of(one, of_tenants.get(claim.tenant_id))) is not None:
            bands[claim.pk] = quantiles.forecast(past, fitted)
    _store(rows, bands, end, now)
    return len(bands)


def _judge(row: ClaimForecast, past: quantiles.Series | None, end: datetime) -> None:
    """Compare the last forecast with the use in its window, if that is known."""
    if row.at is None or row.upper is None or past is None:
        return
    back = int((end - row.at) / history.WINDOW)
    used = past[-back] if 0 < back <= len(past) else np.nan
    if np.isnan(used):
        return
    row.offset = quantiles.corrected(row.offset, used=used, upper=row.upper, risk_percent=row.risk_percent)
    row.judged += 1
    before, wrong = row.wrong_percent or 0.0, 100.0 * quantiles.is_wrong(used, row.upper)
    row.wrong_percent = before + (wrong - before) / min(row.judged, WEEK)


def _fit_claims(
    claims: Sequence[Claim], rows: dict[int, ClaimForecast], risks: Mapping[int, int], end: datetime, now: datetime
) -> None:
    """Fit the claims whose fit is the oldest, and those without one."""
    due = [claim for claim in claims if _is_due(rows.get(claim.pk), risks[claim.pool_id], now)]
    due.sort(key=lambda claim: (claim.pk in rows, rows[claim.pk].fitted_at if claim.pk in rows else now, claim.pk))
    due = due[:FITS_AT_ONCE]
    series = history.read_series([claim.pk for claim in due], end=end, days=history.READ_DAYS)
    for claim in due:
        row = rows.setdefault(claim.pk, ClaimForecast(claim=claim, fitted_at=now))
        many = [series[claim.pk]] if claim.pk in series else []
        _fit(row, many, risks[claim.pool_id], now)


def _is_due(row: ClaimForecast | None, risk_percent: int, now: datetime) -> bool:
    if row is None or row.risk_percent != risk_percent:
        return True
    # A young claim has enough to be fitted at some time of the day.
    again = FITTED_FOR if row.fit_upper is not None else FITTED_FOR / 24
    return row.fitted_at <= now - again


def _fit(row: ClaimForecast, many: Sequence[quantiles.Series], risk_percent: int, now: datetime) -> None:
    """Fit a row anew. The correction that it has gathered stays, unless the risk is another one."""
    found = quantiles.fit(many, risk_percent)
    had = row.fit_upper is not None and row.risk_percent == risk_percent
    row.days, row.fitted_at, row.risk_percent = sum(map(quantiles.count_days, many)), now, risk_percent
    row.fit_expected = None if found is None else list(found.expected)
    row.fit_upper = None if found is None else list(found.upper)
    if found is not None and not had:
        row.offset = found.offset


def _fit_tenants(
    claims: Sequence[Claim], rows: Mapping[int, ClaimForecast], risks: Mapping[int, int], end: datetime, now: datetime
) -> dict[int, ClaimForecast]:
    """Return the fits of the tenants of young claims, renewed where they are old."""
    young = [claim for claim in claims if claim.pk in rows and rows[claim.pk].fit_upper is None]
    least: dict[int, int] = {}
    for claim in young:
        risk = risks[claim.pool_id]
        least[claim.tenant_id] = min(risk, least.get(claim.tenant_id, risk))
    found = {row.tenant_id: row for row in ClaimForecast.objects.filter(tenant__in=least) if row.tenant_id is not None}
    for tenant_id, risk in least.items():
        row = found.setdefault(tenant_id, ClaimForecast(tenant_id=tenant_id, fitted_at=now, risk_percent=risk))
        if not row.pk or _is_due(row, risk, now):
            days = UseDay.objects.filter(claim__tenant=tenant_id).values("claim").annotate(days=Count("pk"))
            keys = days.order_by("-days", "claim").values_list("claim", flat=True)[:MOST_OF_TENANT]
            past = history.read_series(list(keys), end=end, days=history.READ_DAYS)
            _fit(row, [past[key] for key in sorted(past)], risk, now)
            row.save()
    return found


def _fit_of(row: ClaimForecast, of_tenant: ClaimForecast | None) -> Fit | None:
    """Return the fit that a claim is forecast by: its own, or its tenant's with its own correction."""
    row.of_tenant = row.fit_upper is None
    source = of_tenant if row.of_tenant else row
    if source is None or source.fit_upper is None or source.fit_expected is None:
        return None
    if row.of_tenant:
        row.days = source.days
        if not row.judged:
            row.offset = source.offset
    return Fit(tuple(source.fit_expected), tuple(source.fit_upper), row.offset)


def _store(rows: Mapping[int, ClaimForecast], bands: Mapping[int, Band], end: datetime, now: datetime) -> None:
    for key, row in rows.items():
        band = bands.get(key)
        row.at = end
        row.expected, row.upper = (band.expected, band.upper) if band else (None, None)
    new = [row for row in rows.values() if not row.pk]
    old = [row for row in rows.values() if row.pk]
    fitted = [row for row in old if row.fitted_at == now]
    ClaimForecast.objects.bulk_create(new)
    ClaimForecast.objects.bulk_update(fitted, FITTED)
    columns = [[getattr(row, name) for row in old] for name in ("pk", *FOLLOWED)]
    with connection.cursor() as cursor:
        cursor.execute(STORED, [end, *columns])
    history.write_bands(end, bands)


def read_forecasts(pool: Pool, *, now: datetime) -> dict[str, Forecast]:
    """Return the present forecasts of the pool's claims, by uid; one query."""
    rows = ClaimForecast.objects.filter(claim__pool=pool, upper__isnull=False, at__gte=now - FRESH)
    return {str(row.claim.uid): as_value(row) for row in rows.select_related("claim") if row.claim is not None}


def as_value(row: ClaimForecast) -> Forecast:
    """Return a row with a forecast as the rebalancer's core takes it."""
    return Forecast(
        upper_percent=row.upper if row.upper is not None else 100.0,
        expected_percent=row.expected if row.expected is not None else 100.0,
        risk_percent=row.risk_percent,
        days=row.days,
        source="tenant" if row.of_tenant else "claim",
        wrong_percent=row.wrong_percent,
        judged=row.judged,
    )
