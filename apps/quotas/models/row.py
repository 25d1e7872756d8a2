"""Base of most models."""

from typing import Any, Self

from django.db import models

# The longest name that a person gives; columns are wider, for what was named before.
MOST_NAME = 63


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
