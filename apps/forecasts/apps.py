"""The app's configuration."""

from django.apps import AppConfig


class ForecastsConfig(AppConfig):
    """Forecasts of what claims will need, for the rebalancer."""

    name = "apps.forecasts"
    label = "forecasts"
    verbose_name = "Forecasts"

    def ready(self) -> None:
        """Provide the rebalancer with forecasts and replays."""
        from apps.forecasts import provided  # noqa: PLC0415 - models, once loaded
        from apps.scheduling.providers import lending_forecasts, lending_replays  # noqa: PLC0415 - likewise

        lending_forecasts.set(provided)
        lending_replays.set(provided)
