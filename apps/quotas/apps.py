"""The app's configuration."""

from django.apps import AppConfig

from gpucloud.fastpath import optional_libraries


class QuotasConfig(AppConfig):
    """Configuration of the quotas app."""

    name = "apps.quotas"
    label = "quotas"
    verbose_name = "Quotas"

    def ready(self) -> None:
        """Register the authentication schemes for the OpenAPI document."""
        optional_libraries.load_rest_framework()
        from apps.quotas import schema  # noqa: F401, PLC0415 - registers itself, once apps are loaded
