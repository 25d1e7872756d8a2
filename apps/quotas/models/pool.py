"""Pools: named sets of nodes with one sharing policy."""

from django.core.validators import RegexValidator
from django.db import models

from apps.quotas.models.row import Row
from apps.quotas.models.tenant import SLUG

DEFAULT = "default"


class Pool(Row):
    """A named set of nodes; quotas can be given per pool."""

    name = models.CharField(max_length=63, unique=True, validators=[RegexValidator(SLUG)])
    description = models.CharField(max_length=500, blank=True, default="")

    class Meta:
        ordering = ["name"]

    def __str__(self) -> str:
        return self.name
