"""The app's configuration."""

from django.apps import AppConfig


class TunnelsConfig(AppConfig):
    """Tunnels into the runs of jobs. It has no rows: a tunnel lives as long as its client's connection."""

    name = "apps.tunnels"
    label = "tunnels"
    verbose_name = "Tunnels"
