"""The app's configuration."""

from django.apps import AppConfig


class NotebooksConfig(AppConfig):
    """The proxy of notebooks. It has no rows: an entry is signed, and bound to its person's session."""

    name = "apps.notebooks"
    label = "notebooks"
    verbose_name = "Notebooks"
