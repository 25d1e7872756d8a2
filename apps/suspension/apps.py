"""The app's configuration."""

from django.apps import AppConfig


class SuspensionConfig(AppConfig):
    """Orders to suspend and to resume claims. The states themselves are scheduling's."""

    name = "apps.suspension"
    label = "suspension"
    verbose_name = "Suspension"

    def ready(self) -> None:
        """Provide the orders to scheduling's drains, preemption and rules."""
        from apps.scheduling.providers import move_orders, node_moves, suspension_orders  # noqa: PLC0415 - models, once loaded
        from apps.suspension import move_orders as moves  # noqa: PLC0415 - likewise
        from apps.suspension import services  # noqa: PLC0415 - likewise
        from apps.suspension.between import reports  # noqa: PLC0415 - likewise

        suspension_orders.set(services)
        node_moves.set(reports)
        move_orders.set(moves)
