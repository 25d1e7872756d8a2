"""The app's configuration."""

from django.apps import AppConfig


class SuspensionConfig(AppConfig):
    """Orders to suspend and to resume claims. The states themselves are scheduling's."""

    name = "apps.suspension"
    label = "suspension"
    verbose_name = "Suspension"
