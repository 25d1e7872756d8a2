"""The app's configuration."""

from django.apps import AppConfig


class ForecastsConfig(AppConfig):
    """Forecasts of what claims will need, for the rebalancer."""

    name = "apps.forecasts"
    label = "forecasts"
    verbose_name = "Forecasts"

    def ready(self) -> None:
        """Provide forecasts and replays to the rebalancer, and outlooks to reservations."""
        from apps.forecasts import provided  # noqa: PLC0415 - models, once loaded
        from apps.scheduling.providers import booking_outlooks, lending_forecasts, lending_replays  # noqa: PLC0415 - likewise

        lending_forecasts.set(provided)
        lending_replays.set(provided)
        booking_outlooks.set(provided)
