"""The app's configuration."""

from django.apps import AppConfig


class PackingConfig(AppConfig):
    """Claims that share a GPU by measured rates. Their rows and proposals are scheduling's."""

    name = "apps.packing"
    label = "packing"
    verbose_name = "Packing"
