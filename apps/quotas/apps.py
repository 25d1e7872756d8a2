"""The app's configuration."""

from django.apps import AppConfig


class QuotasConfig(AppConfig):
    """Tenants, members, tokens, audit, pools; quotas and their ledger."""

    name = "apps.quotas"
    label = "quotas"
    verbose_name = "Quotas"

    def ready(self) -> None:
        """Name the ways in for the OpenAPI document."""
        from apps.quotas import schema  # noqa: F401, PLC0415 - registers itself, once apps are loaded
