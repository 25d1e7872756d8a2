"""The app's configuration."""

from django.apps import AppConfig


class RemoteConfig(AppConfig):
    """Remote shares. It has no rows: a ticket lives at its node, for two minutes."""

    name = "apps.remote"
    label = "remote"
    verbose_name = "Remote shares"
