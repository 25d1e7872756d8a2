"""Stored responses of POSTs with an Idempotency-Key."""

from django.db import models


class IdempotencyRecord(models.Model):
    """The first response to a key, stored in the same transaction as its effect."""

    principal = models.CharField(max_length=200)
    key = models.CharField(max_length=200)
    request_digest = models.CharField(max_length=64)
    status = models.PositiveSmallIntegerField()
    body = models.JSONField(null=True)
    headers = models.JSONField(default=dict)
    created_at = models.DateTimeField(auto_now_add=True, db_index=True)

    class Meta:
        constraints = [models.UniqueConstraint(fields=["principal", "key"], name="idempotency_key_once")]

    def __str__(self) -> str:
        return self.key
