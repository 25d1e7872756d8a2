"""The Helm chart, and the program `helm` of the test environment."""

import functools
import shutil
import subprocess
import sys
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import pytest
import yaml

CHART = Path(__file__).resolve().parent.parent / "deploy" / "helm" / "gpucloud"
# The least that a release needs: databases of its own.
OUTSIDE = ("database.url=postgresql://user:word@database/gpucloud", "redis.url=redis://cache:6379/0")
EVERYTHING = (
    "database.mode=bundled", "redis.mode=bundled", "host=gpus.example.org", "webhooks.enabled=true",
    "webhooks.hideGpus=true", "dra.enabled=true", "sharepods.enabled=true", "networkPolicy.enabled=true",
    "ingress.enabled=true", "ingress.tlsSecretName=tls", "ingress.className=nginx", "agent.runtimeClassName=nvidia",
    "image.pullSecrets[0]=registry", "nodeSelector.pool=system",
)  # fmt: skip
Document = dict[str, Any]
_BESIDE_PYTHON = Path(sys.executable).with_name("helm")
HELM = str(_BESIDE_PYTHON) if _BESIDE_PYTHON.exists() else shutil.which("helm")
needs_helm = pytest.mark.skipif(HELM is None, reason="helm is not installed: there is no wheel for this machine")


def helm(*arguments: str, **variables: str) -> subprocess.CompletedProcess[str]:
    """Run helm without any cluster, unless the arguments name one."""
    environment = {"PATH": "/usr/bin:/bin", "HOME": "/nonexistent", "KUBECONFIG": "/nonexistent", **variables}
    return subprocess.run([str(HELM), *arguments], env=environment, capture_output=True, text=True, check=False)


def chosen(values: tuple[str, ...]) -> list[str]:
    """Return the arguments that set these values (NAME=VALUE)."""
    return [word for value in values for word in ("--set", value)]


def rendered(*values: str, namespace: str = "gpucloud") -> list[Document]:
    """Return the documents of a release `gpucloud` with these values."""
    return list(_rendered(values, namespace))


@functools.cache
def _rendered(values: tuple[str, ...], namespace: str) -> tuple[Document, ...]:
    done = helm("template", "gpucloud", str(CHART), "--namespace", namespace, *chosen(values))
    assert done.returncode == 0, done.stderr
    return tuple(one for one in yaml.load_all(done.stdout, Loader=yaml.CSafeLoader) if one)


def named(documents: list[Document], kind: str, name: str) -> Document:
    """Return the document of this kind and name."""
    return next(one for one in documents if one["kind"] == kind and one["metadata"]["name"] == name)


def templates(documents: list[Document]) -> Iterator[tuple[str, Document]]:
    for one in documents:
        if "template" in one.get("spec", {}):
            yield one["metadata"]["name"], one["spec"]["template"]["spec"]
        elif one["kind"] == "Pod":
            yield one["metadata"]["name"], one["spec"]


def containers(spec: Document) -> list[Document]:
    return [*spec.get("initContainers", []), *spec["containers"]]
