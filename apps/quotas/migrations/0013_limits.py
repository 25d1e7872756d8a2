import django.db.models.deletion
from django.conf import settings
from django.db import migrations, models


class Migration(migrations.Migration):
    dependencies = [
        ("quotas", "0012_requests"),
    ]

    operations = [
        migrations.CreateModel(
            name="LimitRange",
            fields=[
                ("id", models.BigAutoField(auto_created=True, primary_key=True, serialize=False, verbose_name="ID")),
                ("version", models.PositiveIntegerField(default=1)),
                ("created_at", models.DateTimeField(auto_now_add=True)),
                ("updated_at", models.DateTimeField(auto_now=True)),
                (
                    "field",
                    models.CharField(
                        choices=[
                            ("core_request", "Core Request"),
                            ("core_limit", "Core Limit"),
                            ("memory_mib", "Memory Mib"),
                            ("gpu_count", "Gpu Count"),
                            ("time_limit_seconds", "Time Limit Seconds"),
                        ],
                        max_length=20,
                    ),
                ),
                ("minimum", models.BigIntegerField(null=True)),
                ("maximum", models.BigIntegerField(null=True)),
                ("default", models.BigIntegerField(null=True)),
                (
                    "pool",
                    models.ForeignKey(
                        null=True, on_delete=django.db.models.deletion.PROTECT, related_name="+", to="quotas.pool"
                    ),
                ),
                (
                    "tenant",
                    models.ForeignKey(
                        on_delete=django.db.models.deletion.CASCADE, related_name="limit_ranges", to="quotas.tenant"
                    ),
                ),
            ],
            options={
                "ordering": ["pk"],
                "constraints": [
                    models.UniqueConstraint(
                        fields=("tenant", "pool", "field"), name="limit_range_once", nulls_distinct=False
                    ),
                    models.CheckConstraint(
                        condition=models.Q(
                            (
                                "field__in",
                                ["core_request", "core_limit", "memory_mib", "gpu_count", "time_limit_seconds"],
                            )
                        ),
                        name="limit_range_field_known",
                    ),
                    models.CheckConstraint(
                        condition=models.Q(
                            models.Q(("minimum__isnull", True), ("minimum__gte", 1), _connector="OR"),
                            models.Q(("maximum__isnull", True), ("maximum__gte", 1), _connector="OR"),
                            models.Q(
                                ("minimum__isnull", True),
                                ("maximum__isnull", True),
                                ("minimum__lte", models.F("maximum")),
                                _connector="OR",
                            ),
                            models.Q(
                                ("minimum__isnull", True),
                                ("default__isnull", True),
                                ("minimum__lte", models.F("default")),
                                _connector="OR",
                            ),
                            models.Q(
                                ("default__isnull", True),
                                ("maximum__isnull", True),
                                ("default__lte", models.F("maximum")),
                                _connector="OR",
                            ),
                        ),
                        name="limit_range_in_order",
                    ),
                ],
            },
        ),
        migrations.CreateModel(
            name="MemberLimit",
            fields=[
                ("id", models.BigAutoField(auto_created=True, primary_key=True, serialize=False, verbose_name="ID")),
                ("version", models.PositiveIntegerField(default=1)),
                ("created_at", models.DateTimeField(auto_now_add=True)),
                ("updated_at", models.DateTimeField(auto_now=True)),
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
                ("hard", models.BigIntegerField(help_text="Null: unlimited. Zero: none.", null=True)),
                (
                    "tenant",
                    models.ForeignKey(
                        on_delete=django.db.models.deletion.CASCADE, related_name="member_limits", to="quotas.tenant"
                    ),
                ),
                (
                    "user",
                    models.ForeignKey(
                        null=True,
                        on_delete=django.db.models.deletion.CASCADE,
                        related_name="+",
                        to=settings.AUTH_USER_MODEL,
                    ),
                ),
            ],
            options={
                "ordering": ["pk"],
                "constraints": [
                    models.UniqueConstraint(
                        fields=("tenant", "user", "resource"), name="member_limit_once", nulls_distinct=False
                    ),
                    models.CheckConstraint(
                        condition=models.Q(("resource__in", ["core_percent", "memory_mib", "vgpus", "gpus"])),
                        name="member_limit_resource_known",
                    ),
                    models.CheckConstraint(
                        condition=models.Q(("hard__isnull", True), ("hard__gte", 0), _connector="OR"),
                        name="member_limit_hard_not_negative",
                    ),
                ],
            },
        ),
    ]
