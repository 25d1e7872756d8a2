"""The app's configuration."""

from django.apps import AppConfig


class ReservationsConfig(AppConfig):
    """Pieces of GPUs for windows of time. Their rows and charges are scheduling's."""

    name = "apps.reservations"
    label = "reservations"
    verbose_name = "Reservations"

    def ready(self) -> None:
        """Provide the end of reservations to scheduling, which forgets nodes."""
        from apps.reservations import lifecycle  # noqa: PLC0415 - models, once loaded
        from apps.scheduling.providers import bookings  # noqa: PLC0415 - likewise

        bookings.set(lifecycle)
