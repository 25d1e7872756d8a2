"""Base of most models."""

from typing import TYPE_CHECKING, Any, ClassVar, Self, TypeVar

from django.db import models

if TYPE_CHECKING:
    from apps.quotas.principals import Principal

M = TypeVar("M", bound=models.Model)

# The longest name that a person gives; columns are wider, for what was named before.
MOST_NAME = 63


def checks(**conditions: models.Q) -> list[models.BaseConstraint]:
    """Return CHECK constraints, each by its name: what the database refuses, whatever a service does."""
    return [models.CheckConstraint(condition=condition, name=name) for name, condition in conditions.items()]


class Row(models.Model):
    """A row with times and an integer version, which is its entity tag."""

    version = models.PositiveIntegerField(default=1)
    created_at = models.DateTimeField(auto_now_add=True)
    updated_at = models.DateTimeField(auto_now=True)

    class Meta:
        abstract = True

    def change(self, **values: Any) -> Self:
        """Write these fields and increment the version, so that the old entity tag no longer matches."""
        for name, value in values.items():
            setattr(self, name, value)
        self.version += 1
        self.save(update_fields=[*values, "version", "updated_at"])
        return self


class Owned(models.QuerySet[M]):
    """Rows that belong to tenants, filtered by principal."""

    # The lookup of the tenant, and the least role that shows its rows; None: any.
    owner: ClassVar[str] = "tenant"
    least_role: ClassVar[str | None] = None

    def visible_to(self, principal: "Principal") -> Self:
        """Return every row to an operator, to others those of tenants in which they have the role."""
        if principal.is_operator:
            return self
        tenants = principal.roles if self.least_role is None else principal.with_role(self.least_role)
        return self.filter(**{f"{self.owner}__in": tenants})
