"""Quota requests."""

import uuid

import django.db.models.deletion
from django.db import migrations, models


class Migration(migrations.Migration):
    dependencies = [
        ("quotas", "0011_long_lists"),
    ]

    operations = [
        migrations.CreateModel(
            name="QuotaRequest",
            fields=[
                ("id", models.BigAutoField(auto_created=True, primary_key=True, serialize=False, verbose_name="ID")),
                ("version", models.PositiveIntegerField(default=1)),
                ("created_at", models.DateTimeField(auto_now_add=True)),
                ("updated_at", models.DateTimeField(auto_now=True)),
                ("uid", models.UUIDField(default=uuid.uuid4, editable=False, unique=True)),
                (
                    "resource",
                    models.CharField(
                        choices=[
                            ("core_percent", "Core Percent"),
                            ("memory_mib", "Memory Mib"),
                            ("vgpus", "Vgpus"),
                            ("gpus", "Gpus"),
                        ],
                        max_length=20,
                    ),
                ),
                ("amount", models.BigIntegerField(help_text="How much more than the quota has.")),
                ("until", models.DateTimeField(help_text="Null: for good.", null=True)),
                ("reason", models.CharField(max_length=2000)),
                (
                    "state",
                    models.CharField(
                        choices=[
                            ("open", "Open"),
                            ("countered", "Countered"),
                            ("approved", "Approved"),
                            ("denied", "Denied"),
                            ("withdrawn", "Withdrawn"),
                            ("lapsed", "Lapsed"),
                        ],
                        default="open",
                        max_length=10,
                    ),
                ),
                ("offered_amount", models.BigIntegerField(null=True)),
                ("offered_until", models.DateTimeField(null=True)),
                (
                    "words",
                    models.CharField(blank=True, default="", help_text="The operator's answer.", max_length=2000),
                ),
                ("granted_amount", models.BigIntegerField(null=True)),
                ("granted_until", models.DateTimeField(null=True)),
                ("created_by", models.CharField(max_length=200)),
                ("answered_by", models.CharField(max_length=200, null=True)),
                ("decided_at", models.DateTimeField(null=True)),
                (
                    "pool",
                    models.ForeignKey(
                        null=True, on_delete=django.db.models.deletion.PROTECT, related_name="+", to="quotas.pool"
                    ),
                ),
                (
                    "tenant",
                    models.ForeignKey(
                        on_delete=django.db.models.deletion.PROTECT, related_name="quota_requests", to="quotas.tenant"
                    ),
                ),
            ],
            options={
                "ordering": ["pk"],
                "indexes": [
                    models.Index(
                        condition=models.Q(("state", "approved")), fields=["granted_until"], name="request_lapses"
                    )
                ],
                "constraints": [
                    models.CheckConstraint(
                        condition=models.Q(
                            ("state__in", ["open", "countered", "approved", "denied", "withdrawn", "lapsed"])
                        ),
                        name="request_state_known",
                    ),
                    models.CheckConstraint(condition=models.Q(("amount__gte", 1)), name="request_amount_positive"),
                    models.CheckConstraint(
                        condition=models.Q(
                            models.Q(("granted_amount__gte", 1), ("state__in", ("approved", "lapsed"))),
                            models.Q(
                                models.Q(("state__in", ("approved", "lapsed")), _negated=True),
                                ("granted_amount", None),
                                ("granted_until", None),
                            ),
                            _connector="OR",
                        ),
                        name="request_granted_where_approved",
                    ),
                ],
            },
        ),
    ]
