import uuid

import django.contrib.postgres.fields
import django.core.validators
import django.db.models.deletion
from django.db import migrations, models


class Migration(migrations.Migration):
    initial = True

    dependencies = [
        ("nodes", "0012_kubernetes_node"),
        ("quotas", "0022_audit"),
        ("scheduling", "0018_claim_pod"),
    ]

    operations = [
        migrations.CreateModel(
            name="Cluster",
            fields=[
                ("id", models.BigAutoField(auto_created=True, primary_key=True, serialize=False, verbose_name="ID")),
                ("version", models.PositiveIntegerField(default=1)),
                ("created_at", models.DateTimeField(auto_now_add=True)),
                ("updated_at", models.DateTimeField(auto_now=True)),
                ("uid", models.UUIDField(default=uuid.uuid4, editable=False, unique=True)),
                (
                    "name",
                    models.CharField(
                        max_length=63,
                        unique=True,
                        validators=[django.core.validators.RegexValidator("^[a-z0-9]([a-z0-9-]{0,61}[a-z0-9])?$")],
                    ),
                ),
                ("server", models.CharField(blank=True, default="", max_length=2000)),
                ("in_cluster", models.BooleanField(default=False)),
                ("sealed_kubeconfig", models.TextField(null=True)),
                ("enabled", models.BooleanField(default=True)),
                (
                    "placement",
                    models.CharField(
                        choices=[("gpu-admission", "Gpu Admission"), ("gpucloud", "Gpucloud")],
                        default="gpu-admission",
                        max_length=20,
                    ),
                ),
                ("strict", models.BooleanField(default=False)),
                ("sync_quotas", models.BooleanField(default=False)),
                (
                    "state",
                    models.CharField(
                        choices=[("waiting", "Waiting"), ("connected", "Connected"), ("unreachable", "Unreachable")],
                        default="waiting",
                        max_length=12,
                    ),
                ),
                ("state_reason", models.CharField(blank=True, default="", max_length=2000)),
                ("kubernetes_version", models.CharField(blank=True, default="", max_length=63)),
                ("synced_at", models.DateTimeField(null=True)),
                (
                    "pool",
                    models.ForeignKey(
                        on_delete=django.db.models.deletion.PROTECT, related_name="clusters", to="quotas.pool"
                    ),
                ),
            ],
            options={
                "ordering": ["pk"],
            },
        ),
        migrations.CreateModel(
            name="NamespaceBinding",
            fields=[
                ("id", models.BigAutoField(auto_created=True, primary_key=True, serialize=False, verbose_name="ID")),
                ("version", models.PositiveIntegerField(default=1)),
                ("created_at", models.DateTimeField(auto_now_add=True)),
                ("updated_at", models.DateTimeField(auto_now=True)),
                ("namespace", models.CharField(max_length=63, null=True)),
                ("selector", models.JSONField(null=True)),
                (
                    "cluster",
                    models.ForeignKey(
                        on_delete=django.db.models.deletion.CASCADE, related_name="bindings", to="clusters.cluster"
                    ),
                ),
                (
                    "tenant",
                    models.ForeignKey(
                        on_delete=django.db.models.deletion.PROTECT, related_name="namespaces", to="quotas.tenant"
                    ),
                ),
            ],
            options={
                "ordering": ["pk"],
            },
        ),
        migrations.CreateModel(
            name="PodClaim",
            fields=[
                ("id", models.BigAutoField(auto_created=True, primary_key=True, serialize=False, verbose_name="ID")),
                ("version", models.PositiveIntegerField(default=1)),
                ("created_at", models.DateTimeField(auto_now_add=True)),
                ("updated_at", models.DateTimeField(auto_now=True)),
                ("namespace", models.CharField(max_length=63)),
                ("pod", models.CharField(max_length=253)),
                ("pod_uid", models.CharField(max_length=63)),
                ("container", models.CharField(max_length=63)),
                ("container_index", models.PositiveSmallIntegerField()),
                ("node_name", models.CharField(max_length=253)),
                ("core", models.PositiveIntegerField()),
                ("memory_mib", models.PositiveBigIntegerField()),
                (
                    "gpu_indexes",
                    django.contrib.postgres.fields.ArrayField(base_field=models.PositiveIntegerField(), size=None),
                ),
                ("problem", models.CharField(blank=True, default="", max_length=2000)),
                ("ended_at", models.DateTimeField(null=True)),
                (
                    "claim",
                    models.OneToOneField(
                        null=True,
                        on_delete=django.db.models.deletion.PROTECT,
                        related_name="container",
                        to="scheduling.claim",
                    ),
                ),
                (
                    "cluster",
                    models.ForeignKey(
                        on_delete=django.db.models.deletion.PROTECT, related_name="pods", to="clusters.cluster"
                    ),
                ),
                (
                    "node",
                    models.ForeignKey(
                        null=True, on_delete=django.db.models.deletion.SET_NULL, related_name="pods", to="nodes.node"
                    ),
                ),
            ],
            options={
                "ordering": ["pk"],
            },
        ),
        migrations.AddConstraint(
            model_name="cluster",
            constraint=models.CheckConstraint(
                condition=models.Q(("state__in", ["waiting", "connected", "unreachable"])), name="cluster_state_known"
            ),
        ),
        migrations.AddConstraint(
            model_name="cluster",
            constraint=models.CheckConstraint(
                condition=models.Q(("placement__in", ["gpu-admission", "gpucloud"])), name="cluster_placement_known"
            ),
        ),
        migrations.AddConstraint(
            model_name="cluster",
            constraint=models.CheckConstraint(
                condition=models.Q(
                    models.Q(("in_cluster", True), ("sealed_kubeconfig__isnull", True)),
                    models.Q(("in_cluster", False), ("sealed_kubeconfig__isnull", False)),
                    _connector="OR",
                ),
                name="cluster_reached_in_one_way",
            ),
        ),
        migrations.AddConstraint(
            model_name="namespacebinding",
            constraint=models.UniqueConstraint(fields=("cluster", "namespace"), name="binding_once"),
        ),
        migrations.AddConstraint(
            model_name="namespacebinding",
            constraint=models.CheckConstraint(
                condition=models.Q(("namespace__isnull", True), ("selector__isnull", True), _connector="XOR"),
                name="binding_by_name_or_labels",
            ),
        ),
        migrations.AddIndex(
            model_name="podclaim",
            index=models.Index(condition=models.Q(("ended_at", None)), fields=["cluster", "pod_uid"], name="pod_live"),
        ),
        migrations.AddIndex(
            model_name="podclaim",
            index=models.Index(fields=["cluster", "namespace", "-id"], name="pod_of_namespace"),
        ),
        migrations.AddConstraint(
            model_name="podclaim",
            constraint=models.UniqueConstraint(fields=("cluster", "pod_uid", "container"), name="pod_container_once"),
        ),
        migrations.AddConstraint(
            model_name="podclaim",
            constraint=models.CheckConstraint(
                condition=models.Q(
                    ("claim__isnull", False),
                    models.Q(("problem", ""), _negated=True),
                    ("ended_at__isnull", False),
                    _connector="OR",
                ),
                name="pod_without_claim_says_why",
            ),
        ),
    ]
