"""The app's configuration."""

from django.apps import AppConfig


class GroupsConfig(AppConfig):
    """Elastic groups, which grow where there is room. Their claims and rows are scheduling's."""

    name = "apps.groups"
    label = "groups"
    verbose_name = "Groups"
