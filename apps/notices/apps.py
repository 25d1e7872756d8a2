"""The app's configuration."""

from django.apps import AppConfig


class NoticesConfig(AppConfig):
    """Personal notices by e-mail, made from the outbox of the webhooks."""

    name = "apps.notices"
    label = "notices"
    verbose_name = "Notices"
