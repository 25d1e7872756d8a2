"""The app's configuration."""

from django.apps import AppConfig


class InstancesConfig(AppConfig):
    """Claims in the MIG instances of other claims of their tenant. Their rows are scheduling's."""

    name = "apps.instances"
    label = "instances"
    verbose_name = "Instances"

    def ready(self) -> None:
        """Register the places of claims in instances."""
        from apps.instances import seats  # noqa: PLC0415 - models, once loaded
        from apps.scheduling.providers import instance_seats  # noqa: PLC0415 - models, once loaded

        instance_seats.set(seats)
