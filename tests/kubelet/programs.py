"""The programs of a node: kubelet, containerd with its shim and `ctr`, runc.

The kubelet is in the directory that KUBEBUILDER_ASSETS names, beside the control plane's programs; the others are in
the directory that GPUCLOUD_TEST_CRI names, or on the PATH.
"""

import os
import re
import shutil
import subprocess
from pathlib import Path

from tests.clusters import control_plane

RUNTIME = ("containerd", "containerd-shim-runc-v2", "ctr", "runc")
# The first with CDI enabled, and with the form of configuration that the tests write.
CONTAINERD_MAJOR = 2


def missing() -> str | None:
    """Return in words what this machine lacks for a node; None if nothing."""
    if (why := control_plane.missing()) is not None:
        return why
    if not os.access(kubelet(), os.X_OK):
        return f"no kubelet: kubelet is not in {kubelet().parent}"
    absent = [name for name in RUNTIME if find(name) is None]
    if absent:
        place = os.environ.get("GPUCLOUD_TEST_CRI") or "the PATH (GPUCLOUD_TEST_CRI names another directory)"
        return f"no container runtime: {', '.join(absent)} not in {place}"
    if os.geteuid() != 0:
        return "a kubelet needs root"
    return _too_old()


def kubelet() -> Path:
    """Return the path at which the kubelet must be."""
    return Path(os.environ["KUBEBUILDER_ASSETS"]) / "kubelet"


def find(name: str) -> str | None:
    """Return the path of one of the runtime's programs."""
    return shutil.which(name, path=os.environ.get("GPUCLOUD_TEST_CRI") or None)


def required(name: str) -> str:
    """Return the path of a program that `missing` has found."""
    path = find(name)
    assert path is not None, name
    return path


def _too_old() -> str | None:
    told = subprocess.run([required("containerd"), "--version"], capture_output=True, text=True, check=False).stdout
    found = re.search(r"\bv?(\d+)\.\d+\.\d+", told)
    if found is None or int(found[1]) < CONTAINERD_MAJOR:
        return f"containerd {CONTAINERD_MAJOR} or newer is needed: {told.strip() or 'it does not start'}"
    return None
