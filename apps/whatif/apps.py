"""The app's configuration."""

from django.apps import AppConfig


class WhatIfConfig(AppConfig):
    """What-ifs of pools: replays of past claims under other kinds of sharing."""

    name = "apps.whatif"
    label = "whatif"
    verbose_name = "What-ifs"
