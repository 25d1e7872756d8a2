"""The app's configuration."""

from django.apps import AppConfig


class AccountingConfig(AppConfig):
    """Reports and roll-ups. The rows that they count are scheduling's and nodes'."""

    name = "apps.accounting"
    label = "accounting"
    verbose_name = "Accounting"
