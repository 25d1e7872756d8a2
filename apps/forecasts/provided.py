"""Functions for apps that every process loads: numpy, which few processes need, is loaded at the first call."""

from collections.abc import Mapping
from datetime import datetime
from typing import Any

from apps.quotas.models import Pool
from apps.rebalancing.values import Forecast
from apps.scheduling.models import Claim, Reservation


def read_forecasts(pool: Pool, *, now: datetime) -> Mapping[str, Forecast]:
    """Return the present forecasts of the pool's claims; see `services.read_forecasts`."""
    from apps.forecasts import services  # noqa: PLC0415 - numpy

    return services.read_forecasts(pool, now=now)


def replay_pool(pool: Pool, *, days: int) -> dict[str, Any]:
    """Return what each policy would have lent in the last days; see `replays.replay_pool`."""
    from apps.forecasts import replays  # noqa: PLC0415 - numpy

    return replays.replay_pool(pool, days=days)


def band_of(claim: Claim) -> dict[str, Any]:
    """Return the claim's forecast and its last day; see `bands.band_of`."""
    from apps.forecasts import bands  # noqa: PLC0415 - numpy

    return bands.band_of(claim)


def expects_use(reservation: Reservation, *, now: datetime) -> str | None:
    """Return why the tenant is expected to use the booking again; see `outlook.expects_use`."""
    from apps.forecasts import outlook  # noqa: PLC0415 - numpy

    return outlook.expects_use(reservation, now=now)
