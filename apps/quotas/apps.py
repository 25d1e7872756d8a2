"""The app's configuration."""

from django.apps import AppConfig


class QuotasConfig(AppConfig):
    """Tenants, members, tokens, audit, pools; quotas and their ledger."""

    name = "apps.quotas"
    label = "quotas"
    verbose_name = "Quotas"
